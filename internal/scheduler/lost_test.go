package scheduler

import (
	"context"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/client"
	"proa/internal/store/memory"
)

// losing is an API that loses the answer to the first create of some kinds.
type losing struct {
	client.API
	mu   sync.Mutex
	left map[string]bool // "resource/subresource"
}

func (l *losing) Create(ctx context.Context, ref client.Ref, obj client.Object, opts metav1.CreateOptions) (client.Object, error) {
	created, err := l.API.Create(ctx, ref, obj, opts)
	l.mu.Lock()
	defer l.mu.Unlock()
	what := ref.Resource.Resource + "/" + ref.Subresource
	if err == nil && l.left[what] {
		delete(l.left, what)
		return nil, apierrors.NewTimeoutError("the answer is lost", 0)
	}
	return created, err
}

func TestAPodForDevicesOutlivesALostAnswer(t *testing.T) {
	for name, what := range map[string]string{"to its claim": "resourceclaims/", "to its binding": "pods/binding"} {
		t.Run(name, func(t *testing.T) {
			w := start(t, &losing{API: newServer(t, memory.New()), left: map[string]bool{what: true}})
			create(w, &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}, Spec: resourcev1.DeviceClassSpec{ExtendedResourceName: new("example.com/gpu")}})
			create(w, node("a", "4", "1Gi"))
			gpus(w, "a", 2)
			create(w, pod("p", "1m", func(p *corev1.Pod) {
				p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"example.com/gpu": resource.MustParse("1")}
				p.Spec.Containers[0].Resources.Requests["example.com/gpu"] = resource.MustParse("1")
			}))
			w.noted("p Normal Scheduled")
			claims, err := client.Of[*resourcev1.ResourceClaim](w.api).List(t.Context(), "default", metav1.ListOptions{})
			if err != nil || len(claims) != 1 {
				t.Fatalf("%d claims, %v", len(claims), err)
			}
			p, err := w.pods.Resource.Get(t.Context(), "default", "p")
			if err != nil {
				t.Fatal(err)
			}
			if s := p.Status.ExtendedResourceClaimStatus; s == nil || s.ResourceClaimName != claims[0].Name || claims[0].DeletionTimestamp != nil {
				t.Errorf("the pod has %+v of %s, deleted %v", s, claims[0].Name, claims[0].DeletionTimestamp)
			}
		})
	}
}
