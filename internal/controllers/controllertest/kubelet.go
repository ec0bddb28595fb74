package controllertest

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/client"
	"proa/internal/controllers/podcontrol"
)

// Place assigns a pod to a node, as the scheduler would.
func (w *World) Place(pod *corev1.Pod, node string) {
	w.T.Helper()
	binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace}, Target: corev1.ObjectReference{Kind: "Node", Name: node}}
	_, err := client.Of[*corev1.Pod](w.API).CreateSubresource(w.T.Context(), pod.Namespace, pod.Name, "binding", binding)
	w.ignoreRace(err)
}

// Report writes a pod's phase and readiness, as its kubelet would.
func (w *World) Report(pod *corev1.Pod, phase corev1.PodPhase, ready bool) {
	w.T.Helper()
	w.write(pod, phase, ready)
	w.Settle()
}

func (w *World) write(pod *corev1.Pod, phase corev1.PodPhase, ready bool) {
	w.T.Helper()
	pods := client.Of[*corev1.Pod](w.API)
	pod, err := pods.Get(w.T.Context(), pod.Namespace, pod.Name)
	if err != nil {
		w.ignoreRace(err)
		return
	}
	pod = pod.DeepCopy()
	pod.Status.Phase = phase
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	if c := podcontrol.Condition(pod, corev1.PodReady); c == nil || c.Status != status {
		pod.Status.Conditions = slices.DeleteFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady })
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: status, LastTransitionTime: metav1.Now()})
	}
	_, err = pods.UpdateStatus(w.T.Context(), pod)
	w.ignoreRace(err)
}

// ignoreRace fails the test unless err says that a controller was faster: it
// deleted the pod meanwhile. The next round sees what is left.
func (w *World) ignoreRace(err error) {
	w.T.Helper()
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		w.T.Fatal(err)
	}
}

// RunPods is one round of scheduler and kubelets: every waiting pod that wants
// is true of becomes Running and Ready, and every pod being deleted is gone, all
// before a controller looks. Nil wants all. It tells whether anything changed.
func (w *World) RunPods(wants func(*corev1.Pod) bool) bool {
	w.T.Helper()
	changed := false
	for _, pod := range List[*corev1.Pod](w) {
		switch {
		case pod.DeletionTimestamp != nil:
			_, err := client.Of[*corev1.Pod](w.API).Delete(w.T.Context(), pod.Namespace, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})
			w.ignoreRace(err)
		case podcontrol.Ended(pod) || podcontrol.Ready(pod) || wants != nil && !wants(pod):
			continue
		default:
			if pod.Spec.NodeName == "" {
				w.Place(pod, "node")
			}
			w.write(pod, corev1.PodRunning, true)
		}
		changed = true
	}
	w.Settle()
	return changed
}

// Converge repeats RunPods until it finds nothing to do.
func (w *World) Converge() {
	w.T.Helper()
	for range 1000 {
		if !w.RunPods(nil) {
			return
		}
	}
	w.T.Fatal("pods still change after 1000 rounds")
}
