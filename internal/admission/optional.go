package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"proa/internal/apis"
)

// Plugins that are off unless enabled.

// AlwaysPullImages makes every pull of an image check the puller's credentials.
type AlwaysPullImages struct{}

func (AlwaysPullImages) Name() string { return "AlwaysPullImages" }

func (AlwaysPullImages) Admit(_ context.Context, a *Attributes) error {
	pod, ok := a.Object.(*corev1.Pod)
	if !ok || !pulls(a) {
		return nil
	}
	for _, policy := range pullPolicies(&pod.Spec) {
		*policy = corev1.PullAlways
	}
	return nil
}

func (AlwaysPullImages) Validate(_ context.Context, a *Attributes) error {
	pod, ok := a.Object.(*corev1.Pod)
	if !ok || !pulls(a) {
		return nil
	}
	for _, policy := range pullPolicies(&pod.Spec) {
		if *policy != corev1.PullAlways {
			return a.forbidden(fmt.Errorf("spec.imagePullPolicy: Unsupported value: %q: supported values: %q", *policy, corev1.PullAlways))
		}
	}
	return nil
}

func pulls(a *Attributes) bool {
	return a.of(pods) && (a.Subresource == "" || a.Subresource == "ephemeralcontainers")
}

// pullPolicies are those of every container and image volume.
func pullPolicies(s *corev1.PodSpec) (out []*corev1.PullPolicy) {
	for i := range s.InitContainers {
		out = append(out, &s.InitContainers[i].ImagePullPolicy)
	}
	for i := range s.Containers {
		out = append(out, &s.Containers[i].ImagePullPolicy)
	}
	for i := range s.EphemeralContainers {
		out = append(out, &s.EphemeralContainers[i].ImagePullPolicy)
	}
	for i := range s.Volumes {
		if s.Volumes[i].Image != nil {
			out = append(out, &s.Volumes[i].Image.PullPolicy)
		}
	}
	return out
}

// DenyServiceExternalIPs keeps new external IPs, which can take over anyone's
// traffic, out of services.
type DenyServiceExternalIPs struct{}

func (DenyServiceExternalIPs) Name() string { return "DenyServiceExternalIPs" }

var services = schema.GroupResource{Resource: "services"}

func (DenyServiceExternalIPs) Validate(_ context.Context, a *Attributes) error {
	if !a.is(admissionv1.Create, services) && !a.is(admissionv1.Update, services) {
		return nil
	}
	s, ok := a.Object.(*corev1.Service)
	if !ok {
		return nil
	}
	var before []string
	if old, ok := a.OldObject.(*corev1.Service); ok {
		before = old.Spec.ExternalIPs
	}
	for _, ip := range s.Spec.ExternalIPs {
		if !slices.Contains(before, ip) {
			return a.forbidden(errors.New("Use of external IPs is denied by admission control."))
		}
	}
	return nil
}

// OwnerReferencesPermissionEnforcement lets only those name an owner who may
// delete the object, and block an owner's deletion who may set its finalizers.
type OwnerReferencesPermissionEnforcement struct {
	Authorizer authorizer.Authorizer
	Catalogue  *apis.Catalogue
}

func (OwnerReferencesPermissionEnforcement) Name() string {
	return "OwnerReferencesPermissionEnforcement"
}

func (p OwnerReferencesPermissionEnforcement) Validate(ctx context.Context, a *Attributes) error {
	if a.Object == nil || a.Operation != admissionv1.Create && a.Operation != admissionv1.Update {
		return nil
	}
	var before []metav1.OwnerReference
	if a.OldObject != nil {
		before = a.OldObject.GetOwnerReferences()
	}
	now := a.Object.GetOwnerReferences()
	if a.Operation == admissionv1.Update && !sameOwners(now, before) {
		if err := p.mayDelete(ctx, a); err != nil {
			return err
		}
	}
	for _, owner := range now {
		if owner.BlockOwnerDeletion != nil && *owner.BlockOwnerDeletion && !blocked(before, owner.UID) {
			if err := p.mayBlock(ctx, a, owner); err != nil {
				return err
			}
		}
	}
	return nil
}

func sameOwners(a, b []metav1.OwnerReference) bool {
	return slices.EqualFunc(a, b, func(x, y metav1.OwnerReference) bool { return x.String() == y.String() })
}

func blocked(owners []metav1.OwnerReference, uid types.UID) bool {
	return slices.ContainsFunc(owners, func(o metav1.OwnerReference) bool {
		return o.UID == uid && o.BlockOwnerDeletion != nil && *o.BlockOwnerDeletion
	})
}

func (p OwnerReferencesPermissionEnforcement) mayDelete(ctx context.Context, a *Attributes) error {
	decision, reason, err := p.Authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: a.User, Verb: "delete", Namespace: a.Namespace, APIGroup: a.Resource.Group, APIVersion: a.Resource.Version,
		Resource: a.Resource.Plural, Subresource: a.Subresource, Name: a.Name, ResourceRequest: true,
	})
	if decision == authorizer.DecisionAllow {
		return nil
	}
	return a.forbidden(fmt.Errorf("cannot set an ownerRef on a resource you can't delete: %v, %v", reason, err))
}

func (p OwnerReferencesPermissionEnforcement) mayBlock(ctx context.Context, a *Attributes, owner metav1.OwnerReference) error {
	gvk := schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind)
	view, ok := p.Catalogue.Kind(gvk)
	if !ok {
		return a.forbidden(fmt.Errorf("cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion %v Kind %v", owner.APIVersion, owner.Kind))
	}
	attrs := authorizer.AttributesRecord{
		User: a.User, Verb: "update", APIGroup: gvk.Group, APIVersion: gvk.Version,
		Resource: view.Plural, Subresource: "finalizers", Name: owner.Name, ResourceRequest: true,
	}
	if view.Scope == apis.Namespaced {
		attrs.Namespace = a.Namespace
	}
	decision, reason, err := p.Authorizer.Authorize(ctx, attrs)
	if decision == authorizer.DecisionAllow {
		return nil
	}
	return a.forbidden(fmt.Errorf("cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: %v, %v", reason, err))
}
