package config

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

const header = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"

// load reads one document as a file and completes it.
func load(t *testing.T, text string) (*Configuration, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte(header+text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Load(file, "")
	if err != nil {
		return nil, err
	}
	if c.FailCgroupV1 == nil {
		c.FailCgroupV1 = ptr.To(false) // the machine of a test may have either
	}
	Default(c)
	return c, Validate(c)
}

func TestConfigurationsAreValidatedAsUpstreamValidatesThem(t *testing.T) {
	for _, tt := range []struct{ name, text, err string }{
		{"defaults are valid", "", ""},
		{"unlimited swap is no more", "memorySwap: {swapBehavior: UnlimitedSwap}", `invalid configuration: memorySwap.swapBehavior "UnlimitedSwap" must be one of: "", "LimitedSwap" or "NoSwap"`},
		{"a percentage", "imageGCHighThresholdPercent: 101", "invalid configuration: imageGCHighThresholdPercent (--image-gc-high-threshold) 101 must be between 0 and 100, inclusive"},
		{"thresholds in the wrong order", "imageGCHighThresholdPercent: 50\nimageGCLowThresholdPercent: 50", "invalid configuration: imageGCLowThresholdPercent (--image-gc-low-threshold) 50 must be less than imageGCHighThresholdPercent (--image-gc-high-threshold) 50"},
		{"images age in the wrong order", "imageMaximumGCAge: 2m", "invalid configuration: imageMaximumGCAge 2m0s must be greater than imageMinimumGCAge 2m0s"},
		{"images may grow old", "imageMaximumGCAge: 5m", ""},
		{"parallel pulls, one at a time", "serializeImagePulls: true\nmaxParallelImagePulls: 3", "invalid configuration: maxParallelImagePulls cannot be larger than 1 unless SerializeImagePulls (--serialize-image-pulls) is set to false"},
		{"no pull at a time", "maxParallelImagePulls: 0", "invalid configuration: maxParallelImagePulls 0 must be a positive number"},
		{"parallel pulls alone", "maxParallelImagePulls: 3", ""},
		{"a relative log directory by flag", "podLogsDir: /a/../b", `invalid configuration: pod logs path "/a/../b" must be normalized`},
		{"a log directory that metrics cannot show", "podLogsDir: /ä", `invalid configuration: pod logs path "/ä" mut contains ASCII characters only`},
		{"one log file", "containerLogMaxFiles: 1", "invalid configuration: containerLogMaxFiles must be greater than 1"},
		{"a log size", "containerLogMaxSize: much", `failed to parse container log max size "much": quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'`},
		{"an unknown gate", "featureGates: {NoSuch: true}", "unrecognized feature gate: NoSuch"},
		{"a locked gate", "featureGates: {ImageVolume: false}", "cannot set feature gate ImageVolume to false, feature is locked to true"},
		{"a gate of nodes alone", "featureGates: {CPUManagerPolicyAlphaOptions: true}", ""},
		{"sysctls for all pods without their gate", "defaultPodSysctls: {net.ipv4.ip_forward: '1'}", "invalid configuration: DefaultPodSysctls feature gate is required for Kubelet configuration option defaultPodSysctls"},
		{"sysctls of the host for all pods", "featureGates: {DefaultPodSysctls: true}\ndefaultPodSysctls: {vm.swappiness: '1'}", `invalid configuration: "vm.swappiness" is not known to be namespaced for defaultPodSysctls`},
		{"unsafe sysctls of the host", "allowedUnsafeSysctls: ['vm.*']", `the sysctls "vm.*" are not known to be namespaced`},
		{"unsafe sysctls of pods", "allowedUnsafeSysctls: ['net.*', 'kernel.msg*']", ""},
		{"a restart period without its gate", "featureGates: {KubeletCrashLoopBackOffMax: false}\ncrashLoopBackOff: {maxContainerRestartPeriod: 10s}", "invalid configuration: FeatureGate KubeletCrashLoopBackOffMax not enabled, CrashLoopBackOff.MaxContainerRestartPeriod must not be set"},
		{"a long restart period", "crashLoopBackOff: {maxContainerRestartPeriod: 301s}", "invalid configuration: CrashLoopBackOff.MaxContainerRestartPeriod (got: 301 seconds) must be set between 1s and 300s"},
		{"an enforcement without its group", "enforceNodeAllocatable: [kube-reserved]", `invalid configuration: kubeReservedCgroup (--kube-reserved-cgroup) must be specified when "kube-reserved" or "kube-reserved-compressible" included in enforceNodeAllocatable (--enforce-node-allocatable)`},
		{"none and more", "enforceNodeAllocatable: [none, pods]", `invalid configuration: enforceNodeAllocatable (--enforce-node-allocatable) may not contain additional enforcements when "none" is specified`},
		{"a resource that cannot be reserved", "kubeReserved: {pods: '3'}", `--kube-reserved value failed to parse: cannot reserve "pods" resource`},
		{"shutdown in half a second", "shutdownGracePeriod: 500ms", "invalid configuration: shutdownGracePeriod {500ms} must be either zero or otherwise >= 1 sec"},
		{"a taint", "registerWithTaints: [{key: a b, effect: NoSchedule}]", "invalid taint: {a b  NoSchedule <nil>}"},
		{"run once", "runOnce: true", "invalid configuration: runOnce (--runOnce) true, Runonce mode has been deprecated and should not be set"},
		{"a part of a range of ids", "userNamespaces: {idsPerPod: 65537}", "invalid configuration: userNamespaces.idsPerPod must be a multiple of 65536"},
		{"a policy that is not here", "cpuManagerPolicy: static", `invalid configuration: cpuManagerPolicy "static" is not supported by this kubelet, which knows "none"`},
		{"graceful shutdown, which is not here", "shutdownGracePeriod: 30s", `invalid configuration: shutdownGracePeriod "30s" is not supported by this kubelet, which knows "0s"`},
		{"no swap in so many words", "memorySwap: {swapBehavior: NoSwap}", ""},
		{"an unknown field", "maxPod: 3", `unknown field "maxPod"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := load(t, tt.text)
			switch {
			case tt.err == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)):
				t.Errorf("error %v, want %s", err, tt.err)
			}
		})
	}
}

func TestDefaultsThatFollowFromOthers(t *testing.T) {
	c, err := load(t, "nodeStatusUpdateFrequency: 7s\nmaxParallelImagePulls: 2\nmergeDefaultEvictionSettings: true\nevictionHard: {memory.available: 1Gi}")
	if err != nil {
		t.Fatal(err)
	}
	if c.NodeStatusReportFrequency.Duration != 7*time.Second {
		t.Errorf("reports every %v", c.NodeStatusReportFrequency)
	}
	if *c.SerializeImagePulls || Pulls(c) != 2 {
		t.Errorf("pulls %d at a time", Pulls(c))
	}
	if c.EvictionHard["memory.available"] != "1Gi" || c.EvictionHard["nodefs.available"] != "10%" {
		t.Errorf("evicts at %v", c.EvictionHard)
	}
	if c, err = load(t, "evictionHard: {memory.available: 1Gi}"); err != nil || len(c.EvictionHard) != 1 {
		t.Errorf("evicts at %v, %v", c.EvictionHard, err)
	}
	if c = New(); *c.KubeAPIQPS != 50 || c.KubeAPIBurst != 100 || *c.EventRecordQPS != 50 || c.EventBurst != 100 || Pulls(c) != 1 {
		t.Errorf("default rates %d %d %d %d, %d pulls", *c.KubeAPIQPS, c.KubeAPIBurst, *c.EventRecordQPS, c.EventBurst, Pulls(c))
	}
}

func TestDropInsLieOverTheFileInTheOrderOfTheirNames(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"main.yaml":      "maxPods: 40\nclusterDNS: [10.0.0.1, 10.0.0.2]\nsystemReserved: {cpu: 1, memory: 1Gi}\nstaticPodPath: manifests",
		"d/10.conf":      "maxPods: 50\nclusterDNS: [10.0.0.3]",
		"d/20/sub.conf":  "maxPods: 60\nsystemReserved: {memory: 2Gi}",
		"d/99.conf.skip": "maxPods: 70",
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(header+text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := Load(filepath.Join(dir, "main.yaml"), filepath.Join(dir, "d"))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"cpu": "1", "memory": "2Gi"}
	if c.MaxPods != 60 || !reflect.DeepEqual(c.ClusterDNS, []string{"10.0.0.3"}) || !reflect.DeepEqual(c.SystemReserved, want) {
		t.Errorf("maxPods %d, clusterDNS %v, systemReserved %v", c.MaxPods, c.ClusterDNS, c.SystemReserved)
	}
	if c.StaticPodPath != filepath.Join(dir, "manifests") {
		t.Errorf("static pods in %s", c.StaticPodPath)
	}
	if err := os.WriteFile(filepath.Join(dir, "d", "30.conf"), []byte("maxPods: 1"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load("", filepath.Join(dir, "d")); err == nil || !strings.Contains(err.Error(), "no apiVersion/kind") {
		t.Errorf("a drop-in without a kind: %v", err)
	}
}

// TestEveryFieldActsOrIsRefused is that nothing a user writes is ignored without
// a word.
func TestEveryFieldActsOrIsRefused(t *testing.T) {
	known := map[string]bool{}
	eachField(New(), func(path string, _ reflect.Value) {
		known[path] = true
		if _, ok := effects[path]; !ok {
			t.Errorf("%s: nothing says what comes of it", path)
		}
	})
	for path := range effects {
		if !known[path] {
			t.Errorf("%s is no field", path)
		}
	}
	for path, e := range effects {
		if e != refused {
			continue
		}
		c := New()
		c.Tracing, c.UserNamespaces = nil, nil
		eachField(c, func(at string, v reflect.Value) {
			if at == path {
				disturb(v)
			}
		})
		errs := unsupported(c)
		if len(errs) != 1 || !strings.Contains(errs[0].Error(), "invalid configuration: "+path+" ") {
			t.Errorf("%s set: %v", path, errs)
		}
	}
}

// disturb gives a field another value.
func disturb(v reflect.Value) {
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.String:
		v.SetString("other")
	case reflect.Int32, reflect.Int64:
		v.SetInt(v.Int() + 1)
	case reflect.Float64:
		v.SetFloat(0.5)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem())
	case reflect.Pointer:
		inner := reflect.New(v.Type().Elem())
		if !v.IsNil() {
			inner.Elem().Set(v.Elem())
		}
		if inner.Elem().Kind() != reflect.Struct || inner.Elem().Type() == reflect.TypeFor[metav1.Duration]() {
			disturb(inner.Elem())
		}
		v.Set(inner)
	case reflect.Struct:
		disturb(v.Field(0))
	}
}
