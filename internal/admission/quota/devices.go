package quota

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Devices is what has to be known of other objects to count devices that stand for
// extended resources (KEP-5004).
type Devices interface {
	Classes() []*resourcev1.DeviceClass
	Pod(namespace, name string) (*corev1.Pod, bool)
	// Claims are those of a namespace.
	Claims(namespace string) []*resourcev1.ResourceClaim
}

// requested is the extended resource that a name of a quota limits.
func requested(name corev1.ResourceName) (corev1.ResourceName, bool) {
	bare, ok := strings.CutPrefix(string(name), corev1.DefaultResourceRequestsPrefix)
	return corev1.ResourceName(bare), ok && extended(corev1.ResourceName(bare))
}

// countsDevices tells whether claims use a resource: an extended one has to be served
// by a class.
func (c Counter) countsDevices(name corev1.ResourceName) bool {
	resource, ok := requested(name)
	if !ok {
		return true
	}
	if c.Devices == nil {
		return false
	}
	for _, class := range c.Devices.Classes() {
		for _, served := range resourcesOf(class) {
			if served == resource {
				return true
			}
		}
	}
	return false
}

// resourcesOf are the extended resources that a class serves.
func resourcesOf(class *resourcev1.DeviceClass) []corev1.ResourceName {
	names := []corev1.ResourceName{corev1.ResourceName(resourcev1.ResourceDeviceClassPrefix + class.Name)}
	if own := class.Spec.ExtendedResourceName; own != nil {
		names = append(names, corev1.ResourceName(*own))
	}
	return names
}

// extendedUsage counts the devices of a claim as the extended resources that they
// serve, too, less what was counted with the pod that the claim was made for.
func (c Counter) extendedUsage(claim *resourcev1.ResourceClaim, use corev1.ResourceList) {
	if c.Devices == nil {
		return
	}
	counted := c.countedWithPod(claim)
	for _, class := range c.Devices.Classes() {
		devices, ok := use[corev1.ResourceName(class.Name+deviceClassSuffix)]
		if !ok {
			continue
		}
		for _, resource := range resourcesOf(class) {
			name := requestsName(resource)
			more := devices.DeepCopy()
			more.Sub(counted[name])
			if more.Sign() > 0 {
				use[name] = more
			}
		}
	}
}

// countedWithPod is the usage of the pod whose extended resources a claim serves:
// the claim that the pod names, or else its oldest.
func (c Counter) countedWithPod(claim *resourcev1.ResourceClaim) corev1.ResourceList {
	owner := extendedOwner(claim)
	if owner == nil {
		return nil
	}
	pod, ok := c.Devices.Pod(claim.Namespace, owner.Name)
	if !ok || pod.UID != owner.UID {
		return nil
	}
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil {
		if s.ResourceClaimName != claim.Name {
			return nil
		}
		return c.Usage(pods, pod)
	}
	for _, other := range c.Devices.Claims(claim.Namespace) {
		if o := extendedOwner(other); o != nil && o.UID == pod.UID && older(other, claim) {
			return nil
		}
	}
	return c.Usage(pods, pod)
}

// extendedOwner is the pod that a claim for extended resources was made for.
func extendedOwner(claim *resourcev1.ResourceClaim) *metav1.OwnerReference {
	owner := metav1.GetControllerOfNoCopy(claim)
	if claim.Annotations[resourcev1.ExtendedResourceClaimAnnotation] != "true" || owner == nil || owner.Kind != "Pod" || owner.APIVersion != "v1" {
		return nil
	}
	return owner
}

func older(a, b *resourcev1.ResourceClaim) bool {
	if a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.Name < b.Name
	}
	return a.CreationTimestamp.Before(&b.CreationTimestamp)
}
