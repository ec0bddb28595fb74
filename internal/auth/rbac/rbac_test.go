package rbac

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/utils/clock"

	"proa/internal/auth/authtest"
	"proa/internal/store"
)

func clusterRole(name string, rules ...rbacv1.PolicyRule) *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}
}

func roleIn(ns, name string, rules ...rbacv1.PolicyRule) *rbacv1.Role {
	return &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Rules: rules}
}

func bindAll(name, role string, to ...rbacv1.Subject) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role}, Subjects: to}
}

func bindIn(ns, name, kind, role string, to ...rbacv1.Subject) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: role}, Subjects: to}
}

func sa(ns, name string) rbacv1.Subject {
	return rbacv1.Subject{Kind: "ServiceAccount", Namespace: ns, Name: name}
}

// ask reads "verb [group/]resource[/sub] [ns/]name" or "verb /path".
func ask(u user.Info, question string) authorizer.AttributesRecord {
	f := strings.Fields(question)
	a := authorizer.AttributesRecord{User: u, Verb: f[0]}
	if strings.HasPrefix(f[1], "/") {
		a.Path = f[1]
		return a
	}
	a.ResourceRequest = true
	what := f[1]
	if group, rest, ok := strings.Cut(what, ":"); ok {
		a.APIGroup, what = group, rest
	}
	a.Resource, a.Subresource, _ = strings.Cut(what, "/")
	if len(f) > 2 {
		if ns, name, ok := strings.Cut(f[2], "/"); ok {
			a.Namespace, a.Name = ns, name
		} else {
			a.Name = f[2]
		}
	}
	return a
}

func TestDecisions(t *testing.T) {
	s := authtest.Open(t,
		clusterRole("reader", on("get list", core, "pods pods/log"), on("get", "apps", "*")),
		clusterRole("scaler", on("*", "*", "*/scale")),
		clusterRole("health", get("/healthz /metrics/*")),
		roleIn("a", "secrets", on("get", core, "secrets", "one", "two")),
		bindAll("readers", "reader", groups("dev")...),
		bindAll("scalers", "scaler", sa("a", "robot")),
		bindAll("probes", "health", users("probe")...),
		bindAll("dangling", "gone", users("lost")...),
		bindIn("a", "secrets", "Role", "secrets", users("jane")...),
		bindIn("a", "here", "ClusterRole", "reader", sa("", "local")),
	)
	a := New(s)
	jane, dev := &user.DefaultInfo{Name: "jane"}, &user.DefaultInfo{Name: "joe", Groups: []string{"dev", "ops"}}
	robot := &user.DefaultInfo{Name: "system:serviceaccount:a:robot"}
	local := &user.DefaultInfo{Name: "system:serviceaccount:a:local"}
	probe, lost := &user.DefaultInfo{Name: "probe"}, &user.DefaultInfo{Name: "lost"}
	tests := []struct {
		name     string
		user     user.Info
		question string
		allowed  bool
		reason   string
	}{
		{"a group gets what its role says", dev, "get pods a/x", true, `RBAC: allowed by ClusterRoleBinding "readers" of ClusterRole "reader" to Group "dev"`},
		{"and a named subresource", dev, "get pods/log a/x", true, ""},
		{"but not another", dev, "get pods/exec a/x", false, ""},
		{"nor another verb", dev, "delete pods a/x", false, ""},
		{"a star covers the group's resources and subresources", dev, "get apps:deployments/status b/x", true, ""},
		{"but not another group", dev, "get batch:jobs b/x", false, ""},
		{"a user gets named objects in the role's namespace", jane, "get secrets a/one", true, `RBAC: allowed by RoleBinding "secrets/a" of Role "secrets" to User "jane"`},
		{"not other names", jane, "get secrets a/three", false, ""},
		{"not all of them", jane, "list secrets a/", false, ""},
		{"not elsewhere", jane, "get secrets b/one", false, ""},
		{"*/scale covers scale of everything", robot, "update apps:deployments/scale b/x", true, ""},
		{"but nothing else", robot, "update apps:deployments b/x", false, ""},
		{"a cluster role bound in a namespace counts there", local, "list pods a/", true, ""},
		{"and not elsewhere", local, "list pods b/", false, ""},
		{"an exact path", probe, "get /healthz", true, ""},
		{"a path below a star", probe, "get /metrics/slis", true, ""},
		{"not a longer path", probe, "get /healthz/x", false, ""},
		{"a missing role is named", lost, "get pods a/x", false, `RBAC: clusterrole.rbac.authorization.k8s.io "gone" not found`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			decision, reason, err := a.Authorize(t.Context(), ask(tt.user, tt.question))
			if err != nil || (decision == authorizer.DecisionAllow) != tt.allowed {
				t.Errorf("%s: %v %q %v, want allowed %v", tt.question, decision, reason, err, tt.allowed)
			}
			if tt.reason != "" && reason != tt.reason {
				t.Errorf("reason %q, want %q", reason, tt.reason)
			}
		})
	}
}

func TestAWriteCountsAtOnce(t *testing.T) {
	s := authtest.Open(t)
	a := New(s)
	u := &user.DefaultInfo{Name: "jane"}
	allowed := func() bool {
		d, _, _ := a.Authorize(t.Context(), ask(u, "get pods a/x"))
		return d == authorizer.DecisionAllow
	}
	binding, reader := bindAll("b", "reader", users("jane")...), clusterRole("reader", on("get", core, "pods"))
	steps := []struct {
		name string
		do   func()
		want bool
	}{
		{"nothing there", func() {}, false},
		{"bound to a missing role", func() { authtest.Put(t, s, binding) }, false},
		{"role created", func() { authtest.Put(t, s, reader) }, true},
		{"role emptied", func() { authtest.Put(t, s, clusterRole("reader")) }, false},
		{"role filled again", func() { authtest.Put(t, s, reader) }, true},
		{"binding deleted", func() { authtest.Delete(t, s, binding) }, false},
	}
	for _, step := range steps {
		step.do()
		if got := allowed(); got != step.want {
			t.Errorf("%s: allowed %v, want %v", step.name, got, step.want)
		}
	}
}

// naive decides straight from the objects, as the API's documentation reads.
func naive(sn *store.Snapshot, a authorizer.AttributesRecord) bool {
	matches := func(s rbacv1.Subject, ns string) bool {
		switch s.Kind {
		case "User":
			return s.Name == a.User.GetName()
		case "Group":
			return slices.Contains(a.User.GetGroups(), s.Name)
		}
		if s.Namespace != "" {
			ns = s.Namespace
		}
		return ns != "" && a.User.GetName() == "system:serviceaccount:"+ns+":"+s.Name
	}
	grants := func(rules []rbacv1.PolicyRule) bool {
		for _, r := range rules {
			if !slices.Contains(r.Verbs, "*") && !slices.Contains(r.Verbs, a.Verb) {
				continue
			}
			if !a.ResourceRequest {
				for _, u := range r.NonResourceURLs {
					if u == "*" || u == a.Path || strings.HasSuffix(u, "*") && strings.HasPrefix(a.Path, u[:len(u)-1]) {
						return true
					}
				}
				continue
			}
			combined := a.Resource
			if a.Subresource != "" {
				combined += "/" + a.Subresource
			}
			group := slices.Contains(r.APIGroups, "*") || slices.Contains(r.APIGroups, a.APIGroup)
			resource := slices.Contains(r.Resources, "*") || slices.Contains(r.Resources, combined) ||
				a.Subresource != "" && slices.Contains(r.Resources, "*/"+a.Subresource)
			name := len(r.ResourceNames) == 0 || slices.Contains(r.ResourceNames, a.Name)
			if group && resource && name {
				return true
			}
		}
		return false
	}
	rulesOfRef := func(ref rbacv1.RoleRef, ns string) []rbacv1.PolicyRule {
		if item, err := sn.Get(roleKey(ref, ns)); err == nil {
			return rulesOf(item.Object)
		}
		return nil
	}
	allowed := false
	sn.Range(clusterRoleBindings, "", store.Key{}, func(i *store.Item) bool {
		b := i.Object.(*rbacv1.ClusterRoleBinding)
		if slices.ContainsFunc(b.Subjects, func(s rbacv1.Subject) bool { return matches(s, "") }) && grants(rulesOfRef(b.RoleRef, "")) {
			allowed = true
		}
		return true
	})
	if a.Namespace != "" {
		sn.Range(roleBindings, a.Namespace, store.Key{}, func(i *store.Item) bool {
			b := i.Object.(*rbacv1.RoleBinding)
			if slices.ContainsFunc(b.Subjects, func(s rbacv1.Subject) bool { return matches(s, b.Namespace) }) && grants(rulesOfRef(b.RoleRef, b.Namespace)) {
				allowed = true
			}
			return true
		})
	}
	return allowed
}

// TestTheIndexDecidesAsTheRolesRead changes random roles and bindings and
// compares random questions with naive.
func TestTheIndexDecidesAsTheRolesRead(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	pick := func(from ...string) string { return from[rng.IntN(len(from))] }
	some := func(from ...string) (out []string) {
		for _, v := range from {
			if rng.IntN(3) == 0 {
				out = append(out, v)
			}
		}
		return append(out, pick(from...))
	}
	randomRules := func() (out []rbacv1.PolicyRule) {
		for range rng.IntN(3) {
			if rng.IntN(5) == 0 {
				out = append(out, rbacv1.PolicyRule{Verbs: some("get", "post", "*"), NonResourceURLs: some("/a", "/a/*", "/b", "*")})
				continue
			}
			r := rbacv1.PolicyRule{Verbs: some("get", "list", "bind", "*"), APIGroups: some("", "apps", "*"),
				Resources: some("pods", "pods/log", "deployments", "*/scale", "*", "deployments/scale")}
			if rng.IntN(3) == 0 {
				r.ResourceNames = some("x", "y")
			}
			out = append(out, r)
		}
		return out
	}
	randomSubject := func() rbacv1.Subject {
		switch rng.IntN(3) {
		case 0:
			return users(pick("jane", "joe"))[0]
		case 1:
			return groups(pick("dev", "ops"))[0]
		}
		return sa(pick("a", "b", ""), pick("s1", "s2"))
	}
	s := authtest.Open(t)
	a := New(s)
	change := func() {
		name, ns := fmt.Sprintf("r%d", rng.IntN(4)), pick("a", "b")
		var obj store.Object
		switch rng.IntN(4) {
		case 0:
			obj = clusterRole(name, randomRules()...)
		case 1:
			obj = roleIn(ns, name, randomRules()...)
		case 2:
			obj = bindAll(name, pick("r0", "r1", "r2", "r3"), randomSubject(), randomSubject())
		case 3:
			obj = bindIn(ns, name, pick("Role", "ClusterRole"), pick("r0", "r1", "r2", "r3"), randomSubject())
		}
		if _, err := s.Get(authtest.Key(t, obj)); err == nil && rng.IntN(3) == 0 {
			authtest.Delete(t, s, obj)
			return
		}
		authtest.Put(t, s, obj)
	}
	for range 300 {
		change()
		for range 20 {
			u := &user.DefaultInfo{Name: pick("jane", "joe", "system:serviceaccount:a:s1", "system:serviceaccount:b:s2"), Groups: some("dev", "ops", "others")}
			q := authorizer.AttributesRecord{User: u, Verb: pick("get", "list", "bind", "delete", "post")}
			if rng.IntN(5) == 0 {
				q.Path = pick("/a", "/a/b", "/b", "/c")
			} else {
				q.ResourceRequest = true
				q.Namespace, q.APIGroup, q.Name = pick("", "a", "b"), pick("", "apps"), pick("", "x", "y")
				q.Resource, q.Subresource = pick("pods", "deployments"), pick("", "log", "scale")
			}
			d, reason, err := a.Authorize(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			if want := naive(s.Snapshot(), q); (d == authorizer.DecisionAllow) != want {
				t.Fatalf("%+v: %v %q, want allowed %v", q, d, reason, want)
			}
		}
	}
}

func TestNobodyGrantsMoreThanTheyHold(t *testing.T) {
	s := authtest.Open(t,
		clusterRole("reader", on("get list", core, "pods")),
		bindAll("b", "reader", users("jane")...))
	a := New(s)
	u := &user.DefaultInfo{Name: "jane", Groups: []string{"system:authenticated"}}
	if err := a.ConfirmHeld(u, "", []rbacv1.PolicyRule{on("get", core, "pods", "x")}); err != nil {
		t.Errorf("a narrower rule: %v", err)
	}
	err := a.ConfirmHeld(u, "a", []rbacv1.PolicyRule{on("get delete", core, "pods secrets")})
	want := `user "jane" (groups=["system:authenticated"]) is attempting to grant RBAC permissions not currently held:
{APIGroups:[""], Resources:["pods"], Verbs:["delete"]}
{APIGroups:[""], Resources:["secrets"], Verbs:["delete" "get"]}`
	if err == nil || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
}

func TestBootstrapRestoresWhatIsMissingAndNothingElse(t *testing.T) {
	s := authtest.Open(t)
	boot := func() int64 {
		t.Helper()
		if err := Bootstrap(t.Context(), s, clock.RealClock{}); err != nil {
			t.Fatal(err)
		}
		return s.Revision()
	}
	first := boot()
	if again := boot(); again != first {
		t.Errorf("a second start wrote: revision %d, then %d", first, again)
	}
	load := func(name string) *rbacv1.ClusterRole {
		t.Helper()
		item, err := s.Get(store.Key{Resource: clusterRoles, Name: name})
		if err != nil {
			t.Fatal(err)
		}
		return item.Object.(*rbacv1.ClusterRole).DeepCopy()
	}
	kept := load("system:basic-user")
	kept.Annotations[rbacv1.AutoUpdateAnnotationKey] = "false"
	kept.Rules = nil
	changed := load("system:discovery")
	extra := get("/mine")
	changed.Rules = []rbacv1.PolicyRule{extra}
	authtest.Put(t, s, kept, changed)
	authtest.Delete(t, s, load("system:kube-dns"))
	boot()
	if got := load("system:basic-user"); len(got.Rules) != 0 {
		t.Errorf("autoupdate false, yet rules came back: %v", got.Rules)
	}
	got := load("system:discovery")
	if !slices.Contains(got.Rules[0].NonResourceURLs, "/mine") || len(got.Rules) < 2 {
		t.Errorf("rules of system:discovery are %v", got.Rules)
	}
	load("system:kube-dns")
}

func TestAggregatedRolesContainEachOther(t *testing.T) {
	byName := map[string]*rbacv1.ClusterRole{}
	for _, r := range ClusterRoles() {
		byName[r.Name] = r
	}
	for _, pair := range [][2]string{{"view", "edit"}, {"edit", "admin"}, {"system:aggregate-to-view", "view"}} {
		for _, rule := range byName[pair[0]].Rules {
			if !contains(byName[pair[1]].Rules, rule) {
				t.Errorf("%s has a rule that %s lacks: %v", pair[0], pair[1], rule)
			}
		}
	}
	if NewStatic(byName["view"].Rules).Allow(ask(nil, "get secrets a/x")) {
		t.Error("view reads secrets")
	}
}

func TestEveryBindingHasItsRole(t *testing.T) {
	s := authtest.Open(t)
	if err := Bootstrap(context.Background(), s, clock.RealClock{}); err != nil {
		t.Fatal(err)
	}
	for key, b := range New(s).current().bindings {
		if _, err := s.Get(b.role); err != nil {
			t.Errorf("%s refers to %s: %v", key, b.role, err)
		}
	}
}

func BenchmarkAuthorize(b *testing.B) {
	s := authtest.Open(b)
	if err := Bootstrap(b.Context(), s, clock.RealClock{}); err != nil {
		b.Fatal(err)
	}
	for i := range 1000 {
		authtest.Put(b, s,
			roleIn("a", fmt.Sprint("r", i), on("get", core, "pods", fmt.Sprint("p", i))),
			bindIn("a", fmt.Sprint("r", i), "Role", fmt.Sprint("r", i), users(fmt.Sprint("u", i))...))
	}
	a := New(s)
	bench := func(name string, u user.Info, question string) {
		q := ask(u, question)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				a.Authorize(b.Context(), q)
			}
		})
	}
	controller := &user.DefaultInfo{Name: "system:serviceaccount:kube-system:deployment-controller",
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"}}
	bench("controller allowed", controller, "update apps:replicasets a/x")
	bench("controller refused", controller, "delete secrets a/x")
	bench("namespaced user", &user.DefaultInfo{Name: "u7", Groups: []string{"system:authenticated"}}, "get pods a/p7")
	bench("discovery", &user.DefaultInfo{Name: "u7", Groups: []string{"system:authenticated"}}, "get /apis")
}
