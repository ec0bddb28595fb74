package resourceclaim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	draclaim "k8s.io/dynamic-resource-allocation/resourceclaim"

	"proa/internal/controllers"
)

// reconcilePod makes the claims that the pod takes from templates, and reserves
// claims for a pod that has got its node from somebody else than a scheduler.
func (c *Controller) reconcilePod(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	pod, ok := c.pods.Cached(key.Namespace, key.Name)
	if !ok || pod.DeletionTimestamp != nil || done(pod) {
		return controllers.Result{}, nil
	}
	var made []corev1.PodResourceClaimStatus
	for i := range pod.Spec.ResourceClaims {
		of := &pod.Spec.ResourceClaims[i]
		name, err := c.ensure(ctx, pod, of)
		if err != nil {
			c.events.Eventf(pod, corev1.EventTypeWarning, "FailedResourceClaimCreation", "PodResourceClaim %s: %v", of.Name, err)
			return controllers.Result{}, fmt.Errorf("pod %s, PodResourceClaim %s: %w", key, of.Name, err)
		}
		if name != "" {
			made = append(made, corev1.PodResourceClaimStatus{Name: of.Name, ResourceClaimName: &name})
		}
	}
	if len(made) > 0 {
		return controllers.Result{}, c.tell(ctx, pod, made) // the pod's change brings it back here
	}
	if pod.Spec.NodeName == "" {
		return controllers.Result{}, nil
	}
	return controllers.Result{}, c.reserve(ctx, pod)
}

// ensure makes the claim of one template if there is none yet. It returns the
// claim's name if the pod's status has yet to tell it.
func (c *Controller) ensure(ctx context.Context, pod *corev1.Pod, of *corev1.PodResourceClaim) (string, error) {
	name, generated, err := draclaim.Name(pod, of)
	switch {
	case errors.Is(err, draclaim.ErrClaimNotFound):
	case err != nil:
		return "", fmt.Errorf("checking for claim before creating it: %w", err)
	case name == nil:
		return "", nil // it was found not to be needed
	default:
		if exists, err := c.exists(ctx, pod, *name, generated); exists || err != nil {
			return "", err
		}
	}
	if of.ResourceClaimTemplateName == nil {
		return "", nil // its user makes it
	}
	if claim := c.orphan(pod, of.Name); claim != nil {
		return claim.Name, nil
	}
	template, ok := c.templates.Cached(pod.Namespace, *of.ResourceClaimTemplateName)
	if !ok {
		missing := apierrors.NewNotFound(resourcev1.Resource("resourceclaimtemplate"), *of.ResourceClaimTemplateName)
		return "", fmt.Errorf("resource claim template %q: %w", *of.ResourceClaimTemplateName, missing)
	}
	wanted := claimFor(pod, of.Name, template)
	claim, err := c.claims.Create(ctx, wanted.DeepCopy())
	c.made(wanted, err)
	if err != nil {
		return "", fmt.Errorf("create ResourceClaim: %w", err)
	}
	return claim.Name, nil
}

// exists tells whether a claim is there and, if it was generated, the pod's. Only
// the API may say no, as a second claim would take a second device.
func (c *Controller) exists(ctx context.Context, pod *corev1.Pod, name string, generated bool) (bool, error) {
	claim, ok := c.claims.Cached(pod.Namespace, name)
	if !ok {
		var err error
		if claim, err = c.claims.Get(ctx, pod.Namespace, name); apierrors.IsNotFound(err) {
			return false, nil
		} else if err != nil {
			return false, fmt.Errorf("checking claim existence: %w", err)
		}
	}
	return !generated || draclaim.IsForPod(pod, claim, false) == nil, nil
}

// orphan is a claim that was made for this use of the pod, while its status was
// not told.
func (c *Controller) orphan(pod *corev1.Pod, use string) *resourcev1.ResourceClaim {
	for _, claim := range c.claims.ByIndex(byOwner, string(pod.UID)) {
		if claim.Annotations[resourcev1.PodResourceClaimAnnotation] == use && claim.DeletionTimestamp == nil {
			return claim
		}
	}
	return nil
}

func claimFor(pod *corev1.Pod, use string, template *resourcev1.ResourceClaimTemplate) *resourcev1.ResourceClaim {
	annotations := map[string]string{resourcev1.PodResourceClaimAnnotation: use}
	for k, v := range template.Spec.Annotations {
		if k != resourcev1.PodResourceClaimAnnotation {
			annotations[k] = v
		}
	}
	return &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, GenerateName: baseName(pod.Name, use),
			Labels: maps.Clone(template.Spec.Labels), Annotations: annotations,
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: new(true),
			}},
		},
		Spec: *template.Spec.Spec.DeepCopy(),
	}
}

// maxBase leaves room in a name of 63 characters for a hyphen and 5 random ones.
const maxBase = 57

// baseName is what the claim's name begins with. When it is too long, both parts
// are cut in proportion, so that either can still be told.
func baseName(pod, use string) string {
	whole := pod + "-" + use + "-"
	if len(whole) <= maxBase {
		return whole
	}
	return pod[:len(pod)*maxBase/len(whole)] + "-" + use[:len(use)*maxBase/len(whole)]
}

// tell writes the names of generated claims into the pod's status. The first of them are
// an update of the version at hand, which takes the server half as long as the patch
// that is for a pod that has changed since.
func (c *Controller) tell(ctx context.Context, pod *corev1.Pod, made []corev1.PodResourceClaimStatus) error {
	if len(pod.Status.ResourceClaimStatuses) == 0 {
		told := pod.DeepCopy()
		told.Status.ResourceClaimStatuses = made
		if _, err := c.pods.UpdateStatus(ctx, told); err == nil {
			return nil
		} else if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return fmt.Errorf("update pod %s/%s ResourceClaimStatuses: %w", pod.Namespace, pod.Name, err)
		}
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID}, "status": map[string]any{"resourceClaimStatuses": made},
	})
	if err != nil {
		return err
	}
	_, err = c.pods.Patch(ctx, pod.Namespace, pod.Name, types.StrategicMergePatchType, patch, "status")
	if apierrors.IsNotFound(err) {
		return nil // the garbage collector takes the claims
	}
	if err != nil {
		return fmt.Errorf("update pod %s/%s ResourceClaimStatuses: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

func (c *Controller) reserve(ctx context.Context, pod *corev1.Pod) error {
	for i := range pod.Spec.ResourceClaims {
		name, generated, err := draclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil {
			return err
		}
		if name == nil {
			continue
		}
		claim, ok := c.claims.Cached(pod.Namespace, *name)
		if !ok {
			return nil
		}
		if generated {
			if err := draclaim.IsForPod(pod, claim, false); err != nil {
				return err
			}
		}
		if claim.Status.Allocation == nil || draclaim.IsReservedForPod(pod, claim, false) {
			continue
		}
		claim = claim.DeepCopy()
		claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{
			Resource: "pods", Name: pod.Name, UID: pod.UID,
		})
		if _, err := c.claims.UpdateStatus(ctx, claim); err != nil {
			return fmt.Errorf("reserve claim %s/%s: %w", claim.Namespace, claim.Name, err)
		}
	}
	return nil
}
