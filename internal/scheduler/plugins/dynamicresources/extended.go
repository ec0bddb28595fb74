package dynamicresources

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/scheduler/framework"
)

// inMemory is the name of a claim for extended resources that is not written yet.
// No object can have it.
const inMemory = "<extended-resources>"

// special is the claim for the extended resources that one node has to serve with
// devices, nil when it need not, and which container gets which request of it.
type special struct {
	claim    *resourcev1.ResourceClaim
	mappings []corev1.ContainerExtendedResourceRequest
}

// asksForDevices tells whether some class stands for an extended resource of the pod.
func (p *Plugin) asksForDevices(pod *framework.PodInfo) bool {
	return slices.ContainsFunc(pod.Requests.Scalar, func(s framework.Scalar) bool {
		_, ok := p.devices.ClassOf(s.Name)
		return ok && s.Value > 0
	})
}

// extendedFor is the index of claims for extended resources.
func extendedFor(claim *resourcev1.ResourceClaim) []string {
	owner := metav1.GetControllerOfNoCopy(claim)
	if owner == nil || claim.Annotations[resourcev1.ExtendedResourceClaimAnnotation] != "true" {
		return nil
	}
	return []string{string(owner.UID)}
}

// extendedClaim is what an earlier attempt has left behind, or a claim to be filled
// in for each node; nil for a pod that needs none.
func (p *Plugin) extendedClaim(pod *framework.PodInfo) *resourcev1.ResourceClaim {
	if !p.asksForDevices(pod) {
		return nil
	}
	if left := p.claims.ByIndex(byOwner, string(pod.Pod.UID)); len(left) > 0 {
		return left[0]
	}
	return &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: pod.Pod.Namespace, Name: inMemory, UID: "extended/" + pod.Pod.UID,
		GenerateName: pod.Pod.Name + "-extended-resources-",
		Annotations:  map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"},
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "v1", Kind: "Pod", Name: pod.Pod.Name, UID: pod.Pod.UID, Controller: new(true),
		}},
	}}
}

// extendedOn fills in what the node does not have without devices. A claim that was
// written for another attempt cannot be used again: PostFilter deletes it.
func (p *Plugin) extendedOn(claim *resourcev1.ResourceClaim, pod *framework.PodInfo, node *framework.NodeInfo) (special, *framework.Status) {
	if claim.Spec.Devices.Requests != nil {
		return special{}, notAnymore
	}
	classes := map[corev1.ResourceName]string{}
	for _, s := range pod.Requests.Scalar {
		if class, ok := p.devices.ClassOf(s.Name); ok && s.Value > 0 && node.Allocatable.Of(s.Name) == 0 {
			classes[s.Name] = class
		}
	}
	if len(classes) == 0 {
		return special{}, nil
	}
	x := special{claim: claim.DeepCopy()}
	x.claim.Spec.Devices.Requests, x.mappings = requestsFor(pod.Pod, classes)
	return x, nil
}

// requestsFor turns the extended resources of containers into requests for devices
// of their classes. Init containers that end share one request, as large as the
// largest needs beyond what the containers after it hold.
func requestsFor(pod *corev1.Pod, classes map[corev1.ResourceName]string) (requests []resourcev1.DeviceRequest, mappings []corev1.ContainerExtendedResourceRequest) {
	containers := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	ends := func(i int) bool {
		restart := containers[i].RestartPolicy
		return i < len(pod.Spec.InitContainers) && (restart == nil || *restart != corev1.ContainerRestartPolicyAlways)
	}
	for _, name := range sorted(classes) {
		lasting := make([]*resourcev1.DeviceRequest, len(containers))
		for i := range containers {
			if !ends(i) {
				var uses []corev1.ContainerExtendedResourceRequest
				lasting[i], uses = requestOf(i, &containers[i], name, classes[name], nil)
				mappings = append(mappings, uses...)
			}
		}
		shared, uses := sharedRequest(containers, ends, name, classes[name], lasting)
		mappings = append(mappings, uses...)
		for _, r := range append(lasting, shared) {
			if r != nil {
				requests = append(requests, *r)
			}
		}
	}
	slices.SortFunc(requests, func(a, b resourcev1.DeviceRequest) int { return cmp.Compare(a.Name, b.Name) })
	return requests, mappings
}

func sorted(classes map[corev1.ResourceName]string) []corev1.ResourceName {
	names := make([]corev1.ResourceName, 0, len(classes))
	for name := range classes {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// sharedRequest is the one that containers which end use one after another.
func sharedRequest(containers []corev1.Container, ends func(int) bool, name corev1.ResourceName, class string, lasting []*resourcev1.DeviceRequest) (largest *resourcev1.DeviceRequest, uses []corev1.ContainerExtendedResourceRequest) {
	replaced := map[string]struct{}{}
	for i := range containers {
		if !ends(i) {
			continue
		}
		r, used := requestOf(i, &containers[i], name, class, lasting[i:])
		uses = append(uses, used...)
		if r == nil {
			continue
		}
		replaced[r.Name] = struct{}{}
		if largest == nil || largest.Exactly.Count < r.Exactly.Count {
			largest = r
		}
	}
	for i := range uses {
		if _, ok := replaced[uses[i].RequestName]; ok {
			uses[i].RequestName = largest.Name
		}
	}
	return largest, uses
}

// requestOf is what a container needs of a resource beyond some requests that it
// can use as well; nil when they suffice.
func requestOf(index int, c *corev1.Container, name corev1.ResourceName, class string, others []*resourcev1.DeviceRequest) (*resourcev1.DeviceRequest, []corev1.ContainerExtendedResourceRequest) {
	quantity, ok := c.Resources.Requests[name]
	need := quantity.Value()
	if !ok || need == 0 {
		return nil, nil
	}
	var uses []corev1.ContainerExtendedResourceRequest
	use := func(request string) {
		uses = append(uses, corev1.ContainerExtendedResourceRequest{ContainerName: c.Name, ResourceName: string(name), RequestName: request})
	}
	for _, other := range others {
		if other == nil {
			continue
		}
		use(other.Name)
		if need -= other.Exactly.Count; need <= 0 {
			return nil, uses
		}
	}
	position := 0 // among all that the container asks for
	for other := range c.Resources.Requests {
		if other < name {
			position++
		}
	}
	request := fmt.Sprintf("container-%d-request-%d", index, position)
	use(request)
	return &resourcev1.DeviceRequest{Name: request, Exactly: &resourcev1.ExactDeviceRequest{
		DeviceClassName: class, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: need,
	}}, uses
}

// createExtended writes the claim that the chosen node needs.
func (p *Plugin) createExtended(ctx context.Context, chosen *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
	claim := chosen.DeepCopy()
	claim.Name, claim.UID = "", ""
	created, err := p.claims.Create(ctx, claim)
	p.devices.Made(err)
	if err != nil {
		return nil, fmt.Errorf("create claim for extended resources %s/%s: %w", chosen.Namespace, chosen.Name, err)
	}
	return created, nil
}

// tellExtended writes into the pod's status which claim it has got.
func (p *Plugin) tellExtended(ctx context.Context, pod *corev1.Pod, claim string, mappings []corev1.ContainerExtendedResourceRequest) error {
	patch := map[string]any{
		"metadata": map[string]any{"uid": pod.UID},
		"status":   map[string]any{"extendedResourceClaimStatus": corev1.PodExtendedResourceClaimStatus{ResourceClaimName: claim, RequestMappings: mappings}},
	}
	if _, err := p.pods.Resource.MergePatch(ctx, pod.Namespace, pod.Name, patch, "status"); err != nil {
		return fmt.Errorf("update pod %s/%s ExtendedResourceClaimStatus: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// deleteExtended deletes a claim for extended resources with what it holds.
func (p *Plugin) deleteExtended(ctx context.Context, claim *resourcev1.ResourceClaim) error {
	err := p.retry(ctx, claim, func(claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
		if !slices.Contains(claim.Finalizers, resourcev1.Finalizer) {
			return claim, nil
		}
		claim.Finalizers = slices.DeleteFunc(claim.Finalizers, func(f string) bool { return f == resourcev1.Finalizer })
		return p.claims.Update(ctx, claim)
	}, nil)
	if err == nil {
		_, err = p.claims.Delete(ctx, claim.Namespace, claim.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &claim.UID}})
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
