package statefulset

import (
	"cmp"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"proa/internal/controllers/podcontrol"
)

// step is one StatefulSet at one moment.
type step struct {
	set      *appsv1.StatefulSet
	selector labels.Selector
	now      time.Time
	claim    func(name string) (*corev1.PersistentVolumeClaim, bool)

	revisions       []*appsv1.ControllerRevision
	current, update *appsv1.ControllerRevision
	currentTemplate *corev1.PodTemplateSpec
	collisions      int32

	replicas  []*corev1.Pod // by ordinal from the first, nil where there is none
	beyond    int           // replicas after these, which come up once these are there
	condemned []*corev1.Pod // outside the range of ordinals, highest first
}

// plan is what a step changes.
type plan struct {
	create []*corev1.Pod
	claim  []*corev1.Pod // pending, whose claims must exist
	fix    []*corev1.Pod // with wrong identity, storage or owners of claims
	retain []*corev1.Pod // condemned, whose claims have wrong owners
	ended  []*corev1.Pod // to be deleted and created anew
	delete []*corev1.Pod
}

// place sorts pods by ordinal. A step looks no further than a burst beyond as many as
// there are: a set may ask for more replicas than memory has room for.
func (s *step) place(pods []*corev1.Pod) {
	want := int(*s.set.Spec.Replicas)
	s.replicas = make([]*corev1.Pod, min(want, len(pods)+podcontrol.Burst))
	s.beyond = want - len(s.replicas)
	s.condemned = nil
	for _, pod := range pods {
		ordinal := ordinalOf(pod)
		switch {
		case inRange(s.set, ordinal):
			if i := ordinal - firstOrdinal(s.set); i < len(s.replicas) {
				s.replicas[i] = pod
			}
		case ordinal >= 0:
			s.condemned = append(s.condemned, pod)
		}
	}
	slices.SortStableFunc(s.condemned, func(a, b *corev1.Pod) int { return cmp.Compare(ordinalOf(b), ordinalOf(a)) })
}

func ready(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodRunning && podcontrol.Ready(pod)
}

func terminating(pod *corev1.Pod) bool { return pod.DeletionTimestamp != nil }

// available tells whether a pod exists, has been ready for long enough and stays.
func (s *step) available(pod *corev1.Pod) bool {
	return pod != nil && !terminating(pod) && ready(pod) && podcontrol.Available(pod, s.set.Spec.MinReadySeconds, s.now)
}

func (s *step) ordered() bool { return s.set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement }

// planStep goes up through the replicas, down through those outside the range,
// then down through those of an old revision. An ordered set does one thing and
// goes no further while a pod before is not available.
func planStep(s *step) plan {
	var p plan
	if s.set.DeletionTimestamp != nil {
		return p
	}
	if s.planReplicas(&p) && s.planCondemned(&p) {
		s.planUpdate(&p)
	}
	return p
}

func (s *step) planReplicas(p *plan) (proceed bool) {
	proceed = true
	for i, pod := range s.replicas {
		if !s.planReplica(p, i, pod) {
			proceed = false
			if s.ordered() {
				return false
			}
		}
	}
	return proceed
}

// planReplica returns false where whatever comes next has to wait.
func (s *step) planReplica(p *plan, i int, pod *corev1.Pod) bool {
	ordinal := firstOrdinal(s.set) + i
	switch {
	case pod == nil:
		if s.staleClaims(ordinal) {
			return false
		}
		p.create = append(p.create, s.versioned(ordinal))
		return !s.ordered()
	case podcontrol.Ended(pod):
		if !terminating(pod) {
			p.ended = append(p.ended, pod)
		}
		return false
	case terminating(pod):
		return !s.ordered()
	}
	if pod.Status.Phase == corev1.PodPending && s.missesClaims(ordinal) {
		p.claim = append(p.claim, pod)
	}
	if s.ordered() && !s.available(pod) {
		return false
	}
	if !identified(s.set, pod) || !stored(s.set, pod) || !s.retained(pod) {
		p.fix = append(p.fix, pod)
	}
	return true
}

// versioned is a new pod of the revision that its ordinal has at this point.
func (s *step) versioned(ordinal int) *corev1.Pod {
	if s.keepsCurrent(ordinal) {
		return newPod(s.set, s.currentTemplate, s.current.Name, ordinal)
	}
	return newPod(s.set, &s.set.Spec.Template, s.update.Name, ordinal)
}

func (s *step) keepsCurrent(ordinal int) bool {
	u := s.set.Spec.UpdateStrategy
	if u.Type != appsv1.RollingUpdateStatefulSetStrategyType {
		return false
	}
	kept := s.set.Status.CurrentReplicas
	if u.RollingUpdate != nil {
		kept = int32(s.partition())
	}
	return ordinal < firstOrdinal(s.set)+int(kept)
}

func (s *step) partition() int {
	if r := s.set.Spec.UpdateStrategy.RollingUpdate; r != nil && r.Partition != nil {
		return int(*r.Partition)
	}
	return 0
}

// planCondemned removes pods from the highest ordinal down. An ordered set waits
// for the pods that stay, and the one it removes, to be available, lest it
// shrinks while something is wrong; but the first unavailable pod itself may go.
func (s *step) planCondemned(p *plan) (proceed bool) {
	for _, pod := range s.condemned {
		if !terminating(pod) && !s.retained(pod) {
			p.retain = append(p.retain, pod)
		}
	}
	firstUnhealthy := s.firstUnhealthy()
	for _, pod := range s.condemned {
		switch {
		case terminating(pod):
			if s.ordered() {
				return false
			}
		case s.ordered() && !s.available(pod) && pod != firstUnhealthy:
			return false
		default:
			p.delete = append(p.delete, pod)
			if s.ordered() {
				return false
			}
		}
	}
	return true
}

// firstUnhealthy is the pod of the lowest ordinal that is not available.
func (s *step) firstUnhealthy() *corev1.Pod {
	all := append(slices.Clone(s.replicas), s.condemned...)
	all = slices.DeleteFunc(all, func(pod *corev1.Pod) bool { return pod == nil || s.available(pod) })
	if len(all) == 0 {
		return nil
	}
	return slices.MinFunc(all, func(a, b *corev1.Pod) int { return cmp.Compare(ordinalOf(a), ordinalOf(b)) })
}

// planUpdate deletes pods of an old revision from the highest ordinal down to the
// partition, as long as fewer than maxUnavailable are missing. Where order does not
// matter, those that serve nobody go first and without counting: one that cannot
// become available would hold the others up for ever.
func (s *step) planUpdate(p *plan) {
	if s.set.Spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType {
		return
	}
	room := s.maxUnavailable() - s.unavailable()
	var useless, rest []*corev1.Pod
	for _, pod := range s.outdated() {
		if !s.ordered() && !s.available(pod) {
			useless = append(useless, pod)
		} else {
			rest = append(rest, pod)
		}
	}
	p.delete = append(p.delete, useless...)
	p.delete = append(p.delete, rest[:max(0, min(room, len(rest)))]...)
}

// outdated are the pods to be updated, highest ordinal first.
func (s *step) outdated() (pods []*corev1.Pod) {
	for i := len(s.replicas) - 1; i >= s.partition(); i-- {
		if pod := s.replicas[i]; pod != nil && !terminating(pod) && pod.Labels[revisionLabel] != s.update.Name {
			pods = append(pods, pod)
		}
	}
	return pods
}

// unavailable counts the replicas that are missing or not available.
func (s *step) unavailable() int {
	n := s.beyond
	for _, pod := range s.replicas {
		if !s.available(pod) {
			n++
		}
	}
	return n
}

func (s *step) maxUnavailable() int {
	var v *intstr.IntOrString
	if r := s.set.Spec.UpdateStrategy.RollingUpdate; r != nil {
		v = r.MaxUnavailable
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(v, intstr.FromInt32(1)), int(*s.set.Spec.Replicas), false)
	if err != nil {
		return 1
	}
	return max(1, n)
}

// status counts pods. wait is the time until a ready pod becomes available.
func (s *step) status(pods []*corev1.Pod) (status appsv1.StatefulSetStatus, wait time.Duration) {
	status = appsv1.StatefulSetStatus{
		ObservedGeneration: s.set.Generation,
		CurrentRevision:    s.current.Name,
		UpdateRevision:     s.update.Name,
		CollisionCount:     new(s.collisions),
		Conditions:         slices.Clone(s.set.Status.Conditions),
	}
	for _, pod := range pods {
		status.Replicas++
		if ready(pod) {
			status.ReadyReplicas++
			if left, _ := podcontrol.AvailableIn(pod, s.set.Spec.MinReadySeconds, s.now); left > 0 {
				wait = podcontrol.Sooner(wait, left)
			} else {
				status.AvailableReplicas++
			}
		}
		if terminating(pod) {
			continue
		}
		if pod.Labels[revisionLabel] == s.current.Name {
			status.CurrentReplicas++
		}
		if pod.Labels[revisionLabel] == s.update.Name {
			status.UpdatedReplicas++
		}
	}
	s.completeUpdate(&status)
	return status, wait
}

// completeUpdate makes the update revision the current one once every pod has it.
func (s *step) completeUpdate(status *appsv1.StatefulSetStatus) {
	if s.set.Spec.UpdateStrategy.Type == appsv1.RollingUpdateStatefulSetStrategyType &&
		status.UpdatedReplicas == status.Replicas && status.ReadyReplicas == status.Replicas {
		status.CurrentReplicas = status.UpdatedReplicas
		status.CurrentRevision = status.UpdateRevision
	}
}
