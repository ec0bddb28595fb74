package admission

import (
	"fmt"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"proa/internal/admission/quota"
	"proa/internal/store"
)

// ResourceQuota holds the objects of a namespace to its quotas. The new usage
// is written with the object, in one transaction: two creates cannot both take
// the last of it, and a create that fails takes nothing. Giving back is the
// quota controller's work.
type ResourceQuota struct {
	Clock clock.PassiveClock // nil: the real one
}

func (ResourceQuota) Name() string { return "ResourceQuota" }

var resourceQuotas = schema.GroupResource{Resource: "resourcequotas"}

func (p ResourceQuota) Commit(tx *store.Tx, a *Attributes) error {
	if a.Namespace == "" || a.Object == nil || !usesMore(a) {
		return nil
	}
	sn := tx.Snapshot()
	if sn.Len(resourceQuotas, a.Namespace) == 0 {
		return nil
	}
	var keys []store.Key
	sn.Range(resourceQuotas, a.Namespace, store.Key{}, func(item *store.Item) bool {
		keys = append(keys, item.Key)
		return true
	})
	for _, key := range keys {
		q, err := find[*corev1.ResourceQuota](tx, key.Resource, key.Namespace, key.Name)
		if err != nil {
			return err
		}
		if err := p.charge(tx, a, q); err != nil {
			return err
		}
	}
	return nil
}

// usesMore tells the writes that can raise usage.
func usesMore(a *Attributes) bool {
	switch a.Operation {
	case admissionv1.Create:
		return a.Subresource == ""
	case admissionv1.Update:
		if a.of(pods) {
			return a.Subresource == "resize" || a.Subresource == "" && terminates(a.Object) != terminates(a.OldObject)
		}
		return a.Subresource == "" && !a.of(resourceQuotas)
	}
	return false
}

// terminates tells which of the Terminating scopes has a pod.
func terminates(obj store.Object) bool {
	pod, ok := obj.(*corev1.Pod)
	return ok && pod.Spec.ActiveDeadlineSeconds != nil
}

func (p ResourceQuota) charge(tx *store.Tx, a *Attributes, q *corev1.ResourceQuota) error {
	gr := a.Resource.GroupResource()
	count := quota.Counter{Devices: devicesIn{tx.Snapshot()}, Clock: p.Clock}
	if !count.Matches(q, gr, a.Object) {
		return nil
	}
	if pod, ok := a.Object.(*corev1.Pod); ok {
		if err := quota.Constraints(count.Limited(q, gr), pod); err != nil {
			return a.forbidden(fmt.Errorf("failed quota: %s: %v", q.Name, err))
		}
	}
	var before corev1.ResourceList
	if a.OldObject != nil && count.Matches(q, gr, a.OldObject) {
		before = count.Usage(gr, a.OldObject)
	}
	growth := quota.Mask(quota.Growth(count.Usage(gr, a.Object), before), q.Spec.Hard)
	if len(growth) == 0 {
		return nil
	}
	after, err := quota.Check(q, usedOf(tx.Snapshot(), q, count), growth)
	if err != nil {
		return a.forbidden(err)
	}
	if a.DryRun {
		return nil
	}
	charged := q.DeepCopy()
	charged.Status = corev1.ResourceQuotaStatus{Hard: q.Spec.Hard.DeepCopy(), Used: after}
	_, err = tx.Put(store.Key{Resource: resourceQuotas, Namespace: q.Namespace, Name: q.Name}, charged)
	return err
}

// usedOf is the quota's reported usage, or a count when nothing was reported yet
// or the limits changed since.
func usedOf(sn *store.Snapshot, q *corev1.ResourceQuota, count quota.Counter) corev1.ResourceList {
	if equality.Semantic.DeepEqual(q.Spec.Hard, q.Status.Hard) && len(quota.Mask(q.Spec.Hard, q.Status.Used)) == len(q.Spec.Hard) {
		return q.Status.Used
	}
	used := quota.Zero(q)
	for _, gr := range quota.Tracked(q) {
		sn.Range(gr, q.Namespace, store.Key{}, func(item *store.Item) bool {
			if count.Matches(q, gr, item.Object) {
				used = quota.Add(used, quota.Mask(count.Usage(gr, item.Object), count.Limited(q, gr)))
			}
			return true
		})
	}
	return used
}

// devicesIn are the devices that quotas have to know of, in a snapshot.
type devicesIn struct{ *store.Snapshot }

var (
	deviceClasses  = schema.GroupResource{Group: resourcev1.GroupName, Resource: "deviceclasses"}
	resourceClaims = schema.GroupResource{Group: resourcev1.GroupName, Resource: "resourceclaims"}
)

func (d devicesIn) Classes() []*resourcev1.DeviceClass {
	return all[*resourcev1.DeviceClass](d.Snapshot, deviceClasses, "")
}

func (d devicesIn) Pod(namespace, name string) (*corev1.Pod, bool) {
	pod, err := find[*corev1.Pod](d.Snapshot, pods, namespace, name)
	return pod, err == nil
}

func (d devicesIn) Claims(namespace string) []*resourcev1.ResourceClaim {
	return all[*resourcev1.ResourceClaim](d.Snapshot, resourceClaims, namespace)
}
