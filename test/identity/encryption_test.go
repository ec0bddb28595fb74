package identity

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/store/encryption/kmstest"
)

const encryptionHead = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n"

func box(names ...string) string {
	var list []string
	for _, name := range names {
		list = append(list, fmt.Sprintf("{name: %s, secret: %s}", name, base64.StdEncoding.EncodeToString([]byte(fmt.Sprintf("%-32s", name)))))
	}
	return "{secretbox: {keys: [" + strings.Join(list, ", ") + "]}}"
}

func encrypt(resources string, providers ...string) string {
	return "- resources: [" + resources + "]\n  providers: [" + strings.Join(providers, ", ") + "]\n"
}

func vault(p *kmstest.Plugin) string {
	return fmt.Sprintf("{kms: {apiVersion: v2, name: vault, endpoint: %q, timeout: 2s}}", p.Endpoint)
}

const (
	plainText = "correct horse battery staple"
	identity  = "{identity: {}}"
)

func (s *server) makeSecrets(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		_, err := s.admin(t).CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string][]byte{"k": []byte(plainText)},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func (s *server) secret(t *testing.T, name string) *corev1.Secret {
	t.Helper()
	got, err := s.admin(t).CoreV1().Secrets("default").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// mustBeWell asks for the health of key services.
func (s *server) mustBeWell(t *testing.T) {
	t.Helper()
	for _, endpoint := range []string{"/healthz", "/livez", "/readyz"} {
		if out, err := s.admin(t).Discovery().RESTClient().Get().AbsPath(endpoint + "/kms-providers").DoRaw(t.Context()); err != nil || string(out) != "ok" {
			t.Errorf("%s/kms-providers: %s, %v", endpoint, out, err)
		}
	}
}

// holds reports whether the store's files have text.
func (s *server) holds(t *testing.T, text string) (found bool) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(s.dir, "store"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		found = found || bytes.Contains(data, []byte(text))
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // a compaction removes files meanwhile
		t.Fatal(err)
	}
	return found
}

// Secrets are sealed on the disk, keys are changed while the server runs, what is
// replaced is sealed with the new key, and the old key can go.
func TestEncryptionAtRest(t *testing.T) {
	t.Parallel()
	config := file(t, "encryption.yaml", encryptionHead+encrypt("secrets", box("one"), identity))
	s := start(t, "--encryption-provider-config", config, "--encryption-provider-config-automatic-reload")
	s.makeSecrets(t, "a")
	if _, err := s.admin(t).CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "c"}, Data: map[string]string{"k": "not a secret"},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if s.holds(t, plainText) || !s.holds(t, "k8s:enc:secretbox:v1:one:") {
		t.Error("the secret is readable on the disk")
	}
	if !s.holds(t, "not a secret") {
		t.Error("a config map is not readable on the disk: the test looks in the wrong place")
	}
	s.mustBeWell(t)
	old := s.secret(t, "a")

	replace(t, config, encryptionHead+"- nonsense")
	reloads := func(status string) func() error {
		return func() error {
			if lines := s.metrics(t, "apiserver_encryption_config_controller_automatic_reloads_total"); !strings.Contains(lines, `status="`+status+`"`) {
				return fmt.Errorf("no reload with %s: %s", status, lines)
			}
			return nil
		}
	}
	eventually(t, reloads("failure"))
	if got := s.secret(t, "a"); string(got.Data["k"]) != plainText {
		t.Error("a bad file makes the secret unreadable")
	}
	replace(t, config, encryptionHead+encrypt("secrets", box("two", "one")))
	eventually(t, reloads("success"))
	if _, err := s.admin(t).CoreV1().Secrets("default").Update(t.Context(), s.secret(t, "a"), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if !s.holds(t, "k8s:enc:secretbox:v1:two:") || s.secret(t, "a").ResourceVersion == old.ResourceVersion {
		t.Error("a secret that is replaced by itself is not sealed with the new key")
	}
	s.stop(t)

	s.run(t, "--encryption-provider-config=", "--encryption-provider-config-automatic-reload=false")
	_, err := s.admin(t).CoreV1().Secrets("default").Get(t.Context(), "a", metav1.GetOptions{})
	if status := statusOf(t, err); status.Code != 500 || !strings.Contains(status.Message, "the value is encrypted") {
		t.Errorf("without its configuration the server says %+v", status)
	}
	s.stop(t)
	s.run(t, "--encryption-provider-config", config)
	if got := s.secret(t, "a"); string(got.Data["k"]) != plainText {
		t.Error("the secret is lost")
	}
}

func TestEncryptionWithAKeyService(t *testing.T) {
	t.Parallel()
	plugin := kmstest.Start(t)
	s := start(t, "--encryption-provider-config", file(t, "encryption.yaml", encryptionHead+encrypt("'*.*'", vault(plugin))))
	names := make([]string, 50)
	for i := range names {
		names[i] = fmt.Sprint("s", i)
	}
	s.makeSecrets(t, names...)
	if encrypts, _ := plugin.Calls(); encrypts != 1 {
		t.Errorf("%d encryptions, want 1: the data key is used again", encrypts)
	}
	if s.holds(t, plainText) || s.holds(t, "kube-root-ca.crt") && s.holds(t, "BEGIN CERTIFICATE") || !s.holds(t, "k8s:enc:kms:v2:vault:") {
		t.Error("something is readable on the disk")
	}
	for _, name := range []string{
		"apiserver_envelope_encryption_key_id_hash_total{", "apiserver_envelope_encryption_kms_operations_latency_seconds_count{", "apiserver_envelope_encryption_dek_source_cache_size{",
	} {
		if s.metrics(t, name) == "" {
			t.Errorf("no metric %s", name)
		}
	}
	s.mustBeWell(t)
	s.stop(t)
	s.run(t)
	if got := s.secret(t, "s7"); string(got.Data["k"]) != plainText {
		t.Error("the secret is lost")
	}
}

// On etcd, values lie where upstream keeps them and in its format.
func TestEncryptionOnEtcd(t *testing.T) {
	t.Parallel()
	url := startEtcd(t)
	config := file(t, "encryption.yaml", encryptionHead+encrypt("secrets", box("one")))
	s := &server{dir: filepath.Join(t.TempDir(), "data"), port: freePort(t)}
	t.Cleanup(func() { s.stop(t) })
	s.run(t, "--datastore-endpoint", url, "--encryption-provider-config", config)
	s.makeSecrets(t, "a")
	value := etcdValue(t, url, "/registry/secrets/default/a")
	if !strings.HasPrefix(value, "k8s:enc:secretbox:v1:one:") || strings.Contains(value, plainText) {
		t.Errorf("etcd holds %.60q", value)
	}
	s.stop(t)
	s.run(t)
	if got := s.secret(t, "a"); string(got.Data["k"]) != plainText {
		t.Error("the secret is lost")
	}
}

func TestBadEncryptionDoesNotStart(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "the file is empty", encryptionHead + encrypt("secrets", "{aesgcm: {keys: [{name: a, secret: YWJj}]}}"): "secret is not of the expected length",
	} {
		if out := refused(t, "--encryption-provider-config", file(t, "encryption.yaml", text)); !strings.Contains(out, want) {
			t.Errorf("it says %q, want %q", out, want)
		}
	}
}
