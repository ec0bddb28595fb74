package webhook

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"proa/internal/admission/manifest"
)

// file is a directory with one configuration of webhooks.
func file(t *testing.T, kind, name string, hooks ...admissionregistrationv1.MutatingWebhook) string {
	t.Helper()
	config := &admissionregistrationv1.MutatingWebhookConfiguration{
		TypeMeta:   metav1.TypeMeta{APIVersion: "admissionregistration.k8s.io/v1", Kind: kind},
		ObjectMeta: metav1.ObjectMeta{Name: name}, Webhooks: hooks,
	}
	data, err := yaml.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "hooks.yaml"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestWebhooksOfFilesAreAskedFirst(t *testing.T) {
	w := newWorld(t)
	w.serve("/file", patches(`[{"op": "add", "path": "/data", "value": {"by": "file"}}]`))
	w.serve("/object", patches(`[{"op": "copy", "from": "/data/by", "path": "/data/before"}, {"op": "replace", "path": "/data/by", "value": "object"}]`))
	m := w.plugins[0].(*Mutating)
	var err error
	if m.static, err = manifest.Open(m.Name(), file(t, "MutatingWebhookConfiguration", "z.static.k8s.io", w.hook("z", "/file")), readMutating); err != nil {
		t.Fatal(err)
	}
	w.mutate("a", w.hook("a", "/object"))
	data := dataOf(w.must(w.create(ref("configmaps"), configMap("c", nil))))
	if data["by"] != "object" || data["before"] != "file" {
		t.Errorf("%v", data)
	}
}

// Objects that say who judges are shown to webhooks of files, not to those of objects.
func TestWebhooksOfFilesJudgeWhoJudges(t *testing.T) {
	w := newWorld(t)
	everything := rules(ruleFor("*", "*", "*", admissionregistrationv1.OperationAll))
	w.serve("/file", denies("by a file"))
	others := w.serve("/object", allowed)
	w.validate("object", w.hook("object", "/object", everything))
	w.validate("before", w.hook("before", "/object"))
	if n := len(others.all()); n != 0 {
		t.Errorf("a webhook of an object was asked %d times", n)
	}
	v := w.plugins[1].(*Validating)
	var err error
	if v.static, err = manifest.Open(v.Name(), file(t, "ValidatingWebhookConfiguration", "f.static.k8s.io", w.hook("f", "/file", everything)), readValidating); err != nil {
		t.Fatal(err)
	}
	_, err = w.create(ref("mutatingwebhookconfigurations"), &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "after"}})
	if err == nil || !strings.Contains(err.Error(), "by a file") {
		t.Errorf("%v", err)
	}
}
