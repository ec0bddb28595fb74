package dynamicresources

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"proa/internal/scheduler/devices"
)

// A device can have to be made ready for a node after it was chosen: its driver
// tells by conditions in the claim's status (KEP-5007).
var (
	errBindingTimeout = errors.New("device binding timeout")
	errBindingFailed  = errors.New("device binding failed")
)

// prepared tells whether all devices of the claim meet their binding conditions. It
// fails when one says that it never will.
func prepared(claim *resourcev1.ResourceClaim) (bool, error) {
	if claim.Status.Allocation == nil {
		return false, nil
	}
	for i := range claim.Status.Allocation.Devices.Results {
		r := &claim.Status.Allocation.Devices.Results[i]
		if len(r.BindingConditions) == 0 {
			continue
		}
		device := statusOf(claim, r)
		if device == nil {
			return false, nil
		}
		for _, name := range r.BindingFailureConditions {
			if c := meta.FindStatusCondition(device.Conditions, name); c != nil && c.Status == "True" {
				return false, fmt.Errorf("%w: claim=%s, reason=%s, message=%q", errBindingFailed, claim.Name, c.Reason, c.Message)
			}
		}
		for _, name := range r.BindingConditions {
			if !meta.IsStatusConditionTrue(device.Conditions, name) {
				return false, nil
			}
		}
	}
	return true, nil
}

func statusOf(claim *resourcev1.ResourceClaim, r *resourcev1.DeviceRequestAllocationResult) *resourcev1.AllocatedDeviceStatus {
	for i := range claim.Status.Devices {
		if d := &claim.Status.Devices[i]; d.Driver == r.Driver && d.Pool == r.Pool && d.Device == r.Device {
			return d
		}
	}
	return nil
}

// awaited are the drivers that have to get devices of the claim ready.
func awaited(claim *resourcev1.ResourceClaim) (drivers []string) {
	if claim.Status.Allocation == nil {
		return nil
	}
	for i := range claim.Status.Allocation.Devices.Results {
		r := &claim.Status.Allocation.Devices.Results[i]
		if len(r.BindingConditions) > 0 && !slices.Contains(drivers, r.Driver) {
			drivers = append(drivers, r.Driver)
		}
	}
	return drivers
}

// late tells whether devices have had their time to get ready.
func (p *Plugin) late(claim *resourcev1.ResourceClaim) bool {
	return len(awaited(claim)) > 0 && claim.Status.Allocation.AllocationTimestamp != nil &&
		p.handle.Clock.Since(claim.Status.Allocation.AllocationTimestamp.Time) > p.bindingTimeout
}

// await waits until all devices of the pod are ready.
func (p *Plugin) await(ctx context.Context, s *state, pod *corev1.Pod, node string) error {
	var drivers []string
	for _, claim := range s.claims {
		drivers = append(drivers, awaited(claim)...)
	}
	if len(drivers) == 0 {
		return nil
	}
	slices.Sort(drivers)
	began := p.handle.Clock.Now()
	err := p.untilPrepared(ctx, s, pod, node)
	if ctx.Err() == nil {
		p.devices.Waited(pod.Spec.SchedulerName, slices.Compact(drivers), ending(err), p.handle.Clock.Since(began))
	}
	return err
}

// ending is how a wait has ended, for its metrics.
func ending(err error) string {
	switch {
	case err == nil:
		return devices.Success
	case errors.Is(err, errBindingTimeout):
		return devices.Timeout
	}
	return devices.Failure
}

func (p *Plugin) untilPrepared(ctx context.Context, s *state, pod *corev1.Pod, node string) error {
	p.handle.Recorder.Eventf(pod, nil, corev1.EventTypeNormal, "BindingConditionsPending", "Scheduling", "waiting for binding conditions for device on node %s", node)
	timeout := p.handle.Clock.NewTimer(p.bindingTimeout)
	defer timeout.Stop()
	for {
		moved := p.devices.Moved()
		done, err := p.allPrepared(s)
		if done || err != nil {
			return err
		}
		select {
		case <-moved:
		case <-timeout.C():
			return errBindingTimeout
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (p *Plugin) allPrepared(s *state) (bool, error) {
	for i, was := range s.claims {
		if was.Name == inMemory {
			continue
		}
		claim, ok := p.claims.Cached(was.Namespace, was.Name)
		if !ok || claim.UID != was.UID {
			return false, fmt.Errorf("could not find ResourceClaim %q", was.Namespace+"/"+was.Name)
		}
		s.claims[i] = claim
		ready, err := prepared(claim)
		if err != nil {
			return false, err
		}
		if !ready {
			if p.late(claim) {
				return false, fmt.Errorf("%w: claim=%s", errBindingTimeout, claim.Name)
			}
			return false, nil
		}
	}
	return true, nil
}
