// Package storage declares the kinds of the storage.k8s.io group, v1.
package storage

import "proa/internal/apis"

// Resources returns every kind of the group.
func Resources() []*apis.Resource {
	return []*apis.Resource{&CSIDrivers, &CSINodes, &CSIStorageCapacities, &StorageClasses, &VolumeAttachments, &VolumeAttributesClasses}
}
