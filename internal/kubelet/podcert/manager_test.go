package podcert

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"

	"proa/internal/apis/builtin"
	"proa/internal/apiserver/registry"
	"proa/internal/client"
	"proa/internal/store"
	"proa/internal/store/memory"
)

// world is a Manager before an API, whose signer the test plays.
type world struct {
	*Manager
	t        *testing.T
	clock    *clocktesting.FakeClock
	pod      *corev1.Pod
	requests client.Resource[*certificatesv1.PodCertificateRequest]
	events   chan string
	changed  chan types.UID
	ca       *ecdsa.PrivateKey
}

func newWorld(t *testing.T) *world {
	catalogue := builtin.Catalogue()
	s, err := store.Open(t.Context(), store.Config{Engine: memory.New(), Codec: registry.NewCodec(catalogue)})
	if err != nil {
		t.Fatal(err)
	}
	r, err := registry.New(registry.Config{Store: s, Catalogue: catalogue})
	if err == nil {
		err = r.Bootstrap(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	api := r.As(&user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}})
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "sa"}}
	if _, err := client.Of[*corev1.ServiceAccount](api).Create(t.Context(), account); err != nil {
		t.Fatal(err)
	}
	recorder := record.NewFakeRecorder(10)
	w := &world{t: t, clock: clocktesting.NewFakeClock(time.Now().Truncate(time.Second)), requests: client.Of[*certificatesv1.PodCertificateRequest](api), events: recorder.Events, changed: make(chan types.UID, 10)}
	w.pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "u1"}}
	w.pod.Spec.ServiceAccountName = "sa"
	w.pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{PodCertificate: &corev1.PodCertificateProjection{SignerName: "example.com/s", KeyType: "ECDSAP256", CredentialBundlePath: "a"}},
	}}}}}
	w.Manager = New(Config{
		API: api, NodeName: "n1", Recorder: recorder, Clock: w.clock, Jitter: func() time.Duration { return 0 },
		Node:    func() (*corev1.Node, error) { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{UID: "n-uid"}}, nil },
		Changed: func(uid types.UID) { w.changed <- uid },
	})
	if w.ca, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
		s.Close()
	})
	return w
}

// asked lets time pass until there is a request that has no answer.
func (w *world) asked() *certificatesv1.PodCertificateRequest {
	w.t.Helper()
	for ; ; w.pass() {
		list, err := w.requests.List(w.t.Context(), "default", metav1.ListOptions{})
		if err != nil {
			w.t.Fatal(err)
		}
		for _, r := range list {
			if len(r.Status.Conditions) == 0 {
				return r
			}
		}
	}
}

// pass lets a minute pass, and the Manager see it.
func (w *world) pass() {
	w.clock.Step(time.Minute)
	time.Sleep(time.Millisecond)
}

// event lets time pass until the next event.
func (w *world) event() string {
	for ; ; w.pass() {
		select {
		case e := <-w.events:
			return e
		default:
		}
	}
}

func (w *world) end(r *certificatesv1.PodCertificateRequest, condition string) {
	w.t.Helper()
	r = r.DeepCopy()
	r.Status.Conditions = []metav1.Condition{{Type: condition, Status: metav1.ConditionTrue, Reason: "Why", Message: "because", LastTransitionTime: metav1.Now()}}
	if condition == certificatesv1.PodCertificateRequestConditionTypeIssued {
		stub, err := x509.ParseCertificateRequest(r.Spec.StubPKCS10Request)
		if err != nil {
			w.t.Fatal(err)
		}
		begin := w.clock.Now()
		template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: begin, NotAfter: begin.Add(time.Hour)}
		der, err := x509.CreateCertificate(rand.Reader, template, template, stub.PublicKey, w.ca)
		if err != nil {
			w.t.Fatal(err)
		}
		r.Status.CertificateChain = "stray\n" + string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
		at := func(d time.Duration) *metav1.Time { return &metav1.Time{Time: begin.Add(d)} }
		r.Status.NotBefore, r.Status.BeginRefreshAt, r.Status.NotAfter = at(0), at(30*time.Minute), at(time.Hour)
	}
	if _, err := w.requests.UpdateStatus(w.t.Context(), r); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) credential() string {
	key, chain, err := w.Credential(w.pod, "v", 0)
	if err != nil {
		return err.Error()
	}
	return string(key) + string(chain)
}

func TestACertificateIsRenewedWhenItsSignerSaid(t *testing.T) {
	w := newWorld(t)
	w.Track(w.pod)
	first := w.asked()
	if got := w.credential(); got != "credential bundle is not issued yet" {
		t.Errorf("before it is issued: %s", got)
	}
	w.end(first, certificatesv1.PodCertificateRequestConditionTypeIssued)
	if uid := <-w.changed; uid != "u1" {
		t.Errorf("the change is of %s", uid)
	}
	old := w.credential()
	if !strings.HasPrefix(old, "-----BEGIN PRIVATE KEY-----") || strings.Contains(old, "stray") {
		t.Errorf("issued: %s", old)
	}
	issued := w.clock.Now()
	second := w.asked()
	if age := w.clock.Since(issued); age < 25*time.Minute {
		t.Errorf("renewed after %s", age)
	}
	if w.credential() != old {
		t.Error("the pod lost its certificate while the next was asked for")
	}
	for _, want := range []string{"CertificateOverdueForRefresh", "CertificateExpired"} {
		if e := w.event(); !strings.Contains(e, want) {
			t.Errorf("event %s, want %s", e, want)
		}
	}
	w.end(second, certificatesv1.PodCertificateRequestConditionTypeIssued)
	<-w.changed
	if now := w.credential(); now == old || !strings.HasPrefix(now, "-----BEGIN PRIVATE KEY-----") {
		t.Errorf("after the renewal: %s", now)
	}
	w.Forget("u1")
	if got := w.credential(); got != "credential bundle is not issued yet" {
		t.Errorf("of a pod that has gone: %s", got)
	}
}

func TestADenialIsFinal(t *testing.T) {
	for condition, word := range map[string]string{"Denied": "was denied", "Failed": "failed"} {
		w := newWorld(t)
		w.Track(w.pod)
		w.end(w.asked(), condition)
		<-w.changed
		if e := <-w.events; !strings.HasPrefix(e, "Warning "+condition+" PodCertificateRequest default/req-") || !strings.HasSuffix(e, word+`, reason="Why", message="because"`) {
			t.Errorf("event %s", e)
		}
		if got := w.credential(); !strings.HasPrefix(got, "PodCertificateRequest was permanently "+strings.ToLower(condition)) {
			t.Errorf("%s: %s", condition, got)
		}
		if n := w.count()[[2]string{"example.com/s", strings.ToLower(condition)}]; n != 1 {
			t.Errorf("counted: %v", w.count())
		}
	}
}

func TestADeletedRequestIsMadeAnew(t *testing.T) {
	w := newWorld(t)
	w.Track(w.pod)
	first := w.asked()
	if _, err := w.requests.Delete(t.Context(), "default", first.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if second := w.asked(); second.Name == first.Name {
		t.Error("the request is still there")
	}
}

func TestKeysAreOfTheTypeAskedFor(t *testing.T) {
	for kind := range keyTypes {
		key, stub, err := newKey(kind)
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(key)
		if _, err := x509.ParsePKCS8PrivateKey(block.Bytes); err != nil {
			t.Fatal(err)
		}
		request, err := x509.ParseCertificateRequest(stub)
		if err != nil {
			t.Fatal(err)
		}
		if err := request.CheckSignature(); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
	if _, _, err := newKey("DSA"); err == nil {
		t.Error("a key of an unknown type is made")
	}
}
