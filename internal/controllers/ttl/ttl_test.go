package ttl

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
)

func TestNodesOfALargerClusterKeepWhatTheyReadForLonger(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer w.Start(func(c controllers.Config) []controllertest.Runner { return []controllertest.Runner{New(c)} })()
		all := func(want string) {
			t.Helper()
			w.Settle()
			for _, node := range controllertest.List[*corev1.Node](w) {
				if got := node.Annotations["node.alpha.kubernetes.io/ttl"]; got != want {
					t.Fatalf("%s has %q, want %q", node.Name, got, want)
				}
			}
		}
		n := 0
		grow := func(to int) {
			for ; n < to; n++ {
				w.Create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%03d", n)}})
			}
		}
		grow(1)
		all("0")
		controllertest.Change(w, "node-000", func(n *corev1.Node) { n.Annotations["node.alpha.kubernetes.io/ttl"] = "often" })
		all("0")
		grow(100)
		all("0")
		grow(101)
		all("15")
		shrink := func(to int) {
			for ; n > to; n-- {
				controllertest.Delete[*corev1.Node](w, fmt.Sprintf("node-%03d", n-1))
			}
		}
		shrink(90) // near the edge nothing changes
		all("15")
		shrink(89)
		all("0")
		if writes := w.Writes()["patch nodes"]; writes != 100+1+101+89 {
			t.Errorf("%d writes", writes)
		}
	})
}

func TestStepsLeaveNoGap(t *testing.T) {
	for i := 1; i < len(steps); i++ {
		if below, above := steps[i-1], steps[i]; above.least > below.most || above.least <= below.least || above.seconds <= below.seconds {
			t.Errorf("%+v follows %+v", above, below)
		}
	}
}
