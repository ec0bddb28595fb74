package encryption

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value/encrypt/envelope/kmsv2"

	"proa/internal/store"
	"proa/internal/store/encryption/kmstest"
	"proa/internal/store/pebble"
	"proa/internal/store/storetest"
)

const head = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n"

func rule(resources string, providers ...string) string {
	return "- resources: [" + resources + "]\n  providers: [" + strings.Join(providers, ", ") + "]\n"
}

// keys is a provider whose named keys are made of their names.
func keys(kind string, names ...string) string {
	var list []string
	for _, name := range names {
		secret := base64.StdEncoding.EncodeToString([]byte(fmt.Sprintf("%-32s", name)))
		list = append(list, fmt.Sprintf("{name: %s, secret: %s}", name, secret))
	}
	return fmt.Sprintf("%s: {keys: [%s]}", kind, strings.Join(list, ", "))
}

func provider(text string) string { return "{" + text + "}" }

const identityProvider = "{identity: {}}"

func kms(name string, p *kmstest.Plugin) string {
	return fmt.Sprintf("{kms: {apiVersion: v2, name: %s, endpoint: %q, timeout: 2s}}", name, p.Endpoint)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path)); err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, text string) *Encryption {
	t.Helper()
	e, err := tryOpen(t, text)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func tryOpen(t *testing.T, text string) (*Encryption, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "encryption.yaml")
	write(t, file, text)
	e, err := Open(t.Context(), Config{
		File: file, Patience: time.Nanosecond,
		Path: func(k store.Key) string {
			return "/registry/" + k.Resource.Resource + "/" + k.Namespace + "/" + k.Name
		},
	})
	if err == nil {
		t.Cleanup(e.Close)
	}
	return e, err
}

var secret = store.Key{Resource: schema.GroupResource{Resource: "secrets"}, Namespace: "ns", Name: "a"}

func TestValuesAreUpstreams(t *testing.T) {
	plugin := kmstest.Start(t)
	tests := []struct{ name, provider, prefix string }{
		{"aesgcm", provider(keys("aesgcm", "one", "two")), "k8s:enc:aesgcm:v1:one:"},
		{"aescbc", provider(keys("aescbc", "one")), "k8s:enc:aescbc:v1:one:"},
		{"secretbox", provider(keys("secretbox", "one")), "k8s:enc:secretbox:v1:one:"},
		{"kms v2", kms("vault", plugin), "k8s:enc:kms:v2:vault:"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := open(t, head+rule("secrets", tt.provider))
			sealed, generation, err := e.Seal(secret, []byte("hunter2hunter2"))
			if err != nil || !strings.HasPrefix(string(sealed), tt.prefix) || bytes.Contains(sealed, []byte("hunter2")) {
				t.Fatalf("sealed as %q, %v", sealed, err)
			}
			if generation != e.Generation() {
				t.Errorf("generation %d, want %d", generation, e.Generation())
			}
			plain, generation, err := e.Open(secret, sealed)
			if err != nil || string(plain) != "hunter2hunter2" || generation != e.Generation() {
				t.Errorf("opened as %q in generation %d, %v", plain, generation, err)
			}
			for i := range sealed[len(tt.prefix):] {
				spoiled := bytes.Clone(sealed)
				spoiled[len(tt.prefix)+i] ^= 1
				if plain, _, err := e.Open(secret, spoiled); err == nil && tt.name != "aescbc" { // CBC has no seal
					t.Fatalf("byte %d was changed, and it opens as %q", i, plain)
				}
			}
			elsewhere := secret
			elsewhere.Name = "b"
			if plain, _, err := e.Open(elsewhere, sealed); err == nil && (tt.name == "aesgcm" || tt.name == "kms v2") {
				t.Errorf("it opens in another place as %q", plain)
			}
		})
	}
}

func TestWhichRuleHolds(t *testing.T) {
	e := open(t, head+
		rule("events", identityProvider)+
		rule("secrets, widgets.example.com", provider(keys("secretbox", "named")))+
		rule("'*.apps'", provider(keys("secretbox", "apps")))+
		rule("'*.'", provider(keys("secretbox", "core")))+
		rule("'*.*'", provider(keys("secretbox", "all"))))
	tests := []struct{ group, resource, want string }{
		{"", "events", ""}, {"", "secrets", "named"}, {"example.com", "widgets", "named"}, {"apps", "deployments", "apps"},
		{"", "configmaps", "core"}, {"batch", "jobs", "all"}, {"example.com", "gadgets", "all"},
	}
	for _, tt := range tests {
		t.Run(tt.resource, func(t *testing.T) {
			sealed, _, err := e.Seal(store.Key{Resource: schema.GroupResource{Group: tt.group, Resource: tt.resource}, Name: "a"}, []byte("value"))
			want := "value"
			if tt.want != "" {
				want = "k8s:enc:secretbox:v1:" + tt.want + ":"
			}
			if err != nil || !strings.HasPrefix(string(sealed), want) {
				t.Errorf("sealed as %q, %v; want %q", sealed, err, want)
			}
		})
	}
}

func TestAnotherProviderOpensWhatTheFirstWouldSealAnew(t *testing.T) {
	old := open(t, head+rule("secrets", provider(keys("aescbc", "one"))))
	sealed, _, err := old.Seal(secret, []byte("value"))
	if err != nil {
		t.Fatal(err)
	}
	next := open(t, head+rule("secrets", provider(keys("aesgcm", "two")), provider(keys("aescbc", "one")), identityProvider))
	for _, kept := range [][]byte{sealed, []byte("value")} {
		plain, generation, err := next.Open(secret, kept)
		if err != nil || string(plain) != "value" || generation != 0 {
			t.Errorf("%q opens as %q in generation %d, %v", kept, plain, generation, err)
		}
	}
	without := open(t, head+rule("secrets", provider(keys("aesgcm", "two"))))
	for _, kept := range [][]byte{sealed, []byte("value")} {
		if plain, _, err := without.Open(secret, kept); err == nil {
			t.Errorf("%q opens without its key as %q", kept, plain)
		}
	}
	if plain, _, err := open(t, head+rule("pods", identityProvider)).Open(secret, sealed); err == nil {
		t.Errorf("it opens as %q where nothing is encrypted", plain)
	}
}

func TestConfigurationIsJudged(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"a rule below a wider one", head + rule("'*.apps'", identityProvider) + rule("deployments.apps", identityProvider), "masked by earlier rule"},
		{"a key of a wrong length", head + rule("secrets", "{aesgcm: {keys: [{name: a, secret: YWJj}]}}"), "secret is not of the expected length"},
		{"a secret that is no base64", head + rule("secrets", "{secretbox: {keys: [{name: a, secret: '?'}]}}"), "secrets must be base64 encoded"},
		{"no provider", head + rule("secrets"), "Required value"},
		{"KMS v1", head + rule("secrets", "{kms: {apiVersion: v1, name: a, endpoint: 'unix:///x'}}"), "version v1 is not served"},
		{"an endpoint that is no socket", head + rule("secrets", "{kms: {apiVersion: v2, name: a, endpoint: 'tcp://x'}}"), "unsupported scheme"},
		{"a key service that is not there", head + rule("secrets", "{kms: {apiVersion: v2, name: a, endpoint: 'unix:///nowhere', timeout: 1s}}"), "kmsv2 Provider a is not healthy"},
		{"an unknown field", head + "- resource: [secrets]\n", "unknown field"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := tryOpen(t, tt.text); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("err is %v, want one about %q", err, tt.want)
			}
		})
	}
}

func configMap(name, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Data: map[string]string{"k": value}}
}

func key(name string) store.Key {
	return store.Key{Resource: storetest.ConfigMaps, Namespace: "ns", Name: name}
}

func openStore(t *testing.T, dir string, c store.Cipher) *store.Store {
	t.Helper()
	engine, err := pebble.Open(pebble.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(t.Context(), store.Config{Engine: engine, Codec: storetest.Codec{}, Cipher: c})
	if err != nil {
		engine.Close()
		t.Fatal(err)
	}
	return s
}

func put(t *testing.T, s *store.Store, value string, names ...string) {
	t.Helper()
	for _, name := range names {
		_, err := s.Update(t.Context(), func(tx *store.Tx) error {
			_, err := tx.Create(key(name), configMap(name, value))
			if errors.Is(err, store.ErrExists) {
				_, err = tx.Put(key(name), configMap(name, value))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// onDisk reports whether any file below dir holds text.
func onDisk(t *testing.T, dir, text string) (found bool) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		found = found || bytes.Contains(data, []byte(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestNothingReadableIsOnTheDisk(t *testing.T) {
	const text = "correct horse battery staple"
	for _, tt := range []struct {
		name, provider string
		readable       bool
	}{{"sealed", provider(keys("secretbox", "one")), false}, {"as it is", identityProvider, true}} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			config := head + rule("configmaps", tt.provider)
			s := openStore(t, dir, open(t, config))
			put(t, s, text, "a", "b")
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if got := onDisk(t, dir, text); got != tt.readable {
				t.Errorf("the disk holds the text: %v", got)
			}
			s = openStore(t, dir, open(t, config))
			defer s.Close()
			item, err := s.Snapshot().Get(key("a"))
			if err != nil || item.Object.(*corev1.ConfigMap).Data["k"] != text {
				t.Errorf("after a restart: %v, %v", item, err)
			}
		})
	}
}

// What is written again without a change is sealed anew when keys have changed,
// at a restart or while the server runs, and only then.
func TestRewriteSealsWithTheNewKey(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(t.TempDir(), "config")
	e := open(t, head+rule("configmaps", provider(keys("secretbox", "one"))))
	e.config.File = file
	s := openStore(t, dir, e)
	put(t, s, "value", "a", "b")
	before := s.Revision()
	put(t, s, "value", "a")
	if s.Revision() != before {
		t.Error("an unchanged object is written although its key has not changed")
	}
	if err := e.replace(t.Context(), []byte(head+rule("configmaps", provider(keys("secretbox", "two", "one"))))); err != nil {
		t.Fatal(err)
	}
	put(t, s, "value", "a") // b stays
	if s.Revision() == before {
		t.Fatal("an unchanged object is not written with the new key")
	}
	before = s.Revision()
	put(t, s, "value", "a")
	if s.Revision() != before {
		t.Error("an object that is sealed with the new key is written again")
	}
	s.Close()

	s = openStore(t, dir, open(t, head+rule("configmaps", provider(keys("secretbox", "two", "one")))))
	before = s.Revision()
	put(t, s, "value", "a")
	if s.Revision() != before {
		t.Error("after a restart an object that is sealed with the first key is written again")
	}
	put(t, s, "value", "b")
	if s.Revision() == before {
		t.Error("after a restart an object that is sealed with the second key is not written")
	}
	s.Close()
	s = openStore(t, dir, open(t, head+rule("configmaps", provider(keys("secretbox", "two"))))) // the old key can go
	defer s.Close()
	if _, err := s.Snapshot().Get(key("b")); err != nil {
		t.Error(err)
	}
}

func TestABadReloadChangesNothing(t *testing.T) {
	plugin := kmstest.Start(t)
	e := open(t, head+rule("secrets", provider(keys("secretbox", "one"))))
	plugin.Say("unwell")
	e.config.Patience = time.Nanosecond
	for _, bad := range []string{"", head, head + rule("secrets", kms("sick", plugin))} {
		generation := e.Generation()
		if err := e.replace(t.Context(), []byte(bad)); err == nil {
			t.Errorf("accepted: %s", bad)
		}
		sealed, _, err := e.Seal(secret, []byte("value"))
		if err != nil || !strings.HasPrefix(string(sealed), "k8s:enc:secretbox:v1:one:") {
			t.Errorf("sealed as %q, %v", sealed, err)
		}
		if e.Generation() != generation && !strings.Contains(bad, "kms") {
			t.Error("the generation has changed")
		}
	}
}

func TestKeyService(t *testing.T) {
	plugin := kmstest.Start(t)
	config := head + rule("configmaps", kms("vault", plugin))
	dir := t.TempDir()
	e := open(t, config)
	s := openStore(t, dir, e)
	names := make([]string, 1000)
	for i := range names {
		names[i] = fmt.Sprint("n", i)
	}
	put(t, s, "value", names...)
	if encrypts, decrypts := plugin.Calls(); encrypts != 1 || decrypts != 0 {
		t.Errorf("%d encryptions and %d decryptions for 1000 objects, want 1 and 0", encrypts, decrypts)
	}
	ctx := t.Context()
	current := e.current.Load()
	revision := s.Revision()

	plugin.EncryptAs("another") // than status names
	plugin.UseKey("key-2")
	if err := current.poll(ctx); err == nil || !strings.Contains(err.Error(), "status names key") {
		t.Errorf("a key that is not the one named: %v", err)
	}
	put(t, s, "value", names[0])
	if s.Revision() != revision {
		t.Error("a key that was not taken made objects be written")
	}
	plugin.EncryptAs("")
	if err := current.poll(ctx); err != nil {
		t.Fatal(err)
	}
	put(t, s, "value", names[0])
	if s.Revision() == revision {
		t.Error("an unchanged object is not written with the service's new key")
	}
	s.Close()

	before, _ := plugin.Calls()
	s = openStore(t, dir, open(t, config)) // with a seed of its own
	defer s.Close()
	after, decrypts := plugin.Calls()
	if after-before != 1 || decrypts > 2*8 { // goroutines that load may meet a seed at the same time
		t.Errorf("a restart takes %d encryptions and %d decryptions", after-before, decrypts)
	}
	if item, err := s.Snapshot().Get(key(names[999])); err != nil || item.Object.(*corev1.ConfigMap).Data["k"] != "value" {
		t.Errorf("after a restart: %v, %v", item, err)
	}
}

func TestHealthOfAKeyService(t *testing.T) {
	plugin := kmstest.Start(t)
	const name = "health-of-a-key-service"
	e := open(t, head+rule("secrets", kms(name, plugin)))
	checks := e.Checks()
	if len(checks) != 1 || checks[0].Name != "kms-providers" {
		t.Fatalf("checks are %v", checks)
	}
	if err := checks[0].Check(t.Context()); err != nil {
		t.Error(err)
	}
	service := e.current.Load().services[0]
	plugin.Say("tired")
	if err := service.probe(t.Context()); err == nil || !strings.Contains(err.Error(), "got unexpected healthz status: tired") {
		t.Errorf("probe: %v", err)
	}
	if err := checks[0].Check(t.Context()); err == nil {
		t.Error("the check does not tell")
	}
	if got := e.current.Load().pause(); got != failingInterval {
		t.Errorf("the next poll is after %s", got)
	}
	plugin.Stop()
	sealed, _, err := e.Seal(secret, []byte("value"))
	if err != nil {
		t.Errorf("the last key does not seal while the service is away: %v", err)
	}
	t.Cleanup(kmsv2.SetNowFuncForTests(name, func() time.Time { return time.Now().Add(sealsFor + time.Second) }))
	if _, _, err := e.Seal(secret, []byte("value")); err == nil || !strings.Contains(err.Error(), "expired") {
		t.Errorf("sealed with a key that has expired: %v", err)
	}
	if plain, _, err := e.Open(secret, sealed); err != nil || string(plain) != "value" {
		t.Errorf("reading needs no service: %q, %v", plain, err)
	}
}

// TestRunFollowsTheFile swaps providers while the store is used.
func TestRunFollowsTheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "encryption.yaml")
	write(t, file, head+rule("secrets", identityProvider))
	e, err := Open(t.Context(), Config{File: file, Reload: true, Path: func(k store.Key) string { return k.Name }})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- e.Run(ctx) }()
	write(t, file, head+rule("secrets", provider(keys("secretbox", "one"))))
	limit := time.After(20 * time.Second)
	for {
		sealed, _, err := e.Seal(secret, []byte("value"))
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(string(sealed), "k8s:enc:") {
			break
		}
		select {
		case <-limit:
			t.Fatal("the file is not followed")
		case <-time.After(time.Millisecond):
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if checks := e.Checks(); len(checks) != 1 {
		t.Errorf("checks are %v: a reload may bring key services", checks)
	}
}

func FuzzOpen(f *testing.F) {
	file := filepath.Join(f.TempDir(), "encryption.yaml")
	config := head + rule("secrets", provider(keys("aesgcm", "one")), provider(keys("aescbc", "one")), provider(keys("secretbox", "one")), identityProvider)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		f.Fatal(err)
	}
	e, err := Open(f.Context(), Config{File: file, Path: func(k store.Key) string { return k.Name }})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(e.Close)
	sealed, _, err := e.Seal(secret, []byte("value"))
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range [][]byte{sealed, []byte("k8s:enc:aescbc:v1:one:"), []byte("k8s:enc:secretbox:v1:one:xx"), []byte("k8s:enc:kms:v2:"), []byte("plain")} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		plain, _, err := e.Open(secret, data)
		if err == nil && bytes.HasPrefix(data, []byte("k8s:enc:")) && bytes.Equal(plain, data) {
			t.Errorf("sealed bytes are taken for a value: %q", data)
		}
	})
}
