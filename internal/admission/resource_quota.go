package admission

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota/apis/resourcequota"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota/apis/resourcequota/install"
	"k8s.io/utils/clock"

	"proa/internal/admission/quota"
	"proa/internal/store"
)

// ResourceQuota holds the objects of a namespace to its quotas. The new usage
// is written with the object, in one transaction: two creates cannot both take
// the last of it, and a create that fails takes nothing. Giving back is the
// quota controller's work.
type ResourceQuota struct {
	Clock   clock.PassiveClock              // nil: the real one
	Limited []resourcequota.LimitedResource // what nobody uses without a quota that covers it
}

// NewResourceQuota reads the configuration; nil limits nothing by itself.
func NewResourceQuota(config []byte, c clock.PassiveClock) (ResourceQuota, error) {
	p := ResourceQuota{Clock: c}
	if config == nil {
		return p, nil
	}
	scheme := runtime.NewScheme()
	install.Install(scheme)
	document, err := runtime.Decode(serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder(), config)
	if err != nil {
		return p, err
	}
	read, ok := document.(*resourcequota.Configuration)
	if !ok {
		return p, fmt.Errorf("unexpected type: %T", document)
	}
	var errs field.ErrorList
	for i, l := range read.LimitedResources {
		if l.Resource == "" {
			errs = append(errs, field.Required(field.NewPath("limitedResources").Index(i).Child("resource"), ""))
		}
	}
	p.Limited = read.LimitedResources
	return p, errs.ToAggregate()
}

func (ResourceQuota) Name() string { return "ResourceQuota" }

var resourceQuotas = schema.GroupResource{Resource: "resourcequotas"}

func (p ResourceQuota) Commit(tx *store.Tx, a *Attributes) error {
	if a.Namespace == "" || a.Object == nil || !usesMore(a) {
		return nil
	}
	if tx.Snapshot().Len(resourceQuotas, a.Namespace) == 0 && len(p.Limited) == 0 {
		return nil
	}
	quotas, err := quotasIn(tx, a.Namespace)
	if err != nil {
		return err
	}
	count := quota.Counter{Devices: devicesIn{tx.Snapshot()}, Clock: p.Clock}
	if err := satisfies(a, quotas, count); err != nil {
		return err
	}
	if err := p.covers(a, quotas, count); err != nil {
		return err
	}
	for _, q := range quotas {
		if err := charge(tx, a, q, count); err != nil {
			return err
		}
	}
	return nil
}

// quotasIn reads the quotas of a namespace, so that none may change meanwhile.
func quotasIn(tx *store.Tx, namespace string) (quotas []*corev1.ResourceQuota, err error) {
	var keys []store.Key
	tx.Snapshot().Range(resourceQuotas, namespace, store.Key{}, func(item *store.Item) bool {
		keys = append(keys, item.Key)
		return true
	})
	for _, key := range keys {
		q, err := find[*corev1.ResourceQuota](tx, key.Resource, key.Namespace, key.Name)
		if err != nil {
			return nil, err
		}
		quotas = append(quotas, q)
	}
	return quotas, nil
}

// satisfies tells whether a pod states what the quotas it falls under limit.
func satisfies(a *Attributes, quotas []*corev1.ResourceQuota, count quota.Counter) error {
	pod, ok := a.Object.(*corev1.Pod)
	if !ok {
		return nil
	}
	for _, q := range quotas {
		if !count.Matches(q, pods, pod) {
			continue
		}
		if err := quota.Constraints(count.Limited(q, pods), pod); err != nil {
			return a.forbidden(fmt.Errorf("failed quota: %s: %v", q.Name, err))
		}
	}
	return nil
}

// covers refuses what is limited and no quota covers. Upstream's refusal of a scope is
// no 403, but an error without a reason.
func (p ResourceQuota) covers(a *Attributes, quotas []*corev1.ResourceQuota, count quota.Counter) error {
	if len(p.Limited) == 0 || !grows(a, quotas, count) {
		return nil
	}
	resources, scopes := count.Uncovered(p.Limited, quotas, a.Resource.GroupResource(), a.Object)
	if len(resources) > 0 {
		return a.forbidden(fmt.Errorf("insufficient quota to consume: %s", strings.Join(resources, ",")))
	}
	if len(scopes) > 0 {
		return &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusInternalServerError,
			Message: fmt.Sprintf("insufficient quota to match these scopes: %v", scopes),
		}}
	}
	return nil
}

// grows tells whether a write uses more of anything: of what the quotas see that it
// falls under, or at all where it falls under none.
func grows(a *Attributes, quotas []*corev1.ResourceQuota, count quota.Counter) bool {
	if a.OldObject == nil {
		return true
	}
	gr := a.Resource.GroupResource()
	if len(quota.Growth(count.Usage(gr, a.Object), count.Usage(gr, a.OldObject))) > 0 {
		return true
	}
	return slices.ContainsFunc(quotas, func(q *corev1.ResourceQuota) bool {
		return count.Matches(q, gr, a.Object) && !count.Matches(q, gr, a.OldObject)
	})
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

// charge writes the usage of a quota as it is with the object.
func charge(tx *store.Tx, a *Attributes, q *corev1.ResourceQuota, count quota.Counter) error {
	gr := a.Resource.GroupResource()
	if !count.Matches(q, gr, a.Object) {
		return nil
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
