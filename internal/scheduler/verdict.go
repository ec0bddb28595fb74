package scheduler

import (
	"context"
	"hash/maphash"
	"log/slog"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// verdict is what is to be written into the status of a pod without a node.
type verdict struct {
	pod        *corev1.Pod
	condition  corev1.PodCondition
	nomination string
}

// verdicts wait for their writers. Those on one pod have the same writer: a pod can be
// tried again at once, and the older verdict, written last, would stand until
// something else happens to the pod.
type verdicts struct {
	seed   maphash.Seed
	queues []chan verdict

	mu    sync.Mutex // guards what follows
	count map[types.UID]int
}

// verdictBacklog is how many verdicts wait for a writer before the scheduler does.
const verdictBacklog = 32

func newVerdicts(writers int) *verdicts {
	v := &verdicts{seed: maphash.MakeSeed(), queues: make([]chan verdict, writers), count: map[types.UID]int{}}
	for i := range v.queues {
		v.queues[i] = make(chan verdict, verdictBacklog)
	}
	return v
}

// give has a verdict written, unless the pod says so already.
func (v *verdicts) give(ctx context.Context, what verdict) {
	uid := what.pod.UID
	if !v.expect(uid, current(what.pod, what.condition) && what.pod.Status.NominatedNodeName == what.nomination) {
		return
	}
	select {
	case v.queues[maphash.String(v.seed, string(uid))%uint64(len(v.queues))] <- what:
	case <-ctx.Done():
	}
}

// expect counts a verdict on a pod that is to be written. What the pod says already
// need not be, if it is not about to say something else.
func (v *verdicts) expect(uid types.UID, said bool) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if said && v.count[uid] == 0 {
		return false
	}
	v.count[uid]++
	return true
}

func (v *verdicts) written(uid types.UID) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.count[uid]--; v.count[uid] == 0 {
		delete(v.count, uid)
	}
}

// writeVerdicts writes those of a queue until ctx ends.
func (s *Scheduler) writeVerdicts(ctx context.Context, queue <-chan verdict) {
	for {
		select {
		case v := <-queue:
			s.writeFailure(ctx, v.pod, v.condition, v.nomination)
			s.unwritten.written(v.pod.UID)
		case <-ctx.Done():
			return
		}
	}
}

// current tells whether a pod's condition says this already.
func current(pod *corev1.Pod, want corev1.PodCondition) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == want.Type {
			return c.Status == want.Status && c.Reason == want.Reason && c.Message == want.Message &&
				c.ObservedGeneration == want.ObservedGeneration
		}
	}
	return false
}

// writeFailure writes a condition, unless the pod has got a node meanwhile. It is an
// update of the version that was tried: a strategic patch takes the server twice as long.
func (s *Scheduler) writeFailure(ctx context.Context, pod *corev1.Pod, condition corev1.PodCondition, nomination string) {
	condition.LastTransitionTime = metav1.NewTime(s.clock.Now())
	for _, c := range pod.Status.Conditions {
		if c.Type == condition.Type && c.Status == condition.Status {
			condition.LastTransitionTime = c.LastTransitionTime
		}
	}
	for range 3 {
		changed := pod.DeepCopy()
		changed.Status.Conditions = with(changed.Status.Conditions, condition)
		changed.Status.NominatedNodeName = nomination
		_, err := s.pods.Resource.UpdateStatus(ctx, changed)
		switch {
		case err == nil || apierrors.IsNotFound(err) || ctx.Err() != nil:
			return
		case !apierrors.IsConflict(err):
			slog.WarnContext(ctx, "cannot write pod condition", "pod", pod.Namespace+"/"+pod.Name, "err", err)
			return
		}
		latest, err := s.pods.Get(ctx, pod.Namespace, pod.Name)
		if err != nil || latest.UID != pod.UID || latest.Spec.NodeName != "" {
			return
		}
		pod = latest
	}
}

// with sets a condition in its place among the others.
func with(conditions []corev1.PodCondition, c corev1.PodCondition) []corev1.PodCondition {
	for i := range conditions {
		if conditions[i].Type == c.Type {
			conditions[i] = c
			return conditions
		}
	}
	return append(conditions, c)
}
