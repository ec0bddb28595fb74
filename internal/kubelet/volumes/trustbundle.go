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
	"k8s.io/utils/ptr"
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
	if s.Name != nil {
		b, err := m.bundles.Named(ctx, *s.Name)
		if err != nil {
			return nil, err
		}
		return []*certificatesv1.ClusterTrustBundle{b}, nil
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
	return m.bundles.Signed(ctx, *s.SignerName, selector)
}

// ProjectsTrustBundles tells whether a volume of the pod shows ClusterTrustBundles.
func ProjectsTrustBundles(pod *corev1.Pod) bool {
	for i := range pod.Spec.Volumes {
		if p := pod.Spec.Volumes[i].Projected; p != nil {
			for _, s := range p.Sources {
				if s.ClusterTrustBundle != nil {
					return true
				}
			}
		}
	}
	return false
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
