package fairness

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"proa/internal/apis"
	"proa/internal/apis/builtin"
	"proa/internal/apis/flowcontrol"
	"proa/internal/apiserver/registry"
	"proa/internal/apiserver/request"
	"proa/internal/client"
	"proa/internal/store"
	"proa/internal/store/memory"
)

// open returns a Fairness over a store with the objects of every cluster, and the
// registry that writes there.
func open(t testing.TB) (*Fairness, *registry.Registry) {
	t.Helper()
	catalogue := builtin.Catalogue()
	st, err := store.Open(t.Context(), store.Config{Engine: memory.New(), Codec: registry.NewCodec(catalogue)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	r, err := registry.New(registry.Config{Store: st, Catalogue: catalogue})
	if err != nil {
		t.Fatal(err)
	}
	f, err := New(Config{Store: st, API: r.As(&user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}}), Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	settle(t, f)
	return f, r
}

// settle is what Run does when something has changed.
func settle(t testing.TB, f *Fairness) {
	t.Helper()
	f.write(t.Context())
	f.reload()
	f.write(t.Context())
}

func levelRef(name string) client.Ref {
	return client.Ref{Resource: levelsResource.WithVersion("v1"), Name: name}
}

func schemaRef(name string) client.Ref {
	return client.Ref{Resource: schemasResource.WithVersion("v1"), Name: name}
}

func someone(name string, groups ...string) user.Info {
	return &user.DefaultInfo{Name: name, Groups: append(groups, user.AllAuthenticated)}
}

func asks(method, target string) *request.Info {
	return request.Parse(httptest.NewRequest(method, target, nil))
}

func TestWhereRequestsGo(t *testing.T) {
	f, _ := open(t)
	tests := []struct {
		name          string
		user          user.Info
		method, path  string
		schema, level string
	}{
		{"masters are exempt", someone("admin", user.SystemPrivilegedGroup), "GET", "/api/v1/pods", "exempt", "exempt"},
		{"health probes are exempt", someone("x"), "GET", "/healthz", "probes", "exempt"},
		{"a node's status", someone("system:node:n", user.NodesGroup), "PUT", "/api/v1/nodes/n/status", "system-node-high", "node-high"},
		{"a node's lease", someone("system:node:n", user.NodesGroup), "PUT", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n", "system-node-high", "node-high"},
		{"a node's pods", someone("system:node:n", user.NodesGroup), "GET", "/api/v1/pods", "system-nodes", "system"},
		{"leader election", someone("system:kube-scheduler"), "PUT", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/x", "system-leader-election", "leader-election"},
		{"the scheduler", someone("system:kube-scheduler"), "GET", "/api/v1/pods", "kube-scheduler", "workload-high"},
		{"a controller", someone("system:serviceaccount:kube-system:deployment-controller", "system:serviceaccounts"), "GET", "/api/v1/pods", "kube-system-service-accounts", "workload-high"},
		{"a workload", someone("system:serviceaccount:shop:web", "system:serviceaccounts"), "GET", "/api/v1/pods", "service-accounts", "workload-low"},
		{"a person", someone("jane"), "GET", "/api/v1/pods", "global-default", "global-default"},
		{"a person who reads a path", someone("jane"), "GET", "/version", "global-default", "global-default"},
		{"somebody in no group", &user.DefaultInfo{Name: "odd"}, "GET", "/api/v1/pods", "catch-all", "catch-all"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := f.Classify(tt.user, asks(tt.method, tt.path))
			if c.FlowSchema() != tt.schema || c.PriorityLevel() != tt.level {
				t.Errorf("%s at %s", c.FlowSchema(), c.PriorityLevel())
			}
			h := http.Header{}
			if c.Tell(h); h.Get(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID) == "" || h.Get("X-Kubernetes-PF-PriorityLevel-UID") == "" {
				t.Error(h)
			}
		})
	}
}

func TestRulesOfASchema(t *testing.T) {
	rule := func(verbs, groups, resources, namespaces []string, cluster bool) *flowcontrolv1.ResourcePolicyRule {
		return &flowcontrolv1.ResourcePolicyRule{Verbs: verbs, APIGroups: groups, Resources: resources, Namespaces: namespaces, ClusterScope: cluster}
	}
	all := []string{"*"}
	tests := []struct {
		name         string
		rule         *flowcontrolv1.ResourcePolicyRule
		method, path string
		want         bool
	}{
		{"everything in every namespace", rule(all, all, all, all, false), "GET", "/api/v1/namespaces/a/pods/p/log", true},
		{"every namespace is not the cluster", rule(all, all, all, all, false), "GET", "/api/v1/nodes", false},
		{"the cluster is no namespace", rule(all, all, all, nil, true), "GET", "/api/v1/namespaces/a/pods", false},
		{"a list over all namespaces is the cluster's", rule(all, all, all, nil, true), "GET", "/api/v1/pods", true},
		{"another verb", rule([]string{"list"}, all, all, all, false), "GET", "/api/v1/namespaces/a/pods/p", false},
		{"another group", rule(all, []string{"apps"}, all, all, false), "GET", "/api/v1/namespaces/a/pods", false},
		{"a resource is not its subresource", rule(all, all, []string{"pods"}, all, false), "GET", "/api/v1/namespaces/a/pods/p/status", false},
		{"a subresource", rule(all, all, []string{"pods/status"}, all, false), "PUT", "/api/v1/namespaces/a/pods/p/status", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := flowSchema{rules: []flowcontrolv1.PolicyRulesWithSubjects{{
				Subjects:      []flowcontrolv1.Subject{{Kind: flowcontrolv1.SubjectKindUser, User: &flowcontrolv1.UserSubject{Name: "*"}}},
				ResourceRules: []flowcontrolv1.ResourcePolicyRule{*tt.rule},
			}}}
			if got := s.matches(someone("x"), asks(tt.method, tt.path)); got != tt.want {
				t.Error(got)
			}
		})
	}
	for rule, path := range map[string]string{"*": "/x", "/x": "/x", "/x/*": "/x/y", "/x/": "/x/y", "/": "/y"} {
		if !covers(rule, path) {
			t.Errorf("%s does not cover %s", rule, path)
		}
	}
	for rule, path := range map[string]string{"/x": "/xy", "/x/*": "/xy", "/healthz": "/livez"} {
		if covers(rule, path) {
			t.Errorf("%s covers %s", rule, path)
		}
	}
}

func TestWidthOfARequest(t *testing.T) {
	f, _ := open(t)
	fill(t, f.config.Store, 100)
	for range 320 {
		f.Watching(asks("GET", "/api/v1/configmaps?watch=1"))
	}
	f.Watching(asks("GET", "/api/v1/namespaces/default/configmaps?watch=1"))
	jane := someone("jane")
	tests := []struct {
		name, method, target string
		seats, after         int
	}{
		{"a get", "GET", "/api/v1/namespaces/default/configmaps/x", 1, 0},
		{"a list of a megabyte", "GET", "/api/v1/configmaps", 8, 0}, // no more than a queue's part of the level
		{"a list of a fifth of it", "GET", "/api/v1/configmaps?limit=19", 2, 0},
		{"a list of one by name", "GET", "/api/v1/configmaps?fieldSelector=metadata.name%3Dx", 1, 0},
		{"a list of an empty namespace", "GET", "/api/v1/namespaces/none/configmaps", 1, 0},
		{"a watch from a version", "GET", "/api/v1/configmaps?watch=1&resourceVersion=5", 1, 0},
		{"a watch from the state", "GET", "/api/v1/configmaps?watch=1", 8, 0},
		{"a streaming list", "GET", "/api/v1/configmaps?watch=1&resourceVersion=5&sendInitialEvents=true", 8, 0},
		{"a write that 321 watches see", "POST", "/api/v1/namespaces/default/configmaps", 1, 4},
		{"a write that none sees", "POST", "/api/v1/namespaces/default/secrets", 1, 0},
		{"a path", "GET", "/version", 1, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			info := asks(tt.method, tt.target)
			u, _ := url.Parse(tt.target)
			w := f.Estimate(f.Classify(jane, info), info, u)
			if w.Seats != tt.seats || w.After != tt.after || (w.After > 0) != (w.Linger > 0) {
				t.Errorf("%+v", w)
			}
		})
	}
}

func fill(t testing.TB, s *store.Store, n int) {
	t.Helper()
	if _, err := s.Update(t.Context(), func(tx *store.Tx) error {
		for i := range n {
			name := fmt.Sprintf("c%d", i)
			obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Data: map[string]string{"k": strings.Repeat("x", 10_000)}}
			if _, err := tx.Create(store.Key{Resource: corev1.Resource("configmaps"), Namespace: "default", Name: name}, obj); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func TestTheObjectsOfEveryCluster(t *testing.T) {
	f, r := open(t)
	api := r.As(someone("admin", user.SystemPrivilegedGroup))
	levels, schemas := flowcontrol.Mandatory()
	moreLevels, moreSchemas := flowcontrol.Suggested()
	sn := f.config.Store.Snapshot()
	if a, b := sn.Len(levelsResource, ""), sn.Len(schemasResource, ""); a != len(levels)+len(moreLevels) || b != len(schemas)+len(moreSchemas) {
		t.Errorf("%d levels, %d schemas", a, b)
	}
	before := f.config.Store.Revision()
	settle(t, f)
	if f.config.Store.Revision() != before {
		t.Error("writes though all is in order")
	}
	get := func(ref client.Ref) apis.Object {
		obj, err := api.Get(t.Context(), ref, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return obj.DeepCopyObject().(apis.Object)
	}
	change := func(ref client.Ref, f func(apis.Object)) {
		obj := get(ref)
		f(obj)
		if _, err := api.Update(t.Context(), ref, obj, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	low, catchAll := levelRef("workload-low"), levelRef("catch-all")
	shares := func(n int32) func(apis.Object) {
		return func(o apis.Object) {
			o.(*flowcontrolv1.PriorityLevelConfiguration).Spec.Limited.NominalConcurrencyShares = &n
		}
	}
	sharesOf := func(ref client.Ref) int32 {
		return *get(ref).(*flowcontrolv1.PriorityLevelConfiguration).Spec.Limited.NominalConcurrencyShares
	}

	change(low, shares(7))
	settle(t, f)
	if got := sharesOf(low); got != 100 {
		t.Errorf("a suggested object keeps a change, %d, though the server keeps it", got)
	}
	change(low, func(o apis.Object) {
		shares(7)(o)
		o.SetAnnotations(map[string]string{flowcontrol.AutoUpdateAnnotation: "false"})
	})
	settle(t, f)
	if got := sharesOf(low); got != 7 {
		t.Errorf("an object that the user keeps is changed to %d", got)
	}
	change(catchAll, shares(9))
	settle(t, f)
	if got := sharesOf(catchAll); got != 5 {
		t.Errorf("catch-all has %d shares", got)
	}
	if err := func() error {
		_, err := api.Delete(t.Context(), schemaRef("exempt"), metav1.DeleteOptions{})
		return err
	}(); err != nil {
		t.Fatal(err)
	}
	if c := f.Classify(someone("admin", user.SystemPrivilegedGroup), asks("GET", "/api/v1/pods")); !c.Exempt() {
		t.Error("masters wait while the schema is gone")
	}
	settle(t, f)
	get(schemaRef("exempt"))

	old := &flowcontrolv1.FlowSchema{
		ObjectMeta: metav1.ObjectMeta{Name: "of-an-old-release", Annotations: map[string]string{flowcontrol.AutoUpdateAnnotation: "true"}},
		Spec:       flowcontrolv1.FlowSchemaSpec{PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: "system"}},
	}
	if _, err := api.Create(t.Context(), schemaRef(""), old, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	settle(t, f)
	if _, err := api.Get(t.Context(), schemaRef(old.Name), metav1.GetOptions{}); err == nil {
		t.Error("an object that is suggested no more stays")
	}
}

func TestASchemaWithoutItsLevelIsDangling(t *testing.T) {
	f, r := open(t)
	api := r.As(someone("admin", user.SystemPrivilegedGroup))
	dangling := func(name string) string {
		obj, err := api.Get(t.Context(), schemaRef(name), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range obj.(*flowcontrolv1.FlowSchema).Status.Conditions {
			if c.Type == flowcontrolv1.FlowSchemaConditionDangling {
				return string(c.Status) + " " + c.Reason + " " + c.Message
			}
		}
		return ""
	}
	if got := dangling("service-accounts"); got != `False Found This FlowSchema references the PriorityLevelConfiguration object named "workload-low" and it exists` {
		t.Error(got)
	}
	mine := &flowcontrolv1.FlowSchema{
		ObjectMeta: metav1.ObjectMeta{Name: "mine"},
		Spec: flowcontrolv1.FlowSchemaSpec{
			MatchingPrecedence: 10, PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: "my-level"},
			Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
				Subjects:         []flowcontrolv1.Subject{{Kind: flowcontrolv1.SubjectKindUser, User: &flowcontrolv1.UserSubject{Name: "jane"}}},
				NonResourceRules: []flowcontrolv1.NonResourcePolicyRule{{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}}},
			}},
		},
	}
	if _, err := api.Create(t.Context(), schemaRef(""), mine, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	settle(t, f)
	if got := dangling("mine"); got != `True NotFound This FlowSchema references the PriorityLevelConfiguration object named "my-level" but there is no such object` {
		t.Error(got)
	}
	if c := f.Classify(someone("jane"), asks("GET", "/x")); c.FlowSchema() != "global-default" {
		t.Errorf("a dangling schema takes requests: %s", c.FlowSchema())
	}
	level := &flowcontrolv1.PriorityLevelConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "my-level"},
		Spec: flowcontrolv1.PriorityLevelConfigurationSpec{
			Type:    flowcontrolv1.PriorityLevelEnablementLimited,
			Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{LimitResponse: flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeReject}},
		},
	}
	if _, err := api.Create(t.Context(), levelRef(""), level, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	settle(t, f)
	if c := f.Classify(someone("jane"), asks("GET", "/x")); c.FlowSchema() != "mine" || !strings.HasPrefix(dangling("mine"), "False Found") {
		t.Errorf("%s: %s", c.FlowSchema(), dangling("mine"))
	}

	// A level whose object goes serves what it has, and is forgotten when that has ended.
	c := f.Classify(someone("jane"), asks("GET", "/x"))
	ticket, ok := f.Start(t.Context(), c, Width{Seats: 1}, 0)
	if !ok {
		t.Fatal("no seat")
	}
	if _, err := api.Delete(t.Context(), levelRef("my-level"), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	settle(t, f)
	if f.levels["my-level"] == nil {
		t.Error("forgotten while it serves")
	}
	ticket.End()
	f.rebalance()
	if f.levels["my-level"] != nil {
		t.Error("not forgotten")
	}
}

func TestSeatsFollowDemand(t *testing.T) {
	f, _ := open(t)
	limits := func() (sum int, of map[string]int) {
		of = map[string]int{}
		for name, l := range f.levels {
			of[name] = l.limit
			if !l.exempt {
				sum += l.limit
			}
		}
		return sum, of
	}
	nominal := map[string]int{}
	for name, l := range f.levels {
		nominal[name] = l.nominal
		if l.least > l.nominal || l.most < l.nominal {
			t.Errorf("%s: %d to %d of %d", name, l.least, l.most, l.nominal)
		}
	}
	c := f.Classify(someone("system:serviceaccount:shop:web", "system:serviceaccounts"), asks("GET", "/api/v1/pods"))
	low := c.schema.level
	low.mu.Lock()
	low.demand.set(f.now(), 500)
	low.mu.Unlock()
	f.rebalance()
	sum, now := limits()
	if now["workload-low"] <= nominal["workload-low"] {
		t.Errorf("workload-low wants 500 and has %d of %d", now["workload-low"], nominal["workload-low"])
	}
	for name, l := range f.levels {
		if l.limit < l.least || l.limit > l.most {
			t.Errorf("%s has %d seats, not %d to %d", name, l.limit, l.least, l.most)
		}
	}
	if sum < 590 || sum > 620 {
		t.Errorf("%d seats in all", sum)
	}
}

func TestShare(t *testing.T) {
	tests := []struct {
		name   string
		seats  float64
		claims []claim
		want   []float64
	}{
		{"in proportion to what is wanted", 30, []claim{{10, 0, 100}, {20, 0, 100}}, []float64{10, 20}},
		{"more than is wanted", 60, []claim{{10, 0, 100}, {20, 0, 100}}, []float64{20, 40}},
		{"not below the least", 30, []claim{{10, 15, 100}, {20, 0, 100}}, []float64{15, 15}},
		{"not above the most", 30, []claim{{10, 0, 5}, {20, 0, 100}}, []float64{5, 25}},
		{"equal parts for those who want nothing", 30, []claim{{0, 0, 100}, {0, 0, 100}}, []float64{15, 15}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, got := share(tt.seats, tt.claims)
			for i := range got {
				if d := got[i] - tt.want[i]; d > 0.01 || d < -0.01 {
					t.Fatal(got)
				}
			}
		})
	}
}

func TestDumps(t *testing.T) {
	f, _ := open(t)
	c := f.Classify(someone("jane"), asks("GET", "/api/v1/pods"))
	c.schema.level.limit = 0
	f.Start(t.Context(), c, Width{Seats: 1}, 0)
	c.schema.level.mu.Lock()
	c.schema.level.arriveLocked(c, Width{Seats: 3}, f.now())
	c.schema.level.mu.Unlock()
	for path, want := range map[string][]string{
		"dump_priority_levels": {"PriorityLevelName,", "exempt,", "global-default,    1,            false,"},
		"dump_queues":          {"SeatsInUse", "workload-low,      127,"},
		"dump_requests":        {"FlowDistingsher", "global-default,    global-default,", "jane,"},
	} {
		rec := httptest.NewRecorder()
		if !f.ServeDump(rec, httptest.NewRequest("GET", DumpPath+path, nil)) {
			t.Errorf("no %s", path)
		}
		for _, text := range want {
			if !strings.Contains(rec.Body.String(), text) {
				t.Errorf("%s lacks %q:\n%s", path, text, rec.Body)
			}
		}
	}
	if f.ServeDump(httptest.NewRecorder(), httptest.NewRequest("GET", DumpPath+"x", nil)) {
		t.Error("x is served")
	}
}

// What a request costs that finds a seat free.
func BenchmarkUncontended(b *testing.B) {
	f, _ := open(b)
	for name, u := range map[string]user.Info{
		"exempt":  someone("admin", user.SystemPrivilegedGroup),
		"node":    someone("system:node:n", user.NodesGroup),
		"account": someone("system:serviceaccount:shop:web", "system:serviceaccounts", "system:serviceaccounts:shop"),
		"person":  someone("jane", "developers"),
	} {
		b.Run(name, func(b *testing.B) {
			info, target := asks("GET", "/api/v1/namespaces/shop/pods/p"), &url.URL{Path: "/api/v1/namespaces/shop/pods/p"}
			ctx := b.Context()
			b.ReportAllocs()
			for b.Loop() {
				c := f.Classify(u, info)
				t, ok := f.Start(ctx, c, f.Estimate(c, info, target), 0)
				if !ok {
					b.Fatal("refused")
				}
				t.End()
			}
		})
	}
}
