package storage

import (
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis"
	"proa/internal/apis/validate"
)

// CSIStorageCapacities is the storage.k8s.io/v1 csistoragecapacities resource.
var CSIStorageCapacities = apis.Resource{
	Group: "storage.k8s.io", Version: "v1", Kind: "CSIStorageCapacity", Plural: "csistoragecapacities",
	ChecksNameOnUpdate: true,
	New:                apis.New[storagev1.CSIStorageCapacity], NewList: apis.NewList[storagev1.CSIStorageCapacityList],
	NoGeneration:      true,
	ConditionalUpdate: true,
	Validate:          apis.Check(validateCapacity),
	ValidateUpdate: apis.CheckUpdate(func(c, old *storagev1.CSIStorageCapacity) field.ErrorList {
		errs := validateCapacity(c)
		errs = append(errs, validate.Immutable(field.NewPath("nodeTopology"), c.NodeTopology, old.NodeTopology)...)
		return append(errs, validate.Immutable(field.NewPath("storageClassName"), c.StorageClassName, old.StorageClassName)...)
	}),
}

func validateCapacity(c *storagev1.CSIStorageCapacity) field.ErrorList {
	errs := validate.Selector(field.NewPath("nodeTopology"), c.NodeTopology)
	errs = append(errs, validate.Subdomain(field.NewPath("storageClassName"), c.StorageClassName)...)
	check := func(q *resource.Quantity, name string) {
		if q != nil {
			errs = append(errs, validate.NonNegativeQuantity(field.NewPath(name), *q)...)
		}
	}
	check(c.Capacity, "capacity")
	return errs
}
