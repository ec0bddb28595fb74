package scheduler

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"proa/internal/client"
	"proa/internal/scheduler/config"
	"proa/internal/store/memory"
)

// outside is an extender's side of the wire: a handler per verb.
type outside map[string]func(args *extenderv1.ExtenderArgs, body []byte) any

func serve(t *testing.T, verbs outside) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		verb := strings.TrimPrefix(r.URL.Path, "/at/")
		f := verbs[verb]
		if f == nil || r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" {
			w.WriteHeader(http.StatusTeapot)
			return
		}
		var args extenderv1.ExtenderArgs
		var body json.RawMessage
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		if err := json.Unmarshal(body, &args); err != nil {
			t.Error(err)
		}
		if err := json.NewEncoder(w).Encode(f(&args, body)); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL + "/at/"
}

// configured is a scheduler with a configuration file.
func configured(t *testing.T, yaml string) func(*Config) {
	t.Helper()
	settings, err := config.Parse([]byte("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n" + yaml))
	if err != nil {
		t.Fatal(err)
	}
	return func(c *Config) { c.Settings = settings }
}

func nodesOf(args *extenderv1.ExtenderArgs) (names []string) {
	if args.NodeNames != nil {
		return *args.NodeNames
	}
	for i := range args.Nodes.Items {
		names = append(names, args.Nodes.Items[i].Name)
	}
	return names
}

// choose is a filter that lets some nodes through.
func choose(names ...string) func(*extenderv1.ExtenderArgs, []byte) any {
	return func(args *extenderv1.ExtenderArgs, _ []byte) any {
		result := &extenderv1.ExtenderFilterResult{FailedNodes: map[string]string{}}
		fits := []string{}
		for _, n := range nodesOf(args) {
			if strings.Contains(strings.Join(names, " "), n) {
				fits = append(fits, n)
			} else {
				result.FailedNodes[n] = "too loud"
			}
		}
		if args.NodeNames != nil {
			result.NodeNames = &fits
			return result
		}
		result.Nodes = &corev1.NodeList{}
		for i := range args.Nodes.Items {
			if _, no := result.FailedNodes[args.Nodes.Items[i].Name]; !no {
				result.Nodes.Items = append(result.Nodes.Items, args.Nodes.Items[i])
			}
		}
		return result
	}
}

func TestExtenders(t *testing.T) {
	three := []client.Object{node("a", "4", "8Gi"), node("b", "4", "8Gi"), node("c", "4", "8Gi")}
	prefer := func(name string) func(*extenderv1.ExtenderArgs, []byte) any {
		return func(args *extenderv1.ExtenderArgs, _ []byte) any {
			list := extenderv1.HostPriorityList{}
			for _, n := range nodesOf(args) {
				h := extenderv1.HostPriority{Host: n}
				if n == name {
					h.Score = extenderv1.MaxExtenderPriority
				}
				list = append(list, h)
			}
			return list
		}
	}
	gpu := func(p *corev1.Pod) {
		one := corev1.ResourceList{"example.com/gpu": resource.MustParse("1")}
		p.Spec.Containers[0].Resources.Requests["example.com/gpu"] = one["example.com/gpu"]
		p.Spec.Containers[0].Resources.Limits = one
	}
	nowhere := "0/3 nodes are available: 3 too loud."
	for _, c := range []struct {
		name  string
		verbs outside
		yaml  string // of the extender, besides its URL
		pod   *corev1.Pod
		want  string
	}{
		{"a filter gets nodes and narrows them", outside{"filter": choose("b")}, "filterVerb: filter", pod("p", "1"), "b"},
		{"a filter with a cache of its own gets names", outside{"filter": choose("c")}, "filterVerb: filter, nodeCacheCapable: true", pod("p", "1"), "c"},
		{"what it says against nodes is told", outside{"filter": choose()}, "filterVerb: filter, nodeCacheCapable: true", pod("p", "1"), nowhere},
		{"points draw", outside{"best": prefer("c")}, "prioritizeVerb: best, weight: 5", pod("p", "1"), "c"},
		{"one that fails fails the pod", nil, "filterVerb: filter", pod("p", "1"), "failed filter with extender at URL"},
		{"one that fails and may be left out does not", outside{"best": prefer("b")}, "filterVerb: filter, prioritizeVerb: best, weight: 1, ignorable: true", pod("p", "1"), "b"},
		{"an error is the pod's", outside{"filter": func(*extenderv1.ExtenderArgs, []byte) any {
			return &extenderv1.ExtenderFilterResult{Error: "out of order"}
		}}, "filterVerb: filter", pod("p", "1"), "out of order"},
		{"a node that was not asked about is refused", outside{"filter": func(*extenderv1.ExtenderArgs, []byte) any {
			return &extenderv1.ExtenderFilterResult{NodeNames: &[]string{"z"}}
		}}, "filterVerb: filter, nodeCacheCapable: true", pod("p", "1"), `a filtered node "z" which is not found in the input node list`},
		{"a pod without its resource is none of its business", nil, "filterVerb: filter, managedResources: [{name: example.com/gpu}]", pod("p", "1"), "a b c"},
		{"a pod with its resource is, and the nodes need not have it", outside{"filter": choose("a")},
			"filterVerb: filter, managedResources: [{name: example.com/gpu, ignoredByScheduler: true}]", pod("p", "1", gpu), "a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, configured(t, "extenders: [{urlPrefix: '"+serve(t, c.verbs)+"', "+c.yaml+"}]\n"))
			for _, n := range three {
				create(w, n.DeepCopyObject().(*corev1.Node))
			}
			w.until("nodes", func() bool { _, ok := w.nodes.Cached("", "c"); return ok })
			create(w, c.pod.DeepCopy())
			if got := w.decision("p"); !strings.Contains(c.want, got) && !strings.Contains(got, c.want) {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestAnExtenderMayWriteTheBinding(t *testing.T) {
	api := newServer(t, memory.New())
	asked := make(chan extenderv1.ExtenderBindingArgs, 1)
	url := serve(t, outside{"bind": func(_ *extenderv1.ExtenderArgs, body []byte) any {
		var args extenderv1.ExtenderBindingArgs
		if err := json.Unmarshal(body, &args); err != nil {
			t.Error(err)
		}
		_, err := client.Of[*corev1.Pod](api).CreateSubresource(t.Context(), args.PodNamespace, args.PodName, "binding",
			&corev1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: args.PodNamespace, Name: args.PodName}, Target: corev1.ObjectReference{Kind: "Node", Name: args.Node}})
		if err != nil {
			t.Error(err)
		}
		asked <- args
		return &extenderv1.ExtenderBindingResult{}
	}})
	w := start(t, api, configured(t, "extenders: [{urlPrefix: '"+url+"', bindVerb: bind}]\n"))
	create(w, node("a", "4", "8Gi"))
	made := create(w, pod("p", "1"))
	w.on("p")
	if args := <-asked; args.PodUID != made.UID || args.Node != "a" {
		t.Errorf("%+v", args)
	}
}

// The cheapest victim is y; the extender wants x to go.
func TestAnExtenderChoosesAmongVictims(t *testing.T) {
	api := newServer(t, memory.New())
	for _, obj := range []client.Object{node("a", "1", "8Gi"), node("b", "1", "8Gi"),
		pod("x", "1", priority(10), onNode("a")), pod("y", "1", priority(5), onNode("b"))} {
		put(t, api, obj)
	}
	url := serve(t, outside{"preempt": func(_ *extenderv1.ExtenderArgs, body []byte) any {
		var args extenderv1.ExtenderPreemptionArgs
		if err := json.Unmarshal(body, &args); err != nil {
			t.Error(err)
		}
		if len(args.NodeNameToVictims["b"].Pods) != 1 {
			t.Errorf("%s", body)
		}
		return &extenderv1.ExtenderPreemptionResult{NodeNameToMetaVictims: map[string]*extenderv1.MetaVictims{
			"a": {Pods: []*extenderv1.MetaPod{{UID: string(args.NodeNameToVictims["a"].Pods[0].UID)}}},
		}}
	}})
	mustCreate(t, api, pod("high", "1", priority(100)))
	w := start(t, api, configured(t, "extenders: [{urlPrefix: '"+url+"', preemptVerb: preempt}]\n"))
	w.noted("x Normal Preempted")
}

func TestAFileDecidesHowNodesAreChosen(t *testing.T) {
	w := newWorld(t, configured(t, `
profiles:
- schedulerName: packing
  plugins: {score: {disabled: [{name: '*'}], enabled: [{name: NodeResourcesFit}]}}
  pluginConfig:
  - {name: NodeResourcesFit, args: {scoringStrategy: {type: MostAllocated}}}
- schedulerName: fast
  pluginConfig:
  - name: NodeAffinity
    args: {addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: disk, operator: In, values: [ssd]}]}]}}}
- schedulerName: careless
  plugins: {filter: {disabled: [{name: TaintToleration}]}}
`))
	create(w, node("full", "4", "8Gi"))
	create(w, node("empty", "4", "8Gi"))
	create(w, node("fast", "4", "8Gi", label("disk", "ssd"), taint("k", corev1.TaintEffectNoSchedule)))
	create(w, pod("there", "3", onNode("full")))
	w.until("all there", func() bool {
		_, ok := w.pods.Cached("default", "there")
		_, node := w.nodes.Cached("", "fast")
		return ok && node
	})
	by := func(name string, change ...func(*corev1.Pod)) *corev1.Pod {
		return pod(name, "500m", append(change, func(p *corev1.Pod) { p.Spec.SchedulerName = name })...)
	}
	create(w, by("packing"))
	if got := w.on("packing"); got != "full" {
		t.Errorf("packed on %s", got)
	}
	create(w, by("fast"))
	want := "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 node(s) didn't match scheduler-enforced node affinity."
	if got := w.decision("fast"); !strings.HasPrefix(got, want) {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	create(w, by("careless", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} }))
	if got := w.on("careless"); got != "fast" {
		t.Errorf("on %s", got)
	}
}
