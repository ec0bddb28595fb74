// Package config reads what a node agent is told to do: upstream's
// KubeletConfiguration, from a file and the drop-ins over it, defaulted and
// validated as upstream's, with upstream's messages. A field that this agent
// does not act on is refused when it is set (effects.go): nothing is ignored in
// silence.
package config

import (
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"proa/internal/apis/feature"
)

// Configuration is kubelet.config.k8s.io/v1beta1.
type Configuration = kubeletv1beta1.KubeletConfiguration

// Kind of the files.
const Kind = "KubeletConfiguration"

const (
	// DefaultEndpoint is where containerd listens.
	DefaultEndpoint = "unix:///run/containerd/containerd.sock"
	// NoPidsLimit is a podPidsLimit that sets none.
	NoPidsLimit = -1

	maxRestartPeriod = 5 * time.Minute
)

// evictionHard are the thresholds of a node whose configuration names none.
var evictionHard = map[string]string{
	"memory.available": "100Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%",
	"imagefs.available": "15%", "imagefs.inodesFree": "5%",
}

// New returns a configuration of defaults.
func New() *Configuration {
	c := &Configuration{}
	Default(c)
	return c
}

// Gates are the feature gates of a configuration. A gate that is unknown or
// locked is an error.
func Gates(c *Configuration) (feature.Gates, error) {
	var list []string
	for _, name := range sortedKeys(c.FeatureGates) {
		list = append(list, fmt.Sprintf("%s=%t", name, c.FeatureGates[name]))
	}
	return feature.ParseGates(strings.Join(list, ","))
}

// Default fills in what is not set. A gate in featureGates that cannot be set
// counts as not named; Validate refuses it.
func Default(c *Configuration) {
	c.APIVersion, c.Kind = kubeletv1beta1.SchemeGroupVersion.String(), Kind
	gates, _ := Gates(c)
	defaultServer(c)
	defaultNode(c)
	defaultPods(c)
	defaultImages(c)
	defaultEviction(c)
	defaultProcess(c)
	if gates.Enabled("KubeletCrashLoopBackOffMax") {
		point(&c.CrashLoopBackOff.MaxContainerRestartPeriod, metav1.Duration{Duration: maxRestartPeriod})
	}
	if gates.Enabled("KubeletEnsureSecretPulledImages") {
		value(&c.ImagePullCredentialsVerificationPolicy, kubeletv1beta1.NeverVerifyPreloadedImages)
	}
}

func value[T comparable](field *T, def T) {
	var zero T
	if *field == zero {
		*field = def
	}
}

func point[T any](field **T, def T) {
	if *field == nil {
		*field = &def
	}
}

func duration(field *metav1.Duration, def time.Duration) {
	value(field, metav1.Duration{Duration: def})
}

func defaultServer(c *Configuration) {
	point(&c.EnableServer, true)
	value(&c.Address, "0.0.0.0")
	value(&c.Port, 10250)
	point(&c.Authentication.Anonymous.Enabled, false)
	point(&c.Authentication.Webhook.Enabled, true)
	duration(&c.Authentication.Webhook.CacheTTL, 2*time.Minute)
	value(&c.Authorization.Mode, kubeletv1beta1.KubeletAuthorizationModeWebhook)
	duration(&c.Authorization.Webhook.CacheAuthorizedTTL, 5*time.Minute)
	duration(&c.Authorization.Webhook.CacheUnauthorizedTTL, 30*time.Second)
	point(&c.EnableDebuggingHandlers, true)
	point(&c.HealthzPort, 10248)
	value(&c.HealthzBindAddress, "127.0.0.1")
	duration(&c.StreamingConnectionIdleTimeout, 4*time.Hour)
	point(&c.EnableSystemLogHandler, true)
	point(&c.EnableProfilingHandler, true)
	point(&c.EnableDebugFlagsHandler, true)
}

func defaultNode(c *Configuration) {
	if c.NodeStatusUpdateFrequency.Duration != 0 {
		// A node that was told how often to look reports as often.
		duration(&c.NodeStatusReportFrequency, c.NodeStatusUpdateFrequency.Duration)
	}
	duration(&c.NodeStatusReportFrequency, 5*time.Minute)
	duration(&c.NodeStatusUpdateFrequency, 10*time.Second)
	value(&c.NodeLeaseDurationSeconds, 40)
	point(&c.NodeStatusMaxImages, 50)
	point(&c.RegisterNode, true)
	value(&c.ContainerRuntimeEndpoint, DefaultEndpoint)
	duration(&c.RuntimeRequestTimeout, 2*time.Minute)
	point(&c.FailSwapOn, true)
	point(&c.FailCgroupV1, true)
	point(&c.MakeIPTablesUtilChains, true)
	point(&c.IPTablesMasqueradeBit, 14)
	point(&c.IPTablesDropBit, 15)
	value(&c.HairpinMode, kubeletv1beta1.PromiscuousBridge)
	point(&c.EnableControllerAttachDetach, true)
	value(&c.VolumePluginDir, "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/")
	point(&c.LocalStorageCapacityIsolation, true)
}

func defaultPods(c *Configuration) {
	duration(&c.SyncFrequency, time.Minute)
	duration(&c.FileCheckFrequency, 20*time.Second)
	duration(&c.HTTPCheckFrequency, 20*time.Second)
	duration(&c.VolumeStatsAggPeriod, time.Minute)
	point(&c.CgroupsPerQOS, true)
	value(&c.CgroupDriver, "cgroupfs")
	value(&c.CPUManagerPolicy, "none")
	duration(&c.CPUManagerReconcilePeriod, 10*time.Second)
	value(&c.MemoryManagerPolicy, kubeletv1beta1.NoneMemoryManagerPolicy)
	value(&c.TopologyManagerPolicy, kubeletv1beta1.NoneTopologyManagerPolicy)
	value(&c.TopologyManagerScope, kubeletv1beta1.ContainerTopologyManagerScope)
	value(&c.MaxPods, 110)
	if c.PodPidsLimit == nil || *c.PodPidsLimit < 0 {
		limit := int64(NoPidsLimit)
		c.PodPidsLimit = &limit
	}
	point(&c.ResolverConfig, "/etc/resolv.conf")
	point(&c.CPUCFSQuota, true)
	point(&c.CPUCFSQuotaPeriod, metav1.Duration{Duration: 100 * time.Millisecond})
	value(&c.PodLogsDir, "/var/log/pods")
	value(&c.ContainerLogMaxSize, "10Mi")
	point(&c.ContainerLogMaxFiles, 5)
	point(&c.ContainerLogMaxWorkers, 1)
	point(&c.ContainerLogMonitorInterval, metav1.Duration{Duration: 10 * time.Second})
	value(&c.ConfigMapAndSecretChangeDetectionStrategy, kubeletv1beta1.WatchChangeDetectionStrategy)
	point(&c.SeccompDefault, false)
	value(&c.MemoryReservationPolicy, kubeletv1beta1.NoneMemoryReservationPolicy)
}

func defaultImages(c *Configuration) {
	point(&c.RegistryPullQPS, 5)
	value(&c.RegistryBurst, 10)
	duration(&c.ImageMinimumGCAge, 2*time.Minute)
	point(&c.ImageGCHighThresholdPercent, 85)
	point(&c.ImageGCLowThresholdPercent, 80)
	// Whoever allows several pulls at a time need not say so twice.
	point(&c.SerializeImagePulls, c.MaxParallelImagePulls == nil || *c.MaxParallelImagePulls < 2)
}

func defaultEviction(c *Configuration) {
	duration(&c.EvictionPressureTransitionPeriod, 5*time.Minute)
	point(&c.MergeDefaultEvictionSettings, false)
	if c.EvictionHard == nil || *c.MergeDefaultEvictionSettings {
		merged := map[string]string{}
		for _, settings := range []map[string]string{evictionHard, c.EvictionHard} {
			for signal, threshold := range settings {
				merged[signal] = threshold
			}
		}
		c.EvictionHard = merged
	}
	if c.EnforceNodeAllocatable == nil {
		c.EnforceNodeAllocatable = []string{"pods"}
	}
}

func defaultProcess(c *Configuration) {
	point(&c.EventRecordQPS, 50)
	value(&c.EventBurst, 100)
	point(&c.OOMScoreAdj, -999)
	value(&c.MaxOpenFiles, 1_000_000)
	value(&c.ContentType, "application/vnd.kubernetes.protobuf")
	point(&c.KubeAPIQPS, 50)
	value(&c.KubeAPIBurst, 100)
	logsapi.SetRecommendedLoggingConfiguration(&c.Logging)
}
