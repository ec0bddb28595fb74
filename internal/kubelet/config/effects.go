package config

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	tracingapi "k8s.io/component-base/tracing/api/v1"
)

// effect is what comes of setting a field.
type effect int

const (
	// acts: the agent does what the field says.
	acts effect = iota
	// idle: the field does nothing in upstream's agent either, or only together
	// with another one that is refused here.
	idle
	// refused: anything but the default, or what allowed adds, is an error.
	refused
)

// effects says of every field what comes of it, by its path in a file.
var effects = map[string]effect{
	"enableServer": acts, "address": acts, "port": acts, "readOnlyPort": refused,
	"tlsCertFile": acts, "tlsPrivateKeyFile": acts, "tlsCipherSuites": acts, "tlsCurvePreferences": acts, "tlsMinVersion": acts,
	"rotateCertificates": refused, "serverTLSBootstrap": refused,
	"authentication.x509.clientCAFile": acts, "authentication.webhook.enabled": acts, "authentication.webhook.cacheTTL": acts,
	"authentication.anonymous.enabled": acts,
	"authorization.mode":               acts, "authorization.webhook.cacheAuthorizedTTL": acts, "authorization.webhook.cacheUnauthorizedTTL": acts,
	"enableDebuggingHandlers": acts, "enableContentionProfiling": refused, "enableProfilingHandler": acts, "enableDebugFlagsHandler": acts,
	"enableSystemLogHandler": acts, "enableSystemLogQuery": refused,
	"healthzPort": acts, "healthzBindAddress": acts, "streamingConnectionIdleTimeout": idle,

	"staticPodPath": acts, "fileCheckFrequency": acts, "staticPodURL": refused, "staticPodURLHeader": refused, "httpCheckFrequency": idle,
	"syncFrequency": acts, "runOnce": refused, "podCIDR": refused,

	"registryPullQPS": acts, "registryBurst": acts, "serializeImagePulls": acts, "maxParallelImagePulls": acts,
	"imagePullCredentialsVerificationPolicy": refused, "preloadedImagesVerificationAllowlist": refused,
	"imageMinimumGCAge": acts, "imageMaximumGCAge": acts, "imageGCHighThresholdPercent": acts, "imageGCLowThresholdPercent": acts,

	"eventRecordQPS": acts, "eventBurst": acts, "kubeAPIQPS": acts, "kubeAPIBurst": acts, "contentType": refused,
	"oomScoreAdj": acts, "maxOpenFiles": acts, "featureGates": acts, "showHiddenMetricsForVersion": refused, "tracing": refused,
	"logging.format": acts, "logging.verbosity": acts, "logging.flushFrequency": idle, "logging.vmodule": refused, "logging.options": refused,

	"clusterDomain": acts, "clusterDNS": acts, "resolvConf": acts, "maxPods": acts, "podsPerCore": acts, "podPidsLimit": acts,
	"nodeStatusUpdateFrequency": acts, "nodeStatusReportFrequency": acts, "nodeLeaseDurationSeconds": acts, "nodeStatusMaxImages": acts,
	"registerNode": acts, "registerWithTaints": acts, "providerID": acts,

	"containerRuntimeEndpoint": acts, "imageServiceEndpoint": acts, "runtimeRequestTimeout": acts,
	"cgroupRoot": acts, "cgroupsPerQOS": acts, "cgroupDriver": acts, "failCgroupV1": acts, "failSwapOn": acts,
	"kubeletCgroups": refused, "systemCgroups": refused, "singleProcessOOMKill": acts,
	"cpuCFSQuota": acts, "cpuCFSQuotaPeriod": refused, "memorySwap.swapBehavior": refused,
	"cpuManagerPolicy": refused, "cpuManagerPolicyOptions": refused, "cpuManagerReconcilePeriod": idle,
	"memoryManagerPolicy": refused, "reservedMemory": refused,
	"topologyManagerPolicy": refused, "topologyManagerScope": idle, "topologyManagerPolicyOptions": refused,
	"qosReserved": refused, "memoryThrottlingFactor": refused, "memoryReservationPolicy": refused,
	"userNamespaces.idsPerPod": acts, "seccompDefault": acts, "protectKernelDefaults": acts,
	"allowedUnsafeSysctls": acts, "defaultPodSysctls": acts, "crashLoopBackOff.maxContainerRestartPeriod": acts,

	"podLogsDir": acts, "containerLogMaxSize": acts, "containerLogMaxFiles": acts, "containerLogMaxWorkers": acts, "containerLogMonitorInterval": acts,

	"systemReserved": acts, "kubeReserved": acts, "reservedSystemCPUs": acts, "systemReservedCgroup": refused, "kubeReservedCgroup": refused,
	"enforceNodeAllocatable": acts, "localStorageCapacityIsolation": acts, "kernelMemcgNotification": refused,
	"evictionHard": acts, "evictionSoft": acts, "evictionSoftGracePeriod": acts, "evictionPressureTransitionPeriod": acts,
	"evictionMaxPodGracePeriod": acts, "evictionMinimumReclaim": acts, "mergeDefaultEvictionSettings": acts,

	"volumeStatsAggPeriod": acts, "volumePluginDir": refused, "enableControllerAttachDetach": refused,
	"configMapAndSecretChangeDetectionStrategy": refused,

	"shutdownGracePeriod": refused, "shutdownGracePeriodCriticalPods": refused, "shutdownGracePeriodByPodPriority": refused,

	"hairpinMode": idle, "makeIPTablesUtilChains": idle, "iptablesMasqueradeBit": idle, "iptablesDropBit": idle,
}

// allowed are values of refused fields which say what this agent does, besides
// the default.
var allowed = map[string][]any{
	"enableSystemLogQuery":                   {false},
	"memorySwap.swapBehavior":                {"NoSwap"},
	"imagePullCredentialsVerificationPolicy": {"NeverVerify", ""},
}

// unsupported names the fields that are set and would have no effect.
func unsupported(c *Configuration) []error {
	var errs []error
	plain := &Configuration{FeatureGates: c.FeatureGates}
	Default(plain)
	defaults := map[string]any{}
	eachField(plain, func(path string, v reflect.Value) { defaults[path] = shown(v) })
	eachField(c, func(path string, v reflect.Value) {
		if effects[path] != refused {
			return
		}
		is := shown(v)
		for _, ok := range append(allowed[path], defaults[path]) {
			if reflect.DeepEqual(is, ok) {
				return
			}
		}
		errs = append(errs, fmt.Errorf("invalid configuration: %s %s is not supported by this kubelet, which knows %s", path, text(is), text(defaults[path])))
	})
	return errs
}

// Given are the fields that a configuration sets, by their paths, before Default.
func Given(c *Configuration) map[string]bool {
	given := map[string]bool{}
	eachField(c, func(path string, v reflect.Value) {
		if !v.IsZero() {
			given[path] = true
		}
	})
	return given
}

// shown is a value without its pointer; an empty list or map is none.
func shown(v reflect.Value) any {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return nil
		}
		return shown(v.Elem())
	case reflect.Slice, reflect.Map:
		if v.Len() == 0 {
			return nil
		}
	case reflect.String:
		return v.String()
	}
	return v.Interface()
}

func text(v any) string {
	out, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(out)
}

// leaves are structs that are one value.
var leaves = map[reflect.Type]bool{
	reflect.TypeFor[metav1.Duration]():                 true,
	reflect.TypeFor[logsapi.TimeOrMetaDuration]():      true,
	reflect.TypeFor[logsapi.FormatOptions]():           true,
	reflect.TypeFor[tracingapi.TracingConfiguration](): true,
}

// eachField calls visit with every field of a configuration that is no group of
// others, and its path.
func eachField(c *Configuration, visit func(path string, v reflect.Value)) {
	walk("", reflect.ValueOf(c).Elem(), visit)
}

func walk(prefix string, v reflect.Value, visit func(string, reflect.Value)) {
	for i := range v.NumField() {
		field := v.Type().Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if field.Anonymous {
			continue // the kind's own name
		}
		path, inner := prefix+name, v.Field(i)
		if kind := field.Type; kind.Kind() == reflect.Pointer && kind.Elem().Kind() == reflect.Struct && !leaves[kind.Elem()] {
			if inner.IsNil() {
				inner = reflect.New(kind.Elem())
			}
			inner = inner.Elem()
		}
		if inner.Kind() == reflect.Struct && !leaves[inner.Type()] {
			walk(path+".", inner, visit)
			continue
		}
		visit(path, inner)
	}
}
