package admission

import (
	"context"
	"fmt"
	"slices"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"proa/internal/store"
)

// deviceClaims checks who may have what of devices: an administrator's access only
// in namespaces that are labelled for it (KEP-5018), allocations and reservations
// only for those who may bind claims, and a device's status only for its driver
// (KEP-4817). Upstream does it in validation, so the answer is Invalid.
type deviceClaims struct {
	Store      *store.Store
	Authorizer authorizer.Authorizer
}

func (deviceClaims) Name() string { return "DeviceClaims" }

func (p deviceClaims) Validate(ctx context.Context, a *Attributes) error {
	if a.Resource.Group != resourcev1.GroupName {
		return nil
	}
	var errs field.ErrorList
	switch o := a.Object.(type) {
	case *resourcev1.ResourceClaim:
		old, _ := a.OldObject.(*resourcev1.ResourceClaim)
		switch {
		case a.Operation == admissionv1.Create && a.Subresource == "":
			errs = p.adminRequest(a, &o.Spec)
		case a.Subresource == "status" && old != nil:
			errs = append(p.adminResult(a, o, old), p.writers(ctx, a, o, old)...)
		}
	case *resourcev1.ResourceClaimTemplate:
		if a.Operation == admissionv1.Create {
			errs = p.adminRequest(a, &o.Spec.Spec)
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(a.Resource.GroupVersionKind().GroupKind(), a.Name, errs)
}

func (p deviceClaims) adminRequest(a *Attributes, spec *resourcev1.ResourceClaimSpec) field.ErrorList {
	for i := range spec.Devices.Requests {
		if e := spec.Devices.Requests[i].Exactly; e != nil && e.AdminAccess != nil && *e.AdminAccess {
			return p.labelled(a, field.NewPath("spec", "devices", "requests").Index(i).Child("adminAccess"))
		}
	}
	return nil
}

func (p deviceClaims) adminResult(a *Attributes, claim, old *resourcev1.ResourceClaim) field.ErrorList {
	if administered(old) >= 0 {
		return nil // it was granted then
	}
	if i := administered(claim); i >= 0 {
		return p.labelled(a, field.NewPath("status", "allocation", "devices", "results").Index(i).Child("adminAccess"))
	}
	return nil
}

// administered is the first result with an administrator's access; -1: none.
func administered(claim *resourcev1.ResourceClaim) int {
	if claim.Status.Allocation == nil {
		return -1
	}
	return slices.IndexFunc(claim.Status.Allocation.Devices.Results, func(r resourcev1.DeviceRequestAllocationResult) bool {
		return r.AdminAccess != nil && *r.AdminAccess
	})
}

func (p deviceClaims) labelled(a *Attributes, path *field.Path) field.ErrorList {
	namespace, err := find[*corev1.Namespace](p.Store.Snapshot(), namespaces, "", a.Namespace)
	if err != nil {
		return field.ErrorList{field.InternalError(path, fmt.Errorf("could not retrieve namespace to verify admin access: %w", err))}
	}
	if namespace.Labels[resourcev1.DRAAdminNamespaceLabelKey] == "true" {
		return nil
	}
	return field.ErrorList{field.Forbidden(path, fmt.Sprintf("admin access to devices requires the `%s: true` label on the containing namespace", resourcev1.DRAAdminNamespaceLabelKey))}
}

// writers checks who changes which part of a claim's status.
func (p deviceClaims) writers(ctx context.Context, a *Attributes, claim, old *resourcev1.ResourceClaim) field.ErrorList {
	verb, path := "update", field.NewPath("status")
	if _, ok := a.Options.(*metav1.PatchOptions); ok {
		verb = "patch"
	}
	var errs field.ErrorList
	s, was := &claim.Status, &old.Status
	if !equality.Semantic.DeepEqual(s.Allocation, was.Allocation) || !equality.Semantic.DeepEqual(s.ReservedFor, was.ReservedFor) {
		if reason, ok := p.may(ctx, a, verb, resourcev1.SubresourceBinding, "", ""); !ok {
			errs = append(errs, field.Forbidden(path.Child("allocation"), fmt.Sprintf(
				`changing status.allocation or status.reservedFor requires resource="resourceclaims/binding", verb="%s" permission: %s`, verb, reason)))
		}
	}
	if s.Allocation == nil {
		return errs // what was said of its devices is dropped
	}
	verbs := []string{resourcev1.VerbPrefixArbitraryNode + verb}
	if onNode(a, s.Allocation) {
		verbs = []string{resourcev1.VerbPrefixAssociatedNode + verb, verbs[0]}
	}
	for _, driver := range sets.List(driversChanged(s.Devices, was.Devices)) {
		allowed, first := false, ""
		for i, v := range verbs {
			reason, ok := p.may(ctx, a, v, resourcev1.SubresourceDriver, a.Namespace, driver)
			if allowed = allowed || ok; i == 0 {
				first = reason
			}
		}
		if !allowed {
			errs = append(errs, field.Forbidden(path.Child("devices"), fmt.Sprintf(
				`changing status.devices requires resource="resourceclaims/driver", verb="%s" permission: %s`, verbs, first)))
		}
	}
	return errs
}

func (p deviceClaims) may(ctx context.Context, a *Attributes, verb, subresource, namespace, name string) (reason string, ok bool) {
	decision, reason, err := p.Authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: a.User, Verb: verb, APIGroup: resourcev1.GroupName, APIVersion: a.Resource.Version,
		Resource: a.Resource.Plural, Subresource: subresource, Namespace: namespace, Name: name, ResourceRequest: true,
	})
	if decision == authorizer.DecisionAllow {
		return "", true
	}
	where := "at the cluster scope"
	if namespace != "" {
		where = fmt.Sprintf("in the namespace %q", namespace)
	}
	what := ""
	if name != "" {
		what = fmt.Sprintf(" %q", name)
	}
	text := fmt.Sprintf("%s.%s%s is forbidden: User %q cannot %s resource %q in API group %q %s",
		a.Resource.Plural, resourcev1.GroupName, what, a.User.GetName(), verb, a.Resource.Plural+"/"+subresource, resourcev1.GroupName, where)
	switch {
	case err != nil:
		text += ": " + err.Error()
	case reason != "":
		text += ": " + reason
	}
	return text, false
}

// driversChanged are those of devices of which something else is said now.
func driversChanged(devices, old []resourcev1.AllocatedDeviceStatus) sets.Set[string] {
	changed := sets.New[string]()
	same := func(a, b *resourcev1.AllocatedDeviceStatus) bool {
		return a.Driver == b.Driver && a.Pool == b.Pool && a.Device == b.Device && equality.Semantic.DeepEqual(a.ShareID, b.ShareID)
	}
	note := func(of, others []resourcev1.AllocatedDeviceStatus) {
		for i := range of {
			j := slices.IndexFunc(others, func(o resourcev1.AllocatedDeviceStatus) bool { return same(&of[i], &o) })
			if j < 0 || !equality.Semantic.DeepEqual(of[i], others[j]) {
				changed.Insert(of[i].Driver)
			}
		}
	}
	note(devices, old)
	note(old, devices)
	return changed
}

// onNode tells whether a service account asks from the one node that the
// allocation is for.
func onNode(a *Attributes, allocation *resourcev1.AllocationResult) bool {
	if _, _, err := serviceaccount.SplitUsername(a.User.GetName()); err != nil {
		return false
	}
	from := a.User.GetExtra()[serviceaccount.NodeNameKey]
	s := allocation.NodeSelector
	if len(from) != 1 || s == nil || len(s.NodeSelectorTerms) != 1 {
		return false
	}
	term := s.NodeSelectorTerms[0]
	if len(term.MatchExpressions) > 0 || len(term.MatchFields) != 1 {
		return false
	}
	f := term.MatchFields[0]
	return f.Key == metav1.ObjectNameField && f.Operator == corev1.NodeSelectorOpIn && len(f.Values) == 1 && f.Values[0] == from[0]
}
