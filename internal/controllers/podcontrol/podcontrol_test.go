package podcontrol

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// pods reads pods such as "a node=n1 ready=1h cost=5 restarts=2 age=2h", running
// and on a node of their own unless they say otherwise.
func pods(t *testing.T, lines ...string) []*corev1.Pod {
	t.Helper()
	var out []*corev1.Pod
	for _, line := range lines {
		words := strings.Fields(line)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: words[0], UID: types.UID(words[0])}}
		pod.Spec.NodeName, pod.Status.Phase = words[0], corev1.PodRunning
		for _, word := range words[1:] {
			key, value, _ := strings.Cut(word, "=")
			switch key {
			case "node":
				pod.Spec.NodeName = value
			case "phase":
				pod.Status.Phase = corev1.PodPhase(value)
			case "ready":
				pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: ago(t, value)}}
			case "age":
				pod.CreationTimestamp = ago(t, value)
			case "cost":
				pod.Annotations = map[string]string{deletionCost: value}
			case "restarts":
				pod.Status.ContainerStatuses = []corev1.ContainerStatus{{RestartCount: int32(value[0] - '0')}}
			default:
				t.Fatalf("unknown word %q", word)
			}
		}
		out = append(out, pod)
	}
	return out
}

func ago(t *testing.T, s string) metav1.Time {
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatal(err)
	}
	return metav1.NewTime(now.Add(-d))
}

func TestDeletionOrder(t *testing.T) {
	tests := []struct {
		name string
		pods []string // in the order wanted
	}{
		{"unassigned before assigned", []string{"z node=", "a"}},
		{"pending before unknown before running", []string{"z phase=Pending", "y phase=Unknown", "a"}},
		{"not ready before ready", []string{"z", "a ready=1h"}},
		{"cheaper first", []string{"z ready=1h cost=-1", "y ready=1h", "a ready=1h cost=5"}},
		{"a cost that is no number counts as none", []string{"z ready=1h cost=-1", "a ready=1h cost=x", "b ready=1h cost=1"}},
		{"from the fuller node first", []string{"y ready=1m node=n", "z ready=10h node=n", "a ready=1m"}},
		{"ready for a shorter time first", []string{"z ready=1m", "a ready=10h"}},
		{"by uid when ready for about as long", []string{"a ready=60m", "z ready=59m"}},
		{"more restarts first", []string{"z ready=1h restarts=2", "a ready=1h"}},
		{"younger first", []string{"z age=1m", "a age=10h"}},
		{"readiness outranks cost", []string{"z cost=9", "a ready=1h cost=-9"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := pods(t, tt.pods...)
			for i, j := 0, len(got)-1; i < j; i, j = i+1, j-1 {
				got[i], got[j] = got[j], got[i]
			}
			DeletionOrder(got, pods(t, tt.pods...), now)
			for i, line := range tt.pods {
				if name := strings.Fields(line)[0]; got[i].Name != name {
					t.Errorf("place %d: %s, want %s", i, got[i].Name, name)
				}
			}
		})
	}
}

func TestSlowStartStopsAfterTheFirstBatchThatFails(t *testing.T) {
	tests := []struct {
		count, failFrom, calls, done int
	}{
		{10, 10, 10, 10},
		{10, 0, 1, 0},
		{10, 2, 3, 2},
		{10, 4, 7, 4},
	}
	for _, tt := range tests {
		seen := make(chan int, tt.count)
		done, err := SlowStart(tt.count, func(i int) error {
			seen <- i
			if i >= tt.failFrom {
				return errors.New("refused")
			}
			return nil
		})
		if len(seen) != tt.calls || done != tt.done || (err != nil) != (tt.done < tt.count) {
			t.Errorf("%d calls failing from %d: %d made, %d done, %v; want %d and %d", tt.count, tt.failFrom, len(seen), done, err, tt.calls, tt.done)
		}
	}
}

func TestAPodIsAvailableOnceReadyForLongEnough(t *testing.T) {
	pod := pods(t, "a ready=4s")[0]
	if wait, ready := AvailableIn(pod, 10, now); wait != 6*time.Second || !ready {
		t.Errorf("wait %v, ready %v", wait, ready)
	}
	if !Available(pod, 4, now) || Available(pod, 5, now) || !Available(pod, 0, now) {
		t.Error("availability does not begin after minReadySeconds")
	}
	if Available(pods(t, "b")[0], 0, now) {
		t.Error("a pod that is not ready is available")
	}
}
