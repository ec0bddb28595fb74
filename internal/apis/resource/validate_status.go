package resource

import (
	resourcev1 "k8s.io/api/resource/v1"
	resourcev1alpha3 "k8s.io/api/resource/v1alpha3"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/dynamic-resource-allocation/structured"

	"proa/internal/apis/core"
	"proa/internal/apis/validate"
)

func validateClaimStatusUpdate(c, old *resourcev1.ResourceClaim) errorList {
	path, s := field.NewPath("status"), &c.Status
	errs := validateReserved(c, old, path.Child("reservedFor"))
	for i := range s.Devices {
		errs = append(errs, validateDeviceStatus(c, &s.Devices[i], path.Child("devices").Index(i))...)
	}
	if before := old.Status.Allocation; before != nil && s.Allocation != nil {
		return append(errs, validate.Immutable(path.Child("allocation"), s.Allocation, before)...)
	}
	return append(errs, validateAllocation(c, path.Child("allocation"))...)
}

func validateAllocation(c *resourcev1.ResourceClaim, path *field.Path) errorList {
	a := c.Status.Allocation
	if a == nil {
		return nil
	}
	names := requestNames(&c.Spec)
	var errs errorList
	for i, r := range a.Devices.Results {
		at := path.Child("devices", "results").Index(i)
		errs = append(errs, validateRequestName(r.Request, names, at.Child("request"))...)
		errs = append(errs, validate.CSIDriverName(at.Child("driver"), r.Driver)...)
		errs = append(errs, validatePoolName(r.Pool, at.Child("pool"))...)
		errs = append(errs, validate.Label(at.Child("device"), r.Device)...)
		errs = append(errs, validateBindingConditions(r.BindingConditions, r.BindingFailureConditions, at)...)
		errs = append(errs, validateTolerations(r.Tolerations, at.Child("tolerations"))...)
		errs = append(errs, validateSkipped(r.SkipNodeOperations, at.Child("skipNodeOperations"))...)
	}
	for i := range a.Devices.Config {
		cfg, at := &a.Devices.Config[i], path.Child("devices", "config").Index(i)
		errs = append(errs, validateRequestNames(cfg.Requests, names, at.Child("requests"))...)
		errs = append(errs, validateConfiguration(&cfg.DeviceConfiguration, at)...)
	}
	if a.NodeSelector != nil {
		errs = append(errs, core.ValidateNodeSelector(a.NodeSelector, path.Child("nodeSelector"))...)
	}
	return errs
}

// validateReserved: only an allocated claim has consumers, and a claim that is
// being deleted gets no new ones.
func validateReserved(c, old *resourcev1.ResourceClaim, path *field.Path) errorList {
	var errs errorList
	for i, r := range c.Status.ReservedFor {
		at := path.Index(i)
		if r.Resource == "" {
			errs = append(errs, field.Required(at.Child("resource"), ""))
		}
		if r.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
		}
		if r.UID == "" {
			errs = append(errs, field.Required(at.Child("uid"), ""))
		}
	}
	switch {
	case len(c.Status.ReservedFor) == 0:
	case c.Status.Allocation == nil:
		errs = append(errs, field.Forbidden(path, "may not be specified when `allocated` is not set"))
	case c.DeletionTimestamp != nil && !sets.New(old.Status.ReservedFor...).HasAll(c.Status.ReservedFor...):
		errs = append(errs, field.Forbidden(path, "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set"))
	}
	return errs
}

func validateDeviceStatus(c *resourcev1.ResourceClaim, d *resourcev1.AllocatedDeviceStatus, path *field.Path) errorList {
	errs := validate.CSIDriverName(path.Child("driver"), d.Driver)
	errs = append(errs, validatePoolName(d.Pool, path.Child("pool"))...)
	errs = append(errs, validate.Label(path.Child("device"), d.Device)...)
	if !isAllocated(c, d) {
		id := structured.MakeSharedDeviceID(structured.MakeDeviceID(d.Driver, d.Pool, d.Device), (*types.UID)(d.ShareID))
		errs = append(errs, field.Invalid(path, id, "must be an allocated device in the claim"))
	}
	if n := len(d.Conditions); n > resourcev1.AllocatedDeviceStatusMaxConditions {
		errs = append(errs, field.TooMany(path.Child("conditions"), n, resourcev1.AllocatedDeviceStatusMaxConditions))
	}
	errs = append(errs, metav1validation.ValidateConditions(d.Conditions, path.Child("conditions"))...)
	if d.Data != nil && len(d.Data.Raw) > 0 {
		errs = append(errs, validateRaw(d.Data, resourcev1.AllocatedDeviceStatusDataMaxLength, path.Child("data"))...)
	}
	if n := d.NetworkData; n != nil {
		for i, ip := range n.IPs {
			errs = append(errs, validation.IsValidInterfaceAddress(path.Child("networkData", "ips").Index(i), ip)...)
		}
	}
	return errs
}

func isAllocated(c *resourcev1.ResourceClaim, d *resourcev1.AllocatedDeviceStatus) bool {
	if c.Status.Allocation == nil {
		return false
	}
	for _, r := range c.Status.Allocation.Devices.Results {
		sameShare := (r.ShareID == nil) == (d.ShareID == nil) && (r.ShareID == nil || string(*r.ShareID) == *d.ShareID)
		if r.Driver == d.Driver && r.Pool == d.Pool && r.Device == d.Device && sameShare {
			return true
		}
	}
	return false
}

// validateAnswer: what a request for the status of pools was answered stays.
func validateAnswer(r, old *resourcev1alpha3.ResourcePoolStatusRequest) errorList {
	path := field.NewPath("status")
	switch {
	case old.Status != nil:
		return validate.Immutable(path, r.Status, old.Status)
	case r.Status == nil:
		return nil
	}
	return metav1validation.ValidateConditions(r.Status.Conditions, path.Child("conditions"))
}
