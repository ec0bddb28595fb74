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
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/utils/ptr"

	"proa/internal/apiserver/zpages"
	"proa/internal/client"
	"proa/internal/kubelet/admit"
	"proa/internal/kubelet/cgroups"
	"proa/internal/kubelet/config"
	"proa/internal/kubelet/cri"
	"proa/internal/kubelet/criconfig"
	"proa/internal/kubelet/deviceplugins"
	"proa/internal/kubelet/dra"
	"proa/internal/kubelet/environment"
	"proa/internal/kubelet/events"
	"proa/internal/kubelet/eviction"
	"proa/internal/kubelet/images"
	"proa/internal/kubelet/logs"
	"proa/internal/kubelet/node"
	"proa/internal/kubelet/objects"
	"proa/internal/kubelet/plugins"
	"proa/internal/kubelet/podcert"
	"proa/internal/kubelet/podresources"
	"proa/internal/kubelet/podworker"
	"proa/internal/kubelet/probe"
	"proa/internal/kubelet/server"
	"proa/internal/kubelet/static"
	"proa/internal/kubelet/stats"
	"proa/internal/kubelet/status"
	"proa/internal/kubelet/tokens"
	"proa/internal/kubelet/trustbundles"
	"proa/internal/kubelet/userns"
	"proa/internal/kubelet/volumes"
)

// parts are the agent's packages, put together once the runtime has said what
// it is.
type parts struct {
	runtime   *cri.Runtime
	node      *node.Agent
	cgroups   *cgroups.Tree
	stats     *stats.Provider
	eviction  *eviction.Manager // nil while the parts are put together
	objects   *objects.Cache
	volumes   *volumes.Manager
	bundles   *trustbundles.Cache
	images    *images.Puller
	collector *images.Collector
	probes    *probe.Manager
	writer    *status.Writer
	workers   *podworker.Workers
	static    *static.Manager
	rotator   *logs.Rotator
	server    *server.Server
	userns    *userns.Allocator

	certificates *podcert.Manager
	devices      devices
	plugins      *plugins.Watcher
	resources    *podresources.Server

	changed chan struct{} // pods came or went
	pulse   *pulse
}

func (k *Kubelet) assemble(ctx context.Context, recorder record.EventRecorder) (*parts, error) {
	c, conf := &k.c, k.c.Configuration
	for _, dir := range []string{c.RootDir, filepath.Join(c.RootDir, "pods"), conf.PodLogsDir} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return nil, err
		}
	}
	rt, err := cri.Connect(cri.Config{
		Endpoint: conf.ContainerRuntimeEndpoint, Images: conf.ImageServiceEndpoint, Timeout: conf.RuntimeRequestTimeout.Duration,
	})
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { _ = rt.Close() }) // calls in flight end with ctx as well
	meeting, err := k.meetRuntime(ctx, rt)
	if err != nil {
		return nil, err
	}
	reserved, err := config.Reserved(conf)
	if err != nil {
		return nil, err
	}
	machine, err := node.ReadMachine(c.RootDir)
	if err != nil {
		return nil, err
	}
	defence, err := newDefence(conf, &machine, reserved)
	if err != nil {
		return nil, err
	}
	p := &parts{runtime: rt, changed: make(chan struct{}, 1), pulse: newPulse(c.Clock, conf.SyncFrequency.Duration)}
	maxPods := config.Pods(conf, machine.CPUs)
	if p.devices.plugins, err = deviceplugins.New(deviceplugins.Config{
		RootDir: c.RootDir, Clock: c.Clock, Log: c.Log,
		Changed: func(uids ...types.UID) { p.node.Changed(); p.wake(uids) },
	}); err != nil {
		return nil, err
	}
	p.node = node.New(node.Config{
		API: c.API, Runtime: rt, Name: c.NodeName, IPs: c.NodeIPs, Labels: c.NodeLabels, Configuration: conf,
		Cloud: c.Cloud, CloudIPs: c.CloudIPs, PodCIDRs: c.PodCIDRs, RootDir: c.RootDir,
		MaxPods: maxPods, Reserved: reserved, KeptFree: defence.keptFree, Devices: p.devices.plugins.Capacity, Pressure: p.pressures, Version: Version, Machine: machine,
		Recorder: recorder, Clock: c.Clock, Log: c.Log,
	})
	if cgroups.Version() == 1 {
		recorder.Event(p.node.Reference(), corev1.EventTypeWarning, "CgroupV1", "cgroup v1 support is in maintenance mode, please migrate to cgroup v2")
	}
	nodeCfg, err := k.nodeConfig(&machine)
	if err != nil {
		return nil, err
	}
	if *conf.CgroupsPerQOS {
		p.cgroups = cgroups.New(cgroups.Config{Root: conf.CgroupRoot, Systemd: meeting.systemd, PodPids: max(*conf.PodPidsLimit, 0)})
		if err := p.cgroups.Init(defence.podLimit); err != nil {
			return nil, err
		}
		nodeCfg.CgroupParent = p.cgroups.Parent
		recorder.Event(p.node.Reference(), corev1.EventTypeNormal, "NodeAllocatableEnforced", "Updated Node Allocatable limit across pods")
	}
	if p.userns, err = userns.New(filepath.Join(c.RootDir, "pods"), idsPerPod(conf)); err != nil {
		return nil, err
	}
	if err := k.assemblePods(p, recorder, nodeCfg, meeting.name); err != nil {
		return nil, err
	}
	k.assembleDefence(p, defence, recorder)
	return p, k.assembleServer(p, meeting)
}

// idsPerPod is the length of a user namespace.
func idsPerPod(c *config.Configuration) uint32 {
	if ns := c.UserNamespaces; ns != nil && ns.IDsPerPod != nil {
		return uint32(*ns.IDsPerPod)
	}
	return userns.DefaultLength
}

func (k *Kubelet) nodeConfig(m *node.Machine) (*criconfig.Node, error) {
	c := k.c.Configuration
	cfg := &criconfig.Node{
		LogDir: c.PodLogsDir, LinkDir: containerLogs, SeccompDir: filepath.Join(k.c.RootDir, "seccomp"), SeccompDefault: *c.SeccompDefault,
		ClusterDNS: c.ClusterDNS, ClusterDomain: c.ClusterDomain, DefaultSysctls: c.DefaultPodSysctls,
		MemoryCapacity: m.Memory, HugePageSizes: m.HugePageSizes(), EnforceCPUQuota: *c.CPUCFSQuota,
		KillTogether: cgroups.Version() == 2 && !ptr.Deref(c.SingleProcessOOMKill, false),
	}
	if *c.ResolverConfig == "" {
		return cfg, nil
	}
	f, err := os.Open(*c.ResolverConfig)
	if errors.Is(err, fs.ErrNotExist) {
		return cfg, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if cfg.ResolvConf, err = criconfig.ParseResolvConf(f); err != nil {
		return nil, fmt.Errorf("read %s: %w", *c.ResolverConfig, err)
	}
	return cfg, nil
}

func (k *Kubelet) assemblePods(p *parts, recorder record.EventRecorder, nodeCfg *criconfig.Node, runtimeName string) (err error) {
	c, conf := &k.c, k.c.Configuration
	p.objects = objects.New(objects.Config{API: c.API, Clock: c.Clock, Changed: func(uids []types.UID) { p.volumes.Changed(uids) }})
	p.images = images.New(images.Config{Runtime: p.runtime, Secret: p.objects.Secret, Parallel: config.Pulls(conf),
		QPS: *conf.RegistryPullQPS, Burst: conf.RegistryBurst, Recorder: recorder, Clock: c.Clock})
	p.bundles = trustbundles.New(c.API, p.bundlesChanged)
	p.certificates = podcert.New(podcert.Config{
		API: c.API, NodeName: c.NodeName, Node: p.node.Node, Recorder: recorder, Clock: c.Clock, Log: c.Log,
		Changed: func(uid types.UID) { p.filesChanged(uid) },
	})
	p.volumes = volumes.New(volumes.Config{
		API: c.API, Source: p.objects, RootDir: c.RootDir, NodeName: c.NodeName, LocalRoot: c.LocalVolumes,
		Tokens: tokens.New(tokens.Config{API: c.API, Clock: c.Clock}), TrustBundles: p.bundles, Certificates: p.certificates, Clock: c.Clock,
		Node: p.node.Node, HostIPs: p.node.HostIPs,
		UsageAge: conf.VolumeStatsAggPeriod.Duration, PullImage: p.pullVolume, RecursiveReadOnly: p.recursiveReadOnly, IDMappings: p.idMappings,
	})
	p.writer = status.NewWriter(k.pods, c.Clock, c.Log, 8, func(pod *corev1.Pod) (*corev1.Pod, bool) { return p.static.Mirror(pod) })
	p.probes = probe.New(probe.Config{
		Exec: p.runtime.Command, HostIP: func() string { return c.NodeIPs[0] }, Recorder: recorder, Clock: c.Clock, Log: c.Log,
		Changed: func(uid types.UID) { p.workers.Wake(uid) },
	})
	if p.devices.claims, err = dra.New(dra.Config{
		API: c.API, NodeName: c.NodeName, RootDir: c.RootDir, Clock: c.Clock, Log: c.Log,
		Changed: func(uids ...types.UID) { p.wake(uids) },
	}); err != nil {
		return err
	}
	p.resources = podresources.New(podresources.Config{
		RootDir: c.RootDir, Pods: func() []*corev1.Pod { return p.workers.Active() },
		Devices: p.devices.plugins.Resources, Claims: p.devices.claims.Resources, Allocatable: p.devices.plugins.Allocatable,
	})
	p.plugins = plugins.New(plugins.Config{
		Dir: filepath.Join(c.RootDir, "plugins_registry"), Clock: c.Clock, Log: c.Log,
		Handlers: map[string]plugins.Handler{registration.DRAPlugin: p.devices.claims, registration.DevicePlugin: p.devices.plugins},
	})
	p.workers = podworker.New(podworker.Config{
		Runtime: p.runtime, RuntimeName: runtimeName, Node: nodeCfg, Volumes: p.volumes, Devices: p.devices, Images: p.images,
		Cgroups: p.cgroups, Probes: p.probes, Status: p.writer, Recorder: recorder, Clock: c.Clock, Log: c.Log,
		Variables: k.variables(p), HostIPs: p.node.HostIPs, NetworkReady: p.node.NetworkReady,
		Admit: admission(p.node, admit.Rules{UnsafeSysctls: conf.AllowedUnsafeSysctls, Pressure: p.pressures}, p.devices),
		Fits: func(pod *corev1.Pod, others []*corev1.Pod) (string, string) {
			n, err := p.node.Node()
			if err != nil {
				return corev1.PodReasonDeferred, err.Error()
			}
			return admit.Resize(n, pod, others)
		},
		LongestBackoff: longestBackoff(conf), Handler: k.runtimeHandler, UserNamespace: p.userns.For, Released: p.released,
	})
	p.static = static.New(static.Config{
		Dir: conf.StaticPodPath, Every: conf.FileCheckFrequency.Duration, NodeName: c.NodeName, Pods: client.Of[*corev1.Pod](c.API),
		Default: func(pod *corev1.Pod) { client.ResourceOf[*corev1.Pod]().Default(pod) },
		Node:    p.node.Node, Start: p.workers.Update, Stop: p.workers.Remove, Running: p.workers.Known,
		Mirrored: p.writer.Again, Clock: c.Clock, Log: c.Log,
	})
	size, err := resource.ParseQuantity(conf.ContainerLogMaxSize)
	if err != nil {
		return err
	}
	p.rotator = logs.NewRotator(logs.RotatorConfig{
		Runtime: p.runtime, MaxSize: size.Value(), MaxFiles: int(*conf.ContainerLogMaxFiles), Workers: int(*conf.ContainerLogMaxWorkers),
		Interval: conf.ContainerLogMonitorInterval.Duration, Clock: c.Clock,
	})
	p.collector = &images.Collector{
		Runtime: p.runtime, HighPercent: int(*conf.ImageGCHighThresholdPercent), LowPercent: int(*conf.ImageGCLowThresholdPercent),
		MinAge: conf.ImageMinimumGCAge.Duration, MaxAge: conf.ImageMaximumGCAge.Duration,
		Recorder: recorder, Node: p.node.Reference(), Clock: c.Clock, Log: c.Log, Wanted: p.volumeImages,
	}
	return nil
}

// longestBackoff between two starts of a container; 0: that of upstream.
func longestBackoff(c *config.Configuration) time.Duration {
	if d := c.CrashLoopBackOff.MaxContainerRestartPeriod; d != nil {
		return d.Duration
	}
	return 0
}

// admission judges by the node as it is remembered, and looks anew before it refuses
// a pod: the scheduler may know of a label that came a moment ago.
func admission(n *node.Agent, rules admit.Rules, d devices) func(context.Context, *corev1.Pod, []*corev1.Pod) *status.End {
	return func(ctx context.Context, pod *corev1.Pod, others []*corev1.Pod) *status.End {
		if remembered, err := n.Node(); err == nil && rules.Pod(remembered, pod, others) == nil {
			return d.admitted(ctx, pod)
		}
		current, err := n.Read(ctx)
		if err != nil {
			return &status.End{Reason: "InvalidNodeInfo", Message: "Kubelet cannot get node info."}
		}
		if end := rules.Pod(current, pod, others); end != nil {
			return end
		}
		return d.admitted(ctx, pod)
	}
}

// assembleServer puts together what others ask the node.
func (k *Kubelet) assembleServer(p *parts, m meeting) error {
	c := &k.c
	gates, err := config.Gates(c.Configuration)
	if err != nil {
		return err
	}
	shown, err := configured(c.Configuration, m.systemd)
	if err != nil {
		return err
	}
	metrics, resources, probes := prometheus.NewRegistry(), prometheus.NewRegistry(), prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), p.counts(), cgroupVersion(), p.eviction.Metrics(), p.certificates.Metrics(), features(gates))
	if m.old {
		metrics.MustRegister(losingSupport())
	}
	resources.MustRegister(p.stats.Resource())
	probes.MustRegister(p.probes.Metrics())
	p.server = server.New(server.Config{
		API: c.API, Runtime: p.runtime, NodeName: c.NodeName, Pods: p.podsNow, Certificate: c.Certificate, ClientCAs: c.ClientCAs, Clock: c.Clock,
		Summary: p.stats.Summary, Metrics: metrics, Resource: resources, RemoveLocal: p.volumes.RemoveLocal,
		Probes: probes, Healthy: p.pulse.check, Configz: shown, Configuration: c.Configuration,
		Pages: &zpages.Pages{
			Component: "kubelet", Flags: c.Flags, Started: c.Clock.Now(), Clock: c.Clock,
			Paths: []string{"/configz", "/debug", "/flagz", "/healthz", "/metrics", "/pods", "/stats", "/statusz"},
		},
	})
	return nil
}

// containerLogs is where collectors of logs look for those of containers.
const containerLogs = "/var/log/containers"

// RemoveLogLinks removes what collectors find the logs below a directory by.
func RemoveLogLinks(logs string) error { return podworker.RemoveLinks(containerLogs, logs) }

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
		p.certificates.Track(pod)
		p.workers.Update(pod)
	}
	p.poke()
}

// filesChanged writes what changed in the volumes of pods, and lets those go on
// that could not have their volumes before.
func (p *parts) filesChanged(uids ...types.UID) {
	p.volumes.Changed(uids)
	p.wake(uids)
}

func (p *parts) wake(uids []types.UID) {
	for _, uid := range uids {
		p.workers.Wake(uid)
	}
}

func (p *parts) bundlesChanged() {
	var uids []types.UID
	for _, pod := range p.workers.Active() {
		if volumes.ProjectsTrustBundles(pod) {
			uids = append(uids, pod.UID)
		}
	}
	p.filesChanged(uids...)
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
	p.certificates.Forget(uid)
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
