package e2e

import (
	"strings"
	"testing"
)

// Wrong input gets upstream's code and reason and changes nothing.
func TestBadInput(t *testing.T) {
	ns := shared.namespace(t)
	shared.apply(t, `
apiVersion: apps/v1
kind: Deployment
metadata: {name: fixed}
spec:
  replicas: 0
  selector: {matchLabels: {app: fixed}}
  template:
    metadata: {labels: {app: fixed}}
    spec: {containers: [{name: c, image: "busybox:1.35"}]}
`, "-n", ns)
	pod := func(name, spec string) string {
		return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + "}\nspec: " + spec
	}
	const good = `{containers: [{name: c, image: "busybox:1.35"}]}`
	tests := []struct {
		name  string
		stdin string
		args  []string
		want  string
	}{
		{"unknown field", pod("a", `{containers: [{name: c, imagee: x}]}`), []string{"create", "-n", ns, "-f", "-"},
			`strict decoding error: unknown field "spec.containers[0].imagee"`},
		{"wrong type", pod("a", `{containers: [{name: c, image: x, ports: [{containerPort: http}]}]}`), []string{"create", "--validate=false", "-n", ns, "-f", "-"},
			"cannot unmarshal"},
		{"required field", pod("a", `{containers: [{name: c}]}`), []string{"create", "-n", ns, "-f", "-"},
			`spec.containers[0].image: Required value`},
		{"name too long", pod(strings.Repeat("a", 254), good), []string{"create", "-n", ns, "-f", "-"},
			"must be no more than 253 "},
		{"missing namespace", pod("a", good), []string{"create", "-n", "nowhere", "-f", "-"},
			`namespaces "nowhere" not found`},
		{"immutable field", "", []string{"patch", "deployment", "fixed", "-n", ns, "--type=merge", "-p", `{"spec":{"selector":{"matchLabels":{"app":"x"}}}}`},
			"field is immutable"},
		{"unknown kind", "apiVersion: v1\nkind: Podd\nmetadata: {name: a}", []string{"create", "--validate=false", "-n", ns, "-f", "-"},
			`no matches for kind "Podd" in version "v1"`},
		{"expired or foreign token", "", []string{"get", "pods", "--token=eyJhbGciOiJIUzI1NiJ9.e30.x", "--client-certificate=", "--client-key=", "--kubeconfig=" + withoutUser(t)},
			"You must be logged in to the server"},
		{"forbidden", "", []string{"get", "secrets", "-n", ns, "--as=jane"},
			`User "jane" cannot list resource "secrets" in API group "" in the namespace`},
		{"wrong CA", "", []string{"get", "pods", "--kubeconfig=" + withoutCA(t)},
			"certificate signed by unknown authority"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			out, stderr, err := shared.tryKubectl(tt.stdin, tt.args...)
			if err == nil {
				t.Fatalf("accepted: %s", out)
			}
			if !strings.Contains(stderr, tt.want) {
				t.Errorf("got %q, want it to contain %q", stderr, tt.want)
			}
		})
	}
	if out := shared.kubectl(t, "get", "pods", "-n", ns, "-o", "name"); out != "" {
		t.Errorf("refused requests left %s", out)
	}
}
