package podworker

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"proa/internal/kubelet/cri"
	"proa/internal/kubelet/criconfig"
)

// change is a container whose resources differ from its spec's (KEP-1287).
type change struct {
	container *cri.Container
	spec      *corev1.Container
	want      *runtimeapi.LinuxContainerResources
	restart   bool // its resizePolicy asks for a restart
}

// changes compares the limits in force with those of the spec.
func changes(n *criconfig.Node, pod *corev1.Pod, rt *cri.Pod) []change {
	var out []change
	look := func(c *corev1.Container) {
		cur := rt.Container(c.Name)
		if !cur.Running() || cur.Resources == nil {
			return
		}
		want, have := criconfig.Resources(n, pod, c), cur.Resources
		cpu := want.CpuShares != have.CpuShares || n.EnforceCPUQuota && want.CpuQuota != max(have.CpuQuota, 0)
		memory := want.MemoryLimitInBytes != have.MemoryLimitInBytes
		if cpu || memory {
			out = append(out, change{cur, c, want, cpu && resizeRestarts(c, corev1.ResourceCPU) || memory && resizeRestarts(c, corev1.ResourceMemory)})
		}
	}
	for i := range pod.Spec.InitContainers {
		if isSidecar(&pod.Spec.InitContainers[i]) {
			look(&pod.Spec.InitContainers[i])
		}
	}
	for i := range pod.Spec.Containers {
		look(&pod.Spec.Containers[i])
	}
	return out
}

func resizeRestarts(c *corev1.Container, name corev1.ResourceName) bool {
	for _, p := range c.ResizePolicy {
		if p.ResourceName == name {
			return p.RestartPolicy == corev1.RestartContainer
		}
	}
	return false
}

// resize brings running containers, and the pod as a whole, to the resources that it
// has been given. It reports whether it did anything.
func (p *worker) resize(ctx context.Context, pod *corev1.Pod, rt *cri.Pod) (acted bool, err error) {
	due := changes(p.w.c.Node, pod, rt)
	whole := p.prepared != nil && !equality.Semantic.DeepEqual(p.inForce, pod.Spec.Resources)
	if len(due) == 0 && !whole {
		return false, nil
	}
	// The pod's group must be the larger of the two at any time, so its limits
	// go first when they grow and last when they shrink. Both are tried: the
	// first may fail, the second must not.
	if p.w.c.Cgroups != nil {
		if err := p.w.c.Cgroups.Ensure(pod); err != nil {
			p.w.c.Log.Debug("pod cgroup shrinks after its containers", "pod", pod.Namespace+"/"+pod.Name, "err", err)
		}
	}
	var kills []kill
	for _, ch := range due {
		if ch.restart {
			kills = append(kills, kill{container: ch.container, spec: ch.spec, message: fmt.Sprintf("Container %s resize requires restart", ch.spec.Name)})
			continue
		}
		_, err := p.w.c.Runtime.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: ch.container.ID, Linux: ch.want})
		if err != nil {
			return false, fmt.Errorf("resize container %s: %w", ch.spec.Name, err)
		}
	}
	p.killAll(ctx, pod, kills)
	if p.w.c.Cgroups != nil {
		if err := p.w.c.Cgroups.Ensure(pod); err != nil {
			return false, err
		}
	}
	p.inForce = pod.Spec.Resources
	return true, ctx.Err()
}
