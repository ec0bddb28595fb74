package apiservice

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"proa/internal/apis"
	"proa/internal/apis/apiregistration"
	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
)

// foos is the kind of a definition.
func foos() *apis.Resource {
	return &apis.Resource{Group: "example.com", Version: "v2", Kind: "Foo", Plural: "foos", Custom: &apis.Custom{},
		New:     func() apis.Object { return &unstructured.Unstructured{} },
		NewList: func() runtime.Object { return &unstructured.UnstructuredList{} }}
}

// names are those of all APIServices.
func names(w *controllertest.World) string {
	var list []string
	for _, s := range controllertest.List[*apiService](w) {
		list = append(list, s.Name)
	}
	return " " + strings.Join(list, " ") + " "
}

func start(w *controllertest.World) (stop func()) {
	return w.Start(func(c controllers.Config) []controllertest.Runner {
		return []controllertest.Runner{NewRegistration(c, w.Catalogue)}
	})
}

func TestBuiltInGroupVersionsAreRegisteredWhenTheServerStarts(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		stop := start(w)
		for _, name := range []string{"v1.", "v1.apps", "v2.autoscaling", "v1.apiregistration.k8s.io"} {
			if !strings.Contains(names(w), " "+name+" ") {
				t.Errorf("%s is missing", name)
			}
		}
		controllertest.Change(w, "v1.batch", func(s *apiService) { s.Spec.VersionPriority = 7 })
		controllertest.Change(w, "v1.apps", func(s *apiService) { s.Spec.VersionPriority, s.Labels = 8, nil })
		controllertest.Delete[*apiService](w, "v1.policy")
		if got := controllertest.Get[*apiService](w, "v1.batch"); got.Spec.VersionPriority != 7 {
			t.Error("a user's change is undone while the server runs")
		}
		if strings.Contains(names(w), " v1.policy ") {
			t.Error("what a user deleted comes back while the server runs")
		}
		stop()
		w.Create(&apiService{
			ObjectMeta: metav1.ObjectMeta{Name: "v9.apps", Labels: map[string]string{apiregistration.AutomanagedLabel: apiregistration.OnStart}},
			Spec:       apiregistrationv1.APIServiceSpec{Group: "apps", Version: "v9", GroupPriorityMinimum: 1, VersionPriority: 1},
		})
		defer start(w)()
		if got := controllertest.Get[*apiService](w, "v1.batch"); got.Spec.VersionPriority != 15 {
			t.Errorf("after a restart: %+v", got.Spec)
		}
		if got := controllertest.Get[*apiService](w, "v1.apps"); got.Spec.VersionPriority != 8 || len(got.Labels) > 0 {
			t.Error("one without the label is touched")
		}
		if all := names(w); !strings.Contains(all, " v1.policy ") || strings.Contains(all, " v9.apps ") {
			t.Errorf("after a restart there are%s", all)
		}
	})
}

func TestGroupVersionsOfCustomResourcesFollowTheirDefinitions(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer start(w)()
		if err := w.Catalogue.Add(foos()); err != nil {
			t.Fatal(err)
		}
		w.Settle()
		s := controllertest.Get[*apiService](w, "v2.example.com")
		if s.Labels[apiregistration.AutomanagedLabel] != "true" || s.Spec.GroupPriorityMinimum != 1000 || s.Spec.VersionPriority != 100 {
			t.Errorf("%+v", s)
		}
		controllertest.Change(w, "v2.example.com", func(s *apiService) { s.Spec.GroupPriorityMinimum = 5 })
		if got := controllertest.Get[*apiService](w, "v2.example.com"); got.Spec.GroupPriorityMinimum != 1000 {
			t.Error("a change stays")
		}
		controllertest.Delete[*apiService](w, "v2.example.com")
		if !strings.Contains(names(w), " v2.example.com ") {
			t.Error("a deleted one does not come back")
		}
		w.Catalogue.Remove(schema.GroupResource{Group: "example.com", Resource: "foos"})
		w.Settle()
		if strings.Contains(names(w), " v2.example.com ") {
			t.Error("it stays without its definition")
		}
	})
}

func TestBuiltInMetricsGiveWayToAServerOfTheirGroup(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		metrics := foos()
		metrics.Group, metrics.Version, metrics.Custom = apiregistration.MetricsGroup, "v1beta1", nil
		if err := w.Catalogue.Add(metrics); err != nil {
			t.Fatal(err)
		}
		stop := start(w)
		const name = "v1beta1.metrics.k8s.io"
		controllertest.Change(w, name, func(s *apiService) {
			s.Spec.Service = &apiregistrationv1.ServiceReference{Namespace: "kube-system", Name: "metrics-server"}
		})
		stop()
		defer start(w)()
		if s := controllertest.Get[*apiService](w, name); s.Spec.Service == nil || *s.Spec.Service.Port != 443 {
			t.Errorf("%+v", s.Spec)
		}
	})
}
