package config

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/opencontainers/cgroups"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/component-base/cli/flag"
	sysctls "k8s.io/component-helpers/node/util/sysctl"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/cpuset"

	"proa/internal/apis/feature"
)

// faults collects what is wrong with a configuration.
type faults struct{ errs []error }

func (f *faults) add(format string, args ...any) {
	f.errs = append(f.errs, fmt.Errorf("invalid configuration: "+format, args...))
}

// when adds a fault that is there.
func (f *faults) when(wrong bool, format string, args ...any) {
	if wrong {
		f.add(format, args...)
	}
}

// within adds a fault for a number outside of a range.
func (f *faults) within(name string, n, low, high int64, words string) {
	f.when(n < low || n > high, "%s %v must be between %s, inclusive", name, n, words)
}

// positive adds a fault for a number below 0.
func (f *faults) positive(name string, n int64) {
	f.when(n < 0, "%s %v must not be a negative number", name, n)
}

// Validate says what is wrong with a defaulted configuration on this host, as
// upstream's agent says it, and then what this agent does not do (effects.go).
func Validate(c *Configuration) error {
	gates, err := Gates(c)
	if err != nil {
		return err
	}
	f := &faults{}
	f.server(c)
	f.node(c)
	f.pods(c, gates)
	f.images(c, gates)
	f.managers(c)
	f.allocatable(c)
	f.shutdown(c, gates)
	f.logs(c)
	f.host(c)
	f.errs = append(f.errs, unsupported(c)...)
	return utilerrors.NewAggregate(f.errs)
}

func (f *faults) server(c *Configuration) {
	port := func(name string, n int32, zero bool, words string) {
		if !zero || n != 0 {
			f.within(name, int64(n), 1, math.MaxUint16, words)
		}
	}
	port("healthzPort (--healthz-port)", *c.HealthzPort, true, "1 and 65535")
	port("port (--port)", c.Port, false, "1 and 65535")
	port("readOnlyPort (--read-only-port)", c.ReadOnlyPort, true, "0 and 65535")
	f.positive("eventBurst (--event-burst)", int64(c.EventBurst))
	f.positive("eventRecordQPS (--event-qps)", int64(*c.EventRecordQPS))
	f.positive("kubeAPIBurst (--kube-api-burst)", int64(c.KubeAPIBurst))
	f.positive("kubeAPIQPS (--kube-api-qps)", int64(*c.KubeAPIQPS))
	f.positive("maxOpenFiles (--max-open-files)", c.MaxOpenFiles)
	f.within("oomScoreAdj (--oom-score-adj)", int64(*c.OOMScoreAdj), -1000, 1000, "-1000 and 1000")
	f.when(*c.EnableSystemLogHandler == false && c.EnableSystemLogQuery != nil && *c.EnableSystemLogQuery,
		"enableSystemLogHandler is required for enableSystemLogQuery")
	f.tls(c)
	if m := c.Authorization.Mode; m != kubeletv1beta1.KubeletAuthorizationModeAlwaysAllow && m != kubeletv1beta1.KubeletAuthorizationModeWebhook {
		f.errs = append(f.errs, fmt.Errorf("unknown authorization mode %s", m))
	}
}

func (f *faults) tls(c *Configuration) {
	_, version := flag.TLSVersion(c.TLSMinVersion)
	_, suites := flag.TLSCipherSuites(c.TLSCipherSuites)
	_, curves := flag.TLSCurvePreferences(c.TLSCurvePreferences)
	for _, err := range []error{version, suites, curves} {
		if err != nil {
			f.errs = append(f.errs, err)
		}
	}
	if (c.TLSCertFile == "") != (c.TLSPrivateKeyFile == "") {
		f.errs = append(f.errs, errors.New("tlsCertFile (--tls-cert-file) and tlsPrivateKeyFile (--tls-private-key-file) come together"))
	}
}

func (f *faults) node(c *Configuration) {
	f.when(c.NodeLeaseDurationSeconds <= 0, "nodeLeaseDurationSeconds must be greater than 0")
	f.when(c.SystemCgroups != "" && c.CgroupRoot == "",
		"systemCgroups (--system-cgroups) was specified and cgroupRoot (--cgroup-root) was not specified")
	f.within("iptablesDropBit (--iptables-drop-bit)", int64(*c.IPTablesDropBit), 0, 31, "0 and 31")
	f.within("iptablesMasqueradeBit (--iptables-masquerade-bit)", int64(*c.IPTablesMasqueradeBit), 0, 31, "0 and 31")
	f.when(*c.NodeStatusMaxImages < -1, "nodeStatusMaxImages (--node-status-max-images) %v must be -1 or greater", *c.NodeStatusMaxImages)
	f.positive("maxPods (--max-pods)", int64(c.MaxPods))
	f.positive("podsPerCore (--pods-per-core)", int64(c.PodsPerCore))
	f.when(c.RunOnce, "runOnce (--runOnce) %v, Runonce mode has been deprecated and should not be set", c.RunOnce)
	f.when(c.ContainerRuntimeEndpoint == "", "the containerRuntimeEndpoint was not specified or empty")
	for _, taint := range c.RegisterWithTaints {
		if !validTaint(taint) {
			f.errs = append(f.errs, fmt.Errorf("invalid taint: %v", taint))
		}
		f.when(taint.TimeAdded != nil, "taint.TimeAdded is not nil")
	}
	if modes := []string{kubeletv1beta1.HairpinNone, kubeletv1beta1.HairpinVeth, kubeletv1beta1.PromiscuousBridge}; !slices.Contains(modes, c.HairpinMode) {
		f.add("option %q specified for hairpinMode (--hairpin-mode). Valid options are %q, %q or %q", c.HairpinMode, modes[0], modes[1], modes[2])
	}
}

func validTaint(t corev1.Taint) bool {
	effects := []corev1.TaintEffect{"", corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute}
	return len(utilvalidation.IsQualifiedName(t.Key)) == 0 && len(utilvalidation.IsValidLabelValue(t.Value)) == 0 && slices.Contains(effects, t.Effect)
}

func (f *faults) pods(c *Configuration, gates feature.Gates) {
	period := c.CPUCFSQuotaPeriod.Duration
	if gates.Enabled("CustomCPUCFSQuotaPeriod") {
		f.when(period < time.Millisecond || period > time.Second, "cpuCFSQuotaPeriod (--cpu-cfs-quota-period) %v must be between 1ms and 1sec, inclusive", *c.CPUCFSQuotaPeriod)
	} else {
		f.when(period != 100*time.Millisecond, "cpuCFSQuotaPeriod (--cpu-cfs-quota-period) %v requires feature gate CustomCPUCFSQuotaPeriod", *c.CPUCFSQuotaPeriod)
	}
	f.defaultSysctls(c, gates)
	f.allowedSysctls(c)
	switch c.MemorySwap.SwapBehavior {
	case "", "NoSwap", "LimitedSwap":
	default:
		f.add(`memorySwap.swapBehavior %q must be one of: "", %q or %q`, c.MemorySwap.SwapBehavior, "LimitedSwap", "NoSwap")
	}
	f.restarts(c.CrashLoopBackOff.MaxContainerRestartPeriod, gates)
	throttling := c.MemoryThrottlingFactor
	f.when(throttling != nil && (*throttling <= 0 || *throttling > 1), "memoryThrottlingFactor %v must be greater than 0 and less than or equal to 1.0", throttlingOf(throttling))
	policies := []kubeletv1beta1.MemoryReservationPolicy{kubeletv1beta1.NoneMemoryReservationPolicy, kubeletv1beta1.TieredReservationMemoryReservationPolicy}
	f.when(!slices.Contains(policies, c.MemoryReservationPolicy), "option %q specified for memoryReservationPolicy. Valid options are %q or %q", c.MemoryReservationPolicy, policies[0], policies[1])
}

func throttlingOf(p *float64) float64 {
	if p == nil {
		return 0
	}
	return *p
}

func (f *faults) restarts(longest *metav1.Duration, gates feature.Gates) {
	const name = "CrashLoopBackOff.MaxContainerRestartPeriod"
	switch on := gates.Enabled("KubeletCrashLoopBackOffMax"); {
	case !on && longest != nil:
		f.add("FeatureGate KubeletCrashLoopBackOffMax not enabled, %s must not be set", name)
	case on && (longest.Duration < time.Second || longest.Duration > maxRestartPeriod):
		f.add("%s (got: %v seconds) must be set between 1s and 300s", name, longest.Seconds())
	}
}

func (f *faults) defaultSysctls(c *Configuration, gates feature.Gates) {
	if len(c.DefaultPodSysctls) == 0 {
		return
	}
	if !gates.Enabled("DefaultPodSysctls") {
		f.add("DefaultPodSysctls feature gate is required for Kubelet configuration option defaultPodSysctls")
		return
	}
	seen := map[string]bool{}
	for _, name := range sortedKeys(c.DefaultPodSysctls) {
		if !validSysctl(name) {
			f.add("%q is not a valid sysctl name for defaultPodSysctls", name)
			continue
		}
		f.when(namespaceOf(name) == sysctls.UnknownNamespace, "%q is not known to be namespaced for defaultPodSysctls", name)
		dotted := sysctls.NormalizeName(name)
		f.when(seen[dotted], "duplicate sysctl %q found in defaultPodSysctls", dotted)
		seen[dotted] = true
	}
}

// allowedSysctls refuses patterns that would let a pod change the host.
func (f *faults) allowedSysctls(c *Configuration) {
	for _, pattern := range c.AllowedUnsafeSysctls {
		name := strings.TrimSuffix(pattern, "*")
		switch {
		case !validSysctl(strings.TrimRight(name, "./")):
			f.errs = append(f.errs, fmt.Errorf("sysctl %q must have at most %d characters and match a sysctl name", pattern, maxSysctl))
		case namespaceOf(pattern) == sysctls.UnknownNamespace:
			f.errs = append(f.errs, fmt.Errorf("the sysctls %q are not known to be namespaced", pattern))
		}
	}
}

func namespaceOf(sysctl string) sysctls.Namespace {
	ns, _, _ := sysctls.GetNamespace(sysctl)
	return ns
}

func (f *faults) images(c *Configuration, gates feature.Gates) {
	high, low := *c.ImageGCHighThresholdPercent, *c.ImageGCLowThresholdPercent
	f.within("imageGCHighThresholdPercent (--image-gc-high-threshold)", int64(high), 0, 100, "0 and 100")
	f.within("imageGCLowThresholdPercent (--image-gc-low-threshold)", int64(low), 0, 100, "0 and 100")
	f.when(low >= high, "imageGCLowThresholdPercent (--image-gc-low-threshold) %v must be less than imageGCHighThresholdPercent (--image-gc-high-threshold) %v", low, high)
	least, most := c.ImageMinimumGCAge.Duration, c.ImageMaximumGCAge.Duration
	f.when(least < 0, "imageMinimumGCAge %v must not be negative", least)
	f.when(most < 0, "imageMaximumGCAge %v must not be negative", most)
	f.when(most > 0 && most <= least, "imageMaximumGCAge %v must be greater than imageMinimumGCAge %v", most, least)
	f.positive("registryBurst (--registry-burst)", int64(c.RegistryBurst))
	f.positive("registryPullQPS (--registry-qps)", int64(*c.RegistryPullQPS))
	if n := c.MaxParallelImagePulls; n != nil {
		f.when(*n < 1, "maxParallelImagePulls %v must be a positive number", *n)
		f.when(*n > 1 && *c.SerializeImagePulls, "maxParallelImagePulls cannot be larger than 1 unless SerializeImagePulls (--serialize-image-pulls) is set to false")
	}
	f.verification(c, gates)
}

func (f *faults) verification(c *Configuration, gates feature.Gates) {
	policy, listed := c.ImagePullCredentialsVerificationPolicy, len(c.PreloadedImagesVerificationAllowlist) > 0
	const words = "must not be set if KubeletEnsureSecretPulledImages feature gate is not enabled"
	if !gates.Enabled("KubeletEnsureSecretPulledImages") {
		f.when(policy != "", "`imagePullCredentialsVerificationPolicy` "+words)
		f.when(listed, "`preloadedImagesVerificationAllowlist` "+words)
		return
	}
	all := []kubeletv1beta1.ImagePullCredentialsVerificationPolicy{
		kubeletv1beta1.NeverVerify, kubeletv1beta1.NeverVerifyPreloadedImages, kubeletv1beta1.NeverVerifyAllowlistedImages, kubeletv1beta1.AlwaysVerify,
	}
	f.when(!slices.Contains(all, policy), "option %q specified for imagePullCredentialsVerificationPolicy. Valid options are %q, %q, %q or %q", policy, all[0], all[1], all[2], all[3])
	f.when(listed && policy != kubeletv1beta1.NeverVerifyAllowlistedImages,
		"can't set `preloadedImagesVerificationAllowlist` if `imagePullCredentialsVertificationPolicy` is not \"NeverVerifyAllowlistedImages\"")
}

func (f *faults) managers(c *Configuration) {
	policies := []string{kubeletv1beta1.NoneTopologyManagerPolicy, kubeletv1beta1.BestEffortTopologyManagerPolicy, kubeletv1beta1.RestrictedTopologyManagerPolicy, kubeletv1beta1.SingleNumaNodeTopologyManagerPolicy}
	f.when(!slices.Contains(policies, c.TopologyManagerPolicy), "topologyManagerPolicy (--topology-manager-policy) %q must be one of: %q", c.TopologyManagerPolicy, policies)
	scopes := []string{kubeletv1beta1.ContainerTopologyManagerScope, kubeletv1beta1.PodTopologyManagerScope}
	f.when(!slices.Contains(scopes, c.TopologyManagerScope), "topologyManagerScope (--topology-manager-scope) %q must be one of: %q, or %q", c.TopologyManagerScope, scopes[0], scopes[1])
	if cpus := c.ReservedSystemCPUs; cpus != "" {
		f.when(c.SystemReservedCgroup != "" || c.KubeReservedCgroup != "",
			"can't use reservedSystemCPUs (--reserved-cpus) with systemReservedCgroup (--system-reserved-cgroup) or kubeReservedCgroup (--kube-reserved-cgroup)")
		if _, err := cpuset.Parse(cpus); err != nil {
			f.add("unable to parse reservedSystemCPUs (--reserved-cpus) %v, error: %w", cpus, err)
		}
	}
}

func (f *faults) allocatable(c *Configuration) {
	const pods, system, kube, none = "pods", "system-reserved", "kube-reserved", "none"
	const compressible, flag = "-compressible", "enforceNodeAllocatable (--enforce-node-allocatable)"
	levels := c.EnforceNodeAllocatable
	for _, level := range []string{system, kube} {
		f.when(slices.Contains(levels, level) && slices.Contains(levels, level+compressible),
			"both %q and %q cannot be specified together in %s", level, level+compressible, flag)
	}
	for i, level := range levels {
		if slices.Contains(levels[:i], level) {
			f.add("duplicated enforcements %q in %s", level, flag)
			continue
		}
		switch level {
		case pods:
		case system, system + compressible:
			f.when(c.SystemReservedCgroup == "", "systemReservedCgroup (--system-reserved-cgroup) must be specified when %q or %q included in %s", system, system+compressible, flag)
		case kube, kube + compressible:
			f.when(c.KubeReservedCgroup == "", "kubeReservedCgroup (--kube-reserved-cgroup) must be specified when %q or %q included in %s", kube, kube+compressible, flag)
		case none:
			f.when(len(levels) > 1, "%s may not contain additional enforcements when %q is specified", flag, none)
			continue
		default:
			f.add("option %q specified for %s. Valid options are %q, %q, %q, %q, %q or %q", level, flag, pods, system, system+compressible, kube, kube+compressible, none)
			continue
		}
		f.when(!*c.CgroupsPerQOS, "cgroupsPerQOS (--cgroups-per-qos) must be set to true when %q contained in %s", level, flag)
	}
	for flag, reserved := range map[string]map[string]string{"--kube-reserved": c.KubeReserved, "--system-reserved": c.SystemReserved} {
		if _, err := ResourceList(reserved); err != nil {
			f.errs = append(f.errs, fmt.Errorf("%s value failed to parse: %w", flag, err))
		}
	}
}

func (f *faults) shutdown(c *Configuration, gates feature.Gates) {
	whole, critical := c.ShutdownGracePeriod, c.ShutdownGracePeriodCriticalPods
	short := func(d metav1.Duration) bool { return d.Duration < 0 || d.Duration > 0 && d.Duration < time.Second }
	set := whole.Duration > 0 || critical.Duration > 0
	if gates.Enabled("GracefulNodeShutdown") {
		f.when(critical.Duration > whole.Duration, "shutdownGracePeriodCriticalPods %v must be <= shutdownGracePeriod %v", critical, whole)
		f.when(short(whole), "shutdownGracePeriod %v must be either zero or otherwise >= 1 sec", whole)
		f.when(short(critical), "shutdownGracePeriodCriticalPods %v must be either zero or otherwise >= 1 sec", critical)
	} else {
		f.when(set, "specifying shutdownGracePeriod or shutdownGracePeriodCriticalPods requires feature gate GracefulNodeShutdown")
	}
	if len(c.ShutdownGracePeriodByPodPriority) == 0 {
		return
	}
	if gates.Enabled("GracefulNodeShutdownBasedOnPodPriority") {
		f.when(set, "Cannot specify both shutdownGracePeriodByPodPriority and shutdownGracePeriod at the same time")
	} else {
		f.add("Specifying shutdownGracePeriodByPodPriority requires feature gate GracefulNodeShutdownBasedOnPodPriority")
	}
}

func (f *faults) logs(c *Configuration) {
	f.when(*c.ContainerLogMaxWorkers < 1, "containerLogMaxWorkers must be greater than or equal to 1")
	f.when(c.ContainerLogMonitorInterval.Duration < 3*time.Second, "containerLogMonitorInterval must be a positive time duration greater than or equal to 3s")
	f.when(*c.ContainerLogMaxFiles <= 1, "containerLogMaxFiles must be greater than 1")
	if _, err := resource.ParseQuantity(c.ContainerLogMaxSize); err != nil {
		f.errs = append(f.errs, fmt.Errorf("failed to parse container log max size %q: %w", c.ContainerLogMaxSize, err))
	}
	dir := c.PodLogsDir
	f.when(dir == "", "podLogsDir was not specified")
	f.when(!filepath.IsAbs(dir), "pod logs path %q must be absolute path", dir)
	f.when(filepath.Clean(dir) != dir, "pod logs path %q must be normalized", dir)
	f.when(strings.ContainsFunc(dir, func(r rune) bool { return r > unicode.MaxASCII }), "pod logs path %q mut contains ASCII characters only", dir)
	f.when(c.Logging.Format != "text" && c.Logging.Format != "json", "logging.format: Invalid value: %q: Unsupported log format", c.Logging.Format)
}

// userNamespaceUnit is what the length of a user namespace is a multiple of.
const userNamespaceUnit = 1 << 16

// host compares the configuration with the host's control groups.
func (f *faults) host(c *Configuration) {
	v1 := !cgroups.IsCgroup2UnifiedMode()
	if v1 && *c.FailCgroupV1 {
		f.errs = append(f.errs, fmt.Errorf("kubelet is configured to not run on a host using cgroup v1. cgroup v1 support is unsupported and will be removed in a future release"))
	}
	f.when(v1 && c.SingleProcessOOMKill != nil && !*c.SingleProcessOOMKill, "singleProcessOOMKill must not be explicitly set to false when using cgroup v1")
	if v1 && c.MemorySwap.SwapBehavior == "LimitedSwap" {
		f.errs = append(f.errs, fmt.Errorf("swap feature is enabled and LimitedSwap but it is only supported with cgroupv2"))
	}
	if c.UserNamespaces == nil || c.UserNamespaces.IDsPerPod == nil {
		return
	}
	switch ids := *c.UserNamespaces.IDsPerPod; {
	case ids < userNamespaceUnit:
		f.add("userNamespaces.idsPerPod must not be less than %d", userNamespaceUnit)
	case ids%userNamespaceUnit != 0:
		f.add("userNamespaces.idsPerPod must be a multiple of %d", userNamespaceUnit)
	case ids > math.MaxUint32:
		f.add("userNamespaces.idsPerPod must not be more than %d", int64(math.MaxUint32))
	}
}
