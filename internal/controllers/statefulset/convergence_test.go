package statefulset_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
	"proa/internal/controllers/statefulset"
)

func start(w *controllertest.World) func() {
	return w.Start(func(c controllers.Config) []controllertest.Runner {
		return []controllertest.Runner{statefulset.New(c)}
	})
}

func db(replicas int32) *appsv1.StatefulSet {
	app := map[string]string{"app": "db"}
	return &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "db"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: &replicas, ServiceName: "db", Selector: &metav1.LabelSelector{MatchLabels: app},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: app},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "one"}}},
			},
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{
				ObjectMeta: metav1.ObjectMeta{Name: "data"},
				Spec: corev1.PersistentVolumeClaimSpec{
					AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
					Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{"storage": resource.MustParse("1Gi")}},
				},
			}},
		},
	}
}

func names(w *controllertest.World) string {
	var found []string
	for _, pod := range w.Pods("app=db") {
		found = append(found, pod.Name+"="+pod.Spec.Containers[0].Image)
	}
	return fmt.Sprint(found)
}

func TestReplicasComeUpInOrderEachOnceTheOneBeforeIsReady(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer start(w)()
		w.Create(db(3))
		w.Settle()
		for _, want := range []string{"[db-0=one]", "[db-0=one db-1=one]", "[db-0=one db-1=one db-2=one]"} {
			if got := names(w); got != want {
				t.Fatalf("pods %s, want %s", got, want)
			}
			w.RunPods(nil)
		}
		pod := controllertest.Get[*corev1.Pod](w, "db-1")
		if pod.Labels[appsv1.PodIndexLabel] != "1" || pod.Labels[appsv1.StatefulSetPodNameLabel] != "db-1" ||
			pod.Spec.Hostname != "db-1" || pod.Spec.Subdomain != "db" ||
			pod.Spec.Volumes[0].PersistentVolumeClaim.ClaimName != "data-db-1" {
			t.Errorf("identity of %+v", pod)
		}
		s := controllertest.Get[*appsv1.StatefulSet](w, "db").Status
		if s.ReadyReplicas != 3 || s.AvailableReplicas != 3 || s.CurrentReplicas != 3 || s.UpdatedReplicas != 3 || s.CurrentRevision != s.UpdateRevision {
			t.Errorf("status %+v", s)
		}
		if n := len(controllertest.List[*corev1.PersistentVolumeClaim](w)); n != 3 {
			t.Errorf("%d claims, want 3", n)
		}
	})
}

func TestScalingDownGoesFromTheHighestOrdinalAndWaitsForHealth(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer start(w)()
		w.Create(db(3))
		w.Settle()
		w.Converge()
		w.Report(controllertest.Get[*corev1.Pod](w, "db-0"), corev1.PodRunning, false)
		controllertest.Change(w, "db", func(s *appsv1.StatefulSet) { s.Spec.Replicas = new(int32(1)) })
		w.RunPods(func(*corev1.Pod) bool { return false })
		if got := names(w); got != "[db-0=one db-1=one db-2=one]" {
			t.Fatalf("scaled down while db-0 is not ready: %s", got)
		}
		w.Converge()
		if got := names(w); got != "[db-0=one]" {
			t.Errorf("pods %s", got)
		}
		if n := len(controllertest.List[*corev1.PersistentVolumeClaim](w)); n != 3 {
			t.Errorf("%d claims, want 3: they stay by default", n)
		}
	})
}

func TestARollingUpdateReplacesFromTheHighestOrdinalToThePartition(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer start(w)()
		set := db(3)
		set.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{
			Type:          appsv1.RollingUpdateStatefulSetStrategyType,
			RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: new(int32(1))},
		}
		w.Create(set)
		w.Settle()
		w.Converge()
		controllertest.Change(w, "db", func(s *appsv1.StatefulSet) { s.Spec.Template.Spec.Containers[0].Image = "two" })
		w.RunPods(nil)
		w.RunPods(nil)
		if got := names(w); got != "[db-0=one db-1=one db-2=two]" {
			t.Errorf("after one pod: %s", got)
		}
		w.Converge()
		if got := names(w); got != "[db-0=one db-1=two db-2=two]" {
			t.Errorf("up to the partition: %s", got)
		}
		controllertest.Delete[*corev1.Pod](w, "db-0")
		w.Converge()
		if got := names(w); got != "[db-0=one db-1=two db-2=two]" {
			t.Errorf("a pod below the partition came back as %s", got)
		}
		s := controllertest.Get[*appsv1.StatefulSet](w, "db").Status
		if s.CurrentReplicas != 1 || s.UpdatedReplicas != 2 || s.CurrentRevision == s.UpdateRevision {
			t.Errorf("status %+v", s)
		}
		controllertest.Change(w, "db", func(s *appsv1.StatefulSet) { s.Spec.UpdateStrategy.RollingUpdate.Partition = new(int32(0)) })
		w.Converge()
		s = controllertest.Get[*appsv1.StatefulSet](w, "db").Status
		if got := names(w); got != "[db-0=two db-1=two db-2=two]" || s.CurrentRevision != s.UpdateRevision {
			t.Errorf("pods %s, status %+v", got, s)
		}
		before := s.UpdateRevision
		controllertest.Change(w, "db", func(s *appsv1.StatefulSet) { s.Spec.Template.Spec.Containers[0].Image = "one" })
		w.Converge()
		revisions := controllertest.List[*appsv1.ControllerRevision](w)
		if s = controllertest.Get[*appsv1.StatefulSet](w, "db").Status; len(revisions) != 2 || s.UpdateRevision == before {
			t.Errorf("rolled back to %s with %d revisions", s.UpdateRevision, len(revisions))
		}
	})
}

func TestAParallelSetDoesNotWait(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer start(w)()
		set := db(3)
		set.Spec.PodManagementPolicy = appsv1.ParallelPodManagement
		set.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: 5}
		w.Create(set)
		w.Settle()
		if got := names(w); got != "[db-5=one db-6=one db-7=one]" {
			t.Errorf("pods %s", got)
		}
		controllertest.Change(w, "db", func(s *appsv1.StatefulSet) { s.Spec.Replicas = new(int32(1)) })
		w.RunPods(func(*corev1.Pod) bool { return false })
		if got := names(w); got != "[db-5=one]" {
			t.Errorf("pods %s", got)
		}
	})
}

func TestAFailedPodIsRecreatedUnderItsName(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer start(w)()
		w.Create(db(1))
		w.Settle()
		w.Converge()
		before := controllertest.Get[*corev1.Pod](w, "db-0")
		w.Report(before, corev1.PodFailed, false)
		w.Converge()
		after := controllertest.Get[*corev1.Pod](w, "db-0")
		if after.UID == before.UID || after.Status.Phase != corev1.PodRunning {
			t.Errorf("pod %s in phase %s", after.UID, after.Status.Phase)
		}
		if !slices.Contains(w.Events(), "Normal SuccessfulDelete delete Pod db-0 in StatefulSet db successful") {
			t.Errorf("events %q", w.Events())
		}
	})
}

func TestRetentionPolicyDecidesWhoOwnsTheClaims(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer start(w)()
		set := db(2)
		set.Spec.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
			WhenDeleted: appsv1.DeletePersistentVolumeClaimRetentionPolicyType,
			WhenScaled:  appsv1.DeletePersistentVolumeClaimRetentionPolicyType,
		}
		w.Create(set)
		w.Settle()
		w.Converge()
		owner := func(claim string) string {
			refs := controllertest.Get[*corev1.PersistentVolumeClaim](w, claim).OwnerReferences
			if len(refs) != 1 {
				return fmt.Sprint(refs)
			}
			return refs[0].Kind + "/" + refs[0].Name
		}
		if got := owner("data-db-0"); got != "StatefulSet/db" {
			t.Errorf("claim owned by %s", got)
		}
		controllertest.Change(w, "db", func(s *appsv1.StatefulSet) { s.Spec.Replicas = new(int32(1)) })
		if got := owner("data-db-1"); got != "Pod/db-1" {
			t.Errorf("claim of a pod scaled away owned by %s", got)
		}
		controllertest.Change(w, "db", func(s *appsv1.StatefulSet) {
			s.Spec.PersistentVolumeClaimRetentionPolicy.WhenDeleted = appsv1.RetainPersistentVolumeClaimRetentionPolicyType
		})
		if got := owner("data-db-0"); got != "[]" {
			t.Errorf("claim that is to stay owned by %s", got)
		}
	})
}

// A controller that dies between any two writes, before or after the server
// carried one out, neither loses nor doubles a replica.
func TestAnUpdateEndsWhereverTheControllerDies(t *testing.T) {
	for n := range 16 {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("write %d, carried out: %v", n, after), func(t *testing.T) {
				controllertest.Run(t, func(w *controllertest.World) {
					w.FailWrites(controllertest.DieAt(n, after))
					stop := start(w)
					w.Create(db(2))
					w.Settle()
					w.Converge()
					controllertest.Change(w, "db", func(s *appsv1.StatefulSet) { s.Spec.Template.Spec.Containers[0].Image = "two" })
					w.Converge()
					stop()
					w.FailWrites(nil)
					defer start(w)()
					w.Converge()
					if got := names(w); got != "[db-0=two db-1=two]" {
						t.Errorf("pods %s", got)
					}
					s := controllertest.Get[*appsv1.StatefulSet](w, "db").Status
					if s.CurrentRevision != s.UpdateRevision || s.AvailableReplicas != 2 {
						t.Errorf("status %+v", s)
					}
				})
			})
		}
	}
}

// Pods of an old revision that serve nobody go before those that do, wherever they
// stand: else one that can never be available would end the update.
func TestAParallelUpdateBeginsWithPodsThatServeNobody(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer start(w)()
		set := db(3)
		set.Spec.PodManagementPolicy = appsv1.ParallelPodManagement
		w.Create(set)
		w.Settle()
		w.Converge()
		w.Report(controllertest.Get[*corev1.Pod](w, "db-0"), corev1.PodRunning, false)
		controllertest.Change(w, "db", func(s *appsv1.StatefulSet) { s.Spec.Template.Spec.Containers[0].Image = "two" })
		var going []string
		for _, pod := range w.Pods("app=db") {
			if pod.DeletionTimestamp != nil {
				going = append(going, pod.Name)
			}
		}
		if !slices.Equal(going, []string{"db-0"}) {
			t.Fatalf("going: %v", going)
		}
		w.Converge()
		if got := names(w); got != "[db-0=two db-1=two db-2=two]" {
			t.Errorf("pods %s", got)
		}
	})
}

func TestAsManyReplicasAsANumberCanTell(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer start(w)()
		w.Create(db(math.MaxInt32))
		w.Settle()
		if got := names(w); got != "[db-0=one]" {
			t.Fatalf("pods %s", got)
		}
		w.RunPods(nil)
		if got := names(w); got != "[db-0=one db-1=one]" {
			t.Fatalf("pods %s", got)
		}
		controllertest.Change(w, "db", func(s *appsv1.StatefulSet) { s.Spec.Replicas = new(int32(0)) })
		w.Converge()
		if got := names(w); got != "[]" {
			t.Errorf("pods %s", got)
		}
	})
}

func TestParallelReplicasComeInBursts(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer start(w)()
		const most = 1200
		w.FailWrites(func(n int) (before, after error) {
			if n >= most {
				return errors.New("enough"), nil
			}
			return nil, nil
		})
		set := db(math.MaxInt32)
		set.Spec.PodManagementPolicy, set.Spec.VolumeClaimTemplates = appsv1.ParallelPodManagement, nil
		w.Create(set)
		w.Settle()
		if n := len(w.Pods("app=db")); n < 500 || n > most {
			t.Errorf("%d pods", n)
		}
	})
}
