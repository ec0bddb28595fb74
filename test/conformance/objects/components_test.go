package objects

import (
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/pkg/proatest"
)

// TestComponentsTellHowTheyAre asks a server that has a store and neither of the
// daemons beside it.
func TestComponentsTellHowTheyAre(t *testing.T) {
	t.Parallel()
	s := newServer(t, proatest.Options{})
	list, err := s.CoreV1().ComponentStatuses().List(within(t), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	healthy := map[string]corev1.ComponentCondition{}
	for _, c := range list.Items {
		if len(c.Conditions) != 1 || c.Conditions[0].Type != corev1.ComponentHealthy {
			t.Fatalf("%s has the conditions %v", c.Name, c.Conditions)
		}
		healthy[c.Name] = c.Conditions[0]
	}
	if c := healthy["etcd-0"]; len(healthy) != 3 || c.Status != corev1.ConditionTrue || c.Message != "ok" || c.Error != "" {
		t.Errorf("the components are %v", healthy)
	}
	for _, name := range []string{"controller-manager", "scheduler"} {
		if c := healthy[name]; c.Status != corev1.ConditionFalse || c.Message == "" {
			t.Errorf("%s, which does not run, is %v", name, c)
		}
	}
	if _, err := s.CoreV1().ComponentStatuses().Get(within(t), "nobody", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("of a component that is not there: %v", err)
	}
	text, err := s.CoreV1().RESTClient().Get().AbsPath("/api/v1/componentstatuses/etcd-0").
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Do(within(t)).Raw()
	if err != nil {
		t.Fatal(err)
	}
	var table metav1.Table
	if err := json.Unmarshal(text, &table); err != nil || len(table.Rows) != 1 || len(table.ColumnDefinitions) != 4 {
		t.Fatalf("the table is %s (%v)", text, err)
	}
	for i, want := range []any{"etcd-0", "Healthy", "ok", ""} {
		if got := table.Rows[0].Cells[i]; got != want {
			t.Errorf("column %s is %v, want %v", table.ColumnDefinitions[i].Name, got, want)
		}
	}
}
