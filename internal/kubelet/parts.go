package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"proa/internal/client"
	"proa/internal/kubelet/admit"
	"proa/internal/kubelet/cgroups"
	"proa/internal/kubelet/cri"
	"proa/internal/kubelet/criconfig"
	"proa/internal/kubelet/environment"
	"proa/internal/kubelet/events"
	"proa/internal/kubelet/images"
	"proa/internal/kubelet/logs"
	"proa/internal/kubelet/node"
	"proa/internal/kubelet/objects"
	"proa/internal/kubelet/podworker"
	"proa/internal/kubelet/probe"
	"proa/internal/kubelet/server"
	"proa/internal/kubelet/static"
	"proa/internal/kubelet/stats"
	"proa/internal/kubelet/status"
	"proa/internal/kubelet/tokens"
	"proa/internal/kubelet/userns"
	"proa/internal/kubelet/volumes"
)

// parts are the agent's packages, put together once the runtime has said what
// it is.
type parts struct {
	runtime   *cri.Runtime
	node      *node.Agent
	cgroups   *cgroups.Tree
	objects   *objects.Cache
	volumes   *volumes.Manager
	images    *images.Puller
	collector *images.Collector
	probes    *probe.Manager
	writer    *status.Writer
	workers   *podworker.Workers
	static    *static.Manager
	rotator   *logs.Rotator
	server    *server.Server
	userns    *userns.Allocator
	changed   chan struct{} // pods came or went
	pulse     *pulse
}

func (k *Kubelet) assemble(ctx context.Context, recorder record.EventRecorder) (*parts, error) {
	c := &k.c
	for _, dir := range []string{c.RootDir, filepath.Join(c.RootDir, "pods"), c.LogDir} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return nil, err
		}
	}
	rt, err := cri.Dial(c.Runtime)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { _ = rt.Close() }) // calls in flight end with ctx as well
	systemd, name, err := k.meetRuntime(ctx, rt)
	if err != nil {
		return nil, err
	}
	machine, err := node.ReadMachine(c.RootDir)
	if err != nil {
		return nil, err
	}
	p := &parts{runtime: rt, changed: make(chan struct{}, 1), pulse: newPulse(c.Clock)}
	p.node = node.New(node.Config{
		API: c.API, Runtime: rt, Name: c.NodeName, IPs: c.NodeIPs, Labels: c.NodeLabels, Taints: c.NodeTaints,
		ProviderID: c.ProviderID, PodCIDRs: c.PodCIDRs, Port: c.Port, RootDir: c.RootDir, ImageDir: c.ImageDir,
		MaxPods: c.MaxPods, Reserved: c.Reserved, Version: Version, Machine: machine,
		Recorder: recorder, Clock: c.Clock, Log: c.Log,
	})
	if cgroups.Version() == 1 {
		recorder.Event(p.node.Reference(), corev1.EventTypeWarning, "CgroupV1", "cgroup v1 support is in maintenance mode, please migrate to cgroup v2")
	}
	nodeCfg, err := k.nodeConfig(&machine)
	if err != nil {
		return nil, err
	}
	if !c.NoCgroups {
		p.cgroups = cgroups.New(cgroups.Config{Root: c.CgroupRoot, Systemd: systemd, PodPids: c.PodPidsLimit})
		if err := p.cgroups.Init(node.Allocatable(machine.Capacity(c.MaxPods), c.Reserved)); err != nil {
			return nil, err
		}
		nodeCfg.CgroupParent = p.cgroups.Parent
		recorder.Event(p.node.Reference(), corev1.EventTypeNormal, "NodeAllocatableEnforced", "Updated Node Allocatable limit across pods")
	}
	if p.userns, err = userns.New(filepath.Join(c.RootDir, "pods")); err != nil {
		return nil, err
	}
	k.assemblePods(p, recorder, nodeCfg, name)
	config, err := k.configuration(systemd)
	if err != nil {
		return nil, err
	}
	k.assembleServer(p, config)
	return p, nil
}

// meetRuntime waits for the runtime's first answer: its name and cgroup driver.
func (k *Kubelet) meetRuntime(ctx context.Context, rt *cri.Runtime) (systemd bool, name string, err error) {
	wait := 20 * time.Millisecond
	for {
		v, err := rt.Version(ctx, &runtimeapi.VersionRequest{})
		if err == nil {
			name = v.RuntimeName
			break
		}
		if wait > time.Second {
			k.c.Log.Warn("wait for the container runtime", "endpoint", k.c.Runtime, "err", err)
		}
		select {
		case <-ctx.Done():
			return false, "", ctx.Err()
		case <-k.c.Clock.After(wait):
			wait = min(wait*3/2, 3*time.Second)
		}
	}
	resp, err := rt.RuntimeConfig(ctx, &runtimeapi.RuntimeConfigRequest{})
	if err != nil {
		// A runtime that does not tell uses what this host has used so far.
		k.c.Log.Warn("runtime does not tell its cgroup driver, taking cgroupfs", "err", err)
		return false, name, nil
	}
	return resp.Linux.GetCgroupDriver() == runtimeapi.CgroupDriver_SYSTEMD, name, nil
}

func (k *Kubelet) nodeConfig(m *node.Machine) (*criconfig.Node, error) {
	c := &k.c
	cfg := &criconfig.Node{
		LogDir: c.LogDir, SeccompDir: c.SeccompDir, SeccompDefault: c.SeccompDefault,
		ClusterDNS: c.ClusterDNS, ClusterDomain: c.ClusterDomain,
		MemoryCapacity: m.Memory, HugePageSizes: m.HugePageSizes(), EnforceCPUQuota: true,
	}
	f, err := os.Open(c.ResolvConf)
	if errors.Is(err, fs.ErrNotExist) {
		return cfg, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if cfg.ResolvConf, err = criconfig.ParseResolvConf(f); err != nil {
		return nil, fmt.Errorf("read %s: %w", c.ResolvConf, err)
	}
	return cfg, nil
}

func (k *Kubelet) assemblePods(p *parts, recorder record.EventRecorder, nodeCfg *criconfig.Node, runtimeName string) {
	c := &k.c
	p.objects = objects.New(objects.Config{API: c.API, Clock: c.Clock, Changed: func(uids []types.UID) { p.volumes.Changed(uids) }})
	p.images = images.New(images.Config{Runtime: p.runtime, Secret: p.objects.Secret, Parallel: c.ParallelPulls, Recorder: recorder, Clock: c.Clock})
	p.volumes = volumes.New(volumes.Config{
		API: c.API, Source: p.objects, RootDir: c.RootDir, NodeName: c.NodeName, LocalRoot: c.LocalVolumes,
		Tokens: tokens.New(tokens.Config{API: c.API, Clock: c.Clock}), Clock: c.Clock,
		Node: p.node.Node, HostIPs: p.node.HostIPs,
		PullImage: p.pullVolume, RecursiveReadOnly: p.recursiveReadOnly, IDMappings: p.idMappings,
	})
	p.writer = status.NewWriter(k.pods, c.Clock, c.Log, 8, func(pod *corev1.Pod) (*corev1.Pod, bool) { return p.static.Mirror(pod) })
	p.probes = probe.New(probe.Config{
		Exec: p.runtime.Command, HostIP: func() string { return c.NodeIPs[0] }, Recorder: recorder, Clock: c.Clock, Log: c.Log,
		Changed: func(uid types.UID) { p.workers.Wake(uid) },
	})
	p.workers = podworker.New(podworker.Config{
		Runtime: p.runtime, RuntimeName: runtimeName, Node: nodeCfg, Volumes: p.volumes, Images: p.images,
		Cgroups: p.cgroups, Probes: p.probes, Status: p.writer, Recorder: recorder, Clock: c.Clock, Log: c.Log,
		Variables: k.variables(p), HostIPs: p.node.HostIPs, NetworkReady: p.node.NetworkReady,
		Admit: admission(p.node, admit.Rules{UnsafeSysctls: c.UnsafeSysctls}),
		Fits: func(pod *corev1.Pod, others []*corev1.Pod) (string, string) {
			n, err := p.node.Node()
			if err != nil {
				return corev1.PodReasonDeferred, err.Error()
			}
			return admit.Resize(n, pod, others)
		},
		Handler: k.runtimeHandler, UserNamespace: p.userns.For, Released: p.released,
	})
	p.static = static.New(static.Config{
		Dir: c.ManifestDir, NodeName: c.NodeName, Pods: client.Of[*corev1.Pod](c.API),
		Default: func(pod *corev1.Pod) { client.ResourceOf[*corev1.Pod]().Default(pod) },
		Node:    p.node.Node, Start: p.workers.Update, Stop: p.workers.Remove, Running: p.workers.Known,
		Mirrored: p.writer.Again, Clock: c.Clock, Log: c.Log,
	})
	p.rotator = logs.NewRotator(logs.RotatorConfig{Runtime: p.runtime, Clock: c.Clock})
	p.collector = &images.Collector{Runtime: p.runtime, Recorder: recorder, Node: p.node.Reference(), Clock: c.Clock, Log: c.Log, Wanted: p.volumeImages}
}

// admission judges by the node as it is remembered, and looks anew before it refuses
// a pod: the scheduler may know of a label that came a moment ago.
func admission(n *node.Agent, rules admit.Rules) func(context.Context, *corev1.Pod, []*corev1.Pod) *status.End {
	return func(ctx context.Context, pod *corev1.Pod, others []*corev1.Pod) *status.End {
		if remembered, err := n.Node(); err == nil && rules.Pod(remembered, pod, others) == nil {
			return nil
		}
		current, err := n.Read(ctx)
		if err != nil {
			return &status.End{Reason: "InvalidNodeInfo", Message: "Kubelet cannot get node info."}
		}
		return rules.Pod(current, pod, others)
	}
}

// assembleServer puts together what others ask the node.
func (k *Kubelet) assembleServer(p *parts, config map[string]any) {
	c := &k.c
	provider := stats.New(stats.Config{
		Runtime: p.runtime, Images: p.runtime.Images, NodeName: c.NodeName, RootDir: c.RootDir, Clock: c.Clock, Volumes: p.volumes.Usage,
		PodStart: p.podStart,
	})
	metrics, resources, probes := prometheus.NewRegistry(), prometheus.NewRegistry(), prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), p.counts())
	resources.MustRegister(provider.Resource())
	probes.MustRegister(p.probes.Metrics())
	p.server = server.New(server.Config{
		API: c.API, Runtime: p.runtime, NodeName: c.NodeName, Pods: p.podsNow, Certificate: c.Certificate, ClientCAs: c.ClientCAs, Clock: c.Clock,
		Summary: provider.Summary, Metrics: metrics, Resource: resources, RemoveLocal: p.volumes.RemoveLocal,
		Probes: probes, Healthy: p.pulse.check, Configz: config,
	})
}

// podStart is when the node first saw a pod.
func (p *parts) podStart(uid types.UID) (time.Time, bool) {
	s := p.writer.Last(uid)
	if s == nil || s.StartTime == nil {
		return time.Time{}, false
	}
	return s.StartTime.Time, true
}

// counts is the metric of pods on the node.
func (p *parts) counts() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kubelet_active_pods", Help: "[ALPHA] The number of pods the kubelet considers active and which are being considered when admitting new pods.",
	}, func() float64 { return float64(len(p.workers.Active())) })
}

// variables of a container, from the pod's namespace and this node.
func (k *Kubelet) variables(p *parts) func(context.Context, *corev1.Pod, *corev1.Container, []string) ([]environment.Variable, error) {
	return func(ctx context.Context, pod *corev1.Pod, c *corev1.Container, podIPs []string) ([]environment.Variable, error) {
		n, err := p.node.Node()
		if err != nil {
			return nil, err
		}
		in := environment.Inputs{
			Source: p.objects, Allocatable: n.Status.Allocatable, HostIPs: k.c.NodeIPs, PodIPs: podIPs,
			ReadVolumeFile: func(volume, path string) ([]byte, error) { return p.volumes.ReadFile(pod, volume, path) },
		}
		for _, ns := range []string{environment.MasterNamespace, pod.Namespace} {
			if ns == pod.Namespace || pod.Namespace != environment.MasterNamespace {
				in.Services = append(in.Services, k.services.Select(ns, labels.Everything())...)
			}
		}
		return environment.For(ctx, pod, c, in)
	}
}

func (k *Kubelet) runtimeHandler(ctx context.Context, pod *corev1.Pod) (string, error) {
	class, err := client.Of[*nodev1.RuntimeClass](k.c.API).Get(ctx, "", *pod.Spec.RuntimeClassName)
	if err != nil {
		return "", fmt.Errorf("failed to get RuntimeClass %q: %w", *pod.Spec.RuntimeClassName, err)
	}
	return class.Handler, nil
}

// apply brings one change of a pod in the API to the parts.
func (p *parts) apply(pod *corev1.Pod, gone bool) {
	if static.IsMirror(pod) {
		p.static.MirrorChanged(pod, gone)
		return
	}
	if gone {
		p.workers.Remove(pod)
	} else {
		p.objects.Track(pod)
		p.workers.Update(pod)
	}
	p.poke()
}

func (p *parts) poke() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// released takes back what a pod had that is gone from the node.
func (p *parts) released(uid types.UID) {
	p.objects.Forget(uid)
	p.userns.Release(uid)
	p.static.Poke()
	p.poke()
}

// podsNow are the pods with the status this node last gave them.
func (p *parts) podsNow() []*corev1.Pod {
	pods := p.workers.Pods()
	for i, pod := range pods {
		if s := p.writer.Last(pod.UID); s != nil {
			pods[i] = status.Overlay(pod, s)
		}
	}
	return pods
}

func (p *parts) pullVolume(ctx context.Context, pod *corev1.Pod, v *corev1.ImageVolumeSource) (string, error) {
	img, err := p.images.Ensure(ctx, images.Request{Pod: pod, Object: events.Pod(pod), Image: v.Reference, Policy: v.PullPolicy})
	if err != nil {
		return "", err
	}
	return img.Id, nil
}

// volumeImages are the images of image volumes, which collection must keep.
func (p *parts) volumeImages() []string {
	var out []string
	for _, pod := range p.workers.Active() {
		for i := range pod.Spec.Volumes {
			if v := pod.Spec.Volumes[i].Image; v != nil {
				out = append(out, v.Reference)
			}
		}
	}
	return out
}

// recursiveReadOnly asks what the node says of the runtime's default handler.
func (p *parts) recursiveReadOnly(*corev1.Pod) bool {
	n, err := p.node.Node()
	if err != nil {
		return false
	}
	for _, h := range n.Status.RuntimeHandlers {
		if h.Name == "" && h.Features != nil {
			return ptr.Deref(h.Features.RecursiveReadOnlyMounts, false)
		}
	}
	return false
}

func (p *parts) idMappings(pod *corev1.Pod) (uids, gids []*runtimeapi.IDMapping) {
	if ptr.Deref(pod.Spec.HostUsers, true) {
		return nil, nil
	}
	ns, err := p.userns.For(pod)
	if err != nil {
		return nil, nil // the sandbox could not have been made
	}
	m := []*runtimeapi.IDMapping{{HostId: ns.HostID, Length: ns.Length}}
	return m, m
}
