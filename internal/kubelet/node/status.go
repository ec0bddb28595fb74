package node

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"
)

// fill sets the node's status from the machine and the runtime.
func (a *Agent) fill(ctx context.Context, n *corev1.Node) {
	a.mu.Lock()
	rt, down, version := a.runtime, a.down, a.version
	a.mu.Unlock()
	s := &n.Status
	capacity := a.c.Machine.Capacity(a.c.MaxPods)
	allocatable := Allocatable(capacity, a.c.Reserved, a.c.KeptFree)
	// Extended resources come from others and stay.
	s.Capacity = withForeign(capacity, s.Capacity)
	s.Allocatable = withForeign(allocatable, s.Allocatable)
	if a.c.Devices != nil {
		capacity, allocatable := a.c.Devices()
		maps.Copy(s.Capacity, capacity)
		maps.Copy(s.Allocatable, allocatable)
	}
	if !a.c.Cloud || len(s.Addresses) == 0 { // those that a cloud has set stay
		s.Addresses = a.addresses()
	}
	s.DaemonEndpoints.KubeletEndpoint.Port = a.c.Configuration.Port
	s.NodeInfo = a.info(version)
	if images, err := a.images(ctx); err == nil {
		s.Images = images
	}
	if rt != nil {
		s.RuntimeHandlers = handlers(rt)
		s.Features = &corev1.NodeFeatures{SupplementalGroupsPolicy: ptr.To(rt.Features.GetSupplementalGroupsPolicy())}
	}
	s.DeclaredFeatures = declared
	now := metav1.NewTime(a.c.Clock.Now())
	for _, c := range conditions(a.pressure(), readiness(rt, down)) {
		setCondition(s, c, now)
	}
}

// declared are the features that the API server lets nobody use on nodes without them
// (KEP-5328), in the order of their names.
var declared = []string{"InPlacePodLevelResourcesVerticalScaling"}

func withForeign(own, old corev1.ResourceList) corev1.ResourceList {
	for name, q := range old {
		if _, have := own[name]; !have && strings.Contains(string(name), "/") {
			own[name] = q
		}
	}
	return own
}

func (a *Agent) addresses() []corev1.NodeAddress {
	ips := a.c.IPs
	if a.c.Cloud {
		ips = a.c.CloudIPs
	}
	var out []corev1.NodeAddress
	for _, ip := range ips {
		out = append(out, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
	}
	return append(out, corev1.NodeAddress{Type: corev1.NodeHostName, Address: a.c.Name})
}

func (a *Agent) info(version *runtimeapi.VersionResponse) corev1.NodeSystemInfo {
	m := &a.c.Machine
	info := corev1.NodeSystemInfo{
		MachineID: m.MachineID, SystemUUID: m.SystemUUID, BootID: m.BootID, KernelVersion: m.KernelVersion,
		OSImage: m.OSImage, OperatingSystem: "linux", Architecture: m.Architecture, KubeletVersion: a.c.Version,
	}
	if version != nil {
		// containerd prefixes its version with v, the API does not.
		info.ContainerRuntimeVersion = version.RuntimeName + "://" + strings.TrimPrefix(version.RuntimeVersion, "v")
	}
	if m.Swap > 0 {
		info.Swap = &corev1.NodeSwapStatus{Capacity: ptr.To(m.Swap)}
	}
	return info
}

// images lists the largest images, each with its digests and tags.
func (a *Agent) images(ctx context.Context) ([]corev1.ContainerImage, error) {
	list, err := a.c.Runtime.Images.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil {
		return nil, err
	}
	all := slices.Clone(list.Images)
	sort.SliceStable(all, func(i, j int) bool {
		if all[i].Size != all[j].Size {
			return all[i].Size > all[j].Size
		}
		return all[i].Id < all[j].Id
	})
	var out []corev1.ContainerImage
	if most := int(*a.c.Configuration.NodeStatusMaxImages); most >= 0 {
		all = all[:min(len(all), most)]
	}
	for _, img := range all {
		names := append(slices.Clone(img.RepoDigests), img.RepoTags...)
		if len(names) > 0 {
			out = append(out, corev1.ContainerImage{Names: names[:min(len(names), 5)], SizeBytes: int64(img.Size)})
		}
	}
	return out, nil
}

func handlers(rt *runtimeapi.StatusResponse) []corev1.NodeRuntimeHandler {
	var out []corev1.NodeRuntimeHandler
	for _, h := range rt.RuntimeHandlers {
		out = append(out, corev1.NodeRuntimeHandler{Name: h.Name, Features: &corev1.NodeRuntimeHandlerFeatures{
			RecursiveReadOnlyMounts: ptr.To(h.Features.GetRecursiveReadOnlyMounts()),
			UserNamespaces:          ptr.To(h.Features.GetUserNamespaces()),
		}})
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out
}

// readiness is why the node is not ready, or empty.
func readiness(rt *runtimeapi.StatusResponse, down error) string {
	if down != nil {
		return down.Error()
	}
	if rt == nil {
		return "container runtime status check may not have completed yet"
	}
	var why []string
	for kind, prefix := range map[string]string{
		runtimeapi.RuntimeReady: "container runtime not ready",
		runtimeapi.NetworkReady: "container runtime network not ready",
	} {
		if err := conditionError(rt, kind, prefix); err != nil {
			why = append(why, err.Error())
		}
	}
	sort.Strings(why)
	if len(why) > 1 {
		return "[" + strings.Join(why, ", ") + "]"
	}
	return strings.Join(why, "")
}

func conditionError(rt *runtimeapi.StatusResponse, kind, prefix string) error {
	for _, c := range rt.GetStatus().GetConditions() {
		if c.Type != kind {
			continue
		}
		if c.Status {
			return nil
		}
		return fmt.Errorf("%s: %s=%t reason:%s message:%s", prefix, kind, c.Status, c.Reason, c.Message)
	}
	return fmt.Errorf("%s: the runtime does not report %s", prefix, kind)
}

func conditions(short []corev1.NodeConditionType, notReady string) []corev1.NodeCondition {
	under := func(t corev1.NodeConditionType) bool { return slices.Contains(short, t) }
	pick := func(t corev1.NodeConditionType, on bool, yes, yesMsg, no, noMsg string) corev1.NodeCondition {
		if on {
			return corev1.NodeCondition{Type: t, Status: corev1.ConditionTrue, Reason: yes, Message: yesMsg}
		}
		return corev1.NodeCondition{Type: t, Status: corev1.ConditionFalse, Reason: no, Message: noMsg}
	}
	return []corev1.NodeCondition{
		pick(corev1.NodeMemoryPressure, under(corev1.NodeMemoryPressure), "KubeletHasInsufficientMemory", "kubelet has insufficient memory available", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
		pick(corev1.NodeDiskPressure, under(corev1.NodeDiskPressure), "KubeletHasDiskPressure", "kubelet has disk pressure", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
		pick(corev1.NodePIDPressure, under(corev1.NodePIDPressure), "KubeletHasInsufficientPID", "kubelet has insufficient PID available", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
		pick(corev1.NodeReady, notReady == "", "KubeletReady", "kubelet is posting ready status", "KubeletNotReady", notReady),
	}
}

func condition(s *corev1.NodeStatus, t corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range s.Conditions {
		if s.Conditions[i].Type == t {
			return &s.Conditions[i]
		}
	}
	return nil
}

func setCondition(s *corev1.NodeStatus, c corev1.NodeCondition, now metav1.Time) {
	c.LastHeartbeatTime, c.LastTransitionTime = now, now
	old := condition(s, c.Type)
	if old == nil {
		s.Conditions = append(s.Conditions, c)
		return
	}
	if old.Status == c.Status {
		c.LastTransitionTime = old.LastTransitionTime
	}
	*old = c
}
