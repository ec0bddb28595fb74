package abac

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

func policies(t *testing.T, text string) (Authorizer, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "policy.jsonl")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return Open(path)
}

func TestPoliciesAllow(t *testing.T) {
	a, err := policies(t, `# who may what
{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"user":"alice","namespace":"*","resource":"*","apiGroup":"*"}}

{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"user":"kubelet","namespace":"*","resource":"pods","readonly":true}}
{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"group":"devs","namespace":"dev","resource":"configmaps","apiGroup":""}}
{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"user":"bob","group":"devs","nonResourcePath":"/logs/*"}}
{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"group":"*","nonResourcePath":"/version","readonly":true}}
{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"namespace":"*","resource":"*","apiGroup":"*"}}
{"user":"old","resource":"pods"}
`)
	if err != nil {
		t.Fatal(err)
	}
	known := []string{user.AllAuthenticated}
	devs := []string{user.AllAuthenticated, "devs"}
	resource := func(verb, group, resource, namespace string) *authorizer.AttributesRecord {
		return &authorizer.AttributesRecord{Verb: verb, APIGroup: group, Resource: resource, Namespace: namespace, ResourceRequest: true}
	}
	path := func(verb, path string) *authorizer.AttributesRecord {
		return &authorizer.AttributesRecord{Verb: verb, Path: path}
	}
	tests := []struct {
		name    string
		user    string
		groups  []string
		asks    *authorizer.AttributesRecord
		allowed bool
	}{
		{"anything in any group", "alice", known, resource("delete", "apps", "deployments", "x"), true},
		{"no path that is not named", "alice", known, path("get", "/metrics"), false},
		{"reads only", "kubelet", known, resource("watch", "", "pods", "x"), true},
		{"and does not write", "kubelet", known, resource("create", "", "pods", "x"), false},
		{"in its namespace", "carol", devs, resource("create", "", "configmaps", "dev"), true},
		{"in no other", "carol", devs, resource("create", "", "configmaps", "prod"), false},
		{"in no other group", "carol", devs, resource("create", "apps", "configmaps", "dev"), false},
		{"user and group", "bob", devs, path("get", "/logs/a"), true},
		{"user without the group", "bob", known, path("get", "/logs/a"), false},
		{"everyone who is known", "dave", known, path("get", "/version"), true},
		{"no stranger", user.Anonymous, []string{user.AllUnauthenticated}, path("get", "/version"), false},
		{"nobody by a policy for nobody", "dave", known, resource("get", "", "secrets", "x"), false},
		{"a line without a version is for all namespaces and groups", "old", known, resource("create", "metrics.k8s.io", "pods", "x"), true},
	}
	for _, tt := range tests {
		tt.asks.User = &user.DefaultInfo{Name: tt.user, Groups: tt.groups}
		got, reason, err := a.Authorize(t.Context(), tt.asks)
		if (got == authorizer.DecisionAllow) != tt.allowed || got == authorizer.DecisionDeny || err != nil || !tt.allowed && reason != "No policy matched." {
			t.Errorf("%s: %v %q %v", tt.name, got, reason, err)
		}
	}
	resources, paths, incomplete, err := a.RulesFor(t.Context(), &user.DefaultInfo{Name: "kubelet", Groups: known}, "default")
	if err != nil || incomplete || len(resources) != 1 || len(paths) != 1 || strings.Join(resources[0].GetVerbs(), ",") != "get,list,watch" {
		t.Errorf("%v %v %v %v", resources, paths, incomplete, err)
	}
}

func TestAFileThatCannotBeReadIsAnError(t *testing.T) {
	for text, want := range map[string]string{
		"{\"user\":\"a\"}\nnonsense": "line 2: nonsense:",
		`{"apiVersion":"abac.authorization.kubernetes.io/v9","kind":"Policy","spec":{}}`: `no kind "Policy" is registered for version "abac.authorization.kubernetes.io/v9"`,
	} {
		if _, err := policies(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if _, err := Open(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a file that is not there passes")
	}
}
