package cri

import (
	"context"
	"fmt"
	"net/netip"
	"sort"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Pod is what the runtime holds of one pod.
type Pod struct {
	UID             types.UID
	Name, Namespace string
	Sandboxes       []*runtimeapi.PodSandboxStatus // newest first
	Containers      []*Container                   // newest first
}

// Container is one container of a pod, alive or dead.
type Container struct {
	ID, SandboxID, Name        string
	State                      runtimeapi.ContainerState
	Created, Started, Finished time.Time
	ExitCode                   int32
	Reason, Message            string
	Image, ImageRef, ImageID   string
	Hash                       string
	RestartCount               int
	LogPath                    string
	MessagePath                string
	MessagePolicy              corev1.TerminationMessagePolicy
	Mounts                     []*runtimeapi.Mount
	Resources                  *runtimeapi.LinuxContainerResources
	User                       *runtimeapi.LinuxContainerUser
	StopSignal                 runtimeapi.Signal

	annotations map[string]string
}

// Running reports whether the container's process runs.
func (c *Container) Running() bool {
	return c != nil && c.State == runtimeapi.ContainerState_CONTAINER_RUNNING
}

// Exited reports whether the container ran and ended.
func (c *Container) Exited() bool {
	return c != nil && c.State == runtimeapi.ContainerState_CONTAINER_EXITED
}

// Sandbox is the newest sandbox, or nil.
func (p *Pod) Sandbox() *runtimeapi.PodSandboxStatus {
	if len(p.Sandboxes) == 0 {
		return nil
	}
	return p.Sandboxes[0]
}

// SandboxReady reports whether the newest sandbox runs.
func (p *Pod) SandboxReady() bool {
	s := p.Sandbox()
	return s != nil && s.State == runtimeapi.PodSandboxState_SANDBOX_READY
}

// Container is the newest container of a name, or nil.
func (p *Pod) Container(name string) *Container {
	for _, c := range p.Containers {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// Previous is the container of a name before the newest, or nil.
func (p *Pod) Previous(name string) *Container {
	newest := true
	for _, c := range p.Containers {
		if c.Name != name {
			continue
		}
		if !newest {
			return c
		}
		newest = false
	}
	return nil
}

// Current is the newest container of a name if it belongs to the newest sandbox.
func (p *Pod) Current(name string) *Container {
	c, s := p.Container(name), p.Sandbox()
	if c == nil || s == nil || c.SandboxID != s.Id {
		return nil
	}
	return c
}

// Alive reports whether any process of the pod's containers may run.
func (p *Pod) Alive() bool {
	for _, c := range p.Containers {
		if !c.Exited() && c.State != runtimeapi.ContainerState_CONTAINER_CREATED {
			return true
		}
	}
	return false
}

// IPs are the addresses of the newest running sandbox, the primary first. Empty
// for a pod on the host's network.
func (p *Pod) IPs() []string {
	if !p.SandboxReady() || p.Sandbox().Network == nil {
		return nil
	}
	var ips []string
	add := func(ip string) {
		if a, err := netip.ParseAddr(ip); err == nil {
			ips = append(ips, a.String())
		}
	}
	add(p.Sandbox().Network.Ip)
	for _, more := range p.Sandbox().Network.AdditionalIps {
		add(more.Ip)
	}
	return ips
}

// Pod reads the state of one pod.
func (r *Runtime) Pod(ctx context.Context, uid types.UID) (*Pod, error) {
	selector := map[string]string{labelPodUID: string(uid)}
	boxes, err := r.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{LabelSelector: selector}})
	if err != nil {
		return nil, fmt.Errorf("list sandboxes of pod %s: %w", uid, err)
	}
	list, err := r.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{LabelSelector: selector}})
	if err != nil {
		return nil, fmt.Errorf("list containers of pod %s: %w", uid, err)
	}
	p := &Pod{UID: uid}
	for _, b := range boxes.Items {
		resp, err := r.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: b.Id})
		if IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("status of sandbox %s: %w", b.Id, err)
		}
		p.Name, p.Namespace = resp.Status.Metadata.GetName(), resp.Status.Metadata.GetNamespace()
		p.Sandboxes = append(p.Sandboxes, resp.Status)
	}
	for _, c := range list.Containers {
		resp, err := r.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: c.Id})
		if IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("status of container %s: %w", c.Id, err)
		}
		p.Containers = append(p.Containers, container(resp.Status, c.PodSandboxId))
		if p.Name == "" {
			p.Name, p.Namespace = c.Labels[labelPodName], c.Labels[labelNamespace]
		}
	}
	sort.SliceStable(p.Sandboxes, func(i, j int) bool { return p.Sandboxes[i].CreatedAt > p.Sandboxes[j].CreatedAt })
	sort.SliceStable(p.Containers, func(i, j int) bool { return p.Containers[i].Created.After(p.Containers[j].Created) })
	return p, nil
}

func container(s *runtimeapi.ContainerStatus, sandbox string) *Container {
	c := &Container{
		ID: s.Id, SandboxID: sandbox, Name: s.Labels[labelContainer], State: s.State,
		Created: nanos(s.CreatedAt), Started: nanos(s.StartedAt), Finished: nanos(s.FinishedAt),
		ExitCode: s.ExitCode, Reason: s.Reason, Message: s.Message,
		Image: s.Image.GetImage(), ImageRef: s.ImageRef, ImageID: s.ImageId,
		Hash: s.Annotations[annHash], LogPath: s.LogPath,
		MessagePath: s.Annotations[annMessagePath], MessagePolicy: corev1.TerminationMessagePolicy(s.Annotations[annMessagePolicy]),
		Mounts: s.Mounts, Resources: s.Resources.GetLinux(), User: s.User.GetLinux(), StopSignal: s.StopSignal,
		annotations: s.Annotations,
	}
	if n, err := strconv.Atoi(s.Annotations[annRestartCount]); err == nil {
		c.RestartCount = n
	}
	return c
}

// Summary is enough of a pod to tell whether it changed.
type Summary struct {
	Name, Namespace string
	parts           []string
}

// Fingerprint changes with every start, end or removal in the pod.
func (s *Summary) Fingerprint() string {
	sort.Strings(s.parts)
	return strings.Join(s.parts, " ")
}

// Fingerprint of the pod as read, comparable with a Summary's.
func (p *Pod) Fingerprint() string {
	var s Summary
	for _, b := range p.Sandboxes {
		s.parts = append(s.parts, b.Id+":"+b.State.String())
	}
	for _, c := range p.Containers {
		s.parts = append(s.parts, c.ID+":"+c.State.String())
	}
	return s.Fingerprint()
}

// Pods lists every pod the runtime holds that an agent made, with two calls.
func (r *Runtime) Pods(ctx context.Context) (map[types.UID]*Summary, error) {
	boxes, err := r.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	list, err := r.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	pods := map[types.UID]*Summary{}
	add := func(labels map[string]string, part string) {
		uid := types.UID(labels[labelPodUID])
		if uid == "" {
			return
		}
		s := pods[uid]
		if s == nil {
			s = &Summary{Name: labels[labelPodName], Namespace: labels[labelNamespace]}
			pods[uid] = s
		}
		s.parts = append(s.parts, part)
	}
	for _, b := range boxes.Items {
		add(b.Labels, b.Id+":"+b.State.String())
	}
	for _, c := range list.Containers {
		add(c.Labels, c.Id+":"+c.State.String())
	}
	return pods, nil
}
