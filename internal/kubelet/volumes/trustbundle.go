package volumes

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/utils/ptr"

	"proa/internal/client"
)

// trustBundleFile joins the certificates of the ClusterTrustBundles that a
// projection names or selects (KEP-3257), each once. Their order is that of
// their bytes: it carries no meaning and must not change between reads.
func (m *Manager) trustBundleFile(ctx context.Context, s *corev1.ClusterTrustBundleProjection, mode int32) (payload, error) {
	bundles, err := m.trustBundles(ctx, s)
	optional := ptr.Deref(s.Optional, false)
	if apierrors.IsNotFound(err) && optional {
		err = nil
	}
	if err != nil {
		return nil, err
	}
	if len(bundles) == 0 && !optional {
		return nil, errors.New("combination of signerName and labelSelector matched zero ClusterTrustBundles")
	}
	var certs [][]byte
	for _, b := range bundles {
		list, err := certificates(b.Spec.TrustBundle)
		if err != nil {
			return nil, fmt.Errorf("clustertrustbundle %q: %w", b.Name, err)
		}
		certs = append(certs, list...)
	}
	slices.SortFunc(certs, bytes.Compare)
	certs = slices.CompactFunc(certs, bytes.Equal)
	var out bytes.Buffer
	for _, der := range certs {
		if err := pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: der}); err != nil {
			return nil, err
		}
	}
	return payload{s.Path: {Data: out.Bytes(), Mode: mode}}, nil
}

func (m *Manager) trustBundles(ctx context.Context, s *corev1.ClusterTrustBundleProjection) ([]*certificatesv1.ClusterTrustBundle, error) {
	ref := client.Ref{Resource: certificatesv1.SchemeGroupVersion.WithResource("clustertrustbundles")}
	if s.Name != nil {
		ref.Name = *s.Name
		obj, err := m.api.Get(ctx, ref, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		return onlyBundles([]client.Object{obj})
	}
	if s.SignerName == nil {
		return nil, errors.New("clusterTrustBundle projection has neither name nor signerName")
	}
	if s.LabelSelector == nil {
		return nil, nil // an empty one selects everything
	}
	selector, err := metav1.LabelSelectorAsSelector(s.LabelSelector)
	if err != nil {
		return nil, fmt.Errorf("parse label selector: %w", err)
	}
	list, err := m.api.List(ctx, ref, metav1.ListOptions{
		LabelSelector: selector.String(),
		FieldSelector: fields.OneTermEqualSelector("spec.signerName", *s.SignerName).String(),
	})
	if err != nil {
		return nil, err
	}
	return onlyBundles(list.Items)
}

func onlyBundles(objs []client.Object) ([]*certificatesv1.ClusterTrustBundle, error) {
	out := make([]*certificatesv1.ClusterTrustBundle, 0, len(objs))
	for _, obj := range objs {
		b, ok := obj.(*certificatesv1.ClusterTrustBundle)
		if !ok {
			return nil, fmt.Errorf("unexpected %T", obj)
		}
		out = append(out, b)
	}
	return out, nil
}

// certificates returns the DER of each certificate in a PEM text.
func certificates(text string) ([][]byte, error) {
	var out [][]byte
	for rest := []byte(text); ; {
		var block *pem.Block
		block, rest = pem.Decode(rest)
		if block == nil {
			return out, nil
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("unexpected PEM block %q", block.Type)
		}
		out = append(out, block.Bytes)
	}
}
