package security

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"proa/pkg/proatest"
)

func TestStrangersSeeHealthOnly(t *testing.T) {
	t.Parallel()
	s := newServer(t, proatest.Options{})
	for _, path := range []string{"/healthz", "/livez", "/readyz", "/version"} {
		s.play(t, step{as: stranger, method: get, path: path, code: 200})
	}
	for _, path := range []string{
		"/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/cmdline", "/healthz/debug/pprof/", "/metrics", "/metrics/slis", "/statusz", "/flagz", "/logs/", "/api", "/apis", "/openapi/v2",
		"/openapi/v3", "/.well-known/openid-configuration", "/openid/v1/jwks", secrets, "/configz", "/debug/flags/v", "/debug/api_priority_and_fairness/dump_requests",
		"/healthz/../metrics", "/healthz/%2e%2e/metrics", "//metrics", "/readyz/..%2fmetrics",
	} {
		code, text := s.do(t, step{as: stranger, method: get, path: path})
		if code != forbidden && code != 404 && code != 301 && code != 307 && code != bad {
			t.Errorf("%s: %d %.200s", path, code, text)
		}
	}
}

func TestHeadersThatNameAUserAreNotBelieved(t *testing.T) {
	t.Parallel()
	s := newServer(t, proatest.Options{})
	for name, value := range map[string]string{
		"X-Remote-User": "admin", "X-Remote-Group": "system:masters", "Impersonate-User": "admin", "Impersonate-Group": "system:masters",
		"Authorization": "Bearer system:masters", "X-Forwarded-User": "admin",
	} {
		code, text := s.do(t, step{as: stranger, method: get, path: secrets, header: map[string]string{name: value, "X-Remote-Extra-a": "b"}})
		if code != forbidden && code != 401 && code != bad {
			t.Errorf("%s: %d %.200s", name, code, text)
		}
		s.play(t, step{as: "jane", method: get, path: secrets, header: map[string]string{"X-Remote-User": "admin", "X-Remote-Group": "system:masters"}, code: forbidden, says: `User \"jane\"`})
	}
	// An upgrade that is refused leaves no connection that says more.
	s.play(t,
		step{as: "jane", method: get, path: pods + "/p/exec?command=id", header: map[string]string{"Connection": "Upgrade", "Upgrade": "websocket"}, code: forbidden},
		step{as: stranger, method: get, path: core + "/nodes/n/proxy/", header: map[string]string{"Connection": "Upgrade", "Upgrade": "websocket"}, code: forbidden},
	)
}

func TestPoliciesSeeEveryContainer(t *testing.T) {
	t.Parallel()
	s := newServer(t, proatest.Options{EnableAdmissionPlugins: []string{"ServiceAccount", "AlwaysPullImages"}})
	s.make(t, core+"/namespaces", `{"metadata": {"name": "strict", "labels": {"pod-security.kubernetes.io/enforce": "baseline"}}}`)
	s.make(t, core+"/namespaces/strict/serviceaccounts", `{"metadata": {"name": "default", "annotations": {"kubernetes.io/enforce-mountable-secrets": "true"}}, "secrets": [{"name": "mine"}]}`)
	strict := core + "/namespaces/strict/pods"
	plain := `{"metadata": {"name": "ok"}, "spec": {"automountServiceAccountToken": false, "containers": [{"name": "c", "image": "i"}]}}`
	s.make(t, strict, plain)
	create := func(spec, says string) step {
		return step{method: post, path: strict, body: `{"metadata": {"name": "bad"}, "spec": {"automountServiceAccountToken": false, ` + spec + `}}`, code: forbidden, says: says}
	}
	const c = `"containers": [{"name": "c", "image": "i"}]`
	env := `"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "theirs", "key": "k"}}}]`
	from := `"envFrom": [{"secretRef": {"name": "theirs"}}]`
	debug := func(more, says string) step {
		return step{method: patch, path: strict + "/ok/ephemeralcontainers", kind: "application/strategic-merge-patch+json",
			body: `{"spec": {"ephemeralContainers": [{"name": "d", "image": "i", ` + more + `}]}}`, code: forbidden, says: says}
	}
	const privileged = `"securityContext": {"privileged": true}`
	s.play(t,
		create(`"containers": [{"name": "c", "image": "i", `+privileged+`}]`, "privileged"),
		create(c+`, "initContainers": [{"name": "d", "image": "i", `+privileged+`}]`, "privileged"),
		create(c+`, "hostNetwork": true`, "host namespaces"),
		create(c+`, "volumes": [{"name": "h", "hostPath": {"path": "/"}}]`, "hostPath"),
		debug(privileged, "privileged"),
		create(`"containers": [{"name": "c", "image": "i", `+env+`}]`, "theirs"),
		create(`"containers": [{"name": "c", "image": "i", `+from+`}]`, "theirs"),
		create(c+`, "initContainers": [{"name": "d", "image": "i", `+env+`}]`, "theirs"),
		create(c+`, "initContainers": [{"name": "d", "image": "i", `+from+`}]`, "theirs"),
		create(c+`, "volumes": [{"name": "h", "secret": {"secretName": "theirs"}}]`, "theirs"),
		create(c+`, "imagePullSecrets": [{"name": "theirs"}]`, "theirs"),
		debug(env, "theirs"),
		debug(from, "theirs"),
		// Ephemeral containers come by their own way only.
		step{method: patch, path: strict + "/ok", kind: "application/strategic-merge-patch+json", body: `{"spec": {"ephemeralContainers": [{"name": "d", "image": "i"}]}}`, code: invalid},
		step{method: post, path: strict, body: `{"metadata": {"name": "bad"}, "spec": {` + c + `, "ephemeralContainers": [{"name": "d", "image": "i"}]}}`, code: invalid, says: "ephemeralContainers"},
	)
}

func TestNamesAreNoPaths(t *testing.T) {
	t.Parallel()
	s := newServer(t, proatest.Options{})
	s.make(t, secrets, `{"metadata": {"name": "hidden"}, "stringData": {"a": "precious"}}`)
	s.grant(t, "jane", `[{"apiGroups": [""], "resources": ["configmaps", "pods"], "verbs": ["*"]}]`)
	maps := core + "/namespaces/default/configmaps"
	for _, path := range []string{
		maps + "/..%2fsecrets%2fhidden", maps + "/../secrets/hidden", maps + "/%2e%2e/secrets/hidden", maps + "/..%2f..%2fdefault%2fsecrets", core + "/namespaces/..%2fdefault%2fsecrets/configmaps",
		core + "/namespaces/default%2fsecrets/configmaps", core + "/namespaces/default/configmaps%2f..%2fsecrets", core + "//namespaces/default/secrets/hidden", core + "/./namespaces/default/secrets",
		maps + "?fieldSelector=metadata.name%3D..%2fsecrets%2fhidden", maps + "?fieldSelector=metadata.namespace%3D..%2fdefault", maps + "/.", maps + "/..", maps + "/%2e%2e", maps + "/a%2fb", maps + "/a%00b",
		maps + "?limit=1&continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6LTEsInN0YXJ0IjoiLi4vLi4vc2VjcmV0cy9hXHUwMDAwIn0",
	} {
		for _, who := range []string{"jane", ""} {
			if code, text := s.do(t, step{as: who, method: get, path: path}); strings.Contains(text, "precious") || strings.Contains(text, "cHJlY2lvdXM") || who == "jane" && code == 200 && !strings.Contains(text, "ConfigMapList") {
				if who == "" && strings.Contains(path, "secrets/hidden") && !strings.Contains(path, "%2f") {
					continue // a path that means what it says, for who may go there
				}
				t.Errorf("%q %s: %d %.300s", who, path, code, text)
			}
		}
	}
	for _, name := range []string{"../a", "a/b", "..", ".", "a%2fb", "a\x00b", strings.Repeat("a", 300), "a\nb", "%2e%2e"} {
		code, text := s.do(t, step{method: post, path: maps, body: fmt.Sprintf(`{"metadata": {"name": %s}}`, quoted(name))})
		if code != invalid {
			t.Errorf("%q: %d %.200s", name, code, text)
		}
	}
	s.play(t,
		step{method: post, path: maps, body: `{"metadata": {"name": "a", "namespace": "other"}}`, code: bad, says: "does not match"},
		step{method: post, path: maps, body: `{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}}`, code: bad},
		step{method: put, path: maps + "/a", body: `{"metadata": {"name": "b"}}`, code: bad, says: "does not match"},
	)
}

func TestProxiesReachNoLocalAddress(t *testing.T) {
	t.Parallel()
	s := newServer(t, proatest.Options{})
	for i, address := range []string{"127.0.0.1", "169.254.169.254", "::1", "0.0.0.0", "::ffff:127.0.0.1", "fe80::1", "224.0.0.1"} {
		n, p := fmt.Sprintf("n%d", i), fmt.Sprintf("p%d", i)
		s.make(t, core+"/nodes", fmt.Sprintf(`{"metadata": {"name": %q}}`, n))
		s.do(t, step{method: patch, path: core + "/nodes/" + n + "/status", body: fmt.Sprintf(`{"status": {"addresses": [{"type": "InternalIP", "address": %q}], "daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}}`, address)})
		s.make(t, pods, pod(p, n, ""))
		s.do(t, step{method: patch, path: pods + "/" + p + "/status", body: fmt.Sprintf(`{"status": {"phase": "Running", "podIP": %q, "podIPs": [{"ip": %q}]}}`, address, address)})
		for _, path := range []string{
			core + "/nodes/" + n + ":22/proxy/", core + "/nodes/" + n + "/proxy/", core + "/nodes/https:" + n + ":6443/proxy/", pods + "/" + p + ":80/proxy/", pods + "/https:" + p + ":443/proxy/x",
		} {
			code, text := s.do(t, step{method: get, path: path})
			if code < 400 || !strings.Contains(text, "not allowed") && !strings.Contains(text, "invalid IP address") {
				t.Errorf("%s at %s: %d %.200s", path, address, code, text)
			}
		}
	}
}

func TestEndpointsNameNoLocalAddress(t *testing.T) {
	t.Parallel()
	s := newServer(t, proatest.Options{EnableAdmissionPlugins: []string{"DenyServiceExternalIPs"}})
	for _, address := range []string{"127.0.0.1", "169.254.169.254", "0.0.0.0", "224.0.0.1", "::1", "fe80::1", "::"} {
		family := "IPv4"
		if strings.Contains(address, ":") {
			family = "IPv6"
		}
		s.play(t,
			step{method: post, path: "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", body: fmt.Sprintf(`{"metadata": {"name": "x"}, "addressType": %q, "endpoints": [{"addresses": [%q]}]}`, family, address), code: invalid},
			step{method: post, path: core + "/namespaces/default/endpoints", body: fmt.Sprintf(`{"metadata": {"name": "x"}, "subsets": [{"addresses": [{"ip": %q}], "ports": [{"port": 1}]}]}`, address), code: invalid},
			step{method: post, path: core + "/namespaces/default/services", body: fmt.Sprintf(`{"metadata": {"name": "x"}, "spec": {"ports": [{"port": 1}], "externalIPs": [%q]}}`, address), code: invalid},
		)
	}
	s.make(t, core+"/namespaces/default/services", `{"metadata": {"name": "x"}, "spec": {"ports": [{"port": 1}]}}`)
	services := core + "/namespaces/default/services/x"
	s.grant(t, "jane", `[{"apiGroups": [""], "resources": ["services", "endpoints"], "verbs": ["get", "create", "update", "patch"]}, {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get"]}]`)
	s.play(t,
		step{as: "jane", method: patch, path: services, body: `{"spec": {"externalIPs": ["1.2.3.4"]}}`, code: forbidden, says: "Use of external IPs is denied"},
		step{as: "jane", method: patch, path: services, body: `{"status": {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}}}`, code: 200, never: "1.2.3.4\"}"},
		step{as: "jane", method: patch, path: services + "/status", body: `{"status": {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}}}`, code: forbidden},
		step{as: "jane", method: post, path: "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", body: `{"metadata": {"name": "x"}, "addressType": "IPv4", "endpoints": []}`, code: forbidden},
	)
}

func TestBombsAreRefused(t *testing.T) {
	t.Parallel()
	s := newServer(t, proatest.Options{})
	maps := core + "/namespaces/default/configmaps"
	s.make(t, maps, `{"metadata": {"name": "a"}, "data": {"k": "`+strings.Repeat("x", 1<<19)+`"}}`)
	laughs := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: b}\ndata:\n  a: &a [x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c < 'k'; c++ {
		laughs += fmt.Sprintf("  %c: &%c [*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c]\n", c, c, c-1, c-1, c-1, c-1, c-1, c-1, c-1, c-1, c-1)
	}
	const depth = 200_000
	deep := strings.Repeat(`{"a":`, depth) + "1" + strings.Repeat("}", depth)
	lists := strings.Repeat("[", depth) + strings.Repeat("]", depth)
	operations := func(n int, one string) string { return "[" + strings.Repeat(one+",", n-1) + one + "]" }
	const jsonPatch, apply, yaml = "application/json-patch+json", "application/apply-patch+yaml", "application/yaml"
	steps := []step{
		{method: post, path: maps, kind: yaml, body: laughs},
		{method: patch, path: maps + "/b?fieldManager=m", kind: apply, body: laughs},
		{method: post, path: maps, body: `{"metadata": {"name": "b"}, "data": ` + deep + `}`},
		{method: post, path: maps, body: deep},
		{method: post, path: maps, body: lists},
		{method: post, path: maps, kind: yaml, body: lists},
		{method: post, path: maps, kind: yaml, body: strings.Repeat("- ", depth)},
		{method: patch, path: maps + "/a", body: deep},
		{method: patch, path: maps + "/a", kind: "application/strategic-merge-patch+json", body: `{"data": ` + deep + `}`},
		{method: patch, path: maps + "/b?fieldManager=m", kind: apply, body: lists},
		{method: patch, path: maps + "/a", kind: jsonPatch, body: operations(10_001, `{"op":"add","path":"/data/a","value":"b"}`)},
		{method: patch, path: maps + "/a", kind: jsonPatch, body: operations(200, `{"op":"copy","from":"/data","path":"/data/x"}`)},
		{method: patch, path: maps + "/a", kind: jsonPatch, body: `[{"op":"add","path":"/data","value":` + deep + `}]`},
		{method: patch, path: maps + "/a", kind: jsonPatch, body: `[{"op":"test","path":"` + strings.Repeat("/a", depth) + `","value":1}]`},
		{method: post, path: maps, body: `{"metadata": {"name": "b", "generation": ` + strings.Repeat("9", 1<<20) + `}}`},
		{method: post, path: maps, body: `{"metadata": {"name": "b", "generation": 1e999999999}}`},
		{method: post, path: maps, body: "{\"metadata\": {\"name\": \"b\"}, \"data\": {\"a\": \"" + strings.Repeat("\xff", 1<<20) + "\"}, \"data\": 1}"},
		{method: post, path: maps, body: `{"metadata": {"name": "b"}, "data": {"a": "` + strings.Repeat("x", 10<<20) + `"}}`},
		{method: remove, path: maps + "/a", body: deep},
		{method: remove, path: maps + "/a", body: `{"preconditions": ` + lists + `}`},
		{method: post, path: maps, kind: "application/vnd.kubernetes.protobuf", body: "k8s\x00\x0a\x10"},
		{method: post, path: maps, kind: "application/vnd.kubernetes.protobuf", body: "k8s\x00\xff\xff\xff\xff\x7f"},
		{method: post, path: maps, kind: "application/vnd.kubernetes.protobuf", body: "k8s\x00\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12\xff\xff\xff\xff\x0f"},
		{method: post, path: maps, kind: "application/vnd.kubernetes.protobuf", body: "k8s\x00" + strings.Repeat("\x0b", 1<<20)},
		{method: get, path: maps + "?labelSelector=" + strings.Repeat("(", 4000)},
		{method: get, path: maps + "?labelSelector=a%20in%20(" + strings.Repeat("a,", 4000)},
		{method: get, path: maps + "?limit=" + strings.Repeat("9", 4000)},
	}
	for _, st := range steps {
		begun := time.Now()
		code, text := s.do(t, st)
		if code < 400 || code > 499 {
			t.Errorf("%s %.100s %s %.60s…: %d %.300s", st.method, st.path, st.kind, st.body, code, text)
		}
		if len(text) > 2<<20 {
			t.Errorf("%s %.100s %.60s…: an answer of %d bytes", st.method, st.path, st.body, len(text))
		}
		t.Logf("%v %d %s %.40s", time.Since(begun).Round(time.Millisecond), code, st.kind, st.body)
	}
	s.play(t, step{method: get, path: maps + "?limit=1", code: 200})
}

func TestDefinitionsAreBounded(t *testing.T) {
	t.Parallel()
	s := newServer(t, proatest.Options{})
	define := func(schema string) string {
		return `{"metadata": {"name": "widgets.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"},
			"versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": ` + schema + `}}]}}`
	}
	spec := func(property string) string {
		return define(`{"type": "object", "properties": {"spec": ` + property + `}}`)
	}
	rule := func(text string) string {
		return spec(`{"type": "array", "items": {"type": "string"}, "x-kubernetes-validations": [{"rule": ` + quoted(text) + `}]}`)
	}
	const definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	deep := strings.Repeat(`{"type": "object", "properties": {"a": `, 20_000) + `{"type": "string"}` + strings.Repeat(`}}`, 20_000)
	for _, body := range []string{
		rule("self.all(x, self.all(y, self.all(z, x == y && y == z)))"),
		rule("self.map(x, self.map(y, self.map(z, x + y + z))).size() > 0"),
		rule(strings.Repeat("(", 5000) + "true" + strings.Repeat(")", 5000)),
		rule("'" + strings.Repeat("a", 1<<20) + "' == self[0]"),
		spec(`{"type": "string", "pattern": "((a{1000}){1000}){1000}"}`),
		spec(`{"type": "string", "pattern": "("}`),
		define(deep),
		spec(`{"$ref": "#/definitions/a"}`),
		spec(`{"type": "object", "properties": {"a": {"$ref": "file:///etc/passwd"}}}`),
	} {
		code, text := s.do(t, step{method: post, path: definitions + "?dryRun=All", body: body})
		if code < 400 || code > 499 || strings.Contains(text, "root:x:0") {
			t.Errorf("…%s: %d %.300s", body[len(body)-100:], code, text)
		}
	}
	policy := func(expression string) string {
		return `{"metadata": {"name": "p"}, "spec": {"matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["pods"]}]},
			"validations": [{"expression": ` + quoted(expression) + `}]}}`
	}
	for _, e := range []string{strings.Repeat("(", 5000), "object.spec.", strings.Repeat("!", 100_000) + "true", "'a'", "unknown.x", strings.Repeat("[", 300) + strings.Repeat("]", 300) + " == []"} {
		code, text := s.do(t, step{method: post, path: "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies?dryRun=All", body: policy(e)})
		if code < 400 || code > 499 {
			t.Errorf("%.100s…: %d %.300s", e, code, text)
		}
	}
}

func TestNobodyGrantsMoreThanTheyHold(t *testing.T) {
	t.Parallel()
	s := newServer(t, proatest.Options{})
	const rbac = "/apis/rbac.authorization.k8s.io/v1"
	s.grant(t, "jane", `[{"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles", "clusterroles", "rolebindings", "clusterrolebindings"], "verbs": ["get", "list", "create", "update", "patch", "delete"]},
		{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]`)
	const more, fine = `[{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]`, `[{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]`
	role := func(rules string) string { return `{"metadata": {"name": "r"}, "rules": ` + rules + `}` }
	binding := func(kind, name string) string {
		return `{"metadata": {"name": "b"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "` + kind + `", "name": "` + name + `"}, "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "jane"}]}`
	}
	s.make(t, rbac+"/clusterroles", `{"metadata": {"name": "secret-reader"}, "rules": `+more+`}`)
	roles, bindings := rbac+"/namespaces/default/roles", rbac+"/namespaces/default/rolebindings"
	applied := `{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "of-jane"}, "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]}`
	const says = "is attempting to grant RBAC permissions not currently held"
	s.play(t,
		step{as: "jane", method: post, path: roles, body: role(fine), code: 201},
		step{as: "jane", method: post, path: roles, body: role(more), code: forbidden, says: says},
		step{as: "jane", method: put, path: roles + "/r", body: role(more), code: forbidden, says: says},
		step{as: "jane", method: patch, path: roles + "/r", body: `{"rules": ` + more + `}`, code: forbidden, says: says},
		step{as: "jane", method: patch, path: roles + "/r", kind: "application/json-patch+json", body: `[{"op": "replace", "path": "/rules/0/resources", "value": ["secrets"]}]`, code: forbidden, says: says},
		step{as: "jane", method: patch, path: rbac + "/clusterroles/of-jane?fieldManager=m&force=true", kind: "application/apply-patch+yaml", body: applied, code: forbidden, says: says},
		step{as: "jane", method: put, path: rbac + "/clusterroles/of-jane", body: `{"metadata": {"name": "of-jane"}, "rules": [{"nonResourceURLs": ["*"], "verbs": ["*"]}]}`, code: forbidden, says: says},
		step{as: "jane", method: patch, path: rbac + "/clusterroles/of-jane", body: `{"aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}}`, code: forbidden, says: "must have cluster-admin privileges to use the aggregationRule"},
		step{as: "jane", method: post, path: bindings, body: binding("ClusterRole", "secret-reader"), code: forbidden, says: says},
		step{as: "jane", method: post, path: rbac + "/clusterrolebindings", body: binding("ClusterRole", "cluster-admin"), code: forbidden, says: says},
		step{as: "jane", method: post, path: bindings, body: binding("ClusterRole", "missing"), code: 404},
		step{as: "jane", method: post, path: bindings, body: binding("Role", "r"), code: 201},
		step{as: "jane", method: put, path: bindings + "/b", body: binding("ClusterRole", "secret-reader"), code: invalid, says: "roleRef"},
		step{as: "jane", method: patch, path: bindings + "/b", body: `{"roleRef": {"name": "admin"}}`, code: invalid},
		step{as: "jane", method: patch, path: bindings + "/b?dryRun=All", body: `{"subjects": [{"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": "system:authenticated"}]}`, code: 200},
		step{as: "jane", method: get, path: secrets, code: forbidden},
	)
}

func TestImpersonationNeedsEveryPartOfIt(t *testing.T) {
	t.Parallel()
	s := newServer(t, proatest.Options{})
	s.grant(t, "jane", `[{"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"], "resourceNames": ["bob"]}]`)
	token := `{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}`
	s.make(t, core+"/namespaces/default/serviceaccounts", `{"metadata": {"name": "jane"}}`)
	_, text := s.do(t, step{method: post, path: core + "/namespaces/default/serviceaccounts/jane/token", body: token})
	_, after, _ := strings.Cut(text, `"token":"`)
	bearer, _, _ := strings.Cut(after, `"`)
	if bearer == "" {
		t.Fatalf("no token: %.300s", text)
	}
	s.grant(t, "system:serviceaccount:default:jane", `[{"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"], "resourceNames": ["bob"]}]`)
	const review = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
	as := func(code int, says string, headers ...string) step {
		h := map[string]string{"Authorization": "Bearer " + bearer}
		for i := 0; i < len(headers); i += 2 {
			h[headers[i]] = headers[i+1]
		}
		return step{as: stranger, method: post, path: review, body: `{}`, header: h, code: code, says: says}
	}
	s.play(t,
		as(201, `"username":"bob"`, "Impersonate-User", "bob"),
		as(forbidden, "cannot impersonate", "Impersonate-User", "admin"),
		as(forbidden, "cannot impersonate", "Impersonate-User", "bob", "Impersonate-Group", "system:masters"),
		as(forbidden, "cannot impersonate", "Impersonate-User", "bob", "Impersonate-Uid", "1"),
		as(forbidden, "cannot impersonate", "Impersonate-User", "bob", "Impersonate-Extra-Scopes", "all"),
		as(forbidden, "cannot impersonate", "Impersonate-User", "system:serviceaccount:kube-system:default"),
		as(bad, "without impersonating a user", "Impersonate-Group", "system:masters"),
		as(bad, "without impersonating a user", "Impersonate-Extra-Scopes", "all"),
	)
}

func TestEveryWayToASubresourceIsItsOwn(t *testing.T) {
	t.Parallel()
	s := newServer(t, proatest.Options{})
	s.make(t, pods, pod("p", "n", ""))
	s.make(t, core+"/nodes", `{"metadata": {"name": "n"}}`)
	s.make(t, core+"/namespaces/default/serviceaccounts", `{"metadata": {"name": "robot"}}`)
	s.grant(t, "jane", `[{"apiGroups": [""], "resources": ["pods", "nodes", "serviceaccounts", "namespaces"], "verbs": ["get", "list", "create", "update", "patch"]}]`)
	s.play(t,
		step{as: "jane", method: patch, path: pods + "/p", body: `{"status": {"phase": "Succeeded"}}`, code: 200, never: "Succeeded"},
		step{as: "jane", method: patch, path: core + "/nodes/n", body: `{"status": {"capacity": {"cpu": "1k"}}}`, code: 200, never: `"1k"`},
		step{as: "jane", method: patch, path: core + "/namespaces/default", body: `{"spec": {"finalizers": []}}`, code: 200, says: `"kubernetes"`},
		step{as: "jane", method: post, path: core + "/namespaces/default/serviceaccounts/robot/token", body: `{}`, code: forbidden},
		step{as: "jane", method: post, path: pods + "/p/binding", body: `{"target": {"name": "n"}}`, code: forbidden},
		step{as: "jane", method: post, path: core + "/namespaces/default/bindings", body: `{"metadata": {"name": "p"}, "target": {"name": "n"}}`, code: forbidden},
		step{as: "jane", method: get, path: pods + "/p/log", code: forbidden},
		step{as: "jane", method: post, path: pods + "/p/exec?command=id", code: forbidden},
		step{as: "jane", method: get, path: pods + "/p/exec?command=id", code: forbidden},
		step{as: "jane", method: get, path: pods + "/p/proxy", code: forbidden},
		step{as: "jane", method: get, path: pods + "/p:80/proxy/", code: forbidden},
		step{as: "jane", method: get, path: core + "/nodes/n/proxy/", code: forbidden},
		step{as: "jane", method: patch, path: pods + "/p/ephemeralcontainers", body: `{}`, code: forbidden},
		step{as: "jane", method: patch, path: pods + "/p/resize", body: `{}`, code: forbidden},
		step{as: "jane", method: post, path: pods + "/p/eviction", body: `{}`, code: forbidden},
		step{as: "jane", method: put, path: core + "/namespaces/default/finalize", body: `{}`, code: forbidden},
		step{as: "jane", method: remove, path: pods, code: forbidden},
		step{as: "jane", method: get, path: pods + "?watch=1", code: forbidden},
		step{as: "jane", method: get, path: core + "/watch/namespaces/default/pods", code: forbidden},
	)
}

func TestSigningRequestsTellWhoAsked(t *testing.T) {
	t.Parallel()
	s := newServer(t, proatest.Options{})
	s.grant(t, "jane", `[{"apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests"], "verbs": ["get", "create", "update", "patch"]},
		{"apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests/approval", "certificatesigningrequests/status"], "verbs": ["get", "update", "patch"]}]`)
	const requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
	body := func(name, signer string, groups ...string) string {
		return fmt.Sprintf(`{"metadata": {"name": %q}, "spec": {"request": %q, "signerName": %q, "usages": ["client auth"], "username": "admin", "uid": "1", "groups": ["system:masters"], "extra": {"a": ["b"]}}}`,
			name, signingRequest(t, groups...), signer)
	}
	const client = "kubernetes.io/kube-apiserver-client"
	approved := `{"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "me"}]}}`
	s.play(t,
		step{as: "jane", method: post, path: requests, body: body("mine", client), code: 201, says: `"username":"jane"`, never: "system:masters"},
		step{as: "jane", method: post, path: requests, body: body("masters", client, "system:masters"), code: forbidden, says: "system:masters"},
		step{as: "jane", method: patch, path: requests + "/mine", body: `{"spec": {"username": "admin"}}`, code: 200, says: `"username":"jane"`},
		step{as: "jane", method: patch, path: requests + "/mine", body: approved, code: 200, never: "Approved"},
		step{as: "jane", method: patch, path: requests + "/mine/approval", body: approved, code: forbidden, says: "not permitted to approve"},
		step{as: "jane", method: patch, path: requests + "/mine/status", body: fmt.Sprintf(`{"status": {"certificate": %q}}`, certificate(t)), code: forbidden, says: "not permitted to sign"},
	)
}

func TestRefusalsTellNoSecret(t *testing.T) {
	t.Parallel()
	s := newServer(t, proatest.Options{})
	s.make(t, secrets, `{"metadata": {"name": "a"}, "data": {"k": "cHJlY2lvdXM="}, "immutable": true}`)
	const never = "precious"
	s.play(t,
		step{method: post, path: secrets, body: `{"metadata": {"name": "b"}, "data": {"a b": "cHJlY2lvdXM="}}`, code: invalid, never: "cHJlY2lvdXM"},
		step{method: post, path: secrets, body: `{"metadata": {"name": "b"}, "stringData": {"a b": "precious"}}`, code: invalid, never: never},
		step{method: post, path: secrets, body: `{"metadata": {"name": "b"}, "type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": "precious"}}`, code: invalid, never: never},
		step{method: post, path: secrets, body: `{"metadata": {"name": "b"}, "type": "kubernetes.io/tls", "stringData": {"x": "precious"}}`, code: invalid, never: never},
		step{method: put, path: secrets + "/a", body: `{"metadata": {"name": "a"}, "stringData": {"k": "precious2"}}`, code: invalid, never: never},
		step{method: patch, path: secrets + "/a", body: `{"stringData": {"k": "precious3"}}`, code: invalid, never: never},
		step{as: "jane", method: get, path: secrets + "/a", code: forbidden, never: never},
		step{as: "jane", method: post, path: secrets, body: `{"metadata": {"name": "precious"}, "stringData": {"k": "precious4"}}`, code: forbidden, never: "precious4"},
	)
}
