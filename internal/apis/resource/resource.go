// Package resource declares the kinds of the resource.k8s.io group (KEP-4381):
// v1 is stored; the older versions can be switched on.
package resource

import (
	"strings"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	resourcev1alpha3 "k8s.io/api/resource/v1alpha3"
	resourcev1beta1 "k8s.io/api/resource/v1beta1"
	resourcev1beta2 "k8s.io/api/resource/v1beta2"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/apis"
	"proa/internal/apis/validate"
)

const group = "resource.k8s.io"

// Resources returns every kind of the group.
func Resources() []*apis.Resource {
	return []*apis.Resource{
		&DeviceClasses, &DeviceTaintRules, &ResourceClaims, &ResourceClaimTemplates, &ResourcePoolStatusRequests, &ResourceSlices,
	}
}

// nameAndAge prints kinds that show nothing else.
var nameAndAge = []metav1.TableColumnDefinition{apis.NameColumn, apis.AgeColumn}

func nameAndAgeRow(obj apis.Object, now time.Time) []any {
	return []any{obj.GetName(), apis.AgeOf(obj, now)}
}

// DeviceClasses is the resource.k8s.io/v1 deviceclasses resource.
var DeviceClasses = apis.Resource{
	Group: group, Version: "v1", Kind: "DeviceClass", Plural: "deviceclasses", Scope: apis.Cluster,
	New: apis.New[resourcev1.DeviceClass], NewList: apis.NewList[resourcev1.DeviceClassList],
	Also: []apis.Served{
		apis.ServedAs[resourcev1.DeviceClass, resourcev1beta2.DeviceClass, resourcev1beta2.DeviceClassList](group, "v1beta2", "DeviceClass"),
		apis.ServedAs[resourcev1.DeviceClass, resourcev1beta1.DeviceClass, resourcev1beta1.DeviceClassList](group, "v1beta1", "DeviceClass"),
	},
	ValidateName:   validate.NameAlone(apivalidation.NameIsDNSSubdomain),
	Validate:       apis.Check(validateClass),
	ValidateUpdate: apis.CheckUpdate(validateClassUpdate),
	Columns:        nameAndAge, Row: nameAndAgeRow,
}

// ResourceClaims is the resource.k8s.io/v1 resourceclaims resource.
var ResourceClaims = apis.Resource{
	Group: group, Version: "v1", Kind: "ResourceClaim", Plural: "resourceclaims",
	ChecksNameOnUpdate: true,
	New:                apis.New[resourcev1.ResourceClaim], NewList: apis.NewList[resourcev1.ResourceClaimList],
	NoGeneration: true,
	Also: []apis.Served{
		apis.ServedAs[resourcev1.ResourceClaim, resourcev1beta2.ResourceClaim, resourcev1beta2.ResourceClaimList](group, "v1beta2", "ResourceClaim"),
		apis.ServedAs[resourcev1.ResourceClaim, resourcev1beta1.ResourceClaim, resourcev1beta1.ResourceClaimList](group, "v1beta1", "ResourceClaim"),
	},
	Default: apis.On(func(c *resourcev1.ResourceClaim) { defaultClaim(&c.Spec) }),
	Subresources: []apis.Subresource{
		apis.Status(func(c, old *resourcev1.ResourceClaim) {
			c.Spec = old.Spec
			forgetDevices(c, old)
		}, validateClaimStatusUpdate),
	},
	PrepareCreate: apis.On(func(c *resourcev1.ResourceClaim) { c.Status = resourcev1.ResourceClaimStatus{} }),
	PrepareUpdate: apis.OnUpdate(func(c, old *resourcev1.ResourceClaim) { c.Status = old.Status }),
	Validate:      apis.Check(validateClaim),
	ValidateUpdate: apis.CheckUpdate(func(c, old *resourcev1.ResourceClaim) errorList {
		return keepSpec(c.Spec, old.Spec)
	}),
	Columns: []metav1.TableColumnDefinition{
		apis.NameColumn,
		apis.Column("State", "string", "A summary of the current state (allocated, pending, reserved, etc.)."),
		apis.AgeColumn,
	},
	Row: apis.Cells(func(c *resourcev1.ResourceClaim, now time.Time) []any {
		return []any{c.Name, printState(c), apis.AgeOf(c, now)}
	}),
}

// forgetDevices drops what is said of devices that the claim has lost.
func forgetDevices(c, old *resourcev1.ResourceClaim) {
	var kept []resourcev1.AllocatedDeviceStatus
	for i := range c.Status.Devices {
		if d := &c.Status.Devices[i]; isAllocated(c, d) || !isAllocated(old, d) {
			kept = append(kept, *d)
		}
	}
	c.Status.Devices = kept
}

func printState(c *resourcev1.ResourceClaim) string {
	var states []string
	if c.DeletionTimestamp != nil {
		states = append(states, "deleted")
	}
	switch {
	case c.Status.Allocation == nil && c.DeletionTimestamp == nil:
		states = append(states, "pending")
	case c.Status.Allocation != nil:
		states = append(states, "allocated")
		if len(c.Status.ReservedFor) > 0 {
			states = append(states, "reserved")
		}
	}
	return strings.Join(states, ",")
}

// ResourceClaimTemplates is the resource.k8s.io/v1 resourceclaimtemplates resource.
var ResourceClaimTemplates = apis.Resource{
	Group: group, Version: "v1", Kind: "ResourceClaimTemplate", Plural: "resourceclaimtemplates",
	ChecksNameOnUpdate: true,
	New:                apis.New[resourcev1.ResourceClaimTemplate], NewList: apis.NewList[resourcev1.ResourceClaimTemplateList],
	NoGeneration: true,
	Also: []apis.Served{
		apis.ServedAs[resourcev1.ResourceClaimTemplate, resourcev1beta2.ResourceClaimTemplate, resourcev1beta2.ResourceClaimTemplateList](group, "v1beta2", "ResourceClaimTemplate"),
		apis.ServedAs[resourcev1.ResourceClaimTemplate, resourcev1beta1.ResourceClaimTemplate, resourcev1beta1.ResourceClaimTemplateList](group, "v1beta1", "ResourceClaimTemplate"),
	},
	Default:  apis.On(func(t *resourcev1.ResourceClaimTemplate) { defaultClaim(&t.Spec.Spec) }),
	Validate: apis.Check(validateTemplate),
	ValidateUpdate: apis.CheckUpdate(func(t, old *resourcev1.ResourceClaimTemplate) errorList {
		return append(validateTemplate(t), keepSpec(t.Spec, old.Spec)...)
	}),
	Columns: nameAndAge, Row: nameAndAgeRow,
}

// ResourceSlices is the resource.k8s.io/v1 resourceslices resource.
var ResourceSlices = apis.Resource{
	Group: group, Version: "v1", Kind: "ResourceSlice", Plural: "resourceslices", Scope: apis.Cluster,
	New: apis.New[resourcev1.ResourceSlice], NewList: apis.NewList[resourcev1.ResourceSliceList],
	Also: []apis.Served{
		apis.ServedAs[resourcev1.ResourceSlice, resourcev1beta2.ResourceSlice, resourcev1beta2.ResourceSliceList](group, "v1beta2", "ResourceSlice"),
		apis.ServedAs[resourcev1.ResourceSlice, resourcev1beta1.ResourceSlice, resourcev1beta1.ResourceSliceList](group, "v1beta1", "ResourceSlice"),
	},
	Stamp: apis.Stamped(func(s, _ *resourcev1.ResourceSlice, now metav1.Time) {
		for i := range s.Spec.Devices {
			for j := range s.Spec.Devices[i].Taints {
				if t := &s.Spec.Devices[i].Taints[j]; t.TimeAdded == nil {
					t.TimeAdded = &now
				}
			}
		}
	}),
	Validate:       apis.Check(validateSlice),
	ValidateUpdate: apis.CheckUpdate(validateSliceUpdate),
	Fields: apis.Selectable(map[string]func(*resourcev1.ResourceSlice) string{
		resourcev1.ResourceSliceSelectorNodeName: func(s *resourcev1.ResourceSlice) string { return deref(s.Spec.NodeName) },
		resourcev1.ResourceSliceSelectorDriver:   func(s *resourcev1.ResourceSlice) string { return s.Spec.Driver },
		resourcev1.ResourceSliceSelectorPoolName: func(s *resourcev1.ResourceSlice) string { return s.Spec.Pool.Name },
	}),
	Columns: []metav1.TableColumnDefinition{
		apis.NameColumn,
		apis.Column("Node", "string", resourcev1.ResourceSliceSpec{}.SwaggerDoc()["nodeName"]),
		apis.Column("Driver", "string", resourcev1.ResourceSliceSpec{}.SwaggerDoc()["driver"]),
		apis.Column("Pool", "string", resourcev1.ResourcePool{}.SwaggerDoc()["name"]),
		apis.AgeColumn,
	},
	Row: apis.Cells(func(s *resourcev1.ResourceSlice, now time.Time) []any {
		return []any{s.Name, deref(s.Spec.NodeName), s.Spec.Driver, s.Spec.Pool.Name, apis.AgeOf(s, now)}
	}),
}

// DeviceTaintRules is the resource.k8s.io/v1 devicetaintrules resource (KEP-5055).
var DeviceTaintRules = apis.Resource{
	Group: group, Version: "v1", Kind: "DeviceTaintRule", Plural: "devicetaintrules", Scope: apis.Cluster, Gate: "DRADeviceTaintRules",
	New: apis.New[resourcev1.DeviceTaintRule], NewList: apis.NewList[resourcev1.DeviceTaintRuleList],
	Also: []apis.Served{
		apis.ServedAs[resourcev1.DeviceTaintRule, resourcev1beta2.DeviceTaintRule, resourcev1beta2.DeviceTaintRuleList](group, "v1beta2", "DeviceTaintRule"),
		apis.ServedAs[resourcev1.DeviceTaintRule, resourcev1alpha3.DeviceTaintRule, resourcev1alpha3.DeviceTaintRuleList](group, "v1alpha3", "DeviceTaintRule"),
	},
	Storage:           "v1beta2",
	ConditionalUpdate: true,
	Subresources: []apis.Subresource{
		apis.Status(func(r, old *resourcev1.DeviceTaintRule) { r.Spec = old.Spec }, validateRuleStatus),
	},
	PrepareCreate: apis.On(func(r *resourcev1.DeviceTaintRule) { r.Status = resourcev1.DeviceTaintRuleStatus{} }),
	PrepareUpdate: apis.OnUpdate(func(r, old *resourcev1.DeviceTaintRule) { r.Status = old.Status }),
	Stamp:         apis.Stamped(stampRule),
	Validate:      apis.Check(validateRule),
	Columns: []metav1.TableColumnDefinition{
		apis.NameColumn,
		apis.Column("Key", "string", resourcev1.DeviceTaint{}.SwaggerDoc()["key"]),
		apis.Column("Value", "string", resourcev1.DeviceTaint{}.SwaggerDoc()["value"]),
		apis.Column("Effect", "string", resourcev1.DeviceTaint{}.SwaggerDoc()["effect"]),
		apis.Column("TimeAdded", "string", resourcev1.DeviceTaint{}.SwaggerDoc()["timeAdded"]),
		apis.AgeColumn,
	},
	Row: apis.Cells(func(r *resourcev1.DeviceTaintRule, now time.Time) []any {
		t, added := &r.Spec.Taint, ""
		if t.TimeAdded != nil {
			added = apis.Age(*t.TimeAdded, now)
		}
		return []any{r.Name, t.Key, t.Value, string(t.Effect), added, apis.AgeOf(r, now)}
	}),
}

// stampRule says when a taint was added, or its effect changed.
func stampRule(r, old *resourcev1.DeviceTaintRule, now metav1.Time) {
	t := &r.Spec.Taint
	changed := old != nil && old.Spec.Taint.Effect != t.Effect && t.TimeAdded != nil && old.Spec.Taint.TimeAdded.Equal(t.TimeAdded)
	if t.TimeAdded == nil || changed {
		t.TimeAdded = &now
	}
}

// ResourcePoolStatusRequests is the resource.k8s.io/v1alpha3
// resourcepoolstatusrequests resource (KEP-5677).
var ResourcePoolStatusRequests = apis.Resource{
	Group: group, Version: "v1alpha3", Kind: "ResourcePoolStatusRequest", Plural: "resourcepoolstatusrequests", Scope: apis.Cluster, Gate: "DRAResourcePoolStatus",
	ConditionalUpdate: true,
	New:               apis.New[resourcev1alpha3.ResourcePoolStatusRequest], NewList: apis.NewList[resourcev1alpha3.ResourcePoolStatusRequestList],
	NoGeneration: true,
	Default: apis.On(func(r *resourcev1alpha3.ResourcePoolStatusRequest) {
		if r.Spec.Limit == nil {
			r.Spec.Limit = new(resourcev1alpha3.ResourcePoolStatusRequestLimitDefault)
		}
	}),
	Subresources: []apis.Subresource{
		apis.Status(func(r, old *resourcev1alpha3.ResourcePoolStatusRequest) { r.Spec = old.Spec }, validateAnswer),
	},
	PrepareCreate: apis.On(func(r *resourcev1alpha3.ResourcePoolStatusRequest) { r.Status = nil }),
	PrepareUpdate: apis.OnUpdate(func(r, old *resourcev1alpha3.ResourcePoolStatusRequest) { r.Status = old.Status }),
	ValidateUpdate: apis.CheckUpdate(func(r, old *resourcev1alpha3.ResourcePoolStatusRequest) errorList {
		return keepSpec(r.Spec, old.Spec)
	}),
	Columns: nameAndAge, Row: nameAndAgeRow,
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// defaultClaim asks for one device where a request does not say how many.
func defaultClaim(s *resourcev1.ResourceClaimSpec) {
	one := func(mode *resourcev1.DeviceAllocationMode, count *int64, tolerations []resourcev1.DeviceToleration) {
		if *mode == "" {
			*mode = resourcev1.DeviceAllocationModeExactCount
		}
		if *mode == resourcev1.DeviceAllocationModeExactCount && *count == 0 {
			*count = 1
		}
		for i := range tolerations {
			if tolerations[i].Operator == "" {
				tolerations[i].Operator = resourcev1.DeviceTolerationOpEqual
			}
		}
	}
	for i := range s.Devices.Requests {
		r := &s.Devices.Requests[i]
		if e := r.Exactly; e != nil {
			one(&e.AllocationMode, &e.Count, e.Tolerations)
		}
		for j := range r.FirstAvailable {
			f := &r.FirstAvailable[j]
			one(&f.AllocationMode, &f.Count, f.Tolerations)
		}
	}
}
