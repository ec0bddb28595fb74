package criconfig

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"
)

// What a container may not see and may not write below /proc and /sys unless
// procMount is Unmasked.
var (
	maskedPaths = []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi",
		"/sys/firmware", "/sys/devices/virtual/powercap",
	}
	readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// effective is a container's security context over its pod's.
type effective struct {
	pod *corev1.PodSecurityContext
	c   *corev1.SecurityContext
}

func effectiveSecurity(pod *corev1.Pod, c *corev1.Container) effective {
	e := effective{pod.Spec.SecurityContext, c.SecurityContext}
	if e.pod == nil {
		e.pod = &corev1.PodSecurityContext{}
	}
	if e.c == nil {
		e.c = &corev1.SecurityContext{}
	}
	return e
}

func (e effective) user() *int64  { return first(e.c.RunAsUser, e.pod.RunAsUser) }
func (e effective) group() *int64 { return first(e.c.RunAsGroup, e.pod.RunAsGroup) }
func (e effective) nonRoot() bool {
	return ptr.Deref(first(e.c.RunAsNonRoot, e.pod.RunAsNonRoot), false)
}
func (e effective) privileged() bool { return ptr.Deref(e.c.Privileged, false) }

func first[T any](values ...*T) *T {
	for _, v := range values {
		if v != nil {
			return v
		}
	}
	return nil
}

// ImageUser is the user an image runs as: a number, or a name when UID is nil.
type ImageUser struct {
	UID  *int64
	Name string
}

// VerifyNonRoot refuses a container that says runAsNonRoot and would run as
// root, or as a name that cannot be checked.
func VerifyNonRoot(pod *corev1.Pod, c *corev1.Container, image ImageUser) error {
	e := effectiveSecurity(pod, c)
	if !e.nonRoot() {
		return nil
	}
	if u := e.user(); u != nil {
		if *u == 0 {
			return fmt.Errorf("container's runAsUser breaks non-root policy (pod: %q, container: %s)", FullName(pod), c.Name)
		}
		return nil
	}
	switch {
	case image.UID != nil && *image.UID == 0:
		return fmt.Errorf("container has runAsNonRoot and image will run as root (pod: %q, container: %s)", FullName(pod), c.Name)
	case image.UID == nil && image.Name != "":
		return fmt.Errorf("container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is non-root (pod: %q, container: %s)", image.Name, FullName(pod), c.Name)
	}
	return nil
}

// Security is the CRI security context of a container. Target is the id of the
// container whose process namespace an ephemeral container joins.
func Security(n *Node, pod *corev1.Pod, c *corev1.Container, image ImageUser, target string, userns *UserNamespace) *runtimeapi.LinuxContainerSecurityContext {
	e := effectiveSecurity(pod, c)
	out := &runtimeapi.LinuxContainerSecurityContext{
		Privileged:               e.privileged(),
		ReadonlyRootfs:           ptr.Deref(e.c.ReadOnlyRootFilesystem, false),
		NoNewPrivs:               e.c.AllowPrivilegeEscalation != nil && !*e.c.AllowPrivilegeEscalation,
		RunAsUser:                int64Value(e.user()),
		RunAsGroup:               int64Value(e.group()),
		NamespaceOptions:         namespaces(pod, target, userns),
		SupplementalGroups:       groups(pod),
		SupplementalGroupsPolicy: groupsPolicy(e.pod),
		SelinuxOptions:           selinux(first(e.c.SELinuxOptions, e.pod.SELinuxOptions)),
		Seccomp:                  seccomp(n, first(e.c.SeccompProfile, e.pod.SeccompProfile)),
		Apparmor:                 apparmor(first(e.c.AppArmorProfile, e.pod.AppArmorProfile)),
	}
	if out.RunAsUser == nil {
		out.RunAsUser = int64Value(image.UID)
		if image.UID == nil {
			out.RunAsUsername = image.Name
		}
	}
	if caps := e.c.Capabilities; caps != nil {
		out.Capabilities = &runtimeapi.Capability{AddCapabilities: capabilities(caps.Add), DropCapabilities: capabilities(caps.Drop)}
	}
	if !e.privileged() && ptr.Deref(e.c.ProcMount, corev1.DefaultProcMount) != corev1.UnmaskedProcMount {
		out.MaskedPaths, out.ReadonlyPaths = slices.Clone(maskedPaths), slices.Clone(readonlyPaths)
	}
	return out
}

func capabilities(in []corev1.Capability) []string {
	var out []string
	for _, c := range in {
		out = append(out, string(c))
	}
	return out
}

func seccomp(n *Node, p *corev1.SeccompProfile) *runtimeapi.SecurityProfile {
	switch {
	case p == nil && n.SeccompDefault, p != nil && p.Type == corev1.SeccompProfileTypeRuntimeDefault:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
	case p != nil && p.Type == corev1.SeccompProfileTypeLocalhost:
		return &runtimeapi.SecurityProfile{
			ProfileType:  runtimeapi.SecurityProfile_Localhost,
			LocalhostRef: filepath.Join(n.SeccompDir, filepath.Join("/", ptr.Deref(p.LocalhostProfile, ""))),
		}
	}
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
}

func apparmor(p *corev1.AppArmorProfile) *runtimeapi.SecurityProfile {
	if p == nil {
		return nil
	}
	switch p.Type {
	case corev1.AppArmorProfileTypeUnconfined:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
	case corev1.AppArmorProfileTypeLocalhost:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: ptr.Deref(p.LocalhostProfile, "")}
	}
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
}

func selinux(o *corev1.SELinuxOptions) *runtimeapi.SELinuxOption {
	if o == nil {
		return nil
	}
	return &runtimeapi.SELinuxOption{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
}

// groups are the pod's supplemental groups and its fsGroup.
func groups(pod *corev1.Pod) []int64 {
	sc := pod.Spec.SecurityContext
	if sc == nil {
		return nil
	}
	out := slices.Clone(sc.SupplementalGroups)
	if sc.FSGroup != nil && !slices.Contains(out, *sc.FSGroup) {
		out = append(out, *sc.FSGroup)
	}
	return out
}

func groupsPolicy(sc *corev1.PodSecurityContext) runtimeapi.SupplementalGroupsPolicy {
	if sc.SupplementalGroupsPolicy != nil && *sc.SupplementalGroupsPolicy == corev1.SupplementalGroupsPolicyStrict {
		return runtimeapi.SupplementalGroupsPolicy_Strict
	}
	return runtimeapi.SupplementalGroupsPolicy_Merge
}

func namespaces(pod *corev1.Pod, target string, userns *UserNamespace) *runtimeapi.NamespaceOption {
	o := &runtimeapi.NamespaceOption{
		Network: runtimeapi.NamespaceMode_POD, Ipc: runtimeapi.NamespaceMode_POD, Pid: runtimeapi.NamespaceMode_CONTAINER,
	}
	if pod.Spec.HostNetwork {
		o.Network = runtimeapi.NamespaceMode_NODE
	}
	if pod.Spec.HostIPC {
		o.Ipc = runtimeapi.NamespaceMode_NODE
	}
	switch {
	case pod.Spec.HostPID:
		o.Pid = runtimeapi.NamespaceMode_NODE
	case target != "":
		o.Pid, o.TargetId = runtimeapi.NamespaceMode_TARGET, target
	case ptr.Deref(pod.Spec.ShareProcessNamespace, false):
		o.Pid = runtimeapi.NamespaceMode_POD
	}
	if userns != nil {
		ids := []*runtimeapi.IDMapping{{HostId: userns.HostID, Length: userns.Length}}
		o.UsernsOptions = &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids, Gids: ids}
	}
	return o
}

func hasPrivileged(pod *corev1.Pod) bool {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if sc := list[i].SecurityContext; sc != nil && ptr.Deref(sc.Privileged, false) {
				return true
			}
		}
	}
	return false
}

// ParseImageUser reads the user of an image's configuration as the runtime
// reports it: a uid, or a name.
func ParseImageUser(image *runtimeapi.Image) ImageUser {
	if image == nil {
		return ImageUser{}
	}
	if image.Uid != nil {
		return ImageUser{UID: &image.Uid.Value}
	}
	if image.Username == "" {
		return ImageUser{UID: ptr.To[int64](0)}
	}
	if uid, err := strconv.ParseInt(image.Username, 10, 64); err == nil {
		return ImageUser{UID: &uid}
	}
	return ImageUser{Name: image.Username}
}
