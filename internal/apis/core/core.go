// Package core declares the kinds of the core group, v1: what they are called,
// how absent fields are filled, what is valid and how kubectl shows them. Its
// pod rules also serve the workload kinds of other groups, whose templates hold
// a pod.
package core

import "proa/internal/apis"

// Resources returns every kind of the group.
func Resources() []*apis.Resource {
	return []*apis.Resource{
		&Bindings, &ConfigMaps, &Endpoints, &Events, &LimitRanges, &Namespaces, &Nodes,
		&PersistentVolumeClaims, &PersistentVolumes, &Pods, &PodTemplates,
		&ReplicationControllers, &ResourceQuotas, &Secrets, &ServiceAccounts, &Services,
	}
}
