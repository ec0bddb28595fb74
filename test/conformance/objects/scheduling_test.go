package objects

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"proa/pkg/proatest"
)

// triple is an amount of cpu, memory and ephemeral storage; "" leaves one out.
func triple(cpu, memory, storage string) amounts {
	a := amounts{}
	for name, quantity := range map[corev1.ResourceName]string{"cpu": cpu, "memory": memory, "ephemeral-storage": storage} {
		if quantity != "" {
			a[name] = quantity
		}
	}
	return a
}

// TestLimitRangesCompletePods gives pods what they do not say, and refuses those
// outside of its bounds for as long as it is there.
func TestLimitRangesCompletePods(t *testing.T) {
	t.Parallel()
	s := newServer(t, proatest.Options{})
	ctx := within(t)
	limits := triple("500m", "500Mi", "500Gi")
	bounds := must(s.CoreV1().LimitRanges(space).Create(ctx, &corev1.LimitRange{
		ObjectMeta: metav1.ObjectMeta{Name: "bounds"},
		Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
			Type: corev1.LimitTypeContainer, Min: triple("50m", "100Mi", "100Gi").list(), Max: limits.list(),
			Default: limits.list(), DefaultRequest: triple("100m", "200Mi", "200Gi").list(),
		}}},
	}, metav1.CreateOptions{}))(t)
	for _, test := range []struct {
		name             string
		requests, limits amounts // of the pod
		wants, may       amounts // after the range has completed it; nil: it is refused
		refusal          string
	}{
		{"says nothing", nil, nil, triple("100m", "200Mi", "200Gi"), limits, ""},
		// A limit without a request is the request.
		{"says a part", triple("", "150Mi", "150Gi"), triple("300m", "", ""), triple("300m", "150Mi", "150Gi"), triple("300m", "500Mi", "500Gi"), ""},
		{"wants too little", triple("10m", "50Mi", "50Gi"), nil, nil, nil, "minimum cpu usage per Container is 50m, but request is 10m"},
		{"wants too much", triple("600m", "600Mi", "600Gi"), nil, nil, nil, "must be less than or equal to cpu limit"},
		{"may use too much", nil, triple("600m", "500Mi", "500Gi"), nil, nil, "maximum cpu usage per Container is 500m, but limit is 600m"},
	} {
		pod, err := s.pod(ctx, strings.ReplaceAll(test.name, " ", "-"), podSpec(test.requests, test.limits))
		if test.wants == nil {
			if err == nil || !strings.Contains(err.Error(), test.refusal) {
				t.Errorf("a pod that %s: %v", test.name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("a pod that %s: %v", test.name, err)
			continue
		}
		got := pod.Spec.Containers[0].Resources
		if !equality.Semantic.DeepEqual(got.Requests, test.wants.list()) || !equality.Semantic.DeepEqual(got.Limits, test.may.list()) {
			t.Errorf("a pod that %s gets %v", test.name, got)
		}
	}

	lower := triple("9m", "49Mi", "49Gi")
	bounds.Spec.Limits[0].Min = lower.list()
	bounds = must(s.CoreV1().LimitRanges(space).Update(ctx, bounds, metav1.UpdateOptions{}))(t)
	if !equality.Semantic.DeepEqual(bounds.Spec.Limits[0].Min, lower.list()) {
		t.Errorf("updated to %v", bounds.Spec)
	}
	must(s.pod(ctx, "little", podSpec(triple("10m", "50Mi", "50Gi"), nil)))(t)
	much := podSpec(triple("600m", "600Mi", "600Gi"), nil)
	if _, err := s.pod(ctx, "much", much); err == nil {
		t.Error("a pod above the bounds is created")
	}
	if err := s.CoreV1().LimitRanges(space).Delete(ctx, "bounds", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	must(s.pod(ctx, "much", much))(t)
}

func (s *server) pod(ctx context.Context, name string, spec corev1.PodSpec) (*corev1.Pod, error) {
	return s.CoreV1().Pods(space).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
}

// TestAPriorityClassKeepsItsValue changes what may change of two classes and not
// the rest, by update and by patch.
func TestAPriorityClassKeepsItsValue(t *testing.T) {
	t.Parallel()
	s := newServer(t, proatest.Options{})
	ctx := within(t)
	classes := s.SchedulingV1().PriorityClasses()
	labels := map[string]string{"test": "yes"}
	for name, value := range map[string]int32{"p1": 10, "p2": 20} {
		must(classes.Create(ctx, &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Value: value}, metav1.CreateOptions{}))(t)
	}
	list := must(classes.List(ctx, metav1.ListOptions{LabelSelector: "test=yes"}))(t)
	if len(list.Items) != 2 || list.Items[0].Value != 10 || list.Items[1].Value != 20 {
		t.Fatalf("listed are %v", list.Items)
	}
	for i := range list.Items {
		class := &list.Items[i]
		class.Description = "updated"
		updated := must(classes.Update(ctx, class, metav1.UpdateOptions{}))(t)
		if updated.Description != "updated" {
			t.Errorf("updated to %v", updated)
		}
		patched := must(classes.Patch(ctx, class.Name, types.JSONPatchType, []byte(`[{"op":"replace","path":"/description","value":"patched"}]`), metav1.PatchOptions{}))(t)
		if patched.Description != "patched" {
			t.Errorf("patched to %v", patched)
		}
		never := corev1.PreemptNever
		for _, change := range []func(*schedulingv1.PriorityClass){
			func(c *schedulingv1.PriorityClass) { c.Value *= 10 },
			func(c *schedulingv1.PriorityClass) { c.PreemptionPolicy = &never },
		} {
			changed := patched.DeepCopy()
			change(changed)
			if _, err := classes.Update(ctx, changed, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
				t.Errorf("an update to %d, %s: %v", changed.Value, *changed.PreemptionPolicy, err)
			}
		}
		if _, err := classes.Patch(ctx, class.Name, types.JSONPatchType, []byte(`[{"op":"replace","path":"/value","value":5}]`), metav1.PatchOptions{}); !apierrors.IsInvalid(err) {
			t.Errorf("a patch of the value: %v", err)
		}
		if read := must(classes.Get(ctx, class.Name, metav1.GetOptions{}))(t); !equality.Semantic.DeepEqual(read, patched) {
			t.Errorf("after changes that were refused it is %v", read)
		}
	}
}
