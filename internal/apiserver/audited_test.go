package apiserver

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	auditpolicy "k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/plugin/pkg/audit/buffered"
	clocktesting "k8s.io/utils/clock/testing"

	"proa/internal/apiserver/audit"
)

const auditPolicy = `
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: None, nonResourceURLs: ["/healthz*"]}
- {level: None, users: [quiet]}
- {level: Request, resources: [{resources: [secrets]}]}
- {level: RequestResponse, resources: [{resources: [configmaps]}], omitManagedFields: true}
- {level: Metadata}
`

// audited is a server that writes its trail to a file.
func audited(t *testing.T, policy string) (w *world, events func() []auditv1.Event) {
	t.Helper()
	p, err := auditpolicy.LoadPolicyFromBytes([]byte(policy))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "logs", "audit.log")
	w = newWorld(t, func(c *Config) { c.Audit = audit.Config{Policy: p, Log: audit.Log{Path: file, MaxSize: 1}} })
	return w, func() (list []auditv1.Event) {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			var e auditv1.Event
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatalf("%v in %s", err, line)
			}
			list = append(list, e)
		}
		return list
	}
}

// one is the only event of a verb and resource or path.
func one(t *testing.T, events []auditv1.Event, verb, of string) auditv1.Event {
	t.Helper()
	var found []auditv1.Event
	for _, e := range events {
		if e.Verb == verb && (e.ObjectRef != nil && e.ObjectRef.Resource == of || e.RequestURI == of) {
			found = append(found, e)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d events of %s %s among %d", len(found), verb, of, len(events))
	}
	return found[0]
}

func TestAuditEvents(t *testing.T) {
	w, events := audited(t, auditPolicy)
	core := w.client().CoreV1()
	created := w.configMap("a")
	if _, err := core.Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, StringData: map[string]string{"k": "v"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := core.ConfigMaps("default").Patch(t.Context(), "a", types.MergePatchType, []byte(`{"data":{"k":"w"}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	core.ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	core.ConfigMaps("default").Get(t.Context(), "none", metav1.GetOptions{})
	resp, _ := w.do("GET", "/version", "", "Audit-Id", "mine", "User-Agent", "tester", "X-Forwarded-For", "192.0.2.7")
	if resp.Header.Get("Audit-Id") != "mine" {
		t.Error(resp.Header)
	}
	w.do("GET", "/healthz", "")
	w.doAs("quiet", "GET", "/api")
	w.doAs("nobody", "GET", "/apis")
	w.doAs("stranger", "GET", "/openapi/v2")
	w.do("GET", "/api/v1/pods", "", "Impersonate-User", "jane", "Impersonate-Group", "devs")
	w.shutdown()
	all := events()

	e := one(t, all, "create", "configmaps")
	if e.Level != "RequestResponse" || e.Stage != "ResponseComplete" || e.User.Username != "admin" || e.ResponseStatus.Code != 201 ||
		e.ObjectRef.Name != "a" || e.ObjectRef.Namespace != "default" || e.ObjectRef.APIVersion != "v1" || len(e.SourceIPs) != 1 {
		t.Errorf("%+v", e)
	}
	var sent, answered corev1.ConfigMap
	if json.Unmarshal(e.RequestObject.Raw, &sent) != nil || sent.Kind != "ConfigMap" || sent.Data["k"] != "v" || sent.UID != "" {
		t.Errorf("request %s", e.RequestObject.Raw)
	}
	if json.Unmarshal(e.ResponseObject.Raw, &answered) != nil || answered.UID != created.UID || answered.ManagedFields != nil {
		t.Errorf("response %s", e.ResponseObject.Raw)
	}
	if e.Annotations["authorization.k8s.io/decision"] != "allow" {
		t.Error(e.Annotations)
	}
	if e := one(t, all, "create", "secrets"); e.Level != "Request" || e.RequestObject == nil || e.ResponseObject != nil {
		t.Errorf("%+v", e)
	}
	if e := one(t, all, "patch", "configmaps"); string(e.RequestObject.Raw) != `{"data":{"k":"w"}}` || !strings.Contains(string(e.ResponseObject.Raw), `"w"`) {
		t.Errorf("%s", e.RequestObject.Raw)
	}
	if e := one(t, all, "list", "configmaps"); !strings.Contains(string(e.ResponseObject.Raw), `"kind":"ConfigMapList"`) {
		t.Errorf("%s", e.ResponseObject.Raw)
	}
	if e := one(t, all, "get", "configmaps"); e.ResponseStatus.Code != 404 || e.ResponseStatus.Reason != "NotFound" || !strings.Contains(string(e.ResponseObject.Raw), `"kind":"Status"`) {
		t.Errorf("%+v %s", e.ResponseStatus, e.ResponseObject)
	}
	if e := one(t, all, "get", "/version"); e.AuditID != "mine" || e.UserAgent != "tester" || e.SourceIPs[0] != "192.0.2.7" || e.ObjectRef != nil {
		t.Errorf("%+v", e)
	}
	if e := one(t, all, "get", "/apis"); e.Annotations["authorization.k8s.io/decision"] != "forbid" || e.ResponseStatus.Code != 403 {
		t.Errorf("%+v", e)
	}
	if e := one(t, all, "get", "/openapi/v2"); e.Stage != "ResponseStarted" || e.ResponseStatus.Code != 401 || e.ResponseStatus.Message != "Authentication failed, attempted: bearer" {
		t.Errorf("%+v", e)
	}
	if e := one(t, all, "list", "pods"); e.User.Username != "admin" || e.ImpersonatedUser == nil || e.ImpersonatedUser.Username != "jane" || e.ImpersonatedUser.Groups[0] != "devs" {
		t.Errorf("%+v", e.ImpersonatedUser)
	}
	for _, e := range all {
		if e.RequestURI == "/healthz" || e.User.Username == "quiet" {
			t.Errorf("%s of %s is audited", e.RequestURI, e.User.Username)
		}
	}
}

func TestAuditStages(t *testing.T) {
	w, events := audited(t, "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata, userGroups: ['system:masters']}]\n")
	_, end := w.open("/api/v1/configmaps?watch=1", "application/json")
	end()
	w.do("GET", "/api", "")
	w.shutdown()
	stages := map[string]string{}
	for _, e := range events() {
		stages[e.RequestURI] += string(e.Stage) + " "
		if e.StageTimestamp.Before(&e.RequestReceivedTimestamp) {
			t.Errorf("%+v", e)
		}
	}
	if got := stages["/api/v1/configmaps?watch=1"]; got != "RequestReceived ResponseStarted ResponseComplete " {
		t.Error(got)
	}
	if got := stages["/api"]; got != "RequestReceived ResponseComplete " {
		t.Error(got)
	}
}

func TestAuditWebhookGetsBatches(t *testing.T) {
	var mu sync.Mutex
	var got []auditv1.Event
	batches := 0
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var list auditv1.EventList
		if err := json.Unmarshal(body, &list); err != nil || list.Kind != "EventList" || list.APIVersion != "audit.k8s.io/v1" {
			t.Errorf("%v in %s", err, body)
		}
		mu.Lock()
		defer mu.Unlock()
		got = append(got, list.Items...)
		batches++
	}))
	defer hook.Close()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	os.WriteFile(kubeconfig, fmt.Appendf(nil, `{apiVersion: v1, kind: Config, current-context: x,
clusters: [{name: x, cluster: {server: "%s"}}], contexts: [{name: x, context: {cluster: x, user: x}}], users: [{name: x, user: {}}]}`, hook.URL), 0o600)
	p, err := auditpolicy.LoadPolicyFromBytes([]byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, func(c *Config) {
		c.Audit = audit.Config{Policy: p, Webhook: audit.Webhook{Kubeconfig: kubeconfig, Delivery: audit.Delivery{
			Mode: audit.Batch, Batch: buffered.BatchConfig{BufferSize: 100, MaxBatchSize: 50, MaxBatchWait: time.Hour},
		}}}
	})
	for range 20 {
		w.do("GET", "/api", "")
	}
	w.shutdown() // sends what is left
	mu.Lock()
	defer mu.Unlock()
	if len(got) != 20 || batches != 1 {
		t.Errorf("%d events in %d batches", len(got), batches)
	}
}

// Every request for a version that will go is told so: to the client, in the audit
// trail and in the metrics.
func TestDeprecatedVersionsAreTold(t *testing.T) {
	w, events := audited(t, "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n")
	resp, _ := w.do("GET", "/api/v1/namespaces/default/endpoints", "")
	if got := resp.Header["Warning"]; len(got) != 1 || got[0] != `299 - "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"` {
		t.Error(got)
	}
	resp, _ = w.do("GET", "/api/v1/namespaces/default/configmaps", "")
	if got := resp.Header["Warning"]; len(got) != 0 {
		t.Error(got)
	}
	_, metrics := w.do("GET", "/metrics", "")
	const series = `apiserver_requested_deprecated_apis{group="",removed_release="",resource="endpoints",subresource="",version="v1"} 1`
	if !strings.Contains(metrics, series) || strings.Count(metrics, "\napiserver_requested_deprecated_apis{") != 1 {
		t.Error("the metrics do not say that Endpoints, and nothing else, were asked for")
	}
	w.shutdown()
	all := events()
	if e := one(t, all, "list", "endpoints"); e.Annotations["k8s.io/deprecated"] != "true" {
		t.Error(e.Annotations)
	}
	if e := one(t, all, "list", "configmaps"); e.Annotations["k8s.io/deprecated"] != "" || e.Annotations["apiserver.latency.k8s.io/total"] != "" {
		t.Error(e.Annotations)
	}
}

// Of a request that takes longer than half a second it is written down where the
// time went.
func TestAuditTellsWhatTookTheTime(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	g := gate{make(chan struct{}), make(chan struct{})}
	p, err := auditpolicy.LoadPolicyFromBytes([]byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "audit.log")
	w := newWorld(t, func(c *Config) {
		c.Audit = audit.Config{Policy: p, Log: audit.Log{Path: file, MaxSize: 1}}
		c.Clock, c.Authorizer = clock, authorizer.AuthorizerFunc(g.authorize)
	})
	answered := make(chan struct{})
	go func() { w.do("GET", "/version", ""); close(answered) }()
	<-g.entered
	clock.Step(time.Second)
	g.leave <- struct{}{}
	<-answered
	w.configMap("quick")
	w.shutdown()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		var e auditv1.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		total, authorization := e.Annotations["apiserver.latency.k8s.io/total"], e.Annotations["apiserver.latency.k8s.io/authorization"]
		if slow := e.RequestURI == "/version"; slow != (total == "1s") || slow != (authorization != "") {
			t.Errorf("%s: %v", e.RequestURI, e.Annotations)
		}
	}
}
