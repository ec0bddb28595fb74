package identity

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// manifestKinds are the kinds of configurations of the plugins that read files.
var manifestKinds = map[string]string{
	"ValidatingAdmissionPolicy": "ValidatingAdmissionPolicyConfiguration", "MutatingAdmissionPolicy": "MutatingAdmissionPolicyConfiguration",
	"ValidatingAdmissionWebhook": "WebhookAdmissionConfiguration", "MutatingAdmissionWebhook": "WebhookAdmissionConfiguration",
}

func staticManifests(plugin, dir string) string {
	return fmt.Sprintf("- name: %s\n  configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: %s, staticManifestsDir: %s}\n", plugin, manifestKinds[plugin], dir)
}

// guard refuses ConfigMaps of one name, and to delete any policy.
func guard(forbidden string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: List
items:
- apiVersion: admissionregistration.k8s.io/v1
  kind: ValidatingAdmissionPolicy
  metadata: {name: guard.static.k8s.io}
  spec:
    matchConstraints:
      resourceRules:
      - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}
      - {apiGroups: [admissionregistration.k8s.io], apiVersions: [v1], operations: [DELETE], resources: [validatingadmissionpolicies]}
    validations: [{expression: "request.operation != 'DELETE' && object.metadata.name != '%s'", message: said the file}]
- apiVersion: admissionregistration.k8s.io/v1
  kind: ValidatingAdmissionPolicyBinding
  metadata: {name: guard.static.k8s.io}
  spec: {policyName: guard.static.k8s.io, validationActions: [Deny]}
`, forbidden)
}

func makeConfigMap(t *testing.T, api kubernetes.Interface, name string) (*corev1.ConfigMap, error) {
	t.Helper()
	return api.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{DryRun: []string{"All"}})
}

// Policies and webhooks of files hold from the first request on, change with the
// files, are no objects, and guard those that are.
func TestAdmissionIsReadFromFiles(t *testing.T) {
	t.Parallel()
	address, ca, _ := remoteServer(t, "", func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		patch := admissionv1.PatchTypeJSONPatch
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true, PatchType: &patch, Patch: []byte(`[{"op": "add", "path": "/data", "value": {"by": "a webhook of a file"}}]`)}
		json.NewEncoder(w).Encode(review)
	})
	policies, webhooks := t.TempDir(), t.TempDir()
	replace(t, filepath.Join(policies, "guard.yaml"), guard("first"))
	replace(t, filepath.Join(webhooks, "hook.yaml"), fmt.Sprintf(`apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: hook.static.k8s.io}
webhooks:
- name: hook.example.com
  clientConfig: {url: %q, caBundle: %s}
  rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}]
  admissionReviewVersions: [v1]
  sideEffects: None
`, address, base64.StdEncoding.EncodeToString(ca)))
	s := start(t, "--admission-control-config-file", file(t, "admission.yaml", admissionConfiguration(staticManifests("ValidatingAdmissionPolicy", policies), staticManifests("MutatingAdmissionWebhook", webhooks))))
	api := s.admin(t)

	if _, err := makeConfigMap(t, api, "first"); err == nil || !strings.Contains(err.Error(), "ValidatingAdmissionPolicy 'guard.static.k8s.io' with binding 'guard.static.k8s.io' denied request: said the file") {
		t.Errorf("what the file forbids: %v", err)
	}
	if cm, err := makeConfigMap(t, api, "second"); err != nil || cm.Data["by"] != "a webhook of a file" {
		t.Errorf("what the file allows: %v, %v", cm, err)
	}

	registration := api.AdmissionregistrationV1()
	found, err := registration.ValidatingAdmissionPolicies().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(found.Items) != 0 {
		t.Errorf("policies of files are objects: %v, %v", found.Items, err)
	}
	policy := func(name string) *admissionregistrationv1.ValidatingAdmissionPolicy {
		return &admissionregistrationv1.ValidatingAdmissionPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
				MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
					Operations: []admissionregistrationv1.OperationType{"CREATE"},
					Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"secrets"}},
				}}}},
				Validations: []admissionregistrationv1.Validation{{Expression: "true"}},
			},
		}
	}
	_, err = registration.ValidatingAdmissionPolicies().Create(t.Context(), policy("x.static.k8s.io"), metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), `names ending with ".static.k8s.io" are reserved`) {
		t.Errorf("an object with the name of a file's: %v", err)
	}
	if _, err := registration.ValidatingAdmissionPolicies().Create(t.Context(), policy("kept"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := registration.ValidatingAdmissionPolicies().Delete(t.Context(), "kept", metav1.DeleteOptions{}); err == nil || !strings.Contains(err.Error(), "said the file") {
		t.Errorf("a guarded policy is deleted: %v", err)
	}

	replace(t, filepath.Join(policies, "guard.yaml"), guard("second"))
	eventually(t, func() error {
		if _, err := makeConfigMap(t, api, "second"); err == nil {
			return fmt.Errorf("what the changed file forbids is allowed")
		}
		_, err := makeConfigMap(t, api, "first")
		return err
	})
	metric := func(name string) string {
		return fmt.Sprintf(`apiserver_manifest_admission_config_controller_%s{apiserver_id_hash="sha256:`, name)
	}
	failures := func() string {
		var lines []string
		for line := range strings.Lines(s.metrics(t, metric("automatic_reloads_total"))) {
			if strings.Contains(line, `plugin="ValidatingAdmissionPolicy",status="failure"`) {
				lines = append(lines, line)
			}
		}
		return strings.Join(lines, "")
	}
	if failures() != "" {
		t.Errorf("failures before any: %s", failures())
	}
	replace(t, filepath.Join(policies, "wrong.yaml"), "apiVersion: v1\nkind: Pod\nmetadata: {name: p.static.k8s.io}\n")
	eventually(t, func() error {
		if failures() == "" {
			return fmt.Errorf("no failure is counted")
		}
		return nil
	})
	if _, err := makeConfigMap(t, api, "second"); err == nil {
		t.Error("a fault in a file takes the others away")
	}
	if info := s.metrics(t, metric("last_config_info")); !strings.Contains(info, `plugin="MutatingAdmissionWebhook"`) || !strings.Contains(info, `hash="sha256:`) {
		t.Errorf("last_config_info: %s", info)
	}
}

// A server does not start with files that it cannot obey.
func TestFilesOfAdmissionThatAreRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	replace(t, filepath.Join(dir, "wrong.yaml"), "apiVersion: v1\nkind: Pod\nmetadata: {name: p.static.k8s.io}\n")
	for _, tt := range []struct{ plugin, dir, gates, want string }{
		{"ValidatingAdmissionPolicy", "relative", "", `staticManifestsDir: Invalid value: "relative": must be an absolute file path`},
		{"MutatingAdmissionPolicy", dir, "", fmt.Sprintf(`failed to load static manifests from %q: error loading %s/wrong.yaml: no kind "Pod" is registered`, dir, dir)},
		{"ValidatingAdmissionWebhook", dir, "", fmt.Sprintf(`failed to load static manifests from %q: error loading %s/wrong.yaml: no kind "Pod" is registered`, dir, dir)},
		{"MutatingAdmissionWebhook", dir, "ManifestBasedAdmissionControlConfig=false", "staticManifestsDir: Forbidden: staticManifestsDir requires the ManifestBasedAdmissionControlConfig feature gate to be enabled"},
	} {
		out := refused(t, "--feature-gates", tt.gates, "--admission-control-config-file", file(t, "admission.yaml", admissionConfiguration(staticManifests(tt.plugin, tt.dir))))
		if want := fmt.Sprintf("couldn't init admission plugin %q: ", tt.plugin) + tt.want; !strings.Contains(strings.ReplaceAll(out, `\"`, `"`), want) {
			t.Errorf("%s: %s", want, out)
		}
	}
}
