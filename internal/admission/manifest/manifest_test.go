package manifest

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/component-base/metrics/legacyregistry"
)

const (
	head   = "apiVersion: admissionregistration.k8s.io/v1\n"
	policy = head + `kind: ValidatingAdmissionPolicy
metadata: {name: p.static.k8s.io}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}]}
  validations: [{expression: "object.metadata.name != 'no'"}]
`
	binding = head + `kind: ValidatingAdmissionPolicyBinding
metadata: {name: b.static.k8s.io}
spec: {policyName: p.static.k8s.io, validationActions: [Deny]}
`
	hook = head + `kind: ValidatingWebhookConfiguration
metadata: {name: w.static.k8s.io}
webhooks:
- name: w.example.com
  clientConfig: {url: "https://example.com/w"}
  rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}]
  admissionReviewVersions: [v1]
  sideEffects: None
`
	pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p.static.k8s.io}\n"
)

// replace puts a file in its place at once.
func replace(t *testing.T, dir, name, text string) {
	t.Helper()
	other := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(other, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(other, filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}

func names(dir string) (found []string, hash string, err error) {
	policies, bindings, hash, err := ReadValidatingPolicies(dir)
	for _, p := range policies {
		found = append(found, p.Name)
	}
	for _, b := range bindings {
		found = append(found, b.Name)
	}
	return found, hash, err
}

func TestFilesMayHold(t *testing.T) {
	list := "apiVersion: v1\nkind: List\nitems:\n- " + strings.ReplaceAll(strings.TrimSpace(policy), "\n", "\n  ") + "\n- " + strings.ReplaceAll(strings.TrimSpace(binding), "\n", "\n  ") + "\n"
	for name, files := range map[string]map[string]string{
		"two documents":        {"a.yaml": policy + "---\n" + binding},
		"two files":            {"b.yml": binding, "a.YAML": policy},
		"a list":               {"a.yaml": list},
		"other kinds of files": {"a.yaml": policy + "---\n" + binding, "notes.txt": "!", "empty.yaml": ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, text := range files {
				replace(t, dir, file, text)
			}
			if err := os.Mkdir(filepath.Join(dir, "below.yaml"), 0o700); err != nil {
				t.Fatal(err)
			}
			found, hash, err := names(dir)
			if d := cmp.Diff([]string{"p.static.k8s.io", "b.static.k8s.io"}, found); d != "" || err != nil || !strings.HasPrefix(hash, "sha256:") {
				t.Error(d, err, hash)
			}
		})
	}
}

func TestDefaultsAreThoseOfTheAPI(t *testing.T) {
	dir := t.TempDir()
	replace(t, dir, "a.yaml", hook)
	found, _, err := ReadValidatingWebhooks(dir)
	if err != nil {
		t.Fatal(err)
	}
	if w := found[0].Webhooks[0]; *w.TimeoutSeconds != 10 || *w.FailurePolicy != "Fail" || *w.MatchPolicy != "Equivalent" || *w.Rules[0].Scope != "*" {
		t.Errorf("%+v", w)
	}
}

func TestFilesMayNotHold(t *testing.T) {
	webhooks := func(dir string) error { _, _, err := ReadValidatingWebhooks(dir); return err }
	mutating := func(dir string) error { _, _, err := ReadMutatingWebhooks(dir); return err }
	policies := func(dir string) error { _, _, _, err := ReadValidatingPolicies(dir); return err }
	both := policy + "---\n" + binding
	for _, tt := range []struct {
		name string
		read func(dir string) error
		text string
		want string
	}{
		{"other kinds", policies, pod, `no kind "Pod" is registered for version "v1"`},
		{"webhooks among policies", policies, hook, "unsupported resource type *v1.ValidatingWebhookConfiguration"},
		{"webhooks of the other plugin", mutating, hook, "unsupported resource type *v1.ValidatingWebhookConfiguration"},
		{"older versions", policies, strings.Replace(policy, "/v1", "/v1beta1", 1), "unsupported resource type *v1beta1.ValidatingAdmissionPolicy"},
		{"unknown fields", webhooks, strings.Replace(hook, "sideEffects", "sideEffect", 1), `unknown field "webhooks[0].sideEffect"`},
		{"fields twice", webhooks, hook + "  sideEffects: None\n", `key "sideEffects" already set in map`},
		{"no name", webhooks, strings.Replace(hook, "{name: w.static.k8s.io}", "{}", 1), "metadata.name: Required value"},
		{"names of objects", webhooks, strings.Replace(hook, "w.static.k8s.io", "w.example.com", 1), `must have a name ending with ".static.k8s.io"`},
		{"names that are none", webhooks, strings.Replace(hook, "w.static.k8s.io", "W.static.k8s.io", 1), "metadata.name: Invalid value"},
		{"a name twice", webhooks, hook + "---\n" + hook, `duplicate name "w.static.k8s.io"`},
		{"Services", webhooks, strings.Replace(hook, `url: "https://example.com/w"`, "service: {name: s, namespace: ns}", 1), "clientConfig.service is not supported for static manifests"},
		{"what the API refuses", webhooks, strings.Replace(hook, "sideEffects: None", "sideEffects: Some", 1), `webhooks[0].sideEffects: Unsupported value: "Some"`},
		{"expressions that do not compile", policies, strings.Replace(both, "object.metadata.name", "nothing", 1), "undeclared reference to 'nothing'"},
		{"parameters", policies, strings.Replace(both, "spec:\n", "spec:\n  paramKind: {apiVersion: v1, kind: ConfigMap}\n", 1), "spec.paramKind is not supported for static manifests"},
		{"bindings to parameters", policies, strings.Replace(both, "validationActions", "paramRef: {name: x, parameterNotFoundAction: Deny}, validationActions", 1), "spec.paramRef is not supported for static manifests"},
		{"bindings to objects", policies, policy + "---\n" + strings.Replace(binding, "policyName: p.static.k8s.io", "policyName: p", 1), `must end with ".static.k8s.io"`},
		{"bindings to nothing", policies, binding, "does not exist in the manifest directory"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			replace(t, dir, "a.yaml", tt.text)
			if err := tt.read(dir); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %s", err, tt.want)
			}
		})
	}
}

// count is how often upstream's metric of reloads has counted.
func count(t *testing.T, plugin, status string) (n float64) {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != "apiserver_manifest_admission_config_controller_automatic_reloads_total" {
			continue
		}
		for _, m := range family.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if labels["plugin"] == plugin && labels["status"] == status {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n
}

func TestWhatIsReadAgain(t *testing.T) {
	const plugin = "ValidatingAdmissionPolicy"
	dir := t.TempDir()
	both := policy + "---\n" + binding
	replace(t, dir, "a.yaml", both)
	s, err := Open(plugin, dir, names)
	if err != nil {
		t.Fatal(err)
	}
	first := []string{"p.static.k8s.io", "b.static.k8s.io"}
	second := []string{"p.static.k8s.io", "q.static.k8s.io", "b.static.k8s.io"}
	for _, step := range []struct {
		name, text      string
		reloads, faults float64
		want            []string
	}{
		{"the same", both, 0, 0, first},
		{"another policy", both + "---\n" + strings.Replace(policy, "p.static", "q.static", 1), 1, 0, second},
		{"a fault", both + "---\n" + pod, 0, 1, second},
		{"the fault is still there", both + "---\n" + pod, 0, 1, second},
		{"nothing", "", 1, 0, nil},
	} {
		reloads, faults := count(t, plugin, "success"), count(t, plugin, "failure")
		replace(t, dir, "a.yaml", step.text)
		s.look()
		if d := cmp.Diff(step.want, s.Made()); d != "" {
			t.Errorf("%s: %s", step.name, d)
		}
		if n, f := count(t, plugin, "success")-reloads, count(t, plugin, "failure")-faults; n != step.reloads || f != step.faults {
			t.Errorf("%s: %v reloads and %v faults are counted", step.name, n, f)
		}
	}
}

func TestADirectoryIsFollowed(t *testing.T) {
	dir := t.TempDir()
	s, err := Open("MutatingAdmissionPolicy", dir, names)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	for i, text := range []string{policy, policy + "---\n" + binding, ""} {
		replace(t, dir, "a.yaml", text)
		for len(s.Made()) != (i+1)%3 {
			runtime.Gosched()
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestWithoutADirectoryThereIsNothing(t *testing.T) {
	s, err := Open("ValidatingAdmissionPolicy", "", names)
	if err != nil || s.Made() != nil || s.Run(t.Context()) != nil {
		t.Errorf("%v, %v", s, err)
	}
}
