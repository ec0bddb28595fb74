package volumebinding

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	storagehelpers "k8s.io/component-helpers/storage/volume"

	"proa/internal/scheduler/framework"
)

// PreBindNeeded: some claim still needs its volume.
func (p *Plugin) PreBindNeeded(cs *framework.CycleState) bool {
	s, ok := framework.Read[*state](cs, Name)
	return ok && s.plan != nil
}

// PreBind writes what Reserve settled and waits until every claim is bound.
func (p *Plugin) PreBind(ctx context.Context, cs *framework.CycleState, _ *framework.PodInfo, node string) *framework.Status {
	s, _ := framework.Read[*state](cs, Name)
	if err := p.write(ctx, s.plan, node); err != nil {
		return framework.AsStatus(err)
	}
	err := p.waitBound(ctx, s, node)
	if err == nil {
		p.release(s.plan)
	}
	return framework.AsStatus(err)
}

func (p *Plugin) write(ctx context.Context, chosen *plan, node string) error {
	for _, m := range chosen.static {
		volume, dirty, err := storagehelpers.GetBindVolumeToClaim(m.volume, m.claim)
		if err != nil {
			return err
		}
		if !dirty {
			continue
		}
		if _, err := p.volumes.Update(ctx, volume); err != nil {
			return fmt.Errorf("bind volume %s: %w", volume.Name, err)
		}
	}
	for _, claim := range chosen.provision {
		if claim.Annotations[storagehelpers.AnnSelectedNode] == node {
			continue
		}
		claim = claim.DeepCopy()
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, storagehelpers.AnnSelectedNode, node)
		if _, err := p.claims.Update(ctx, claim); err != nil {
			return fmt.Errorf("select node for claim %s/%s: %w", claim.Namespace, claim.Name, err)
		}
	}
	return nil
}

func (p *Plugin) waitBound(ctx context.Context, s *state, node string) error {
	timeout := p.handle.Clock.NewTimer(p.timeout)
	defer timeout.Stop()
	for {
		p.mu.Lock()
		changed := p.changed
		p.mu.Unlock()
		done, err := p.allBound(s, node)
		if done || err != nil {
			return err
		}
		select {
		case <-changed:
		case <-timeout.C():
			return fmt.Errorf("binding volumes: timed out waiting for the condition")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// allBound fails when a claim cannot become bound for this node any more.
func (p *Plugin) allBound(s *state, node string) (bool, error) {
	for _, m := range s.plan.static {
		volume, ok := p.volumes.Cached("", m.volume.Name)
		if !ok {
			return false, fmt.Errorf("binding volumes: volume %s is gone", m.volume.Name)
		}
		if ref := volume.Spec.ClaimRef; ref == nil || ref.UID == "" {
			return false, fmt.Errorf("binding volumes: ClaimRef got reset for pv %s", volume.Name)
		}
	}
	for _, old := range s.delayed {
		claim, ok := p.claims.Cached(old.Namespace, old.Name)
		if !ok || claim.UID != old.UID {
			return false, fmt.Errorf("binding volumes: claim %s/%s is gone", old.Namespace, old.Name)
		}
		if isBound(claim) {
			continue
		}
		if p.provisioned(s.plan, claim) && claim.Annotations[storagehelpers.AnnSelectedNode] != node {
			return false, fmt.Errorf("binding volumes: provisioning failed for PVC %q", claim.Name)
		}
		return false, nil
	}
	return true, nil
}

func (p *Plugin) provisioned(chosen *plan, claim *corev1.PersistentVolumeClaim) bool {
	for _, c := range chosen.provision {
		if c.UID == claim.UID {
			return true
		}
	}
	return false
}

// hasCapacity tells whether the driver says that the node can get a volume of
// the claim's size; drivers that do not track capacity are trusted.
func (p *Plugin) hasCapacity(class *storagev1.StorageClass, claim *corev1.PersistentVolumeClaim, node *corev1.Node) bool {
	driver, ok := p.drivers.Cached("", class.Provisioner)
	if !ok || driver.Spec.StorageCapacity == nil || !*driver.Spec.StorageCapacity {
		return true
	}
	want, ok := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if !ok {
		return true
	}
	for _, c := range p.capacities.ByIndex(byClass, class.Name) {
		limit := c.Capacity
		if c.MaximumVolumeSize != nil {
			limit = c.MaximumVolumeSize
		}
		if limit == nil || limit.Cmp(want) < 0 || c.NodeTopology == nil {
			continue
		}
		if s, err := metav1.LabelSelectorAsSelector(c.NodeTopology); err == nil && s.Matches(labels.Set(node.Labels)) {
			return true
		}
	}
	return false
}
