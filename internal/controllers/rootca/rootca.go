// Package rootca publishes the cluster's CA in every namespace, for pods to
// verify the API server with.
package rootca

import (
	"context"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"proa/internal/client"
	"proa/internal/controllers"
)

const (
	configMapName         = "kube-root-ca.crt"
	descriptionAnnotation = "kubernetes.io/description"
	description           = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. " +
		"No other usage is guaranteed across distributions of Kubernetes clusters."
)

// Controller keeps the ConfigMap kube-root-ca.crt in every active namespace.
type Controller struct {
	loop       *controllers.Loop
	namespaces *client.Informer[*corev1.Namespace]
	configMaps *client.Informer[*corev1.ConfigMap]
	data       map[string]string
	clock      clock.PassiveClock
	measures   measures
}

// New returns a controller that publishes the PEM certificates of ca.
func New(c controllers.Config, ca []byte) *Controller {
	r := &Controller{
		namespaces: client.Shared[*corev1.Namespace](c.Cache),
		configMaps: client.Shared[*corev1.ConfigMap](c.Cache),
		data:       map[string]string{"ca.crt": string(ca)},
		clock:      c.Clock,
		measures:   newMeasures(),
	}
	c.Register(r.measures.syncs, r.measures.took)
	r.loop = controllers.NewLoop("root_ca_cert_publisher", c, r.reconcile)
	r.namespaces.OnChange(func(_, ns *corev1.Namespace) {
		if ns != nil {
			r.loop.EnqueueObject(ns)
		}
	})
	r.configMaps.OnChange(func(old, cm *corev1.ConfigMap) {
		if cm == nil {
			cm = old
		}
		if cm.Name == configMapName {
			r.loop.Enqueue(controllers.Key{Name: cm.Namespace})
		}
	})
	return r
}

// Run works until ctx ends.
func (r *Controller) Run(ctx context.Context) error { return r.loop.Run(ctx) }

func (r *Controller) reconcile(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	began := r.clock.Now()
	err := r.sync(ctx, key)
	r.measures.synced(err, r.clock.Since(began))
	return controllers.Result{}, err
}

func (r *Controller) sync(ctx context.Context, key controllers.Key) error {
	ns, ok := r.namespaces.Cached("", key.Name)
	if !ok || ns.Status.Phase != corev1.NamespaceActive {
		return nil
	}
	cm, ok := r.configMaps.Cached(ns.Name, configMapName)
	if ok && maps.Equal(cm.Data, r.data) && cm.Annotations[descriptionAnnotation] == description {
		return nil
	}
	return r.publish(ctx, ns.Name, cm)
}

func (r *Controller) publish(ctx context.Context, namespace string, current *corev1.ConfigMap) error {
	if current == nil {
		_, err := r.configMaps.Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{
				Name: configMapName, Namespace: namespace,
				Annotations: map[string]string{descriptionAnnotation: description},
			},
			Data: maps.Clone(r.data),
		})
		if apierrors.IsAlreadyExists(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return nil
		}
		return err
	}
	cm := current.DeepCopy()
	cm.Data = maps.Clone(r.data)
	metav1.SetMetaDataAnnotation(&cm.ObjectMeta, descriptionAnnotation, description)
	_, err := r.configMaps.Update(ctx, cm)
	return err
}
