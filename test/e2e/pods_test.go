package e2e

import (
	"encoding/json"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/util/retry"
)

// A pod's object from its creation to its end, as a watch sees it.
func TestPodObjects(t *testing.T) {
	l := newLab(t)
	ctx, pods := t.Context(), clients().CoreV1().Pods(l.ns)
	w, err := pods.Watch(ctx, metav1.ListOptions{LabelSelector: "app in (p, changed)"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	l.apply(podManifest("p", "  containers: [{name: c, "+testserver+", args: [sleep], resources: {limits: {cpu: 100m, memory: 32Mi}}}]"))
	pod := l.ready("p")
	l.is("class of service", string(pod.Status.QOSClass), "Guaranteed")
	if list := l.podsOf("app=p"); len(list) != 1 {
		t.Errorf("%d pods by label", len(list))
	}
	l.kubectl("patch", "pod", "p", "-p", `{"metadata":{"labels":{"app":"changed"}}}`)
	if list := l.podsOf("app=changed"); len(list) != 1 || len(l.podsOf("app=p")) != 0 {
		t.Errorf("%d pods by the changed label", len(list))
	}
	const condition = `{"status":{"conditions":[{"type":"example.org/Shown","status":"True","reason":"Test"}]}}`
	out, err := pods.Patch(ctx, "p", types.StrategicMergePatchType, []byte(condition), metav1.PatchOptions{}, "status")
	if err != nil || !conditionIs(out, "example.org/Shown", corev1.ConditionTrue) || !conditionIs(out, corev1.PodReady, corev1.ConditionTrue) {
		t.Errorf("patched status: %v, %v", out.Status.Conditions, err)
	}
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error { // with the kubelet
		replaced := l.pod("p")
		replaced.Status.Conditions = append(replaced.Status.Conditions, corev1.PodCondition{Type: "example.org/More", Status: corev1.ConditionTrue})
		out, err = pods.UpdateStatus(ctx, replaced, metav1.UpdateOptions{})
		return err
	})
	if err != nil || !conditionIs(out, "example.org/More", corev1.ConditionTrue) {
		t.Errorf("replaced status: %v", err)
	}
	if err := pods.Delete(ctx, "p", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	var seen []watch.EventType
	deleting := false
	for e := range w.ResultChan() {
		if n := len(seen); n == 0 || seen[n-1] != e.Type {
			seen = append(seen, e.Type)
		}
		if p, ok := e.Object.(*corev1.Pod); ok && p.DeletionTimestamp != nil {
			deleting = true
		}
		if e.Type == watch.Deleted {
			break
		}
	}
	if fmt.Sprint(seen) != "[ADDED MODIFIED DELETED]" || !deleting {
		t.Errorf("events %v, deletion timestamp seen: %v", seen, deleting)
	}
	if _, err := pods.Get(ctx, "p", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the pod is still there: %v", err)
	}

	same := func(name string) string {
		return podManifest(name, "  containers: [{name: c, "+testserver+", args: [sleep]}]")
	}
	l.apply(same("a") + same("b") + same("c"))
	l.kubectl("label", "pod", "a", "b", "group=x")
	if err := pods.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "group=x"}); err != nil {
		t.Fatal(err)
	}
	l.gone("a")
	l.gone("b")
	l.ready("c")
}

// metadata.generation counts changes of the spec, and the node says which it has seen.
func TestPodGeneration(t *testing.T) {
	l := newLab(t)
	ctx, pods := t.Context(), clients().CoreV1().Pods(l.ns)
	grace := int64(1)
	made, err := pods.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Generation: 100},
		Spec: corev1.PodSpec{TerminationGracePeriodSeconds: &grace, Containers: []corev1.Container{{
			Name: "c", Image: "proa.dev/testserver:1", Args: []string{"sleep"}}}},
	}, metav1.CreateOptions{})
	if err != nil || made.Generation != 1 {
		t.Fatalf("created with generation %d, %v", made.Generation, err)
	}
	l.await("p", "observed", func(p *corev1.Pod) bool { return p.Status.ObservedGeneration == 1 && isReady(p) })
	patch := func(kind types.PatchType, body string) int64 {
		t.Helper()
		out, err := pods.Patch(ctx, "p", kind, []byte(body), metav1.PatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return out.Generation
	}
	for _, step := range []struct {
		body string
		want int64
	}{
		{`{"metadata":{"annotations":{"a":"b"}}}`, 1},
		{`{"metadata":{"generation":77}}`, 1},
		{`{}`, 1},
		{`{"spec":{"activeDeadlineSeconds":5000}}`, 2},
		{`{"spec":{"containers":[{"name":"c","image":"proa.dev/testserver:1"}]}}`, 2},
	} {
		if got := patch(types.StrategicMergePatchType, step.body); got != step.want {
			t.Errorf("after %s the generation is %d, want %d", step.body, got, step.want)
		}
	}
	generation := int64(2)
	for generation < 500 {
		toleration, err := json.Marshal(corev1.Toleration{Key: fmt.Sprintf("k%d", generation), Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule})
		if err != nil {
			t.Fatal(err)
		}
		generation++
		if got := patch(types.JSONPatchType, `[{"op":"add","path":"/spec/tolerations/-","value":`+string(toleration)+`}]`); got != generation {
			t.Fatalf("generation is %d, want %d", got, generation)
		}
	}
	l.await("p", "observed at generation 500", func(p *corev1.Pod) bool { return p.Status.ObservedGeneration == 500 })
	l.kubectl("delete", "pod", "p", "--wait=false", "--grace-period=30")
	if p, err := pods.Get(ctx, "p", metav1.GetOptions{}); err == nil && p.Generation != 501 {
		t.Errorf("deleted at generation %d", p.Generation)
	}
}
