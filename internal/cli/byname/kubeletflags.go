package byname

import (
	"fmt"
	"maps"
	"net"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	cliflag "k8s.io/component-base/cli/flag"

	"proa/internal/kubelet/config"
)

// setting is a flag as it was given.
type setting struct{ name, value string }

// recorder notes what a flag is given, besides checking it.
type recorder struct {
	pflag.Value
	name string
	all  *[]setting
}

func (r recorder) Set(value string) error {
	if err := r.Value.Set(value); err != nil {
		return err
	}
	*r.all = append(*r.all, setting{r.name, value})
	return nil
}

// recordFlags adds the flags of the configuration to fs. What they are given is kept
// until the files are read, which flags go before.
func recordFlags(fs *pflag.FlagSet, all *[]setting) {
	scratch := pflag.NewFlagSet("", pflag.ContinueOnError)
	configurationFlags(scratch, config.New())
	scratch.VisitAll(func(f *pflag.Flag) {
		f.Value = recorder{f.Value, f.Name, all}
		fs.AddFlag(f)
	})
}

// replay sets in a configuration what flags were given. Feature gates of flags are
// added to those of the files.
func replay(all []setting, c *config.Configuration) error {
	gates := c.FeatureGates
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	configurationFlags(fs, c)
	for _, s := range all {
		if err := fs.Set(s.name, s.value); err != nil {
			return err
		}
	}
	merged := maps.Clone(gates)
	if merged == nil {
		merged = map[string]bool{}
	}
	maps.Copy(merged, c.FeatureGates)
	c.FeatureGates = merged
	return nil
}

// configurationFlags are upstream's flags for fields of a defaulted configuration.
func configurationFlags(fs *pflag.FlagSet, c *config.Configuration) {
	serverFlags(fs, c)
	runtimeFlags(fs, c)
	podFlags(fs, c)
	reservationFlags(fs, c)
	processFlags(fs, c)
}

func serverFlags(fs *pflag.FlagSet, c *config.Configuration) {
	fs.BoolVar(c.EnableServer, "enable-server", *c.EnableServer, "serve the node's endpoint")
	fs.Var((*address)(&c.Address), "address", "address to serve on; 0.0.0.0 or ::: every address")
	fs.Int32Var(&c.Port, "port", c.Port, "port to serve on")
	fs.Int32Var(&c.ReadOnlyPort, "read-only-port", c.ReadOnlyPort, "port without authentication; only 0, none, is supported")
	fs.Int32Var(c.HealthzPort, "healthz-port", *c.HealthzPort, "port of /healthz without TLS; 0: none")
	fs.Var((*address)(&c.HealthzBindAddress), "healthz-bind-address", "address of that port")
	fs.BoolVar(c.Authentication.Anonymous.Enabled, "anonymous-auth", *c.Authentication.Anonymous.Enabled, "take callers without credentials for system:anonymous")
	fs.BoolVar(c.Authentication.Webhook.Enabled, "authentication-token-webhook", *c.Authentication.Webhook.Enabled, "ask the API server whose a token is")
	fs.DurationVar(&c.Authentication.Webhook.CacheTTL.Duration, "authentication-token-webhook-cache-ttl", c.Authentication.Webhook.CacheTTL.Duration, "how long its answer serves")
	fs.StringVar(&c.Authentication.X509.ClientCAFile, "client-ca-file", c.Authentication.X509.ClientCAFile, "certificate authorities of clients")
	fs.StringVar((*string)(&c.Authorization.Mode), "authorization-mode", string(c.Authorization.Mode), "AlwaysAllow or Webhook")
	fs.DurationVar(&c.Authorization.Webhook.CacheAuthorizedTTL.Duration, "authorization-webhook-cache-authorized-ttl", c.Authorization.Webhook.CacheAuthorizedTTL.Duration, "how long a permission serves")
	fs.DurationVar(&c.Authorization.Webhook.CacheUnauthorizedTTL.Duration, "authorization-webhook-cache-unauthorized-ttl", c.Authorization.Webhook.CacheUnauthorizedTTL.Duration, "how long a refusal serves")
	fs.StringVar(&c.TLSCertFile, "tls-cert-file", c.TLSCertFile, "serving certificate, followed by those of its authorities")
	fs.StringVar(&c.TLSPrivateKeyFile, "tls-private-key-file", c.TLSPrivateKeyFile, "key of the serving certificate")
	fs.BoolVar(&c.ServerTLSBootstrap, "rotate-server-certificates", c.ServerTLSBootstrap, "request serving certificates; not supported")
	fs.StringSliceVar(&c.TLSCipherSuites, "tls-cipher-suites", c.TLSCipherSuites, "cipher suites: "+strings.Join(cliflag.PreferredTLSCipherNames(), ", "))
	fs.StringVar(&c.TLSMinVersion, "tls-min-version", c.TLSMinVersion, "least TLS version: "+strings.Join(cliflag.TLSPossibleVersions(), ", "))
	fs.BoolVar(&c.RotateCertificates, "rotate-certificates", c.RotateCertificates, "renew the client certificate; not supported")
	fs.BoolVar(c.EnableDebuggingHandlers, "enable-debugging-handlers", *c.EnableDebuggingHandlers, "serve logs, exec, attach, port-forward and profiles")
	fs.BoolVar(&c.EnableContentionProfiling, "contention-profiling", c.EnableContentionProfiling, "profile what blocks; not supported")
	fs.DurationVar(&c.StreamingConnectionIdleTimeout.Duration, "streaming-connection-idle-timeout", c.StreamingConnectionIdleTimeout.Duration, "has no effect")
}

func runtimeFlags(fs *pflag.FlagSet, c *config.Configuration) {
	fs.StringVar(&c.ContainerRuntimeEndpoint, "container-runtime-endpoint", c.ContainerRuntimeEndpoint, "unix socket of the container runtime")
	fs.StringVar(&c.ImageServiceEndpoint, "image-service-endpoint", c.ImageServiceEndpoint, "unix socket of what manages images; empty: the runtime's")
	fs.DurationVar(&c.RuntimeRequestTimeout.Duration, "runtime-request-timeout", c.RuntimeRequestTimeout.Duration, "how long the runtime may take to answer")
	fs.Int32Var(c.RegistryPullQPS, "registry-qps", *c.RegistryPullQPS, "pulls begun in a second; 0: any number")
	fs.Int32Var(&c.RegistryBurst, "registry-burst", c.RegistryBurst, "pulls at once that --registry-qps lets pass")
	fs.BoolVar(c.SerializeImagePulls, "serialize-image-pulls", *c.SerializeImagePulls, "pull one image at a time")
	fs.DurationVar(&c.ImageMinimumGCAge.Duration, "minimum-image-ttl-duration", c.ImageMinimumGCAge.Duration, "how long an unused image stays at least")
	fs.Int32Var(c.ImageGCHighThresholdPercent, "image-gc-high-threshold", *c.ImageGCHighThresholdPercent, "percentage of disk use above which unused images go")
	fs.Int32Var(c.ImageGCLowThresholdPercent, "image-gc-low-threshold", *c.ImageGCLowThresholdPercent, "percentage of disk use down to which they go")
	fs.StringVar(&c.CgroupDriver, "cgroup-driver", c.CgroupDriver, "cgroupfs or systemd, for runtimes that do not tell theirs")
	fs.StringVar(&c.CgroupRoot, "cgroup-root", c.CgroupRoot, "group under which the pods' groups are")
	fs.BoolVar(c.CgroupsPerQOS, "cgroups-per-qos", *c.CgroupsPerQOS, "make groups for QoS classes and pods")
	fs.StringVar(&c.KubeletCgroups, "kubelet-cgroups", c.KubeletCgroups, "group of this process; not supported")
	fs.StringVar(&c.SystemCgroups, "system-cgroups", c.SystemCgroups, "group of the system's processes; not supported")
	fs.BoolVar(c.FailCgroupV1, "fail-cgroupv1", *c.FailCgroupV1, "do not start on a host with cgroup v1")
	fs.BoolVar(c.FailSwapOn, "fail-swap-on", *c.FailSwapOn, "do not start on a host with swap")
	fs.BoolVar(&c.ProtectKernelDefaults, "protect-kernel-defaults", c.ProtectKernelDefaults, "do not start on a kernel with other settings than expected")
	fs.StringVar(&c.ContainerLogMaxSize, "container-log-max-size", c.ContainerLogMaxSize, "size at which a container's log is rotated")
	fs.Int32Var(c.ContainerLogMaxFiles, "container-log-max-files", *c.ContainerLogMaxFiles, "log files of a container")
}

func podFlags(fs *pflag.FlagSet, c *config.Configuration) {
	fs.StringVar(&c.StaticPodPath, "pod-manifest-path", c.StaticPodPath, "directory of static pods' manifests, or one manifest")
	fs.DurationVar(&c.SyncFrequency.Duration, "sync-frequency", c.SyncFrequency.Duration, "how often everything is compared")
	fs.DurationVar(&c.FileCheckFrequency.Duration, "file-check-frequency", c.FileCheckFrequency.Duration, "how often manifests are read again")
	fs.DurationVar(&c.HTTPCheckFrequency.Duration, "http-check-frequency", c.HTTPCheckFrequency.Duration, "has no effect without --manifest-url")
	fs.StringVar(&c.StaticPodURL, "manifest-url", c.StaticPodURL, "URL of static pods; not supported")
	fs.StringVar(&c.ClusterDomain, "cluster-domain", c.ClusterDomain, "DNS domain of the cluster")
	fs.StringSliceVar(&c.ClusterDNS, "cluster-dns", c.ClusterDNS, "addresses of the cluster's DNS servers")
	fs.StringVar(c.ResolverConfig, "resolv-conf", *c.ResolverConfig, "the host's resolver configuration; empty: none")
	fs.Int32Var(&c.MaxPods, "max-pods", c.MaxPods, "pods on this node")
	fs.Int32Var(&c.PodsPerCore, "pods-per-core", c.PodsPerCore, "pods for each core; 0: --max-pods alone counts")
	fs.Int64Var(c.PodPidsLimit, "pod-max-pids", *c.PodPidsLimit, "processes of a pod; -1: any number")
	fs.StringVar(&c.PodCIDR, "pod-cidr", c.PodCIDR, "addresses of pods without an API server; not supported")
	fs.BoolVar(c.CPUCFSQuota, "cpu-cfs-quota", *c.CPUCFSQuota, "enforce CPU limits")
	fs.DurationVar(&c.CPUCFSQuotaPeriod.Duration, "cpu-cfs-quota-period", c.CPUCFSQuotaPeriod.Duration, "period of CPU limits; only 100ms is supported")
	fs.StringSliceVar(&c.AllowedUnsafeSysctls, "allowed-unsafe-sysctls", c.AllowedUnsafeSysctls, "sysctls that pods may set besides the safe ones; a * at the end stands for the rest")
	fs.DurationVar(&c.VolumeStatsAggPeriod.Duration, "volume-stats-agg-period", c.VolumeStatsAggPeriod.Duration, "how long a measurement of a volume serves; negative: none is made")
	fs.StringVar(&c.VolumePluginDir, "volume-plugin-dir", c.VolumePluginDir, "directory of volume plugins; there are none")
	fs.BoolVar(c.EnableControllerAttachDetach, "enable-controller-attach-detach", *c.EnableControllerAttachDetach, "leave attaching of volumes to a controller; always so")
	fs.BoolVar(c.MakeIPTablesUtilChains, "make-iptables-util-chains", *c.MakeIPTablesUtilChains, "has no effect")
	fs.StringVar(&c.HairpinMode, "hairpin-mode", c.HairpinMode, "has no effect: the container runtime's network decides")
	fs.BoolVar(&c.RunOnce, "runonce", c.RunOnce, "is refused")
	fs.Int32Var(c.NodeStatusMaxImages, "node-status-max-images", *c.NodeStatusMaxImages, "images in the node's status; -1: all")
	fs.DurationVar(&c.NodeStatusUpdateFrequency.Duration, "node-status-update-frequency", c.NodeStatusUpdateFrequency.Duration, "how often the node looks at itself")
	fs.BoolVar(c.RegisterNode, "register-node", *c.RegisterNode, "make the Node")
	fs.Var((*taints)(&c.RegisterWithTaints), "register-with-taints", "taints of a node that registers: key=value:effect, separated by commas")
	fs.StringVar(&c.ProviderID, "provider-id", c.ProviderID, "what a cloud calls this machine")
}

func reservationFlags(fs *pflag.FlagSet, c *config.Configuration) {
	pairs := func(m *map[string]string, name, usage string) { fs.Var(cliflag.NewMapStringString(m), name, usage) }
	fs.Var(cliflag.NewLangleSeparatedMapStringString(&c.EvictionHard), "eviction-hard", "thresholds that end pods: signal<quantity, separated by commas")
	fs.Var(cliflag.NewLangleSeparatedMapStringString(&c.EvictionSoft), "eviction-soft", "thresholds that end pods after a time")
	pairs(&c.EvictionSoftGracePeriod, "eviction-soft-grace-period", "that time, by signal")
	pairs(&c.EvictionMinimumReclaim, "eviction-minimum-reclaim", "what is reclaimed beyond a threshold, by signal")
	fs.DurationVar(&c.EvictionPressureTransitionPeriod.Duration, "eviction-pressure-transition-period", c.EvictionPressureTransitionPeriod.Duration, "how long a pressure condition stays")
	fs.Int32Var(&c.EvictionMaxPodGracePeriod, "eviction-max-pod-grace-period", c.EvictionMaxPodGracePeriod, "seconds that a pod has after a soft threshold")
	fs.BoolVar(&c.KernelMemcgNotification, "kernel-memcg-notification", c.KernelMemcgNotification, "let the kernel tell of thresholds; not supported")
	fs.BoolVar(c.LocalStorageCapacityIsolation, "local-storage-capacity-isolation", *c.LocalStorageCapacityIsolation, "count local storage")
	pairs(&c.SystemReserved, "system-reserved", "resources kept for the system: name=quantity")
	pairs(&c.KubeReserved, "kube-reserved", "resources kept for the cluster's own daemons")
	fs.StringVar(&c.ReservedSystemCPUs, "reserved-cpus", c.ReservedSystemCPUs, "CPUs kept from pods, in number: 0-1,3")
	fs.StringSliceVar(&c.EnforceNodeAllocatable, "enforce-node-allocatable", c.EnforceNodeAllocatable, "none, or pods")
	fs.StringVar(&c.SystemReservedCgroup, "system-reserved-cgroup", c.SystemReservedCgroup, "group of the system; not supported")
	fs.StringVar(&c.KubeReservedCgroup, "kube-reserved-cgroup", c.KubeReservedCgroup, "group of the cluster's daemons; not supported")
	pairs(&c.QOSReserved, "qos-reserved", "share of guaranteed pods; not supported")
	fs.StringVar(&c.CPUManagerPolicy, "cpu-manager-policy", c.CPUManagerPolicy, "only none is supported")
	fs.Var(cliflag.NewMapStringStringNoSplit(&c.CPUManagerPolicyOptions), "cpu-manager-policy-options", "not supported")
	fs.DurationVar(&c.CPUManagerReconcilePeriod.Duration, "cpu-manager-reconcile-period", c.CPUManagerReconcilePeriod.Duration, "has no effect")
	fs.StringVar(&c.MemoryManagerPolicy, "memory-manager-policy", c.MemoryManagerPolicy, "only None is supported")
	fs.StringVar(&c.TopologyManagerPolicy, "topology-manager-policy", c.TopologyManagerPolicy, "only none is supported")
	fs.StringVar(&c.TopologyManagerScope, "topology-manager-scope", c.TopologyManagerScope, "has no effect")
	pairs(&c.TopologyManagerPolicyOptions, "topology-manager-policy-options", "not supported")
}

func processFlags(fs *pflag.FlagSet, c *config.Configuration) {
	fs.Var(cliflag.NewMapStringBool(&c.FeatureGates), "feature-gates", "features that are on or off: A=true,B=false")
	fs.Int32Var(c.KubeAPIQPS, "kube-api-qps", *c.KubeAPIQPS, "requests per second to the API server; 0: any number")
	fs.Int32Var(&c.KubeAPIBurst, "kube-api-burst", c.KubeAPIBurst, "requests at once that --kube-api-qps lets pass")
	fs.StringVar(&c.ContentType, "kube-api-content-type", c.ContentType, "encoding of requests; only protobuf is supported")
	fs.Int32Var(c.EventRecordQPS, "event-qps", *c.EventRecordQPS, "events per second; 0: any number")
	fs.Int32Var(&c.EventBurst, "event-burst", c.EventBurst, "events at once that --event-qps lets pass")
	fs.Int32Var(c.OOMScoreAdj, "oom-score-adj", *c.OOMScoreAdj, "how readily the kernel ends this process: -1000 to 1000")
	fs.Int64Var(&c.MaxOpenFiles, "max-open-files", c.MaxOpenFiles, "files that this process can open")
	fs.DurationVar(&c.Logging.FlushFrequency.Duration.Duration, "log-flush-frequency", c.Logging.FlushFrequency.Duration.Duration, "has no effect: nothing is held back")
}

// address is a flag that names an IP address.
type address string

func (a *address) String() string { return string(*a) }
func (a *address) Type() string   { return "ip" }

func (a *address) Set(text string) error {
	if text != "" && net.ParseIP(text) == nil {
		return fmt.Errorf("%q is not a valid IP address", text)
	}
	*a = address(text)
	return nil
}

// taints is a flag of taints: key=value:effect, or key:effect.
type taints []corev1.Taint

func (t *taints) Type() string { return "[]v1.Taint" }

func (t *taints) String() string {
	var all []string
	for _, taint := range *t {
		all = append(all, taint.ToString())
	}
	return strings.Join(all, ",")
}

func (t *taints) Set(text string) error {
	*t = nil
	for part := range strings.SplitSeq(text, ",") {
		if part == "" {
			continue
		}
		body, effect, found := strings.Cut(part, ":")
		if !found || strings.Contains(effect, ":") {
			return fmt.Errorf("invalid taint spec: %v", part)
		}
		key, value, _ := strings.Cut(body, "=")
		*t = append(*t, corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)})
	}
	return nil
}
