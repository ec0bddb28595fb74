package policy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"proa/internal/admission/manifest"
)

const head = "apiVersion: admissionregistration.k8s.io/v1\n"

// A file that refuses to delete protected policies, and to create what is called no.
const guard = head + `kind: ValidatingAdmissionPolicy
metadata: {name: guard.static.k8s.io}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}
    - {apiGroups: [admissionregistration.k8s.io], apiVersions: ["*"], operations: [CREATE], resources: ["*"]}
  validations: [{expression: "object.metadata.name != 'no'", message: by a file}]
---
` + head + `kind: ValidatingAdmissionPolicyBinding
metadata: {name: guard.static.k8s.io}
spec: {policyName: guard.static.k8s.io, validationActions: [Deny]}
`

const label = head + `kind: MutatingAdmissionPolicy
metadata: {name: z.static.k8s.io}
spec:
  reinvocationPolicy: Never
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}]}
  mutations: [{patchType: ApplyConfiguration, applyConfiguration: {expression: "Object{data: {'by': 'file'}}"}}]
---
` + head + `kind: MutatingAdmissionPolicyBinding
metadata: {name: z.static.k8s.io}
spec: {policyName: z.static.k8s.io}
`

// files has a world's plugins read policies from directories.
func (w *world) files(validating, mutating string) {
	w.t.Helper()
	var err error
	if w.validating.hooks.static, err = manifest.Open(w.validating.Name(), directory(w.t, validating), readValidating); err != nil {
		w.t.Fatal(err)
	}
	if w.mutating.hooks.static, err = manifest.Open(w.mutating.Name(), directory(w.t, mutating), readMutating); err != nil {
		w.t.Fatal(err)
	}
}

func directory(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestPoliciesOfFilesJudge(t *testing.T) {
	w := newWorld(t)
	w.files(guard, "")
	w.apply(good)
	for _, refused := range []string{
		`{apiVersion: v1, kind: ConfigMap, metadata: {name: "no"}}`,
		head + "kind: ValidatingAdmissionPolicyBinding\nmetadata: {name: \"no\"}\nspec: {policyName: p, validationActions: [Deny]}",
	} {
		err := w.try(refused)
		if err == nil || !strings.Contains(err.Error(), "ValidatingAdmissionPolicy 'guard.static.k8s.io' with binding 'guard.static.k8s.io' denied request: by a file") {
			t.Errorf("%v of %s", err, refused)
		}
	}
	w.apply(validating(`validations: [{expression: "object.metadata.name != 'bad'"}]`, ""))
	if err := w.try(bad); err == nil {
		t.Error("a policy of an object does not judge beside one of a file")
	}
}

// Objects that say who judges are not judged by others of their kind.
func TestOnlyFilesJudgeWhoJudges(t *testing.T) {
	w := newWorld(t)
	w.apply(strings.ReplaceAll(strings.ReplaceAll(guard, "guard.static.k8s.io", "guard"), "by a file", "by an object"))
	w.apply(head + "kind: ValidatingAdmissionPolicyBinding\nmetadata: {name: \"no\"}\nspec: {policyName: p, validationActions: [Deny]}")
}

func TestPoliciesOfFilesComeFirst(t *testing.T) {
	w := newWorld(t)
	w.files("", label)
	w.apply(strings.NewReplacer("z.static.k8s.io", "a", "'file'", "object.data['by'] + ', then an object'").Replace(label))
	w.apply(`{apiVersion: v1, kind: ConfigMap, metadata: {name: c}}`)
	if by := w.get(configMaps, "c").(*corev1.ConfigMap).Data["by"]; by != "file, then an object" {
		t.Errorf("by %q", by)
	}
}
