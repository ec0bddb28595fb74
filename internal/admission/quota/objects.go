package quota

import (
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
)

const (
	storageClassSuffix = ".storageclass.storage.k8s.io/"
	deviceClassSuffix  = ".deviceclass.resource.k8s.io/devices"
)

func serviceUsage(s *corev1.Service, use corev1.ResourceList) {
	use[corev1.ResourceServices] = count(1)
	nodePorts, balancers := 0, 0
	switch s.Spec.Type {
	case corev1.ServiceTypeNodePort:
		nodePorts = len(s.Spec.Ports)
	case corev1.ServiceTypeLoadBalancer:
		balancers = 1
		nodePorts = len(s.Spec.Ports)
		if allocate := s.Spec.AllocateLoadBalancerNodePorts; allocate != nil && !*allocate {
			nodePorts = 0
			for i := range s.Spec.Ports {
				if s.Spec.Ports[i].NodePort != 0 {
					nodePorts++
				}
			}
		}
	}
	use[corev1.ResourceServicesNodePorts] = count(nodePorts)
	use[corev1.ResourceServicesLoadBalancers] = count(balancers)
}

// claimUsage counts the larger of what a claim asks for and what was allocated to it.
func claimUsage(c *corev1.PersistentVolumeClaim, use corev1.ResourceList) {
	use[corev1.ResourcePersistentVolumeClaims] = count(1)
	class := ""
	if c.Spec.StorageClassName != nil {
		class = *c.Spec.StorageClassName
	}
	if beta, ok := c.Annotations[corev1.BetaStorageClassAnnotation]; ok {
		class = beta
	}
	if class != "" {
		use[corev1.ResourceName(class+storageClassSuffix+string(corev1.ResourcePersistentVolumeClaims))] = count(1)
	}
	size, ok := c.Spec.Resources.Requests[corev1.ResourceStorage]
	if !ok {
		return
	}
	if allocated, ok := c.Status.AllocatedResources[corev1.ResourceStorage]; ok && allocated.Cmp(size) > 0 {
		size = allocated
	}
	use[corev1.ResourceRequestsStorage] = size
	if class != "" {
		use[corev1.ResourceName(class+storageClassSuffix+string(corev1.ResourceRequestsStorage))] = size
	}
}

// resourceClaimUsage counts the most devices of each class that a claim may get.
func resourceClaimUsage(c *resourcev1.ResourceClaim, use corev1.ResourceList) {
	for i := range c.Spec.Devices.Requests {
		r := &c.Spec.Devices.Requests[i]
		most := map[string]int64{}
		if e := r.Exactly; e != nil {
			most[e.DeviceClassName] = devices(e.AllocationMode, e.Count)
		}
		for j := range r.FirstAvailable {
			s := &r.FirstAvailable[j]
			most[s.DeviceClassName] = max(most[s.DeviceClassName], devices(s.AllocationMode, s.Count))
		}
		for class, n := range most {
			name := corev1.ResourceName(class + deviceClassSuffix)
			sum := use[name].DeepCopy()
			sum.Add(count(int(n)))
			use[name] = sum
		}
	}
}

func devices(mode resourcev1.DeviceAllocationMode, n int64) int64 {
	if mode == resourcev1.DeviceAllocationModeAll {
		return resourcev1.AllocationResultsMaxSize
	}
	return max(n, 1)
}
