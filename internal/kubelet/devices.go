package kubelet

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"proa/internal/kubelet/criconfig"
	"proa/internal/kubelet/deviceplugins"
	"proa/internal/kubelet/dra"
	"proa/internal/kubelet/status"
)

// devices are what pods get of the node beside its CPUs and its memory: those of
// ResourceClaims and those of device plugins. It implements podworker.Devices.
type devices struct {
	claims  *dra.Manager
	plugins *deviceplugins.Manager
}

func (d devices) Prepare(ctx context.Context, pod *corev1.Pod) error {
	return d.claims.Prepare(ctx, pod)
}

func (d devices) Give(ctx context.Context, pod *corev1.Pod, c *corev1.Container) (criconfig.Grant, error) {
	grant, err := d.plugins.Give(ctx, pod, c)
	if err != nil {
		return grant, err
	}
	cdi, err := d.claims.CDI(pod, c)
	grant.CDI = append(grant.CDI, cdi...)
	return grant, err
}

func (d devices) Release(ctx context.Context, uid types.UID) error {
	return errors.Join(d.claims.Release(ctx, uid), d.plugins.Release(uid))
}

func (d devices) Health(pod *corev1.Pod, c *corev1.Container) []corev1.ResourceStatus {
	return slices.Concat(d.plugins.Health(pod, c), d.claims.Health(pod, c))
}

// admitted gives an admitted pod its devices, or refuses it.
func (d devices) admitted(ctx context.Context, pod *corev1.Pod) *status.End {
	if err := d.plugins.Allocate(ctx, pod); err != nil {
		return status.Rejected("UnexpectedAdmissionError", fmt.Sprintf("Allocate failed due to %v, which is unexpected", err))
	}
	return nil
}

// users are the pods that have any of them.
func (d devices) users() []types.UID { return append(d.claims.Pods(), d.plugins.Pods()...) }
