package statefulset

import (
	"context"
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/controllers/podcontrol"
)

var podKind = corev1.SchemeGroupVersion.WithKind("Pod")

func (s *step) claimNames(ordinal int) []string {
	var names []string
	for i := range s.set.Spec.VolumeClaimTemplates {
		names = append(names, claimName(s.set, &s.set.Spec.VolumeClaimTemplates[i], ordinal))
	}
	return names
}

func (s *step) missesClaims(ordinal int) bool {
	return slices.ContainsFunc(s.claimNames(ordinal), func(name string) bool {
		_, ok := s.claim(name)
		return !ok
	})
}

// staleClaims tells whether a claim of an ordinal belongs to an earlier pod of
// the same name: it is about to be garbage collected.
func (s *step) staleClaims(ordinal int) bool {
	pod := podName(s.set, ordinal)
	return slices.ContainsFunc(s.claimNames(ordinal), func(name string) bool {
		claim, ok := s.claim(name)
		return ok && slices.ContainsFunc(claim.OwnerReferences, func(ref metav1.OwnerReference) bool {
			return ref.Kind == podKind.Kind && ref.APIVersion == podKind.GroupVersion().String() && ref.Name == pod
		})
	})
}

// owners says who is to own the claims of a pod by the retention policy
// (KEP-1847): the set when they go with it, the pod when they go with a pod that
// is scaled away, nobody when they stay.
func (s *step) owners(pod *corev1.Pod) (bySet, byPod bool) {
	var p appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy
	if s.set.Spec.PersistentVolumeClaimRetentionPolicy != nil {
		p = *s.set.Spec.PersistentVolumeClaimRetentionPolicy
	}
	const gone = appsv1.DeletePersistentVolumeClaimRetentionPolicyType
	byPod = p.WhenScaled == gone && !inRange(s.set, ordinalOf(pod))
	return p.WhenDeleted == gone && !byPod, byPod
}

// retained tells whether all claims of a pod have the owners they should.
func (s *step) retained(pod *corev1.Pod) bool {
	return !slices.ContainsFunc(s.claimNames(ordinalOf(pod)), func(name string) bool {
		claim, ok := s.claim(name)
		if !ok || s.foreign(claim, pod) {
			return false
		}
		_, changed := s.ownedAs(claim, pod)
		return changed
	})
}

// foreign tells whether somebody else controls the claim: then the policy is not applied.
func (s *step) foreign(claim *corev1.PersistentVolumeClaim, pod *corev1.Pod) bool {
	ref := metav1.GetControllerOfNoCopy(claim)
	return ref != nil && ref.UID != s.set.UID && ref.UID != pod.UID
}

// ownedAs returns the references that the claim should have.
func (s *step) ownedAs(claim *corev1.PersistentVolumeClaim, pod *corev1.Pod) (refs []metav1.OwnerReference, changed bool) {
	bySet, byPod := s.owners(pod)
	set, own := metav1.NewControllerRef(s.set, kind), metav1.NewControllerRef(pod, podKind)
	set.BlockOwnerDeletion, own.BlockOwnerDeletion = nil, nil
	var hasSet, hasPod bool
	for _, ref := range claim.OwnerReferences {
		switch controls := ref.Controller != nil && *ref.Controller; ref.UID {
		case set.UID:
			if hasSet = bySet && controls; !hasSet {
				changed = true
				continue
			}
		case own.UID:
			if hasPod = byPod && controls; !hasPod {
				changed = true
				continue
			}
		}
		refs = append(refs, ref)
	}
	if bySet && !hasSet {
		refs, changed = append(refs, *set), true
	}
	if byPod && !hasPod {
		refs, changed = append(refs, *own), true
	}
	return refs, changed
}

func (c *Controller) fixRetention(ctx context.Context, s *step, pod *corev1.Pod) error {
	for _, name := range s.claimNames(ordinalOf(pod)) {
		claim, ok := s.claim(name)
		if !ok {
			continue
		}
		if s.foreign(claim, pod) {
			if bySet, byPod := s.owners(pod); bySet || byPod {
				c.events.Eventf(s.set, corev1.EventTypeWarning, "ConflictingController",
					"PersistentVolumeClaim %s has a conflicting OwnerReference that acts as a managing controller, the retention policy is ignored for this claim", name)
			}
			continue
		}
		refs, changed := s.ownedAs(claim, pod)
		if !changed {
			continue
		}
		claim = claim.DeepCopy()
		claim.OwnerReferences = refs
		if _, err := c.claims.Update(ctx, claim); err != nil {
			return fmt.Errorf("update claim %s: %w", name, err)
		}
	}
	return nil
}

// createClaims creates the claims that a pod lacks.
func (c *Controller) createClaims(ctx context.Context, s *step, pod *corev1.Pod) error {
	ordinal := ordinalOf(pod)
	for i := range s.set.Spec.VolumeClaimTemplates {
		template := &s.set.Spec.VolumeClaimTemplates[i]
		name := claimName(s.set, template, ordinal)
		if claim, ok := s.claim(name); ok {
			if claim.DeletionTimestamp != nil {
				return fmt.Errorf("pvc %s is being deleted", name)
			}
			continue
		}
		_, err := c.claims.Create(ctx, s.newClaim(template, ordinal))
		if apierrors.IsAlreadyExists(err) || podcontrol.NamespaceGoes(err) {
			continue
		}
		if err != nil {
			c.events.Eventf(s.set, corev1.EventTypeWarning, "FailedCreate", "create Claim %s for Pod %s in StatefulSet %s failed error: %s", name, pod.Name, s.set.Name, err)
			return fmt.Errorf("failed to create PVC %s: %w", name, err)
		}
		c.events.Eventf(s.set, corev1.EventTypeNormal, "SuccessfulCreate", "create Claim %s Pod %s in StatefulSet %s success", name, pod.Name, s.set.Name)
	}
	return nil
}

// newClaim carries the set's selector as labels, so that the claims of a set can be found.
func (s *step) newClaim(template *corev1.PersistentVolumeClaim, ordinal int) *corev1.PersistentVolumeClaim {
	claim := template.DeepCopy()
	claim.TypeMeta = metav1.TypeMeta{}
	claim.Name, claim.Namespace = claimName(s.set, template, ordinal), s.set.Namespace
	claim.Status = corev1.PersistentVolumeClaimStatus{}
	if claim.Labels == nil {
		claim.Labels = map[string]string{}
	}
	maps.Copy(claim.Labels, s.set.Spec.Selector.MatchLabels)
	return claim
}
