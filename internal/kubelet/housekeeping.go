package kubelet

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/kubectl/pkg/util/qos"
)

// keepHouse compares everything with everything once in syncFrequency, in case an
// event was lost.
func (k *Kubelet) keepHouse(ctx context.Context, p *parts) error {
	defer p.objects.Close()
	tick := k.c.Clock.NewTicker(k.c.Configuration.SyncFrequency.Duration)
	defer tick.Stop()
	for {
		p.pulse.beat()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.changed:
			k.balance(p)
		case <-tick.C():
			k.relist(ctx, p)
			k.sweep(p)
			k.balance(p)
		}
	}
}

// relist wakes every pod that changed in the runtime unseen and stops what no
// pod stands for.
func (k *Kubelet) relist(ctx context.Context, p *parts) {
	pods, err := p.runtime.Pods(ctx)
	if err != nil {
		if ctx.Err() == nil {
			k.c.Log.Warn("relist", "err", err)
		}
		return
	}
	for uid, sum := range pods {
		if p.workers.Known(uid) {
			if last := p.workers.Runtime(uid); last == nil || last.Fingerprint() != sum.Fingerprint() {
				p.workers.Wake(uid)
			}
			continue
		}
		rt, err := p.runtime.Pod(ctx, uid)
		if err != nil {
			k.c.Log.Warn("read orphaned pod", "uid", uid, "err", err)
			continue
		}
		k.c.Log.Info("stop orphaned pod", "pod", sum.Namespace+"/"+sum.Name, "uid", uid)
		p.workers.Remove(rt.Orphan())
	}
}

// sweep removes directories and cgroups of pods that nobody knows. They are
// listed first and asked about afterwards: a pod has a worker before it has
// anything else.
func (k *Kubelet) sweep(p *parts) {
	if err := p.workers.SweepLinks(); err != nil {
		k.c.Log.Warn("sweep links of logs", "err", err)
	}
	found, err := p.volumes.Orphans(sets.New[types.UID]())
	if err != nil {
		k.c.Log.Warn("find orphaned volumes", "err", err)
	}
	if p.cgroups != nil {
		groups, err := p.cgroups.Pods()
		if err != nil {
			k.c.Log.Warn("find orphaned cgroups", "err", err)
		}
		found = append(found, groups...)
	}
	found = append(found, p.devices.users()...)
	for _, uid := range found {
		if !p.workers.Known(uid) {
			pod := &corev1.Pod{}
			pod.UID = uid
			p.workers.Remove(pod)
		}
	}
}

// balance gives the Burstable class the CPU share its pods ask for.
func (k *Kubelet) balance(p *parts) {
	if p.cgroups == nil {
		return
	}
	var milli int64
	for _, pod := range p.workers.Active() {
		if qos.GetPodQOS(pod) == corev1.PodQOSBurstable {
			req := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
			milli += req.Cpu().MilliValue()
		}
	}
	if err := p.cgroups.SetBurstable(milli); err != nil {
		k.c.Log.Warn("share cpu among classes", "err", err)
	}
}
