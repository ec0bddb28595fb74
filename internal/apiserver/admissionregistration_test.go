package apiserver

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"
)

// Every kind of admissionregistration.k8s.io is found by discovery and takes every verb.
func TestAdmissionRegistrationAPI(t *testing.T) {
	const (
		group  = "admissionregistration.k8s.io"
		hooks  = "webhooks: [{name: a.example.com, clientConfig: {url: 'https://x'}, sideEffects: None, admissionReviewVersions: [v1], matchConditions: [{name: c, expression: 'object.metadata.name != \"x\"'}]}]"
		policy = "spec: {reinvocationPolicy: Never, matchConstraints: {resourceRules: [{apiGroups: [apps], apiVersions: [v1], operations: [CREATE], resources: [deployments]}]}, "
	)
	w := newWorld(t)
	client := dynamic.NewForConfigOrDie(w.config)
	groups, err := w.client().Discovery().ServerGroups()
	if err != nil {
		t.Fatal(err)
	}
	served := slices.ContainsFunc(groups.Groups, func(g metav1.APIGroup) bool {
		return g.Name == group && len(g.Versions) == 1 && g.PreferredVersion.GroupVersion == group+"/v1"
	})
	resources, err := w.client().Discovery().ServerResourcesForGroupVersion(group + "/v1")
	if err != nil || !served {
		t.Fatalf("%v, %v", groups, err)
	}
	for _, tt := range []struct {
		resource, kind, manifest string
		status                   bool
	}{
		{"mutatingwebhookconfigurations", "MutatingWebhookConfiguration", hooks, false},
		{"validatingwebhookconfigurations", "ValidatingWebhookConfiguration", hooks, false},
		{"validatingadmissionpolicies", "ValidatingAdmissionPolicy", strings.Replace(policy, "reinvocationPolicy: Never, ", "", 1) + "validations: [{expression: 'true'}]}", true},
		{"validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", "spec: {policyName: p, validationActions: [Deny]}", false},
		{"mutatingadmissionpolicies", "MutatingAdmissionPolicy", policy + "mutations: [{patchType: JSONPatch, jsonPatch: {expression: '[JSONPatch{op: ''remove'', path: ''/x''}]'}}]}", false},
		{"mutatingadmissionpolicybindings", "MutatingAdmissionPolicyBinding", "spec: {policyName: p}", false},
	} {
		t.Run(tt.resource, func(t *testing.T) {
			wantVerbs(t, resources, tt.resource, "[create delete deletecollection get list patch update watch]")
			if tt.status {
				wantVerbs(t, resources, tt.resource+"/status", "[get patch update]")
			}
			obj := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte(tt.manifest), &obj.Object); err != nil {
				t.Fatal(err)
			}
			obj.SetAPIVersion(group + "/v1")
			obj.SetKind(tt.kind)
			obj.SetName("a")
			obj.SetLabels(map[string]string{"set": "x"})
			everyVerb(t, client.Resource(schema.GroupVersionResource{Group: group, Version: "v1", Resource: tt.resource}), obj, tt.status)
		})
	}
}

func wantVerbs(t *testing.T, list *metav1.APIResourceList, name, want string) {
	t.Helper()
	for _, r := range list.APIResources {
		if r.Name == name && !r.Namespaced && fmt.Sprint([]string(r.Verbs)) == want {
			return
		}
	}
	t.Errorf("no %s with %s in %v", name, want, list.APIResources)
}

func everyVerb(t *testing.T, r dynamic.NamespaceableResourceInterface, obj *unstructured.Unstructured, status bool) {
	t.Helper()
	must := func(u *unstructured.Unstructured, err error) *unstructured.Unstructured {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	selected := metav1.ListOptions{LabelSelector: "set=x"}
	seen, err := r.Watch(t.Context(), selected)
	if err != nil {
		t.Fatal(err)
	}
	defer seen.Stop()
	made := must(r.Create(t.Context(), obj, metav1.CreateOptions{}))
	if e := <-seen.ResultChan(); e.Type != watch.Added {
		t.Errorf("event %v", e)
	}
	if conditions := webhookConditions(made); conditions != webhookConditions(obj) {
		t.Errorf("match conditions %s, sent %s", conditions, webhookConditions(obj))
	}
	got := must(r.Get(t.Context(), "a", metav1.GetOptions{}))
	got.SetAnnotations(map[string]string{"updated": "yes"})
	updated := must(r.Update(t.Context(), got, metav1.UpdateOptions{}))
	patched := must(r.Patch(t.Context(), "a", types.MergePatchType, []byte(`{"metadata":{"annotations":{"patched":"yes"}}}`), metav1.PatchOptions{}))
	for range 2 {
		if e := <-seen.ResultChan(); e.Type != watch.Modified {
			t.Errorf("event %v", e)
		}
	}
	if a := patched.GetAnnotations(); a["updated"] != "yes" || a["patched"] != "yes" || updated.GetGeneration() != 1 {
		t.Errorf("annotations %v, generation %d", a, updated.GetGeneration())
	}
	if _, policy, _ := unstructured.NestedString(patched.Object, "spec", "failurePolicy"); policy {
		patched = must(r.Patch(t.Context(), "a", types.MergePatchType, []byte(`{"spec":{"failurePolicy":"Ignore"}}`), metav1.PatchOptions{}))
		e := <-seen.ResultChan()
		if value, _, _ := unstructured.NestedString(e.Object.(*unstructured.Unstructured).Object, "spec", "failurePolicy"); value != "Ignore" || patched.GetGeneration() != 2 {
			t.Errorf("failure policy %s, generation %d", value, patched.GetGeneration())
		}
	}
	if status {
		patched = must(r.Patch(t.Context(), "a", types.MergePatchType, []byte(`{"spec":null,"status":{"observedGeneration":7}}`), metav1.PatchOptions{}, "status"))
		if n, _, _ := unstructured.NestedInt64(patched.Object, "status", "observedGeneration"); n != 7 || patched.Object["spec"] == nil {
			t.Errorf("after a patch of the status: %v", patched.Object)
		}
	}
	if list, err := r.List(t.Context(), selected); err != nil || len(list.Items) != 1 {
		t.Errorf("list %v, %v", list, err)
	}
	if err := r.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	obj.SetName("")
	obj.SetGenerateName("some-")
	if named := must(r.Create(t.Context(), obj, metav1.CreateOptions{})).GetName(); !strings.HasPrefix(named, "some-") || named == "some-" {
		t.Errorf("name %s", named)
	}
	if err := r.DeleteCollection(t.Context(), metav1.DeleteOptions{}, selected); err != nil {
		t.Error(err)
	}
	if list, err := r.List(t.Context(), selected); err != nil || len(list.Items) != 0 {
		t.Errorf("left %v, %v", list, err)
	}
}

func webhookConditions(u *unstructured.Unstructured) string {
	hooks, _, _ := unstructured.NestedSlice(u.Object, "webhooks")
	if len(hooks) == 0 {
		return ""
	}
	return fmt.Sprint(hooks[0].(map[string]any)["matchConditions"])
}
