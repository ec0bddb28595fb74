package devices

import (
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/dynamic-resource-allocation/structured"

	"proa/internal/client"
)

// Classes returns the device classes, as the allocator asks for them.
func (i *Inventory) Classes() structured.DeviceClassLister { return classes{i.classes} }

type classes struct {
	informer *client.Informer[*resourcev1.DeviceClass]
}

func (c classes) List() ([]*resourcev1.DeviceClass, error) {
	return c.informer.Select("", labels.Everything()), nil
}

func (c classes) Get(name string) (*resourcev1.DeviceClass, error) {
	class, ok := c.informer.Cached("", name)
	if !ok {
		return nil, apierrors.NewNotFound(resourcev1.Resource("deviceclass"), name)
	}
	return class, nil
}
