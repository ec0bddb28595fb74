package deployment_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
	"proa/internal/controllers/deployment"
	"proa/internal/controllers/replicaset"
)

func web(replicas int32) *appsv1.Deployment {
	app := map[string]string{"app": "web"}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: app},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: app},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "one"}}},
			},
		},
	}
}

func start(w *controllertest.World) func() {
	return w.Start(func(c controllers.Config) []controllertest.Runner {
		return []controllertest.Runner{deployment.New(c), replicaset.New(c)}
	})
}

func TestATenReplicaDeploymentCostsSixteenWrites(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		stop := start(w)
		w.Create(web(10))
		w.Settle()
		stop()
		w.RunPods(nil) // all become ready before the controllers see one
		defer start(w)()
		want := map[string]int{
			"create replicasets": 1, "create pods": 10,
			"update deployments/status": 3, "update replicasets/status": 2,
		}
		if got := w.Writes(); !maps.Equal(got, want) {
			t.Errorf("writes:\n got %v\nwant %v", got, want)
		}
	})
}

func setImage(image string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = image }
}

func rolling(surge, unavailable int32) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) {
		d.Spec.Strategy = appsv1.DeploymentStrategy{
			Type: appsv1.RollingUpdateDeploymentStrategyType,
			RollingUpdate: &appsv1.RollingUpdateDeployment{
				MaxSurge: new(intstr.FromInt32(surge)), MaxUnavailable: new(intstr.FromInt32(unavailable)),
			},
		}
	}
}

// sizes prints the ReplicaSets in order of revision: "1:one=2 2:two=3".
func sizes(w *controllertest.World) string {
	var found []string
	for _, rs := range controllertest.List[*appsv1.ReplicaSet](w) {
		found = append(found, fmt.Sprintf("%s:%s=%d", rs.Annotations["deployment.kubernetes.io/revision"], rs.Spec.Template.Spec.Containers[0].Image, *rs.Spec.Replicas))
	}
	slices.Sort(found)
	return strings.Join(found, " ")
}

func progressing(w *controllertest.World) string {
	for _, c := range controllertest.Get[*appsv1.Deployment](w, "web").Status.Conditions {
		if c.Type == appsv1.DeploymentProgressing {
			return string(c.Status) + " " + c.Reason
		}
	}
	return ""
}

func want(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %s, want %s", what, got, want)
	}
}

func create(w *controllertest.World, replicas int32, change ...func(*appsv1.Deployment)) {
	d := web(replicas)
	for _, f := range change {
		f(d)
	}
	w.Create(d)
	w.Settle()
	w.Converge()
}

func TestARollingUpdateKeepsWithinItsBounds(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer start(w)()
		create(w, 4)
		controllertest.Change(w, "web", setImage("two"))
		for range 100 {
			ready, alive := 0, 0
			for _, pod := range w.Pods("app=web") {
				if pod.DeletionTimestamp != nil {
					continue
				}
				alive++
				if slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
					return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
				}) {
					ready++
				}
			}
			if ready < 3 || alive > 5 {
				t.Fatalf("%d ready of %d pods", ready, alive)
			}
			if !w.RunPods(nil) {
				break
			}
		}
		want(t, "replica sets", sizes(w), "1:one=0 2:two=4")
		want(t, "progress", progressing(w), "True NewReplicaSetAvailable")
		d := controllertest.Get[*appsv1.Deployment](w, "web")
		want(t, "revision", d.Annotations["deployment.kubernetes.io/revision"], "2")

		controllertest.Change(w, "web", setImage("one"))
		w.Converge()
		want(t, "replica sets rolled back", sizes(w), "2:two=0 3:one=4")
		rs := controllertest.List[*appsv1.ReplicaSet](w)
		at := slices.IndexFunc(rs, func(rs *appsv1.ReplicaSet) bool { return *rs.Spec.Replicas == 4 })
		want(t, "history", rs[at].Annotations["deployment.kubernetes.io/revision-history"], "1")
	})
}

func TestScalingAStuckRolloutIsProportional(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer start(w)()
		create(w, 10, rolling(3, 2))
		controllertest.Change(w, "web", setImage("bad"))
		bad := func(pod *corev1.Pod) bool { return pod.Spec.Containers[0].Image != "bad" }
		for w.RunPods(bad) {
		}
		want(t, "stuck", sizes(w), "1:one=8 2:bad=5")
		controllertest.Change(w, "web", func(d *appsv1.Deployment) { d.Spec.Replicas = new(int32(30)) })
		want(t, "scaled", sizes(w), "1:one=20 2:bad=13")
	})
}

func TestRecreateStartsNothingNewWhileAnOldPodRuns(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer start(w)()
		create(w, 3, func(d *appsv1.Deployment) { d.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType })
		controllertest.Change(w, "web", setImage("two"))
		want(t, "while old pods end", sizes(w), "1:one=0")
		w.Converge()
		want(t, "after", sizes(w), "1:one=0 2:two=3")
	})
}

func TestARolloverEndsWithOnlyTheNewest(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer start(w)()
		create(w, 4)
		controllertest.Change(w, "web", setImage("two"))
		w.RunPods(nil)
		controllertest.Change(w, "web", setImage("three"))
		w.Converge()
		want(t, "replica sets", sizes(w), "1:one=0 2:two=0 3:three=4")
	})
}

func TestHistoryBeyondTheLimitIsDeleted(t *testing.T) {
	for limit, left := range map[int32]string{0: "4:four=1", 2: "2:two=0 3:three=0 4:four=1"} {
		controllertest.Run(t, func(w *controllertest.World) {
			defer start(w)()
			create(w, 1, func(d *appsv1.Deployment) { d.Spec.RevisionHistoryLimit = &limit })
			for _, image := range []string{"two", "three", "four"} {
				controllertest.Change(w, "web", setImage(image))
				w.Converge()
			}
			want(t, fmt.Sprintf("limit %d", limit), sizes(w), left)
		})
	}
}

func TestAPausedDeploymentScalesButDoesNotRoll(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer start(w)()
		create(w, 2, func(d *appsv1.Deployment) { d.Spec.Paused = false })
		controllertest.Change(w, "web", func(d *appsv1.Deployment) {
			d.Spec.Paused, d.Spec.Replicas = true, new(int32(3))
			setImage("two")(d)
		})
		w.Converge()
		want(t, "paused", sizes(w), "1:one=3")
		want(t, "progress", progressing(w), "Unknown DeploymentPaused")
		controllertest.Change(w, "web", func(d *appsv1.Deployment) { d.Spec.Paused = false })
		w.Converge()
		want(t, "resumed", sizes(w), "1:one=0 2:two=3")
	})
}

func TestARolloutThatDoesNotMoveTimesOut(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer start(w)()
		create(w, 1, func(d *appsv1.Deployment) { d.Spec.ProgressDeadlineSeconds = new(int32(30)) })
		controllertest.Change(w, "web", setImage("bad"))
		want(t, "at first", progressing(w), "True ReplicaSetUpdated")
		time.Sleep(time.Minute)
		w.Settle()
		want(t, "after the deadline", progressing(w), "False ProgressDeadlineExceeded")
		w.Converge()
		want(t, "recovered", progressing(w), "True NewReplicaSetAvailable")
	})
}

func TestMinReadySecondsDelaysAvailability(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer start(w)()
		create(w, 2, func(d *appsv1.Deployment) { d.Spec.MinReadySeconds = 10 })
		s := controllertest.Get[*appsv1.Deployment](w, "web").Status
		if s.ReadyReplicas != 2 || s.AvailableReplicas != 0 {
			t.Errorf("at first %d ready, %d available", s.ReadyReplicas, s.AvailableReplicas)
		}
		time.Sleep(11 * time.Second)
		w.Settle()
		if s = controllertest.Get[*appsv1.Deployment](w, "web").Status; s.AvailableReplicas != 2 {
			t.Errorf("after 11 s %d available", s.AvailableReplicas)
		}
	})
}

func TestAMatchingReplicaSetIsAdoptedAndItsRevisionCounted(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer start(w)()
		old := &appsv1.ReplicaSet{
			ObjectMeta: metav1.ObjectMeta{Name: "before", Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"deployment.kubernetes.io/revision": "3546343826724305832"}},
			Spec: appsv1.ReplicaSetSpec{
				Replicas: new(int32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web", "old": "yes"}},
				Template: *web(1).Spec.Template.DeepCopy(),
			},
		}
		old.Spec.Template.Labels = map[string]string{"app": "web", "old": "yes"}
		w.Create(old)
		w.Settle()
		w.Converge()
		create(w, 1)
		want(t, "replica sets", sizes(w), "3546343826724305832:one=0 3546343826724305833:one=1")
	})
}

func TestAQuietDeploymentCostsNothing(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		stop := start(w)
		create(w, 3)
		stop()
		w.Writes()
		defer start(w)()
		time.Sleep(24 * time.Hour)
		w.Settle()
		if writes := w.Writes(); len(writes) != 0 {
			t.Errorf("writes of a day and a restart: %v", writes)
		}
	})
}

// A namespace that goes takes no new ReplicaSet: the Deployment's status is
// still written, and the rest of the rollout is left alone.
func TestADeploymentWhoseNamespaceGoesStillReportsWhatItSaw(t *testing.T) {
	for _, strategy := range []appsv1.DeploymentStrategyType{appsv1.RollingUpdateDeploymentStrategyType, appsv1.RecreateDeploymentStrategyType} {
		t.Run(string(strategy), func(t *testing.T) {
			controllertest.Run(t, func(w *controllertest.World) {
				goes := apierrors.NewForbidden(appsv1.Resource("replicasets"), "web", errors.New("the namespace is being terminated"))
				goes.ErrStatus.Details.Causes = append(goes.ErrStatus.Details.Causes, metav1.StatusCause{Type: corev1.NamespaceTerminatingCause})
				w.FailWrites(func(n int) (before, after error) {
					if n == 1 {
						return nil, nil
					}
					return goes, nil
				})
				defer start(w)()
				create(w, 2, func(d *appsv1.Deployment) { d.Spec.Strategy = appsv1.DeploymentStrategy{Type: strategy} })
				w.Settle()
				if got := controllertest.Get[*appsv1.Deployment](w, "web").Status.ObservedGeneration; got != 1 {
					t.Errorf("observed generation %d", got)
				}
				if got, want := w.Writes(), map[string]int{"update deployments/status": 1}; !maps.Equal(got, want) {
					t.Errorf("writes: got %v, want %v", got, want)
				}
			})
		})
	}
}

// Controllers that die between any two writes, before or after the server
// carried one out, reach the same end as ones that do not.
func TestARolloutEndsWhereverTheControllersDie(t *testing.T) {
	for n := range 30 {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("write %d, carried out: %v", n, after), func(t *testing.T) {
				controllertest.Run(t, func(w *controllertest.World) {
					w.FailWrites(controllertest.DieAt(n, after))
					stop := start(w)
					w.Create(web(3))
					w.Settle()
					w.Converge()
					controllertest.Change(w, "web", setImage("two"))
					w.Converge()
					stop()
					w.FailWrites(nil)
					defer start(w)()
					w.Converge()
					if got := sizes(w); got != "1:one=0 2:two=3" && got != "1:two=3" {
						t.Errorf("replica sets %s", got)
					}
					want(t, "progress", progressing(w), "True NewReplicaSetAvailable")
					if pods := w.Pods("app=web"); len(pods) != 3 {
						t.Errorf("%d pods", len(pods))
					}
				})
			})
		}
	}
}
