// Package quota says how much of a ResourceQuota an object uses. It only
// computes: admission holds writes to the result, the quota controller reports it.
package quota

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
)

// Counter counts. The zero value knows of no devices and goes by the real time.
type Counter struct {
	Devices Devices
	Clock   clock.PassiveClock
}

const countPrefix = "count/"

var (
	pods           = schema.GroupResource{Resource: "pods"}
	services       = schema.GroupResource{Resource: "services"}
	claims         = schema.GroupResource{Resource: "persistentvolumeclaims"}
	resourceClaims = schema.GroupResource{Group: resourcev1.GroupName, Resource: "resourceclaims"}
)

// counted are the core kinds that can be limited by their bare name.
var counted = map[string]bool{
	"configmaps": true, "secrets": true, "replicationcontrollers": true, "resourcequotas": true,
}

// CountName is the quota resource that counts the objects of a kind.
func CountName(gr schema.GroupResource) corev1.ResourceName {
	return corev1.ResourceName(countPrefix + gr.String())
}

// Usage is what one object uses of every resource that a quota could limit.
func (c Counter) Usage(gr schema.GroupResource, obj runtime.Object) corev1.ResourceList {
	use := corev1.ResourceList{CountName(gr): count(1)}
	switch o := obj.(type) {
	case *corev1.Pod:
		c.podUsage(o, use)
	case *corev1.Service:
		serviceUsage(o, use)
	case *corev1.PersistentVolumeClaim:
		claimUsage(o, use)
	case *resourcev1.ResourceClaim:
		resourceClaimUsage(o, use)
		c.extendedUsage(o, use)
	default:
		if gr.Group == "" && counted[gr.Resource] {
			use[corev1.ResourceName(gr.Resource)] = count(1)
		}
	}
	return use
}

// Matches reports whether a quota limits the object: its scopes take it in and
// it limits something that the object uses.
func (c Counter) Matches(q *corev1.ResourceQuota, gr schema.GroupResource, obj runtime.Object) bool {
	return inScopes(q, obj) && len(c.Limited(q, gr)) > 0
}

// Limited returns the part of the quota's hard limits that concern the object's kind.
func (c Counter) Limited(q *corev1.ResourceQuota, gr schema.GroupResource) corev1.ResourceList {
	out := corev1.ResourceList{}
	for name, limit := range q.Spec.Hard {
		if slices.Contains(kindsOf(name), gr) && (gr != resourceClaims || c.countsDevices(name)) {
			out[name] = limit
		}
	}
	return out
}

// Tracked returns the kinds that a quota may limit, sorted: those to be listed to
// compute its usage. Whether devices serve an extended resource it does not ask.
func Tracked(q *corev1.ResourceQuota) []schema.GroupResource {
	var out []schema.GroupResource
	for name := range q.Spec.Hard {
		out = append(out, kindsOf(name)...)
	}
	slices.SortFunc(out, func(a, b schema.GroupResource) int {
		return cmp.Or(strings.Compare(a.Group, b.Group), strings.Compare(a.Resource, b.Resource))
	})
	return slices.Compact(out)
}

// kindsOf returns the kinds whose objects use a resource.
func kindsOf(name corev1.ResourceName) []schema.GroupResource {
	s := string(name)
	switch {
	case strings.HasPrefix(s, countPrefix):
		return []schema.GroupResource{schema.ParseGroupResource(strings.TrimPrefix(s, countPrefix))}
	case counted[s]:
		return []schema.GroupResource{{Resource: s}}
	case s == "services" || strings.HasPrefix(s, "services."):
		return []schema.GroupResource{services}
	case name == corev1.ResourcePersistentVolumeClaims || name == corev1.ResourceRequestsStorage || strings.Contains(s, storageClassSuffix):
		return []schema.GroupResource{claims}
	case strings.HasSuffix(s, deviceClassSuffix):
		return []schema.GroupResource{resourceClaims}
	}
	if _, ok := requested(name); ok {
		return []schema.GroupResource{pods, resourceClaims}
	}
	return []schema.GroupResource{pods}
}

// Check returns the usage after an object's growth, or the error for the
// resources that would be over their limit.
func Check(q *corev1.ResourceQuota, used, growth corev1.ResourceList) (corev1.ResourceList, error) {
	requested := Mask(growth, q.Spec.Hard)
	after := Add(used, requested)
	if over := exceeding(Mask(after, requested), q.Spec.Hard); len(over) > 0 {
		return nil, fmt.Errorf("exceeded quota: %s, requested: %s, used: %s, limited: %s",
			q.Name, text(Mask(requested, over)), text(Mask(used, over)), text(Mask(q.Spec.Hard, over)))
	}
	return after, nil
}

// Zero returns a usage of nothing for every limit of the quota.
func Zero(q *corev1.ResourceQuota) corev1.ResourceList {
	out := corev1.ResourceList{}
	for name := range q.Spec.Hard {
		out[name] = count(0)
	}
	return out
}
