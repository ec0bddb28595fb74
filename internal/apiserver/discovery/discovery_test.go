package discovery

import (
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"proa/internal/apis"
)

func custom(group, kind string) *apis.Resource {
	return &apis.Resource{Group: group, Version: "v1", Kind: kind, Plural: strings.ToLower(kind) + "s",
		New:     func() apis.Object { return &unstructured.Unstructured{} },
		NewList: func() runtime.Object { return &unstructured.UnstructuredList{} }}
}

func catalogue() *apis.Catalogue {
	return apis.NewCatalogue(
		custom("b.example.com", "Foo"), custom("a.example.com", "Bar"),
		&apis.Resource{Version: "v1", Kind: "Pod", Plural: "pods", New: apis.New[corev1.Pod], NewList: apis.NewList[corev1.PodList]},
		&apis.Resource{Group: "autoscaling", Version: "v1", Kind: "HorizontalPodAutoscaler", Plural: "horizontalpodautoscalers",
			New: apis.New[autoscalingv1.HorizontalPodAutoscaler], NewList: apis.NewList[autoscalingv1.HorizontalPodAutoscalerList],
			Also: []apis.Served{{Group: "autoscaling", Version: "v2", Kind: "HorizontalPodAutoscaler",
				New: apis.New[autoscalingv2.HorizontalPodAutoscaler], NewList: apis.NewList[autoscalingv2.HorizontalPodAutoscalerList]}}},
	)
}

func TestGroupsComeInTheOrderClientsPrefer(t *testing.T) {
	var names, preferred []string
	for _, g := range Groups(catalogue().All()).Groups {
		names = append(names, g.Name)
		preferred = append(preferred, g.PreferredVersion.Version)
	}
	if !slices.Equal(names, []string{"autoscaling", "a.example.com", "b.example.com"}) || preferred[0] != "v2" {
		t.Errorf("%q, %q", names, preferred)
	}
}

func TestAggregatedDocumentFollowsTheCatalogue(t *testing.T) {
	c := catalogue()
	h := New(c, "")
	get := func() (etag, body string) {
		r := httptest.NewRequest("GET", "/apis", nil)
		r.Header.Set("Accept", "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList")
		w := httptest.NewRecorder()
		if found, err := h.ServeHTTP(w, r); !found || err != nil {
			t.Fatal(found, err)
		}
		return w.Header().Get("ETag"), w.Body.String()
	}
	before, body := get()
	if !strings.Contains(body, `"apiVersion":"apidiscovery.k8s.io/v2beta1"`) || strings.Contains(body, `"Pod"`) {
		t.Error(body)
	}
	if again, _ := get(); again != before {
		t.Error("the ETag changed without the catalogue")
	}
	c.Remove(custom("a.example.com", "Bar").GroupResource())
	if after, body := get(); after == before || strings.Contains(body, "a.example.com") {
		t.Error("the removed group is still there")
	}
}

func TestCreateOnlyKindsHaveNoStorageVersion(t *testing.T) {
	r := &apis.Resource{Group: "x", Version: "v1", Kind: "Review", Plural: "reviews", Verbs: []string{"create"}}
	if storageHash(r) != "" {
		t.Error("a kind that is not stored has a storage version")
	}
	r.Verbs = nil
	if got := storageHash(r); len(got) != 12 {
		t.Errorf("%q", got)
	}
}
