// Package resourceclaim makes ResourceClaims from the templates that pods name,
// and ends what pods hold of claims (KEP-4381): a claim is reserved for pods that
// may still run, deallocated after the last of them, and deleted if it was made
// for a pod that has ended. Devices are chosen by the scheduler.
package resourceclaim

import (
	"context"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	draclaim "k8s.io/dynamic-resource-allocation/resourceclaim"

	"proa/internal/client"
	"proa/internal/controllers"
)

// Indexes of the shared informers; their values are "namespace/name" or a UID.
const (
	byClaim    = "resourceclaim.claim"
	byTemplate = "resourceclaim.template"
	byOwner    = "resourceclaim.owner"
)

// Controller looks after claims.
type Controller struct {
	pods      *client.Informer[*corev1.Pod]
	claims    *client.Informer[*resourcev1.ResourceClaim]
	templates *client.Informer[*resourcev1.ResourceClaimTemplate]
	events    controllers.EventRecorder
	creations *prometheus.CounterVec

	users *controllers.Loop // pods
	used  *controllers.Loop // claims
}

// New returns a controller that reads through c.Cache.
func New(c controllers.Config) *Controller {
	rc := &Controller{
		pods:      client.Shared[*corev1.Pod](c.Cache),
		claims:    client.Shared[*resourcev1.ResourceClaim](c.Cache),
		templates: client.Shared[*resourcev1.ResourceClaimTemplate](c.Cache),
		events:    c.Events("resource_claim"),
		creations: newCreations(c),
	}
	c.Register(gauge{rc})
	rc.users = controllers.NewLoop("resource_claim_pod", c, rc.reconcilePod)
	rc.used = controllers.NewLoop("resource_claim", c, rc.reconcileClaim)
	rc.pods.AddIndex(byClaim, claimsOf)
	rc.pods.AddIndex(byTemplate, templatesOf)
	rc.claims.AddIndex(byOwner, func(claim *resourcev1.ResourceClaim) []string {
		if owner := podOwner(claim); owner != nil {
			return []string{string(owner.UID)}
		}
		return nil
	})
	rc.pods.OnChange(rc.podChanged)
	rc.claims.OnChange(rc.claimChanged)
	rc.templates.OnChange(func(_, template *resourcev1.ResourceClaimTemplate) {
		if template == nil {
			return
		}
		for _, pod := range rc.pods.ByIndex(byTemplate, template.Namespace+"/"+template.Name) {
			rc.users.EnqueueObject(pod)
		}
	})
	return rc
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { _ = c.used.Run(ctx) })
	defer wg.Wait()
	return c.users.Run(ctx)
}

func (c *Controller) podChanged(old, pod *corev1.Pod) {
	latest := pod
	if pod == nil {
		latest = old
	}
	if len(latest.Spec.ResourceClaims) == 0 && latest.Status.ExtendedResourceClaimStatus == nil {
		return
	}
	if pod == nil || done(pod) {
		for name := range draclaim.PodClaims(latest) {
			c.used.Enqueue(controllers.Key{Namespace: latest.Namespace, Name: name})
		}
		return
	}
	c.users.EnqueueObject(pod)
}

func (c *Controller) claimChanged(old, claim *resourcev1.ResourceClaim) {
	latest := claim
	if claim == nil {
		latest = old
	} else {
		c.used.EnqueueObject(claim)
	}
	if old != nil && claim != nil && (old.Status.Allocation == nil) == (claim.Status.Allocation == nil) &&
		len(old.Status.ReservedFor) <= len(claim.Status.ReservedFor) {
		return // no pod has lost anything, nor can it get more
	}
	for _, pod := range c.pods.ByIndex(byClaim, latest.Namespace+"/"+latest.Name) {
		c.users.EnqueueObject(pod)
	}
}

// done tells whether no container of the pod runs, nor ever will.
func done(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed ||
		pod.DeletionTimestamp != nil && pod.Spec.NodeName == ""
}

// podOwner is the pod that the claim was made for, nil when it was made for none.
func podOwner(claim *resourcev1.ResourceClaim) *metav1.OwnerReference {
	owner := metav1.GetControllerOfNoCopy(claim)
	if owner == nil || owner.APIVersion != "v1" || owner.Kind != "Pod" {
		return nil
	}
	return owner
}

func claimsOf(pod *corev1.Pod) (keys []string) {
	for i := range pod.Spec.ResourceClaims {
		if name, _, err := draclaim.Name(pod, &pod.Spec.ResourceClaims[i]); err == nil && name != nil {
			keys = append(keys, pod.Namespace+"/"+*name)
		}
	}
	return keys
}

func templatesOf(pod *corev1.Pod) (keys []string) {
	for i := range pod.Spec.ResourceClaims {
		if name := pod.Spec.ResourceClaims[i].ResourceClaimTemplateName; name != nil {
			keys = append(keys, pod.Namespace+"/"+*name)
		}
	}
	return keys
}
