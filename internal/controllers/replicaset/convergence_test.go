package replicaset_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
	"proa/internal/controllers/replicaset"
	"proa/internal/controllers/replicationcontroller"
)

func start(w *controllertest.World) func() {
	return w.Start(func(c controllers.Config) []controllertest.Runner {
		return []controllertest.Runner{replicaset.New(c), replicationcontroller.New(c)}
	})
}

var app = map[string]string{"app": "web"}

func template() corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: app},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "one"}}},
	}
}

func web(replicas int32) *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       appsv1.ReplicaSetSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: app}, Template: template()},
	}
}

func TestReplicasFollowTheSpec(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer start(w)()
		w.Create(web(5))
		w.Settle()
		w.Converge()
		controllertest.Change(w, "web", func(rs *appsv1.ReplicaSet) { rs.Spec.Replicas = new(int32(2)) })
		if s := controllertest.Get[*appsv1.ReplicaSet](w, "web").Status; s.Replicas != 2 || *s.TerminatingReplicas != 3 {
			t.Errorf("while pods end: %+v", s)
		}
		w.Converge()
		if s := controllertest.Get[*appsv1.ReplicaSet](w, "web").Status; s.AvailableReplicas != 2 || s.FullyLabeledReplicas != 2 || *s.TerminatingReplicas != 0 {
			t.Errorf("in the end: %+v", s)
		}
	})
}

func TestAReplicationControllerRunsOnTheSameEngine(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		stop := start(w)
		pods := template()
		w.Create(&corev1.ReplicationController{
			ObjectMeta: metav1.ObjectMeta{Name: "web"},
			Spec:       corev1.ReplicationControllerSpec{Replicas: new(int32(2)), Selector: app, Template: &pods},
		})
		w.Settle()
		w.Converge()
		s := controllertest.Get[*corev1.ReplicationController](w, "web").Status
		if s.AvailableReplicas != 2 || s.ObservedGeneration != 1 {
			t.Errorf("status %+v", s)
		}
		stop()
		w.Writes()
		defer start(w)()
		if writes := w.Writes(); len(writes) != 0 {
			t.Errorf("a restart wrote %v", writes)
		}
	})
}

func TestPodsAreAdoptedAndReleased(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer start(w)()
		orphan := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "orphan", Labels: app}, Spec: template().Spec}
		w.Create(orphan)
		w.Create(web(2))
		w.Settle()
		if pods := w.Pods("app=web"); len(pods) != 2 || !metav1.IsControlledBy(controllertest.Get[*corev1.Pod](w, "orphan"), controllertest.Get[*appsv1.ReplicaSet](w, "web")) {
			t.Errorf("orphan not adopted: %d pods", len(pods))
		}
		controllertest.Change(w, "orphan", func(pod *corev1.Pod) { pod.Labels = map[string]string{"app": "debug"} })
		if refs := controllertest.Get[*corev1.Pod](w, "orphan").OwnerReferences; len(refs) != 0 {
			t.Errorf("relabelled pod still owned by %v", refs)
		}
		if pods := w.Pods("app=web"); len(pods) != 2 {
			t.Errorf("%d pods, want a replacement", len(pods))
		}
	})
}

func TestAFailureToCreateShowsAndGoes(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer start(w)()
		w.Create(web(0))
		w.Settle()
		w.FailWrites(func(n int) (before, after error) {
			if n != 1 { // all but the first of the status
				return errors.New("exceeded quota"), nil
			}
			return nil, nil
		})
		controllertest.Change(w, "web", func(rs *appsv1.ReplicaSet) { rs.Spec.Replicas = new(int32(1)) })
		s := controllertest.Get[*appsv1.ReplicaSet](w, "web").Status
		if len(s.Conditions) != 1 || s.Conditions[0].Reason != "FailedCreate" || !strings.Contains(s.Conditions[0].Message, "exceeded quota") {
			t.Errorf("conditions %+v", s.Conditions)
		}
		w.FailWrites(nil)
		time.Sleep(time.Second)
		w.Settle()
		if s := controllertest.Get[*appsv1.ReplicaSet](w, "web").Status; len(s.Conditions) != 0 || s.Replicas != 1 {
			t.Errorf("after it could: %+v", s)
		}
	})
}
