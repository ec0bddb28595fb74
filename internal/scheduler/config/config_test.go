package config

import (
	"slices"
	"strings"
	"testing"
	"time"

	"proa/internal/scheduler/plugins/noderesources"
	"proa/internal/scheduler/plugins/podtopologyspread"
	"proa/internal/scheduler/profile"
)

const head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"

func TestAFileIsCheckedAsUpstreamDoes(t *testing.T) {
	args := func(plugin, yaml string) string {
		return head + "profiles:\n- schedulerName: s\n  pluginConfig:\n  - name: " + plugin + "\n    args: {" + yaml + "}\n"
	}
	for _, c := range []struct{ name, file, want string }{
		{"another kind", "apiVersion: v1\nkind: Pod\n", `no kind "Pod" is registered`},
		{"another version", strings.Replace(head, "/v1", "/v1beta3", 1), `no kind "KubeSchedulerConfiguration" is registered for version "kubescheduler.config.k8s.io/v1beta3"`},
		{"a plugin's arguments are no kind of file", "apiVersion: kubescheduler.config.k8s.io/v1\nkind: NodeAffinityArgs\n",
			"couldn't decode as KubeSchedulerConfiguration, got kubescheduler.config.k8s.io/v1, Kind=NodeAffinityArgs"},
		{"an unknown field", head + "profilez: []\n", `unknown field "profilez"`},
		{"an unknown field of arguments", args("NodeResourcesFit", "foo: 1"), `decoding .profiles[0].pluginConfig[0]: strict decoding error: decoding args for plugin NodeResourcesFit: strict decoding error: unknown field "foo"`},
		{"arguments of another plugin", args("NodeResourcesFit", "apiVersion: kubescheduler.config.k8s.io/v1, kind: NodeAffinityArgs"),
			"args for plugin NodeResourcesFit were not of type NodeResourcesFitArgs.kubescheduler.config.k8s.io, got NodeAffinityArgs.kubescheduler.config.k8s.io"},
		{"no parallelism", head + "parallelism: 0\n", "parallelism: Invalid value: 0: should be an integer value greater than zero"},
		{"a share of more than all", head + "percentageOfNodesToScore: 101\n", "percentageOfNodesToScore: Invalid value: 101: not in valid range [0-100]"},
		{"a profile's share below none", head + "profiles: [{schedulerName: a, percentageOfNodesToScore: -1}]\n",
			"profiles[0].percentageOfNodesToScore: Invalid value: -1: not in valid range [0-100]"},
		{"no backoff", head + "podInitialBackoffSeconds: 0\n", "podInitialBackoffSeconds: Invalid value: 0: must be greater than 0"},
		{"a backoff that shrinks", head + "podInitialBackoffSeconds: 5\npodMaxBackoffSeconds: 4\n",
			"podMaxBackoffSeconds: Invalid value: 4: must be greater than or equal to PodInitialBackoffSeconds"},
		{"another lock", head + "leaderElection: {leaderElect: true, resourceLock: configmaps}\n",
			`leaderElection.resourceLock: Invalid value: "configmaps": resourceLock value must be "leases"`},
		{"a profile without a name", head + "profiles: [{}, {schedulerName: a}]\n", "profiles[0].schedulerName: Required value"},
		{"a name twice", head + "profiles: [{schedulerName: a}, {schedulerName: a}]\n", "profiles[1].schedulerName: Duplicate value"},
		{"two orders of one queue", head + "profiles:\n- {schedulerName: a}\n- {schedulerName: b, plugins: {queueSort: {enabled: [{name: Mine}]}}}\n",
			"profiles[1].plugins.queueSort: Invalid value"},
		{"arguments twice", head + "profiles: [{schedulerName: a, pluginConfig: [{name: X}, {name: X}]}]\n", `profiles[0].pluginConfig[1]: Duplicate value: "X"`},
		{"preemption that looks nowhere", args("DefaultPreemption", "minCandidateNodesPercentage: 0, minCandidateNodesAbsolute: 0"),
			"minCandidateNodesPercentage: Invalid value: 0: cannot be zero at the same time as minCandidateNodesAbsolute"},
		{"too hard an affinity", args("InterPodAffinity", "hardPodAffinityWeight: 101"), "hardPodAffinityWeight: Invalid value: 101: not in valid range [0, 100]"},
		{"an unknown strategy", args("NodeResourcesFit", "scoringStrategy: {type: Best}"),
			`scoringStrategy.type: Unsupported value: "Best": supported values: "LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"`},
		{"a ratio without a shape", args("NodeResourcesFit", "scoringStrategy: {type: RequestedToCapacityRatio}"),
			"scoringStrategy.requestedToCapacityRatio: Required value: must be specified when type is RequestedToCapacityRatio"},
		{"a shape out of order", args("NodeResourcesFit", "scoringStrategy: {type: RequestedToCapacityRatio, requestedToCapacityRatio: {shape: [{utilization: 50, score: 1}, {utilization: 10, score: 11}]}}"),
			"shape[1].score: Invalid value: 11: not in valid range [0, 10]"},
		{"a group with a slash", args("NodeResourcesFit", "ignoredResourceGroups: [a/b]"), `Invalid value: "a/b": resource group name can't contain '/'`},
		{"a weight of balance", args("NodeResourcesBalancedAllocation", "resources: [{name: cpu, weight: 2}]"), "resources[0].weight: Invalid value: 2: must be 1"},
		{"constraints beside the system's", args("PodTopologySpread", "defaultConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}]"),
			`defaultingType: Invalid value: "System": when .defaultConstraints are not empty`},
		{"a default constraint with a selector", args("PodTopologySpread", "defaultingType: List, defaultConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway, labelSelector: {}}]"),
			"labelSelector: Forbidden: constraint must not define a selector, as they deduced for each pod"},
		{"no time for volumes", args("VolumeBinding", "bindTimeoutSeconds: -1"), "invalid BindTimeoutSeconds, should not be a negative value"},
		{"an added affinity that does not parse", args("NodeAffinity", "addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Like}]}]}}"),
			"addedAffinity.requiredDuringSchedulingIgnoredDuringExecution: Invalid value"},
		{"an extender without weight", head + "extenders: [{urlPrefix: 'http://x', prioritizeVerb: p}]\n", "extenders[0].weight: Invalid value: 0: must have a positive weight applied to it"},
		{"two extenders that bind", head + "extenders: [{urlPrefix: 'http://x', bindVerb: b}, {urlPrefix: 'http://y', bindVerb: b}]\n",
			`extenders: Invalid value: "found 2 extenders implementing bind": only one extender can implement bind`},
		{"a managed resource that nodes have anyway", head + "extenders: [{urlPrefix: 'http://x', managedResources: [{name: kubernetes.io/x}]}]\n",
			`managedResources[0].name: Invalid value: "kubernetes.io/x": is an invalid extended resource name`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := Parse([]byte(c.file)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v\nwant  %s", err, c.want)
			}
		})
	}
}

func parse(t *testing.T, file string) Settings {
	t.Helper()
	s, err := Parse([]byte(head + file))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestAnEmptyFileMeansTheDefaults(t *testing.T) {
	s := parse(t, "")
	p := s.Profiles[0]
	if len(s.Profiles) != 1 || p.SchedulerName != "default-scheduler" || !slices.Equal(p.Plugins, profile.DefaultPlugins()) ||
		s.InitialBackoff != time.Second || s.MaxBackoff != 10*time.Second {
		t.Errorf("%+v", s)
	}
}

func TestPluginsAreMergedWithTheDefaults(t *testing.T) {
	plugins := func(yaml string) []profile.Enabled {
		return parse(t, "profiles: [{schedulerName: a, plugins: {multiPoint: "+yaml+"}}]\n").Profiles[0].Plugins
	}
	if got := plugins("{disabled: [{name: '*'}], enabled: [{name: PrioritySort}, {name: DefaultBinder}]}"); !slices.Equal(got, []profile.Enabled{{Name: "PrioritySort"}, {Name: "DefaultBinder"}}) {
		t.Errorf("a star leaves only what is enabled: %v", got)
	}
	if got := plugins("{disabled: [{name: '*'}]}"); got == nil || len(got) != 0 {
		t.Errorf("a star alone leaves nothing: %v", got)
	}
	want := profile.DefaultPlugins()
	i := slices.IndexFunc(want, func(e profile.Enabled) bool { return e.Name == "ImageLocality" })
	want[i].Weight = 7
	want = slices.DeleteFunc(append(want, profile.Enabled{Name: "Mine"}), func(e profile.Enabled) bool { return e.Name == "NodePorts" })
	if got := plugins("{disabled: [{name: NodePorts}], enabled: [{name: Mine}, {name: ImageLocality, weight: 7}]}"); !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func TestArgumentsReachTheirPlugin(t *testing.T) {
	p := parse(t, `
percentageOfNodesToScore: 30
profiles:
- schedulerName: a
  plugins:
    score: {disabled: [{name: '*'}], enabled: [{name: NodeResourcesFit, weight: 5}]}
  pluginConfig:
  - name: NodeResourcesFit
    args:
      scoringStrategy: {type: MostAllocated, resources: [{name: cpu}]}
  - name: PodTopologySpread
    args: {defaultingType: List}
  - name: Mine
    args: {x: 1}
extenders:
- urlPrefix: http://localhost
  ignorable: true
- urlPrefix: http://other
  managedResources: [{name: example.com/x, ignoredByScheduler: true}]
`)
	a := p.Profiles[0]
	fit, ok := a.Args["NodeResourcesFit"].(*noderesources.FitArgs)
	if !ok || fit.Strategy.Type != noderesources.MostAllocated || len(fit.Strategy.Resources) != 1 || fit.Strategy.Resources[0].Weight != 1 ||
		!slices.Equal(fit.IgnoredResources, []string{"example.com/x"}) {
		t.Errorf("%+v", fit)
	}
	if spread, ok := a.Args["PodTopologySpread"].(*podtopologyspread.Args); !ok || spread.DefaultConstraints == nil || len(spread.DefaultConstraints) > 0 {
		t.Errorf("an empty list means no constraints: %+v", spread)
	}
	if a.Args["Mine"] == nil || a.PercentageOfNodesToScore != 30 {
		t.Errorf("%+v", a)
	}
	if set := a.Points[profile.Score]; !slices.Equal(set.Enabled, []profile.Enabled{{Name: "NodeResourcesFit", Weight: 5}}) || !slices.Equal(set.Disabled, []string{"*"}) {
		t.Errorf("%+v", set)
	}
	if p.Extenders[0].URLPrefix != "http://other" || p.Extenders[0].HTTPTimeout.Duration != 5*time.Second {
		t.Errorf("one that can be left out is asked last: %+v", p.Extenders)
	}
}

// Whatever the file, Parse answers with settings or an error.
func FuzzParse(f *testing.F) {
	f.Add([]byte(head))
	f.Add([]byte(head + "profiles: [{plugins: {score: {enabled: [{name: X, weight: 3}]}}, pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: null}}]}]"))
	f.Add([]byte(head + "extenders: [{managedResources: [{name: ''}], tlsConfig: null}]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if s, err := Parse(data); err == nil && len(s.Profiles) == 0 {
			t.Error("no profile")
		}
	})
}
