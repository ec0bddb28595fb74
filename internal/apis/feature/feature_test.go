package feature

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestGatesAreReadAsUpstreamReadsThem(t *testing.T) {
	tests := []struct {
		name, value string
		on, off     string
		err         string
	}{
		{name: "alpha is off, beta and GA are on", on: "WatchList ImageVolume", off: "CrossNamespaceVolumeDataSource"},
		{name: "a gate that is gone stays on", on: "CSIStorageCapacity"},
		{name: "an alpha gate can be switched on", value: "CrossNamespaceVolumeDataSource=true", on: "CrossNamespaceVolumeDataSource", off: "EvictionRequestAPI"},
		{name: "a beta gate can be switched off", value: "WatchList=false", off: "WatchList"},
		{name: "all alpha gates at once", value: "AllAlpha=true,AllBeta=true,EvictionRequestAPI=false", on: "CrossNamespaceVolumeDataSource", off: "EvictionRequestAPI"},
		{name: "all beta gates at once", value: "AllBeta=false", off: "WatchList"},
		{name: "an unknown gate", value: "NoSuch=true", err: "unrecognized feature gate: NoSuch"},
		{name: "a locked gate", value: "ImageVolume=false", err: "cannot set feature gate ImageVolume to false, feature is locked to true"},
		{name: "a gate without a value", value: "WatchList", err: "missing bool value for WatchList"},
		{name: "a value that is no boolean", value: "WatchList=maybe", err: `invalid value of WatchList=maybe, err: strconv.ParseBool: parsing "maybe": invalid syntax`},
		{name: "a gate of the component kube", value: "kube:WatchList=false", off: "WatchList"},
		{name: "a gate of another component", value: "wardle:WatchList=false", err: "component not registered: wardle"},
		{name: "a gate that Proa cannot turn on", value: "TaintTolerationComparisonOperators=true", err: "cannot set feature gate TaintTolerationComparisonOperators to true, Proa does not act on it"},
		{name: "a gate that Proa cannot turn off", value: "StrictIPCIDRValidation=false", err: "cannot set feature gate StrictIPCIDRValidation to false, Proa does not act on it"},
		{name: "such a gate may be told what it is", value: "StrictIPCIDRValidation=true", on: "StrictIPCIDRValidation"},
		{name: "such a gate among all of its stage", value: "AllAlpha=true,AllBeta=true", on: "EvictionRequestAPI", off: "TaintTolerationComparisonOperators"},
		{name: "such a gate when all of its stage are off", value: "AllBeta=false", on: "StrictIPCIDRValidation", off: "WatchList"},
		{name: "a gate without one that it requires", value: "TopologyAwareWorkloadScheduling=true", err: "TopologyAwareWorkloadScheduling is enabled, but depends on features that are disabled: [GenericWorkload]"},
		{name: "deprecated and locked on", value: "DisableNodeKubeProxyVersion=false", err: "cannot set feature gate DisableNodeKubeProxyVersion to false, feature is locked to true"},
		{name: "a locked gate may be told what it is", value: "ImageVolume=true", on: "ImageVolume"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			gates, err := ParseGates(tt.value)
			if tt.err != "" {
				if err == nil || err.Error() != tt.err {
					t.Fatalf("error %v, want %s", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range strings.Fields(tt.on) {
				if !gates.Enabled(name) {
					t.Errorf("%s is off", name)
				}
			}
			for _, name := range strings.Fields(tt.off) {
				if gates.Enabled(name) {
					t.Errorf("%s is on", name)
				}
			}
		})
	}
}

func TestGatesThatWereRemovedAreUnknown(t *testing.T) {
	for _, name := range strings.Fields(`NetworkPolicyEndPort LocalStorageCapacityIsolation StatefulSetMinReadySeconds IdentifyPodOS
		DaemonSetUpdateSurge EphemeralContainers CSIInlineVolume CSIMigration ControllerManagerLeaderMigration
		IPv6DualStack DynamicKubeletConfig DRAControlPlaneController`) {
		if _, err := ParseGates(name + "=true"); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

func TestEveryGateIsListedOnceWithItsStage(t *testing.T) {
	seen := map[string]bool{}
	stages := map[string]int{}
	for _, s := range (Gates{}).All() {
		if seen[s.Name] {
			t.Errorf("%s is listed twice", s.Name)
		}
		seen[s.Name] = true
		stages[s.Stage]++
		if s.Stage == "ALPHA" && s.Enabled {
			t.Errorf("alpha gate %s starts on", s.Name)
		}
	}
	for _, stage := range []string{"ALPHA", "BETA", "DEPRECATED", ""} {
		if stages[stage] == 0 {
			t.Errorf("no gate of stage %q", stage)
		}
	}
}

func TestRuntimeConfig(t *testing.T) {
	known := []schema.GroupVersion{{Version: "v1"}, {Group: "g", Version: "v1"}, {Group: "g", Version: "v1beta1"}, {Group: "g", Version: "v1alpha2"}}
	tests := []struct {
		name, value string
		served      string // group/version/resource
		not         string
		err         string
	}{
		{name: "only stable versions", served: "/v1/pods g/v1/things", not: "g/v1beta1/things g/v1alpha2/things"},
		{name: "one version", value: "g/v1beta1=true", served: "g/v1/things g/v1beta1/things", not: "g/v1alpha2/things"},
		{name: "one version without a value", value: "g/v1beta1", served: "g/v1beta1/things"},
		{name: "one resource", value: "g/v1beta1/things=true", served: "g/v1beta1/things", not: "g/v1beta1/others"},
		{name: "all of a version but one resource", value: "g/v1beta1=true,g/v1beta1/things=false", served: "g/v1beta1/others", not: "g/v1beta1/things"},
		{name: "all betas", value: "api/beta=true", served: "g/v1beta1/things", not: "g/v1alpha2/things"},
		{name: "everything", value: "api/all=true", served: "g/v1/things g/v1beta1/things g/v1alpha2/things"},
		{name: "everything but alphas", value: "api/all=true,api/alpha=false", served: "g/v1beta1/things", not: "g/v1alpha2/things"},
		{name: "nothing but the core", value: "api/all=false,v1=true", served: "/v1/pods", not: "g/v1/things"},
		{name: "the core by its path", value: "api/all=false,api/v1=true", served: "/v1/pods", not: "g/v1/things"},
		{name: "a stable version off", value: "g/v1=false", not: "g/v1/things"},
		{name: "nothing at all", value: "api/all=false", err: "invalid runtime-config with only api/all=false"},
		{name: "a group that is unknown", value: "h/v1=true", err: "unknown api groups h/v1"},
		{name: "a version that is unknown", value: "g/v2=true", err: "group version g/v2 that has not been registered"},
		{name: "a key of one word", value: "things=true", err: "runtime-config invalid key things"},
		{name: "a value that is no boolean", value: "g/v1=yes", err: `invalid value of g/v1: yes, err: strconv.ParseBool: parsing "yes": invalid syntax`},
		{name: "a kind of version with no value", value: "api/beta", err: "invalid value api/beta="},
		{name: "a kind for a resource", value: "g/v1/Thing=true", err: `invalid key g/v1/Thing: group/version/resource and resource is always lowercase plural, not "Thing"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := ParseRuntime(tt.value, known)
			if tt.err != "" {
				if err == nil || err.Error() != tt.err {
					t.Fatalf("error %v, want %s", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			check := func(list string, want bool) {
				for _, path := range strings.Fields(list) {
					p := strings.Split(path, "/")
					gvr := schema.GroupVersionResource{Group: p[0], Version: p[1], Resource: p[2]}
					if r.Serves(gvr) != want {
						t.Errorf("%s served: %v", path, !want)
					}
				}
			}
			check(tt.served, true)
			check(tt.not, false)
		})
	}
}
