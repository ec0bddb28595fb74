package policy

import (
	"fmt"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"proa/internal/admission"
	"proa/internal/client"
)

var deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}

// mutating is a policy with its binding, for creates and updates of ConfigMaps and Deployments.
func mutating(name, spec string) string {
	if !strings.Contains(spec, "reinvocationPolicy") {
		spec += "\n  reinvocationPolicy: Never"
	}
	return fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: %[1]s}
spec:
  matchConstraints: {resourceRules: [{apiGroups: ["", apps], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [configmaps, deployments]}]}
  %[2]s
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: %[1]s-binding}
spec: {policyName: %[1]s}`, name, strings.TrimSpace(spec))
}

const deployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: d}
spec:
  replicas: 1
  selector: {matchLabels: {app: d}}
  template:
    metadata: {labels: {app: d}}
    spec: {containers: [{name: c, image: x}]}`

func TestApplyConfiguration(t *testing.T) {
	w := newWorld(t)
	w.apply(mutating("m", `
  variables: [{name: replicas, expression: object.spec.replicas}]
  matchConditions: [{name: deployments, expression: "object.kind == 'Deployment'"}]
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration:
      expression: >-
        Object{metadata: Object.metadata{annotations: {"by": request.userInfo.username}},
               spec: Object.spec{replicas: variables.replicas + 2, template: Object.spec.template{spec: Object.spec.template.spec{
                 containers: [Object.spec.template.spec.containers{name: "sidecar", image: "y"}]}}}}`))
	w.apply(deployment)
	w.apply(good)
	d := w.get(deployments, "d").(*appsv1.Deployment)
	if d.Annotations["by"] != "ann" || *d.Spec.Replicas != 3 {
		t.Errorf("annotations %v, %d replicas", d.Annotations, *d.Spec.Replicas)
	}
	containers := d.Spec.Template.Spec.Containers
	if len(containers) != 2 || containers[0].Name != "c" || containers[1].Name != "sidecar" || containers[1].ImagePullPolicy != corev1.PullAlways {
		t.Errorf("containers %+v", containers)
	}
}

func TestJSONPatch(t *testing.T) {
	w := newWorld(t)
	w.apply(mutating("m", `
  mutations:
  - patchType: JSONPatch
    jsonPatch:
      expression: >-
        [JSONPatch{op: "test", path: "/data/x", value: "1"},
         JSONPatch{op: "add", path: "/metadata/labels/" + jsonpatch.escapeKey("example.com/by"), value: "policy"},
         JSONPatch{op: "add", path: "/data/y", value: object.data.x + "1"}]`))
	w.apply(good)
	cm := w.get(configMaps, "good").(*corev1.ConfigMap)
	if cm.Labels["example.com/by"] != "policy" || cm.Data["y"] != "11" {
		t.Errorf("labels %v, data %v", cm.Labels, cm.Data)
	}
	w.apply(bad) // a test that fails leaves the object as it is
	if cm := w.get(configMaps, "bad").(*corev1.ConfigMap); len(cm.Data) != 2 {
		t.Errorf("data %v", cm.Data)
	}
}

func TestMutatingPoliciesRunInTheOrderOfTheirNames(t *testing.T) {
	appends := func(s string) string {
		return `mutations: [{patchType: ApplyConfiguration, applyConfiguration: {expression: "Object{data: {'x': object.data.x + '` + s + `'}}"}}]`
	}
	w := newWorld(t)
	w.apply(mutating("b", appends("b")))
	w.apply(mutating("a", appends("a")))
	w.apply(good)
	if x := w.get(configMaps, "good").(*corev1.ConfigMap).Data["x"]; x != "1ab" {
		t.Errorf("x is %s", x)
	}
}

func TestMutatingReinvocation(t *testing.T) {
	const (
		// counts how often it ran after b did
		first = `mutations: [{patchType: JSONPatch, jsonPatch: {expression: "'y' in object.data ? [JSONPatch{op: 'add', path: '/data/seen', value: object.data.y}] : []"}}]
  reinvocationPolicy: %s`
		second = `mutations: [{patchType: JSONPatch, jsonPatch: {expression: "'y' in object.data ? [] : [JSONPatch{op: 'add', path: '/data/y', value: 'yes'}]"}}]`
	)
	for policy, want := range map[string]string{"IfNeeded": "yes", "Never": ""} {
		t.Run(policy, func(t *testing.T) {
			w := newWorld(t)
			w.apply(mutating("a", fmt.Sprintf(first, policy)))
			w.apply(mutating("b", second))
			w.apply(good)
			if seen := w.get(configMaps, "good").(*corev1.ConfigMap).Data["seen"]; seen != want {
				t.Errorf("a saw %q of what b did, want %q", seen, want)
			}
		})
	}
}

func TestMutatingPolicyThatFails(t *testing.T) {
	for _, tt := range []struct{ name, spec, want string }{
		{"an error", `mutations: [{patchType: ApplyConfiguration, applyConfiguration: {expression: "Object{data: {'x': object.nothing}}"}}]`,
			"policy 'm' with binding 'm-binding' denied request: expression 'Object{data: {'x': object.nothing}}' resulted in error: no such key: nothing"},
		{"an error that is ignored", "failurePolicy: Ignore\n  " + `mutations: [{patchType: ApplyConfiguration, applyConfiguration: {expression: "Object{data: {'x': object.nothing}}"}}]`, ""},
		{"a path that is not there", `mutations: [{patchType: JSONPatch, jsonPatch: {expression: "[JSONPatch{op: 'remove', path: '/nothing'}]"}}]`, "denied request: JSON Patch: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.apply(mutating("m", tt.spec))
			err := w.try(good)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Fatalf("error %v, want %q", err, tt.want)
			}
			if status, ok := err.(apierrors.APIStatus); ok && (status.Status().Code != 403 || status.Status().Reason != metav1.StatusReasonInvalid) {
				t.Errorf("status %+v", status.Status())
			}
		})
	}
}

func TestAtomicFieldsCannotBeApplied(t *testing.T) {
	w := newWorld(t)
	w.apply(mutating("m", `
  matchConditions: [{name: d, expression: "object.kind == 'Deployment'"}]
  mutations: [{patchType: ApplyConfiguration, applyConfiguration: {expression: "Object{spec: Object.spec{selector: Object.spec.selector{matchLabels: {'a': 'b'}}}}"}}]`))
	if err := w.try(deployment); err == nil || !strings.Contains(err.Error(), "may not mutate atomic arrays, maps or structs: .spec.selector") {
		t.Errorf("%v", err)
	}
}

func TestMutatingPolicyParamsAndUpdates(t *testing.T) {
	w := newWorld(t)
	w.apply(`{apiVersion: v1, kind: Secret, metadata: {name: p}, stringData: {x: "1"}}`)
	policy := strings.Replace(mutating("m", `
  paramKind: {apiVersion: v1, kind: Secret}
  mutations: [{patchType: ApplyConfiguration, applyConfiguration: {expression: "Object{data: {'from': string(params.metadata.name), 'op': request.operation}}"}}]`),
		"{policyName: m}", "{policyName: m, paramRef: {name: p, parameterNotFoundAction: Deny}}", 1)
	w.apply(policy)
	w.apply(good)
	ref := client.Ref{Resource: configMaps, Namespace: "default", Name: "good"}
	obj, err := w.api.Patch(w.ctx, ref, types.MergePatchType, []byte(`{"data":{"more":"yes"}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if data := obj.(*corev1.ConfigMap).Data; data["from"] != "p" || data["op"] != "UPDATE" || data["more"] != "yes" {
		t.Errorf("data %v", data)
	}
}

// Without a binding the plugins do not so much as allocate.
func TestNothingBoundCostsNothing(t *testing.T) {
	w := newWorld(t)
	resource, _ := w.catalogue.Stored(configMaps.GroupResource())
	a := &admission.Attributes{Operation: admissionv1.Create, Resource: resource, Namespace: "default", Name: "a", Object: &corev1.ConfigMap{}}
	if n := testing.AllocsPerRun(100, func() {
		_, _ = w.mutating.Admit(w.ctx, a), w.validating.Validate(w.ctx, a)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
