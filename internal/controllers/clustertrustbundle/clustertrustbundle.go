// Package clustertrustbundle publishes the authority of the API server's serving
// certificates as a ClusterTrustBundle, for pods to project (KEP-3257).
package clustertrustbundle

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"proa/internal/client"
	"proa/internal/controllers"
)

// Signer is whose bundle it is.
const Signer = "kubernetes.io/kube-apiserver-serving"

// Controller keeps one bundle of the signer, and no other.
type Controller struct {
	loop    *controllers.Loop
	bundles *client.Informer[*certificatesv1.ClusterTrustBundle]
	want    *certificatesv1.ClusterTrustBundle
}

// New returns a controller that publishes the PEM certificates of ca, under a
// name that tells them from those before.
func New(c controllers.Config, ca []byte) *Controller {
	digest := sha256.Sum256(ca)
	b := &Controller{
		bundles: client.Filtered[*certificatesv1.ClusterTrustBundle](c.Cache, metav1.ListOptions{FieldSelector: "spec.signerName=" + Signer}),
		want: &certificatesv1.ClusterTrustBundle{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s:%x", strings.ReplaceAll(Signer, "/", ":"), digest[:12])},
			Spec:       certificatesv1.ClusterTrustBundleSpec{SignerName: Signer, TrustBundle: string(ca)},
		},
	}
	c.Workers = 1
	b.loop = controllers.NewLoop("ca_cert_publisher_cluster_trust_bundles", c, b.reconcile)
	b.bundles.OnChange(func(_, _ *certificatesv1.ClusterTrustBundle) { b.enqueue() })
	return b
}

func (b *Controller) enqueue() { b.loop.Enqueue(controllers.Key{Name: b.want.Name}) }

// Run works until ctx ends.
func (b *Controller) Run(ctx context.Context) error {
	b.enqueue()
	return b.loop.Run(ctx)
}

func (b *Controller) reconcile(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	if err := b.publish(ctx); err != nil {
		return controllers.Result{}, err
	}
	var errs []error
	for _, other := range b.bundles.Select("", labels.Everything()) {
		if other.Name == key.Name {
			continue
		}
		if _, err := b.bundles.Delete(ctx, "", other.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return controllers.Result{}, errors.Join(errs...)
}

func (b *Controller) publish(ctx context.Context) error {
	current, ok := b.bundles.Cached("", b.want.Name)
	if !ok {
		_, err := b.bundles.Create(ctx, b.want.DeepCopy())
		if apierrors.IsAlreadyExists(err) {
			err = nil // the change that is on its way here
		}
		return err
	}
	if current.Spec.TrustBundle == b.want.Spec.TrustBundle {
		return nil
	}
	next := current.DeepCopy()
	next.Spec.TrustBundle = b.want.Spec.TrustBundle
	_, err := b.bundles.Update(ctx, next)
	return err
}
