package podworker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"proa/internal/kubelet/cri"
	"proa/internal/kubelet/criconfig"
	"proa/internal/kubelet/environment"
	"proa/internal/kubelet/events"
	"proa/internal/kubelet/images"
)

// startError is why a container did not start: its waiting reason and message.
type startError struct{ reason, message string }

// start creates and starts one container, or says why not and, if that is known,
// when to try again.
func (p *worker) start(ctx context.Context, pod *corev1.Pod, rt *cri.Pod, s start) (retry time.Duration, failed *startError) {
	c, spec := &p.w.c, s.spec
	ref := events.Container(pod, spec)
	if wait, msg := p.inBackoff(pod, rt, spec); wait > 0 {
		c.Recorder.Eventf(ref, corev1.EventTypeWarning, "BackOff", "Back-off restarting failed container %s in pod %s", spec.Name, criconfig.FullName(pod))
		return wait, &startError{"CrashLoopBackOff", msg}
	}
	handler, err := p.handler(ctx, pod)
	if err != nil {
		return 0, &startError{"CreateContainerConfigError", err.Error()}
	}
	image, err := c.Images.Ensure(ctx, images.Request{Pod: pod, Object: ref, Image: spec.Image, Policy: spec.ImagePullPolicy, Handler: handler})
	fail := func(reason string, err error) (time.Duration, *startError) {
		if e := (*images.Error)(nil); errors.As(err, &e) { // its own image, or that of a volume
			c.Recorder.Eventf(ref, corev1.EventTypeWarning, "Failed", "Error: %s", e.Reason)
			return e.Retry, &startError{e.Reason, e.Message}
		}
		if ctx.Err() == nil {
			c.Recorder.Eventf(ref, corev1.EventTypeWarning, "Failed", "Error: %v", cri.Message(err))
		}
		return 0, &startError{reason, cri.Message(err)}
	}
	if err != nil {
		return fail(images.ErrImagePull, err)
	}
	cfg, err := p.configure(ctx, pod, rt, s, image)
	if err != nil {
		return fail("CreateContainerConfigError", err)
	}
	created, err := p.create(ctx, pod, rt, cfg)
	if err != nil {
		return fail("CreateContainerError", err)
	}
	c.Recorder.Event(ref, corev1.EventTypeNormal, "Created", "Container created")
	if _, err := c.Runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: created}); err != nil {
		return fail("RunContainerError", err)
	}
	c.Recorder.Event(ref, corev1.EventTypeNormal, "Started", "Container started")
	if lc := spec.Lifecycle; lc != nil && lc.PostStart != nil {
		return p.postStart(ctx, pod, rt, spec, created)
	}
	return 0, nil
}

// inBackoff says how long a container that ended must still wait, and the
// message to show meanwhile. The first restart is immediate.
func (p *worker) inBackoff(pod *corev1.Pod, rt *cri.Pod, spec *corev1.Container) (time.Duration, string) {
	last := rt.Container(spec.Name)
	if !last.Exited() {
		return 0, ""
	}
	key := fmt.Sprintf("%s_%s_%s_%s_%s", pod.Name, pod.Namespace, pod.UID, spec.Name, cri.Hash(spec))
	b, ended := p.w.backoff, last.Finished
	if b.IsInBackOffSince(key, ended) {
		total := b.Get(key)
		return max(total-p.w.c.Clock.Since(ended), time.Millisecond),
			fmt.Sprintf("back-off %s restarting failed container=%s pod=%s", total, spec.Name, criconfig.FullName(pod))
	}
	b.Next(key, ended)
	return 0, ""
}

func (p *worker) configure(ctx context.Context, pod *corev1.Pod, rt *cri.Pod, s start, image *runtimeapi.Image) (*runtimeapi.ContainerConfig, error) {
	spec, user := s.spec, criconfig.ParseImageUser(image)
	if err := criconfig.VerifyNonRoot(pod, spec, user); err != nil {
		return nil, err
	}
	userns, err := p.userNamespace(pod)
	if err != nil {
		return nil, err
	}
	ips := rt.IPs()
	if pod.Spec.HostNetwork {
		ips = p.w.c.HostIPs()
	}
	vars, err := p.w.c.Variables(ctx, pod, spec, ips)
	if err != nil {
		return nil, err
	}
	mounts, devices, err := p.w.c.Volumes.ContainerMounts(ctx, pod, spec, vars)
	if err != nil {
		return nil, err
	}
	var given criconfig.Grant
	if p.w.c.Devices != nil {
		if given, err = p.w.c.Devices.Give(ctx, pod, spec); err != nil {
			return nil, err
		}
	}
	own, err := p.ownMounts(pod, spec, ips)
	if err != nil {
		return nil, err
	}
	target, err := targetOf(pod, rt, s)
	if err != nil {
		return nil, err
	}
	cc := criconfig.Container{
		Node: p.w.c.Node, Pod: pod, Spec: spec, Restart: restartCount(pod, rt, spec.Name),
		Image: image.Id, ImageUser: user, Mounts: append(mounts, own...), Devices: devices,
		Command: environment.Expand(spec.Command, vars), Args: environment.Expand(spec.Args, vars),
		Target: target, UserNS: userns, Given: given,
	}
	for _, v := range vars {
		cc.Env = append(cc.Env, &runtimeapi.KeyValue{Key: v.Name, Value: []byte(v.Value)})
	}
	return cc.Config(), nil
}

// restartCount of the container about to be made. The API remembers it when the
// runtime has lost the containers before.
func restartCount(pod *corev1.Pod, rt *cri.Pod, name string) int {
	if last := rt.Container(name); last != nil {
		return last.RestartCount + 1
	}
	for _, list := range [][]corev1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses} {
		for i := range list {
			if list[i].Name == name && list[i].ContainerID != "" {
				return int(list[i].RestartCount) + 1
			}
		}
	}
	return 0
}

// targetOf is the container whose processes an ephemeral container sees.
func targetOf(pod *corev1.Pod, rt *cri.Pod, s start) (string, error) {
	if s.kind != ephemeral {
		return "", nil
	}
	for i := range pod.Spec.EphemeralContainers {
		e := &pod.Spec.EphemeralContainers[i]
		if e.Name != s.spec.Name || e.TargetContainerName == "" {
			continue
		}
		t := rt.Container(e.TargetContainerName)
		if t == nil {
			return "", fmt.Errorf("unable to find target container %v", e.TargetContainerName)
		}
		return t.ID, nil
	}
	return "", nil
}

func (p *worker) create(ctx context.Context, pod *corev1.Pod, rt *cri.Pod, cfg *runtimeapi.ContainerConfig) (string, error) {
	box := rt.Sandbox()
	userns, err := p.userNamespace(pod)
	if err != nil {
		return "", err
	}
	sandbox, err := criconfig.Sandbox(p.w.c.Node, pod, box.Metadata.Attempt, userns)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Join(sandbox.LogDirectory, filepath.Dir(cfg.LogPath)), 0o755); err != nil {
		return "", fmt.Errorf("make log directory: %w", err)
	}
	resp, err := p.w.c.Runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: box.Id, Config: cfg, SandboxConfig: sandbox})
	if err != nil {
		return "", err
	}
	p.link(pod, cfg.Metadata.Name, resp.ContainerId, filepath.Join(sandbox.LogDirectory, cfg.LogPath))
	return resp.ContainerId, nil
}

// ownMounts are the files the agent itself gives a container: /etc/hosts, unless
// the container mounts its own, and the termination message.
func (p *worker) ownMounts(pod *corev1.Pod, spec *corev1.Container, ips []string) ([]*runtimeapi.Mount, error) {
	dir := p.w.c.Volumes.PodDir(pod.UID)
	var out []*runtimeapi.Mount
	if len(ips) > 0 && !mountsAt(spec, hostsPath) {
		file := filepath.Join(dir, "etc-hosts")
		if err := writeHosts(file, pod, ips, p.w.c.Node.ClusterDomain); err != nil {
			return nil, err
		}
		out = append(out, &runtimeapi.Mount{ContainerPath: hostsPath, HostPath: file,
			Readonly: spec.SecurityContext != nil && spec.SecurityContext.ReadOnlyRootFilesystem != nil && *spec.SecurityContext.ReadOnlyRootFilesystem})
	}
	if spec.TerminationMessagePath != "" {
		logs := filepath.Join(dir, "containers", spec.Name)
		if err := os.MkdirAll(logs, 0o750); err != nil {
			return nil, fmt.Errorf("make termination log: %w", err)
		}
		file := filepath.Join(logs, strconv.FormatUint(uint64(uuid.New().ID()), 16))
		if err := newFile(file, 0o666); err != nil {
			return nil, fmt.Errorf("make termination log: %w", err)
		}
		out = append(out, &runtimeapi.Mount{ContainerPath: spec.TerminationMessagePath, HostPath: file})
	}
	return out, nil
}

// newFile makes an empty file with exactly this mode: a container's user that
// owns nothing on the host must be able to write its termination message.
func newFile(path string, mode os.FileMode) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	return errors.Join(f.Chmod(mode), f.Close())
}

func mountsAt(spec *corev1.Container, path string) bool {
	for _, m := range spec.VolumeMounts {
		if filepath.Clean(m.MountPath) == path {
			return true
		}
	}
	return false
}
