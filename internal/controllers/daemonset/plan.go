package daemonset

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

// sync is one DaemonSet at one moment, with the nodes and its pods on each.
type sync struct {
	ds        *appsv1.DaemonSet
	selector  labels.Selector
	nodes     []*corev1.Node
	hash      string // of the current revision
	revisions []*appsv1.ControllerRevision
	current   *appsv1.ControllerRevision
	// collisions is the collisionCount that the status shall have.
	collisions *int32

	pods map[string][]*corev1.Pod // by node
	fits []fit                    // of nodes
}

// plan is what a step changes. failed and succeeded pods are deleted too, the
// failed ones with backoff.
type plan struct {
	create                    []string // nodes
	delete, failed, succeeded []*corev1.Pod
}

// place sorts pods by the nodes they run on or are meant for.
func (s *sync) place(pods []*corev1.Pod) {
	if s.fits == nil {
		s.fits = fitAll(s.ds, s.nodes)
	}
	s.pods = map[string][]*corev1.Pod{}
	for _, pod := range pods {
		node := targetNode(pod)
		s.pods[node] = append(s.pods[node], pod)
	}
	for _, on := range s.pods {
		slices.SortStableFunc(on, oldestFirst)
	}
}

func (s *sync) selected(pods []*corev1.Pod) []*corev1.Pod {
	return slices.DeleteFunc(pods, func(pod *corev1.Pod) bool { return !s.selector.Matches(labels.Set(pod.Labels)) })
}

// oldestFirst puts pods that have a node before those that wait for it.
func oldestFirst(a, b *corev1.Pod) int {
	if waits := b.Spec.NodeName == ""; (a.Spec.NodeName == "") != waits {
		if waits {
			return -1
		}
		return 1
	}
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

func (s *sync) updated(pod *corev1.Pod) bool {
	if generation, ok := s.ds.Annotations[appsv1.DeprecatedTemplateGeneration]; ok && pod.Labels[templateGenerationLabel] == generation {
		return true
	}
	return s.hash != "" && pod.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] == s.hash
}

// planPods decides for every node whether it lacks a pod or has too many, and
// removes pods that wait for a node that is gone.
func planPods(s *sync, now time.Time) plan {
	var p plan
	exists := map[string]bool{}
	for i, node := range s.nodes {
		exists[node.Name] = true
		pods := s.pods[node.Name]
		switch {
		case s.fits[i].run && len(pods) == 0:
			p.create = append(p.create, node.Name)
		case s.fits[i].stay:
			if running := s.planNode(&p, pods, now); running == 0 && s.fits[i].run && surges(s.ds) {
				p.create = append(p.create, node.Name) // beside those that are about to go
			}
		default:
			p.delete = append(p.delete, living(pods)...)
		}
	}
	for _, node := range sortedKeys(s.pods) {
		if exists[node] {
			continue
		}
		for _, pod := range s.pods[node] {
			if pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil {
				p.delete = append(p.delete, pod)
			}
		}
	}
	return p
}

// planNode removes what is over and what there is too much of on a node that may keep
// its pod. It returns how many there were that are not over.
func (s *sync) planNode(p *plan, pods []*corev1.Pod, now time.Time) int {
	var running []*corev1.Pod
	for _, pod := range living(pods) {
		switch pod.Status.Phase {
		case corev1.PodFailed:
			p.failed = append(p.failed, pod)
		case corev1.PodSucceeded:
			p.succeeded = append(p.succeeded, pod)
		default:
			running = append(running, pod)
		}
	}
	switch {
	case len(running) <= 1:
	case !surges(s.ds):
		p.delete = append(p.delete, running[1:]...)
	default:
		p.delete = append(p.delete, s.surplus(running, now)...)
	}
	return len(running)
}

// surplus is what a node that may have an old and a new pod beside each other
// has too many of. The old one goes once it is not ready or the new one is available.
func (s *sync) surplus(running []*corev1.Pod, now time.Time) []*corev1.Pod {
	var extra []*corev1.Pod
	var oldPod, newPod *corev1.Pod
	for _, pod := range running {
		kept := &oldPod
		if s.updated(pod) {
			kept = &newPod
		}
		if *kept != nil {
			extra = append(extra, pod)
		} else {
			*kept = pod
		}
	}
	if oldPod != nil && newPod != nil && (!podcontrol.Ready(oldPod) || podcontrol.Available(newPod, s.ds.Spec.MinReadySeconds, now)) {
		extra = append(extra, oldPod)
	}
	return extra
}

func living(pods []*corev1.Pod) []*corev1.Pod {
	return slices.DeleteFunc(slices.Clone(pods), func(pod *corev1.Pod) bool { return pod.DeletionTimestamp != nil })
}

func sortedKeys(m map[string][]*corev1.Pod) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func surges(ds *appsv1.DaemonSet) bool {
	u := ds.Spec.UpdateStrategy.RollingUpdate
	return u != nil && scaled(u.MaxSurge, 1) > 0
}

func scaled(v *intstr.IntOrString, of int) int {
	n, err := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(v, intstr.FromInt32(0)), of, true)
	if err != nil {
		return 0
	}
	return n
}

// planRollingUpdate replaces old pods: by deleting as many as may be missing,
// or, with surge, by starting as many new ones beside them as may be extra.
func planRollingUpdate(s *sync, now time.Time) plan {
	desired := 0
	for i, node := range s.nodes {
		if !s.fits[i].run {
			continue
		}
		desired++
		if _, ok := s.pods[node.Name]; !ok {
			s.pods[node.Name] = nil // counts as unavailable
		}
	}
	u := s.ds.Spec.UpdateStrategy.RollingUpdate
	if u == nil {
		u = &appsv1.RollingUpdateDaemonSet{}
	}
	surge, unavailable := scaled(u.MaxSurge, desired), scaled(u.MaxUnavailable, desired)
	if surge == 0 && unavailable == 0 && desired > 0 {
		unavailable = 1
	}
	if surge == 0 {
		return s.planReplace(unavailable, now)
	}
	return s.planSurge(surge, desired, now)
}

// versions returns the old and the new pod of a node; ok is false where there
// are several of one, which planPods clears up first.
func (s *sync) versions(pods []*corev1.Pod) (oldPod, newPod *corev1.Pod, ok bool) {
	for _, pod := range living(pods) {
		kept := &oldPod
		if s.updated(pod) {
			kept = &newPod
		}
		if *kept != nil {
			return nil, nil, false
		}
		*kept = pod
	}
	return oldPod, newPod, true
}

func (s *sync) available(pod *corev1.Pod, now time.Time) bool {
	return podcontrol.Available(pod, s.ds.Spec.MinReadySeconds, now)
}

func (s *sync) planReplace(maxUnavailable int, now time.Time) plan {
	var broken, candidates []*corev1.Pod
	unavailable := 0
	for _, node := range sortedKeys(s.pods) {
		oldPod, newPod, ok := s.versions(s.pods[node])
		switch {
		case !ok || (oldPod == nil) == (newPod == nil):
			unavailable++
		case newPod != nil:
			if !s.available(newPod, now) {
				unavailable++
			}
		case !s.available(oldPod, now):
			broken = append(broken, oldPod) // nothing to lose
		default:
			candidates = append(candidates, oldPod)
		}
	}
	// An old pod that serves nobody goes at any time, and what it leaves
	// unavailable counts like any other.
	room := max(0, maxUnavailable-unavailable-len(broken))
	return plan{delete: append(broken, candidates[:min(room, len(candidates))]...)}
}

// planSurge starts new pods beside old ones. An old pod on a node that is to have none
// any more goes when it serves nobody, or others make up for it: all that are desired
// shall be available at any time.
func (s *sync) planSurge(maxSurge, desired int, now time.Time) plan {
	run := map[string]bool{}
	for i, node := range s.nodes {
		run[node.Name] = s.fits[i].run
	}
	var p plan
	var candidates []string
	var leaving []*corev1.Pod
	surging, available := 0, 0
	for _, node := range sortedKeys(s.pods) {
		oldPod, newPod, ok := s.versions(s.pods[node])
		if first := cmp.Or(oldPod, newPod); ok && first != nil && s.available(first, now) {
			available++
		}
		switch {
		case !ok:
			surging++
		case oldPod == nil: // done, or planPods creates it
		case newPod == nil && !run[node]:
			if s.available(oldPod, now) {
				leaving = append(leaving, oldPod)
			} else {
				p.delete = append(p.delete, oldPod)
			}
		case newPod == nil && !s.available(oldPod, now):
			p.create = append(p.create, node)
		case newPod == nil:
			candidates = append(candidates, node)
		case s.available(newPod, now):
			p.delete = append(p.delete, oldPod)
		default:
			surging++
		}
	}
	p.delete = append(p.delete, leaving[:max(0, min(available-desired, len(leaving)))]...)
	room := max(0, maxSurge-surging)
	p.create = append(p.create, candidates[:min(room, len(candidates))]...)
	return p
}

// status counts pods per node. wait is the time until a ready pod becomes available.
func (s *sync) status(now time.Time) (status appsv1.DaemonSetStatus, wait time.Duration) {
	status = appsv1.DaemonSetStatus{
		ObservedGeneration: s.ds.Generation,
		CollisionCount:     s.collisions,
		Conditions:         slices.Clone(s.ds.Status.Conditions),
	}
	for i, node := range s.nodes {
		pods := s.pods[node.Name]
		switch {
		case !s.fits[i].run && len(pods) > 0:
			status.NumberMisscheduled++
		case s.fits[i].run:
			status.DesiredNumberScheduled++
			if len(pods) == 0 {
				continue
			}
			status.CurrentNumberScheduled++
			pod := pods[0]
			if s.updated(pod) {
				status.UpdatedNumberScheduled++
			}
			if left, ready := podcontrol.AvailableIn(pod, s.ds.Spec.MinReadySeconds, now); ready {
				status.NumberReady++
				if left == 0 {
					status.NumberAvailable++
				}
			}
			for _, pod := range pods {
				if left, ready := podcontrol.AvailableIn(pod, s.ds.Spec.MinReadySeconds, now); ready {
					wait = podcontrol.Sooner(wait, left)
				}
			}
		}
	}
	status.NumberUnavailable = status.DesiredNumberScheduled - status.NumberAvailable
	return status, wait
}
