package deployment

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// rollout is one Deployment with its ReplicaSets: the newest revision and all
// others. d belongs to the reconcile that made it and may be changed.
type rollout struct {
	d   *appsv1.Deployment
	new *appsv1.ReplicaSet // nil until it exists
	old []*appsv1.ReplicaSet
	now time.Time
	was appsv1.DeploymentStatus // before this reconcile counted
}

// newRollout finds the newest revision: the oldest ReplicaSet with the
// Deployment's template, should there be several.
func newRollout(d *appsv1.Deployment, sets []*appsv1.ReplicaSet, now time.Time) *rollout {
	r := &rollout{d: d, now: now}
	sets = slices.Clone(sets)
	slices.SortStableFunc(sets, byCreation)
	for _, rs := range sets {
		if r.new == nil && sameTemplate(&rs.Spec.Template, &d.Spec.Template) {
			r.new = rs
		} else {
			r.old = append(r.old, rs)
		}
	}
	return r
}

func (r *rollout) all() []*appsv1.ReplicaSet {
	if r.new == nil {
		return r.old
	}
	return append(slices.Clip(r.old), r.new)
}

// replace takes in a newer version of one of the sets.
func (r *rollout) replace(rs *appsv1.ReplicaSet) {
	if r.new != nil && r.new.UID == rs.UID {
		r.new = rs
	}
	for i := range r.old {
		if r.old[i].UID == rs.UID {
			r.old[i] = rs
		}
	}
}

// scaling is one ReplicaSet and the replicas it shall have. resized ones also
// take note of the Deployment's new size when their own stays.
type scaling struct {
	set      *appsv1.ReplicaSet
	replicas int32
	resized  bool
}

func byCreation(a, b *appsv1.ReplicaSet) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

func active(sets []*appsv1.ReplicaSet) []*appsv1.ReplicaSet {
	return slices.DeleteFunc(slices.Clone(sets), func(rs *appsv1.ReplicaSet) bool { return *rs.Spec.Replicas == 0 })
}

func specReplicas(sets []*appsv1.ReplicaSet) (n int32) {
	for _, rs := range sets {
		n += *rs.Spec.Replicas
	}
	return n
}

func availableReplicas(sets []*appsv1.ReplicaSet) (n int32) {
	for _, rs := range sets {
		n += rs.Status.AvailableReplicas
	}
	return n
}

// fenceposts returns how many pods may exist above and be missing below the
// desired number. Surge rounds up and unavailability down; should both come out
// as zero, one pod may be missing, or nothing could ever move.
func fenceposts(d *appsv1.Deployment) (surge, unavailable int32) {
	u := d.Spec.Strategy.RollingUpdate
	if d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType || u == nil {
		return 0, 0
	}
	surge = portion(u.MaxSurge, *d.Spec.Replicas, true)
	unavailable = portion(u.MaxUnavailable, *d.Spec.Replicas, false)
	if surge == 0 && unavailable == 0 {
		unavailable = 1
	}
	return surge, unavailable
}

func portion(v *intstr.IntOrString, of int32, up bool) int32 {
	n, err := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(v, intstr.FromInt32(0)), int(of), up)
	if err != nil {
		return 0
	}
	return int32(n)
}

func maxSurge(d *appsv1.Deployment) int32 {
	surge, _ := fenceposts(d)
	return surge
}

func maxUnavailable(d *appsv1.Deployment) int32 {
	_, unavailable := fenceposts(d)
	return min(unavailable, *d.Spec.Replicas)
}

// newSize is how large the newest set may be now.
func newSize(r *rollout, current int32, total int32) int32 {
	want := *r.d.Spec.Replicas
	if r.d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType || current > want {
		return want
	}
	room := want + maxSurge(r.d) - total
	if room <= 0 {
		return current
	}
	return current + min(room, want-current)
}

// planRolling takes one step of a rolling update: up with the new set if there
// is room, else down with the old ones.
func planRolling(r *rollout) []scaling {
	if size := newSize(r, *r.new.Spec.Replicas, specReplicas(r.all())); size != *r.new.Spec.Replicas {
		return []scaling{{set: r.new, replicas: size}}
	}
	return planOld(r)
}

// planOld scales old sets down, unhealthy pods first, without going below the
// pods that have to stay available.
func planOld(r *rollout) []scaling {
	old := active(r.old)
	keep := *r.d.Spec.Replicas - maxUnavailable(r.d)
	newUnavailable := *r.new.Spec.Replicas - r.new.Status.AvailableReplicas
	budget := specReplicas(r.all()) - keep - newUnavailable
	if len(old) == 0 || budget <= 0 {
		return nil
	}
	slices.SortStableFunc(old, byCreation)
	size := make([]int32, len(old))
	for i, rs := range old {
		unhealthy := min(budget, max(0, *rs.Spec.Replicas-rs.Status.AvailableReplicas))
		size[i] = *rs.Spec.Replicas - unhealthy
		budget -= unhealthy
	}
	spare := availableReplicas(r.all()) - keep
	for i := range old {
		down := min(size[i], max(0, spare))
		size[i] -= down
		spare -= down
	}
	var steps []scaling
	for i, rs := range old {
		if size[i] != *rs.Spec.Replicas {
			steps = append(steps, scaling{set: rs, replicas: size[i]})
		}
	}
	return steps
}

func scaleToZero(sets []*appsv1.ReplicaSet) []scaling {
	var steps []scaling
	for _, rs := range sets {
		steps = append(steps, scaling{set: rs})
	}
	return steps
}

// resized tells that the Deployment's replicas changed since its active sets
// were last scaled.
func (r *rollout) resized() bool {
	for _, rs := range active(r.all()) {
		if desired, ok := intAnnotation(rs, desiredReplicas); ok && desired != *r.d.Spec.Replicas {
			return true
		}
	}
	return false
}

// planResize spreads a changed number of replicas over the sets: to the only
// one, to the new one once it serves alone, or in proportion during a rollout.
func planResize(r *rollout) []scaling {
	want := *r.d.Spec.Replicas
	if only := activeOrLatest(r); only != nil {
		return []scaling{{set: only, replicas: want, resized: *only.Spec.Replicas != want}}
	}
	if saturated(r) {
		return scaleToZero(active(r.old))
	}
	if r.d.Spec.Strategy.Type != appsv1.RollingUpdateDeploymentStrategyType {
		return nil
	}
	return planProportional(r)
}

func activeOrLatest(r *rollout) *appsv1.ReplicaSet {
	switch on := active(r.all()); len(on) {
	case 0:
		if r.new != nil || len(r.old) == 0 {
			return r.new
		}
		return slices.MaxFunc(r.old, byCreation)
	case 1:
		return on[0]
	default:
		return nil
	}
}

func saturated(r *rollout) bool {
	if r.new == nil {
		return false
	}
	desired, ok := intAnnotation(r.new, desiredReplicas)
	want := *r.d.Spec.Replicas
	return ok && desired == want && *r.new.Spec.Replicas == want && r.new.Status.AvailableReplicas == want
}

// planProportional shares out the difference between what all sets have and may
// have, by size; larger sets first and the remainder to the first.
func planProportional(r *rollout) []scaling {
	sets := active(r.all())
	allowed := int32(0)
	if *r.d.Spec.Replicas > 0 {
		allowed = *r.d.Spec.Replicas + maxSurge(r.d)
	}
	toAdd := allowed - specReplicas(sets)
	slices.SortStableFunc(sets, func(a, b *appsv1.ReplicaSet) int {
		age := byCreation(a, b)
		if toAdd > 0 {
			age = -age // growth goes to newer sets first
		}
		return cmp.Or(cmp.Compare(*b.Spec.Replicas, *a.Spec.Replicas), age)
	})
	steps := make([]scaling, len(sets))
	var added int32
	for i, rs := range sets {
		share := int32(0)
		if toAdd != 0 {
			share = proportion(r.d, rs, toAdd, added)
		}
		added += share
		steps[i] = scaling{set: rs, replicas: *rs.Spec.Replicas + share, resized: true}
	}
	if len(steps) > 0 && toAdd != 0 {
		steps[0].replicas = max(0, steps[0].replicas+toAdd-added)
	}
	return steps
}

// proportion is the share of toAdd for one set, bounded by what is left of it.
func proportion(d *appsv1.Deployment, rs *appsv1.ReplicaSet, toAdd, added int32) int32 {
	if *rs.Spec.Replicas == 0 || toAdd == added {
		return 0
	}
	share, left := fraction(d, rs), toAdd-added
	if toAdd > 0 {
		return min(share, left)
	}
	return max(share, left)
}

func fraction(d *appsv1.Deployment, rs *appsv1.ReplicaSet) int32 {
	have := *rs.Spec.Replicas
	if *d.Spec.Replicas == 0 {
		return -have
	}
	before, ok := intAnnotation(rs, maxReplicas)
	if !ok || before == 0 {
		if before = d.Status.Replicas; before == 0 {
			return 0
		}
	}
	size := float64(have) * float64(*d.Spec.Replicas+maxSurge(d)) / float64(before)
	return int32(math.Round(size)) - have
}

// planCleanup returns the revisions beyond the history limit that own nothing.
func planCleanup(r *rollout) []*appsv1.ReplicaSet {
	limit := r.d.Spec.RevisionHistoryLimit
	if limit == nil || *limit == math.MaxInt32 {
		return nil
	}
	old := slices.DeleteFunc(slices.Clone(r.old), func(rs *appsv1.ReplicaSet) bool { return rs.DeletionTimestamp != nil })
	excess := len(old) - int(*limit)
	if excess <= 0 {
		return nil
	}
	slices.SortStableFunc(old, func(a, b *appsv1.ReplicaSet) int {
		return cmp.Or(cmp.Compare(revision(a), revision(b)), byCreation(a, b))
	})
	return slices.DeleteFunc(old[:excess], func(rs *appsv1.ReplicaSet) bool {
		return rs.Status.Replicas != 0 || *rs.Spec.Replicas != 0 || rs.Generation > rs.Status.ObservedGeneration
	})
}

func intAnnotation(rs *appsv1.ReplicaSet, key string) (int32, bool) {
	n, err := strconv.ParseInt(rs.Annotations[key], 10, 32)
	return int32(n), err == nil
}
