package token

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	testclock "k8s.io/utils/clock/testing"

	"proa/internal/auth/authtest"
	"proa/internal/store"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

var key = func() *ecdsa.PrivateKey {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	return k
}()

func meta(ns, name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: ns, Name: name} }

func account() *corev1.ServiceAccount { return &corev1.ServiceAccount{ObjectMeta: meta("ns", "sa")} }

func pod(node string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: meta("ns", "pod"), Spec: corev1.PodSpec{ServiceAccountName: "sa", NodeName: node}}
}

func node() *corev1.Node { return &corev1.Node{ObjectMeta: meta("", "n1")} }

type world struct {
	*Service
	store *store.Store
	clock *testclock.FakePassiveClock
}

func newWorld(t testing.TB, c Config, objects ...store.Object) world {
	t.Helper()
	w := world{store: authtest.Open(t, objects...), clock: testclock.NewFakePassiveClock(start)}
	c.Store, c.Clock = w.store, w.clock
	if c.Key == nil {
		c.Key = key
	}
	var err error
	if w.Service, err = New(c); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w world) request(t testing.TB, spec authenticationv1.TokenRequestSpec) *authenticationv1.TokenRequest {
	t.Helper()
	r, err := w.Request(t.Context(), "ns", "sa", &authenticationv1.TokenRequest{Spec: spec})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func toPod() *authenticationv1.BoundObjectReference {
	return &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: "pod", UID: "pod"}
}

func TestABoundTokenTellsWhoItIs(t *testing.T) {
	w := newWorld(t, Config{}, account(), pod("n1"), node())
	r := w.request(t, authenticationv1.TokenRequestSpec{BoundObjectRef: toPod()})
	if want := start.Add(time.Hour); !r.Status.ExpirationTimestamp.Time.Equal(want) {
		t.Errorf("expires %v, want %v", r.Status.ExpirationTimestamp, want)
	}
	for range 2 { // the second time from the remembered signature
		got, ok, err := w.AuthenticateToken(t.Context(), r.Status.Token)
		if !ok || err != nil {
			t.Fatalf("authenticate: %v %v", ok, err)
		}
		if got.User.GetName() != "system:serviceaccount:ns:sa" || got.User.GetUID() != "sa" {
			t.Errorf("user %v", got.User)
		}
		if g := strings.Join(got.User.GetGroups(), " "); g != "system:serviceaccounts system:serviceaccounts:ns" {
			t.Errorf("groups %s", g)
		}
		extra := got.User.GetExtra()
		for k, want := range map[string]string{"pod-name": "pod", "pod-uid": "pod", "node-name": "n1", "node-uid": "n1"} {
			if v := extra["authentication.kubernetes.io/"+k]; len(v) != 1 || v[0] != want {
				t.Errorf("extra %s is %v, want %s", k, v, want)
			}
		}
		if id := extra["authentication.kubernetes.io/credential-id"]; len(id) != 1 || !strings.HasPrefix(id[0], "JTI=") {
			t.Errorf("credential id %v", id)
		}
		if len(got.Audiences) != 1 || got.Audiences[0] != DefaultIssuer {
			t.Errorf("audiences %v", got.Audiences)
		}
	}
}

func TestATokenEndsWithWhatItIsBoundTo(t *testing.T) {
	deleting := func(o store.Object, at time.Time) store.Object {
		o.SetUID("pod")
		o.SetDeletionTimestamp(&metav1.Time{Time: at})
		return o
	}
	recreated := pod("n1")
	recreated.UID = "other"
	tests := []struct {
		name   string
		spec   authenticationv1.TokenRequestSpec
		change func(t *testing.T, w world)
		want   string // error; "" for still good
	}{
		{"nothing changed", authenticationv1.TokenRequestSpec{BoundObjectRef: toPod()}, func(*testing.T, world) {}, ""},
		{"pod deleted", authenticationv1.TokenRequestSpec{BoundObjectRef: toPod()},
			func(t *testing.T, w world) { authtest.Delete(t, w.store, pod("")) }, "service account token has been invalidated"},
		{"pod made again", authenticationv1.TokenRequestSpec{BoundObjectRef: toPod()},
			func(t *testing.T, w world) { authtest.Put(t, w.store, recreated) }, "pod UID (other) does not match service account pod ref claim (pod)"},
		{"pod due for a minute", authenticationv1.TokenRequestSpec{BoundObjectRef: toPod()},
			func(t *testing.T, w world) { authtest.Put(t, w.store, deleting(pod("n1"), start.Add(-time.Minute))) }, ""},
		{"pod due for longer", authenticationv1.TokenRequestSpec{BoundObjectRef: toPod()},
			func(t *testing.T, w world) { authtest.Put(t, w.store, deleting(pod("n1"), start.Add(-61*time.Second))) }, "service account token has been invalidated"},
		{"node of the pod deleted", authenticationv1.TokenRequestSpec{BoundObjectRef: toPod()},
			func(t *testing.T, w world) { authtest.Delete(t, w.store, node()) }, ""},
		{"bound node deleted", authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Node", Name: "n1"}},
			func(t *testing.T, w world) { authtest.Delete(t, w.store, node()) }, "service account token has been invalidated"},
		{"bound secret deleted", authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Secret", Name: "secret"}},
			func(t *testing.T, w world) {
				authtest.Delete(t, w.store, &corev1.Secret{ObjectMeta: meta("ns", "secret")})
			}, "service account token has been invalidated"},
		{"account deleted", authenticationv1.TokenRequestSpec{},
			func(t *testing.T, w world) { authtest.Delete(t, w.store, account()) }, "service account ns/sa: not found"},
		{"account made again", authenticationv1.TokenRequestSpec{},
			func(t *testing.T, w world) {
				sa := account()
				sa.UID = "other"
				authtest.Put(t, w.store, sa)
			}, "service account UID (other) does not match claim (sa)"},
		{"an hour passed", authenticationv1.TokenRequestSpec{},
			func(t *testing.T, w world) { w.clock.SetTime(start.Add(time.Hour + 2*time.Minute)) }, "service account token has expired"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, Config{}, account(), pod("n1"), node(), &corev1.Secret{ObjectMeta: meta("ns", "secret")})
			token := w.request(t, tt.spec).Status.Token
			if _, ok, err := w.AuthenticateToken(t.Context(), token); !ok {
				t.Fatalf("refused before the change: %v", err)
			}
			tt.change(t, w)
			_, ok, err := w.AuthenticateToken(t.Context(), token)
			if ok != (tt.want == "") || err != nil && err.Error() != tt.want || err == nil && tt.want != "" {
				t.Errorf("got %v %v, want %q", ok, err, tt.want)
			}
		})
	}
}

func TestAudiencesMustMeet(t *testing.T) {
	w := newWorld(t, Config{}, account())
	token := w.request(t, authenticationv1.TokenRequestSpec{Audiences: []string{"vault"}}).Status.Token
	if _, ok, err := w.AuthenticateToken(t.Context(), token); ok || err == nil {
		t.Error("the server took a token meant for vault")
	}
	ctx := authenticator.WithAudiences(t.Context(), authenticator.Audiences{"vault", "other"})
	got, ok, err := w.AuthenticateToken(ctx, token)
	if !ok || len(got.Audiences) != 1 || got.Audiences[0] != "vault" {
		t.Errorf("got %v %v %v", got, ok, err)
	}
}

func TestOnlyOwnKeysAreTrusted(t *testing.T) {
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	foreign := newWorld(t, Config{Key: other}, account())
	token := foreign.request(t, authenticationv1.TokenRequestSpec{}).Status.Token

	if _, ok, err := newWorld(t, Config{}, account()).AuthenticateToken(t.Context(), token); ok || err == nil {
		t.Error("took a token signed by an unknown key")
	}
	rotated := newWorld(t, Config{VerificationKeys: []crypto.PublicKey{other.Public()}}, account())
	if _, ok, err := rotated.AuthenticateToken(t.Context(), token); !ok {
		t.Errorf("refused a token of an old key: %v", err)
	}
	elsewhere := newWorld(t, Config{Issuers: []string{"https://elsewhere"}}, account())
	if _, ok, err := elsewhere.AuthenticateToken(t.Context(), token); ok || err != nil {
		t.Errorf("another issuer's token: %v %v, want no opinion", ok, err)
	}
}

func TestRSAKeysSignToo(t *testing.T) {
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, Config{Key: k}, account())
	if _, ok, err := w.AuthenticateToken(t.Context(), w.request(t, authenticationv1.TokenRequestSpec{}).Status.Token); !ok {
		t.Error(err)
	}
	var set struct{ Keys []map[string]any }
	keys, _ := w.JWKS()
	if err := json.Unmarshal(keys, &set); err != nil {
		t.Fatal(err)
	}
	if len(set.Keys) != 1 || set.Keys[0]["alg"] != "RS256" || set.Keys[0]["d"] != nil {
		t.Errorf("keys %v", set.Keys)
	}
	if document, _ := w.Discovery(); !strings.Contains(string(document), `"jwks_uri":"https://kubernetes.default.svc.cluster.local/openid/v1/jwks"`) {
		t.Errorf("discovery %s", document)
	}
}

func seconds(n int64) *int64 { return &n }

func TestTokenRequestsAreChecked(t *testing.T) {
	tests := []struct {
		name string
		req  authenticationv1.TokenRequest
		want string
	}{
		{"too short", authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: seconds(599)}},
			`TokenRequest.authentication.k8s.io "" is invalid: spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 10 minutes`},
		{"too long", authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: seconds(1<<32 + 1)}},
			`TokenRequest.authentication.k8s.io "" is invalid: spec.expirationSeconds: Invalid value: 4294967297: may not specify a duration larger than 2^32 seconds`},
		{"another name", authenticationv1.TokenRequest{ObjectMeta: meta("", "x")},
			`TokenRequest.authentication.k8s.io "sa" is invalid: metadata.name: Invalid value: "x": must match the service account name if specified`},
		{"unknown kind", authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Service", Name: "x"}}},
			`cannot bind token to object of type /v1, Kind=Service`},
		{"missing pod", authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: "x"}}},
			`pods "x" not found`},
		{"another pod's uid", authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: "pod", UID: "old"}}},
			`Operation cannot be fulfilled on Pod "pod": the UID in the bound object reference (old) does not match the UID in record. The object might have been deleted and then recreated`},
		{"pod of another account", authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: "foreign"}}},
			`cannot bind token for serviceaccount "sa" to pod running with different serviceaccount name.`},
	}
	foreign := &corev1.Pod{ObjectMeta: meta("ns", "foreign"), Spec: corev1.PodSpec{ServiceAccountName: "other"}}
	w := newWorld(t, Config{}, account(), pod("n1"), foreign)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := w.Request(t.Context(), "ns", "sa", &tt.req)
			if err == nil || err.Error() != tt.want {
				t.Errorf("got %v, want %s", err, tt.want)
			}
		})
	}
	if _, err := w.Request(t.Context(), "ns", "missing", &authenticationv1.TokenRequest{}); !apierrors.IsNotFound(err) {
		t.Errorf("missing account: %v", err)
	}
}

func TestProjectedTokensOutliveTheirRequest(t *testing.T) {
	w := newWorld(t, Config{}, account(), pod("n1"), node())
	r := w.request(t, authenticationv1.TokenRequestSpec{BoundObjectRef: toPod(), ExpirationSeconds: seconds(3607)})
	if want := start.Add(3607 * time.Second); !r.Status.ExpirationTimestamp.Time.Equal(want) {
		t.Errorf("reported end %v, want %v", r.Status.ExpirationTimestamp, want)
	}
	w.clock.SetTime(start.Add(30 * 24 * time.Hour))
	if _, ok, err := w.AuthenticateToken(t.Context(), r.Status.Token); !ok {
		t.Errorf("refused after a month: %v", err)
	}
}

func TestLifetimesAreCapped(t *testing.T) {
	w := newWorld(t, Config{MaxLife: time.Hour}, account())
	r := w.request(t, authenticationv1.TokenRequestSpec{ExpirationSeconds: seconds(7200)})
	if *r.Spec.ExpirationSeconds != 3600 {
		t.Errorf("granted %d seconds", *r.Spec.ExpirationSeconds)
	}
}

func TestTokensInSecrets(t *testing.T) {
	secret := &corev1.Secret{ObjectMeta: meta("ns", "legacy"), Type: corev1.SecretTypeServiceAccountToken}
	w := newWorld(t, Config{}, account())
	sa := account()
	sa.UID = "sa"
	token, err := w.Legacy(sa, secret)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok, err := w.AuthenticateToken(t.Context(), token); ok || err == nil {
		t.Error("took a token without its secret")
	}
	secret.Data = map[string][]byte{"token": []byte(token)}
	authtest.Put(t, w.store, secret)
	got, ok, err := w.AuthenticateToken(t.Context(), token)
	if !ok || got.User.GetName() != "system:serviceaccount:ns:sa" {
		t.Fatalf("%v %v", got, err)
	}
	item, err := w.store.Get(authtest.Key(t, secret))
	if err != nil {
		t.Fatal(err)
	}
	if day := item.Object.GetLabels()[lastUsedLabel]; day != "2026-01-02" {
		t.Errorf("last used %q", day)
	}
	secret.Labels = map[string]string{invalidSinceLabel: "2026-01-01"}
	authtest.Put(t, w.store, secret)
	if _, ok, err := w.AuthenticateToken(t.Context(), token); ok || err == nil {
		t.Error("took a token marked invalid")
	}
}

func FuzzAuthenticateToken(f *testing.F) {
	w := newWorld(f, Config{}, account())
	good, err := w.Request(f.Context(), "ns", "sa", &authenticationv1.TokenRequest{})
	if err != nil {
		f.Fatal(err)
	}
	valid := good.Status.Token
	head, rest, _ := strings.Cut(valid, ".")
	f.Add(valid)
	f.Add("..")
	f.Add("eyJhbGciOiJub25lIn0." + rest)
	f.Add(head + ".e30.")
	f.Fuzz(func(t *testing.T, token string) {
		_, ok, _ := w.AuthenticateToken(context.Background(), token)
		if ok && token != valid && !sameToken(token, valid) {
			t.Errorf("took %q", token)
		}
	})
}

// sameToken reports whether two spellings carry the same signed content:
// base64 leaves the last bits of a part unused.
func sameToken(a, b string) bool {
	return strings.HasPrefix(a, b[:strings.LastIndex(b, ".")+1])
}
