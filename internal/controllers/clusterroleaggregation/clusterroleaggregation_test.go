package clusterroleaggregation

import (
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
)

func role(w *controllertest.World, name, resource string) {
	r := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"into": "view"}}}
	if resource != "" {
		r.Rules = []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{resource}, Verbs: []string{"get"}}}
	}
	if _, err := client.Of[*rbacv1.ClusterRole](w.API).Create(w.T.Context(), r); err != nil {
		w.T.Fatal(err)
	}
	w.Settle()
}

func rules(w *controllertest.World, name string) (resources []string) {
	for _, r := range controllertest.Get[*rbacv1.ClusterRole](w, name).Rules {
		resources = append(resources, r.Resources...)
	}
	return resources
}

func TestRulesFollowTheRolesThatAreSelected(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer w.Start(func(c controllers.Config) []controllertest.Runner { return []controllertest.Runner{New(c)} })()
		view := &rbacv1.ClusterRole{
			ObjectMeta:      metav1.ObjectMeta{Name: "view"},
			AggregationRule: &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"into": "view"}}}},
		}
		if _, err := client.Of[*rbacv1.ClusterRole](w.API).Create(w.T.Context(), view); err != nil {
			t.Fatal(err)
		}
		role(w, "b", "secrets")
		role(w, "a", "pods")
		if got := rules(w, "view"); len(got) != 2 || got[0] != "pods" || got[1] != "secrets" {
			t.Errorf("rules %v", got)
		}
		w.Writes()
		controllertest.Change(w, "view", func(r *rbacv1.ClusterRole) { r.Labels = map[string]string{"x": "y"} })
		if got := w.Writes(); len(got) != 0 {
			t.Errorf("wrote %v", got)
		}
		controllertest.Change(w, "view", func(r *rbacv1.ClusterRole) { r.Rules = nil })
		controllertest.Delete[*rbacv1.ClusterRole](w, "b")
		if got := rules(w, "view"); len(got) != 1 || got[0] != "pods" {
			t.Errorf("rules after a deletion %v", got)
		}
	})
}
