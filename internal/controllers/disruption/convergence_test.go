package disruption_test

import (
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
	"proa/internal/controllers/disruption"
	"proa/internal/controllers/replicaset"
)

var app = map[string]string{"app": "web"}

func start(w *controllertest.World) func() {
	return w.Start(func(c controllers.Config) []controllertest.Runner {
		return []controllertest.Runner{disruption.New(c, w.Catalogue), replicaset.New(c)}
	})
}

func web(replicas int32) *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: app},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: app},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "one"}}},
			},
		},
	}
}

func budget(spec policyv1.PodDisruptionBudgetSpec) *policyv1.PodDisruptionBudget {
	spec.Selector = &metav1.LabelSelector{MatchLabels: app}
	return &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: spec}
}

func state(w *controllertest.World) string {
	s := controllertest.Get[*policyv1.PodDisruptionBudget](w, "web").Status
	return fmt.Sprintf("%d of %d healthy, %d needed, %d allowed: %s", s.CurrentHealthy, s.ExpectedPods, s.DesiredHealthy, s.DisruptionsAllowed, s.Conditions[0].Reason)
}

func TestABudgetCounts(t *testing.T) {
	number, percent := func(n int32) *intstr.IntOrString { return new(intstr.FromInt32(n)) }, func(s string) *intstr.IntOrString { return new(intstr.FromString(s)) }
	tests := []struct {
		name  string
		spec  policyv1.PodDisruptionBudgetSpec
		ready int
		want  string
	}{
		{"maxUnavailable as a number", policyv1.PodDisruptionBudgetSpec{MaxUnavailable: number(1)}, 4, "4 of 4 healthy, 3 needed, 1 allowed: SufficientPods"},
		{"maxUnavailable as a part, rounded up", policyv1.PodDisruptionBudgetSpec{MaxUnavailable: percent("30%")}, 4, "4 of 4 healthy, 2 needed, 2 allowed: SufficientPods"},
		{"minAvailable as a number", policyv1.PodDisruptionBudgetSpec{MinAvailable: number(1)}, 4, "4 of 4 healthy, 1 needed, 3 allowed: SufficientPods"},
		{"minAvailable as a part, rounded up", policyv1.PodDisruptionBudgetSpec{MinAvailable: percent("60%")}, 4, "4 of 4 healthy, 3 needed, 1 allowed: SufficientPods"},
		{"pods that are not ready use the budget up", policyv1.PodDisruptionBudgetSpec{MaxUnavailable: number(1)}, 3, "3 of 4 healthy, 3 needed, 0 allowed: InsufficientPods"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			controllertest.Run(t, func(w *controllertest.World) {
				defer start(w)()
				w.Create(web(4))
				w.Create(budget(tt.spec))
				w.Settle()
				n := 0
				w.RunPods(func(*corev1.Pod) bool { n++; return n <= tt.ready })
				if got := state(w); got != tt.want {
					t.Errorf("\n got %s\nwant %s", got, tt.want)
				}
			})
		})
	}
}

func TestEvictionsTakeFromTheBudgetUntilReplacementsAreReady(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer start(w)()
		w.Create(web(2))
		w.Create(budget(policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromInt32(1))}))
		w.Settle()
		w.Converge()
		evict := func(pod *corev1.Pod) error {
			_, err := client.Of[*corev1.Pod](w.API).CreateSubresource(w.T.Context(), pod.Namespace, pod.Name, "eviction",
				&policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace}})
			w.Settle()
			return err
		}
		pods := w.Pods("app=web")
		if err := evict(pods[0]); err != nil {
			t.Fatal(err)
		}
		if err := evict(pods[1]); !apierrors.IsTooManyRequests(err) {
			t.Errorf("second eviction: %v", err)
		}
		w.Converge()
		if got, want := state(w), "2 of 2 healthy, 1 needed, 1 allowed: SufficientPods"; got != want {
			t.Errorf("\n got %s\nwant %s", got, want)
		}
		if d := controllertest.Get[*policyv1.PodDisruptionBudget](w, "web").Status.DisruptedPods; len(d) != 0 {
			t.Errorf("still disrupted: %v", d)
		}
	})
}

func TestAnEvictionThatCameToNothingIsForgotten(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer start(w)()
		w.Create(web(2))
		w.Create(budget(policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromInt32(1))}))
		w.Settle()
		w.Converge()
		pod := w.Pods("app=web")[0]
		controllertest.ChangeStatus(w, "web", func(b *policyv1.PodDisruptionBudget) {
			b.Status.DisruptionsAllowed, b.Status.DisruptedPods = 0, map[string]metav1.Time{pod.Name: metav1.Now()}
		})
		if got, want := state(w), "1 of 2 healthy, 1 needed, 0 allowed: InsufficientPods"; got != want {
			t.Errorf("\n got %s\nwant %s", got, want)
		}
		time.Sleep(3 * time.Minute)
		w.Settle()
		if got, want := state(w), "2 of 2 healthy, 1 needed, 1 allowed: SufficientPods"; got != want {
			t.Errorf("\n got %s\nwant %s", got, want)
		}
	})
}
