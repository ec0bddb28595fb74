package criconfig

import (
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"proa/internal/kubelet/cri"
)

// Container is what a container's configuration is made of.
type Container struct {
	Node      *Node
	Pod       *corev1.Pod
	Spec      *corev1.Container
	Restart   int
	Image     string // reference the runtime resolved: an id or a digest
	ImageUser ImageUser
	Command   []string // with variables expanded
	Args      []string
	Env       []*runtimeapi.KeyValue
	Mounts    []*runtimeapi.Mount
	Devices   []*runtimeapi.Device
	Given     Grant
	Target    string // id of the container an ephemeral one targets
	UserNS    *UserNamespace
}

// Grant is what a container gets of the node's devices. Its variables and mounts
// come after those of the pod's spec.
type Grant struct {
	CDI         []string // names that the runtime looks up (Container Device Interface)
	Env         []*runtimeapi.KeyValue
	Mounts      []*runtimeapi.Mount
	Devices     []*runtimeapi.Device
	Annotations map[string]string
}

// Config is the CRI configuration of the container.
func (c *Container) Config() *runtimeapi.ContainerConfig {
	annotations := cri.ContainerAnnotations(c.Pod, c.Spec, c.Restart)
	maps.Copy(annotations, c.Given.Annotations)
	var cdi []*runtimeapi.CDIDevice
	for _, name := range c.Given.CDI {
		cdi = append(cdi, &runtimeapi.CDIDevice{Name: name})
	}
	cfg := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: c.Spec.Name, Attempt: uint32(c.Restart)},
		Image:    &runtimeapi.ImageSpec{Image: c.Image, UserSpecifiedImage: c.Spec.Image},
		Command:  c.Command, Args: c.Args, WorkingDir: c.Spec.WorkingDir,
		Envs: slices.Concat(c.Env, c.Given.Env), Mounts: slices.Concat(c.Mounts, c.Given.Mounts),
		Devices: slices.Concat(c.Devices, c.Given.Devices), CDIDevices: cdi,
		Labels:      cri.ContainerLabels(c.Pod, c.Spec.Name),
		Annotations: annotations,
		LogPath:     LogPath(c.Spec.Name, c.Restart),
		Stdin:       c.Spec.Stdin, StdinOnce: c.Spec.StdinOnce, Tty: c.Spec.TTY,
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources:       Resources(c.Node, c.Pod, c.Spec),
			SecurityContext: Security(c.Node, c.Pod, c.Spec, c.ImageUser, c.Target, c.UserNS),
		},
	}
	if lc := c.Spec.Lifecycle; lc != nil && lc.StopSignal != nil {
		cfg.StopSignal = signal(*lc.StopSignal)
	}
	return cfg
}

// signal spells SIGRTMIN+1 as CRI does: SIGNAL_SIGRTMINPLUS1.
func signal(s corev1.Signal) runtimeapi.Signal {
	name := strings.NewReplacer("+", "PLUS", "-", "MINUS").Replace(string(s))
	return runtimeapi.Signal(runtimeapi.Signal_value["SIGNAL_"+name])
}

// LogPath of a container's run, below the pod's log directory.
func LogPath(container string, restart int) string {
	return filepath.Join(container, strconv.Itoa(restart)+".log")
}
