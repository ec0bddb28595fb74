package discovery

import (
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apidiscovery "k8s.io/api/apidiscovery/v2"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

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
	for _, g := range contentsOf(catalogue().All(), nil).apiGroups().Groups {
		names = append(names, g.Name)
		preferred = append(preferred, g.PreferredVersion.Version)
	}
	if !slices.Equal(names, []string{"autoscaling", "a.example.com", "b.example.com"}) || preferred[0] != "v2" {
		t.Errorf("%q, %q", names, preferred)
	}
}

func TestAggregatedDocumentFollowsTheCatalogue(t *testing.T) {
	c := catalogue()
	h := New(Config{Catalogue: c})
	get := func() (etag, body string) {
		r := httptest.NewRequest("GET", "/apis", nil)
		r.Header.Set("Accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
		w := httptest.NewRecorder()
		if found, err := h.ServeHTTP(w, r); !found || err != nil {
			t.Fatal(found, err)
		}
		return w.Header().Get("ETag"), w.Body.String()
	}
	before, body := get()
	if !strings.Contains(body, `"apiVersion":"apidiscovery.k8s.io/v2"`) || strings.Contains(body, `"Pod"`) {
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

func TestAVersionOfAnotherServerTakesItsPlace(t *testing.T) {
	c := catalogue()
	remotes := &Remotes{List: []Remote{
		{GroupVersion: schema.GroupVersion{Group: "a.example.com", Version: "v1"}, GroupPriority: 2000, VersionPriority: 10, Stale: true},
		{GroupVersion: schema.GroupVersion{Group: "autoscaling", Version: "v3"}, GroupPriority: 1, VersionPriority: 1000,
			Document: &apidiscovery.APIVersionDiscovery{Version: "v3", Resources: []apidiscovery.APIResourceDiscovery{{Resource: "things"}}}},
	}}
	got := contentsOf(c.All(), remotes).aggregated(false)
	var lines []string
	for _, g := range got.Items {
		for _, v := range g.Versions {
			lines = append(lines, fmt.Sprintf("%s/%s %s %d", g.Name, v.Version, v.Freshness, len(v.Resources)))
		}
	}
	want := []string{
		"autoscaling/v3 Current 1", "autoscaling/v2 Current 1", "autoscaling/v1 Current 1",
		"a.example.com/v1 Stale 0", "b.example.com/v1 Current 1",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("got %q\nwant %q", lines, want)
	}
}

func TestReadsTheOldFormOfDiscovery(t *testing.T) {
	body := `{"kind":"APIResourceList","groupVersion":"x/v1","resources":[
		{"name":"foos","singularName":"foo","namespaced":true,"kind":"Foo","verbs":["get"],"shortNames":["f"]},
		{"name":"foos/scale","namespaced":true,"group":"autoscaling","version":"v1","kind":"Scale","verbs":["update"]},
		{"name":"bars/status","namespaced":false,"kind":"Bar","verbs":["get"]}]}`
	got, err := FromResourceList(schema.GroupVersion{Group: "x", Version: "v1"}, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	want := &apidiscovery.APIVersionDiscovery{Version: "v1", Resources: []apidiscovery.APIResourceDiscovery{
		{Resource: "foos", ResponseKind: &metav1.GroupVersionKind{Group: "x", Version: "v1", Kind: "Foo"}, Scope: apidiscovery.ScopeNamespace,
			SingularResource: "foo", Verbs: []string{"get"}, ShortNames: []string{"f"},
			Subresources: []apidiscovery.APISubresourceDiscovery{{Subresource: "scale", Verbs: []string{"update"},
				ResponseKind: &metav1.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"}}}},
		{Resource: "bars", ResponseKind: &metav1.GroupVersionKind{}, Scope: apidiscovery.ScopeCluster,
			Subresources: []apidiscovery.APISubresourceDiscovery{{Subresource: "status", Verbs: []string{"get"},
				ResponseKind: &metav1.GroupVersionKind{Group: "x", Version: "v1", Kind: "Bar"}}}},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
