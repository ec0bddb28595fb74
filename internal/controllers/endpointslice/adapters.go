package endpointslice

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	discoveryclient "k8s.io/client-go/kubernetes/typed/discovery/v1"
	corelisters "k8s.io/client-go/listers/core/v1"

	"proa/internal/client"
	"proa/internal/controllers"
)

// slicesOnly is our client in the shape the library wants: the three writes of
// EndpointSlices, with the context that the library does not pass on.
type slicesOnly struct {
	kubernetes.Interface
	ctx    context.Context
	slices *client.Informer[*discoveryv1.EndpointSlice]
}

func (s *slicesOnly) DiscoveryV1() discoveryclient.DiscoveryV1Interface { return slicesGroup{s: s} }

type slicesGroup struct {
	discoveryclient.DiscoveryV1Interface
	s *slicesOnly
}

func (g slicesGroup) EndpointSlices(namespace string) discoveryclient.EndpointSliceInterface {
	return slicesIn{s: g.s, namespace: namespace}
}

type slicesIn struct {
	discoveryclient.EndpointSliceInterface
	s         *slicesOnly
	namespace string
}

func (n slicesIn) Create(_ context.Context, slice *discoveryv1.EndpointSlice, _ metav1.CreateOptions) (*discoveryv1.EndpointSlice, error) {
	return n.s.slices.Create(n.s.ctx, slice)
}

func (n slicesIn) Update(_ context.Context, slice *discoveryv1.EndpointSlice, _ metav1.UpdateOptions) (*discoveryv1.EndpointSlice, error) {
	return n.s.slices.Update(n.s.ctx, slice)
}

func (n slicesIn) Delete(_ context.Context, name string, opts metav1.DeleteOptions) error {
	_, err := n.s.slices.Delete(n.s.ctx, n.namespace, name, opts)
	return err
}

type nodeLister struct{ *client.Informer[*corev1.Node] }

func (l nodeLister) List(selector labels.Selector) ([]*corev1.Node, error) {
	return l.Select("", selector), nil
}

func (l nodeLister) Get(name string) (*corev1.Node, error) {
	if node, ok := l.Cached("", name); ok {
		return node, nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource("nodes"), name)
}

type serviceLister struct {
	*client.Informer[*corev1.Service]
}

func (l serviceLister) List(selector labels.Selector) ([]*corev1.Service, error) {
	return l.Select("", selector), nil
}

func (l serviceLister) Services(namespace string) corelisters.ServiceNamespaceLister {
	return serviceNamespace{l, namespace}
}

type serviceNamespace struct {
	services  serviceLister
	namespace string
}

func (n serviceNamespace) List(selector labels.Selector) ([]*corev1.Service, error) {
	return n.services.Select(n.namespace, selector), nil
}

func (n serviceNamespace) Get(name string) (*corev1.Service, error) {
	if svc, ok := n.services.Cached(n.namespace, name); ok {
		return svc, nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource("services"), name)
}

func sameTopology(a, b *corev1.Node) bool {
	return equality.Semantic.DeepEqual(a.Labels, b.Labels) &&
		equality.Semantic.DeepEqual(a.Status.Allocatable, b.Status.Allocatable) &&
		ready(a) == ready(b)
}

func ready(node *corev1.Node) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func parseKey(key string) controllers.Key {
	namespace, name, _ := strings.Cut(key, "/")
	return controllers.Key{Namespace: namespace, Name: name}
}
