package apiserver

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// gate lets requests for /version wait within the server.
type gate struct{ entered, leave chan struct{} }

func (g gate) authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetPath() == "/version" {
		g.entered <- struct{}{}
		<-g.leave
	}
	return byName(ctx, a)
}

func TestPriorityAndFairnessOverHTTP(t *testing.T) {
	g := gate{make(chan struct{}), make(chan struct{})}
	w := newWorld(t, func(c *Config) { c.NoFairness, c.Authorizer = false, authorizer.AuthorizerFunc(g.authorize) })
	w.own("jane", "one-at-a-time")

	codes := make(chan int, 2)
	ask := func(path string) {
		resp, _ := w.doAs("jane", "GET", path)
		codes <- resp.StatusCode
	}
	go ask("/version")
	<-g.entered
	go ask("/api")
	dump := func(what, of string) string {
		_, text := w.do("GET", "/debug/api_priority_and_fairness/dump_"+what, "")
		return strings.Join(strings.Fields(lineWith(text, of)), " ")
	}
	w.until("the second waits", func() bool {
		return strings.HasPrefix(dump("priority_levels", "one-at-a-time,"), "one-at-a-time, 1, false, false, 1, 1,")
	})
	if line := dump("requests", "one-at-a-time,"); !strings.HasPrefix(line, "one-at-a-time, jane, 0, 0, jane, ") {
		t.Errorf("dump of requests: %s", line)
	}
	resp, body := w.doAs("jane", "GET", "/api")
	if resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") != "1" || resp.Header.Get("X-Kubernetes-PF-FlowSchema-UID") == "" {
		t.Errorf("%d %v", resp.StatusCode, resp.Header)
	}
	if kind := resp.Header.Get("Content-Type"); kind != "text/plain; charset=utf-8" || body != "Too many requests, please try again later.\n" {
		t.Errorf("%s: %q", kind, body)
	}
	if resp, _ := w.doAs("bob", "GET", "/api"); resp.StatusCode != http.StatusOK {
		t.Errorf("another flow gets %d", resp.StatusCode)
	}
	g.leave <- struct{}{}
	if a, b := <-codes, <-codes; a != http.StatusOK || b != http.StatusOK {
		t.Errorf("those that wait get %d, %d", a, b)
	}
	_, metrics := w.do("GET", "/metrics", "")
	for _, line := range []string{
		`apiserver_flowcontrol_rejected_requests_total{flow_schema="jane",priority_level="one-at-a-time",reason="queue-full"} 1`,
		`apiserver_flowcontrol_current_inqueue_requests{flow_schema="jane",priority_level="one-at-a-time"} 0`,
		`apiserver_flowcontrol_nominal_limit_seats{priority_level="one-at-a-time"} 0`,
		`apiserver_flowcontrol_request_wait_duration_seconds_count{execute="true",flow_schema="jane",priority_level="one-at-a-time"}`,
		`apiserver_dropped_requests_total{request_kind="readOnly"} 1`,
	} {
		if lineWith(metrics, line) == "" {
			t.Errorf("no %s", line)
		}
	}
}

// A watch takes a seat until its first state is sent: one at a time is enough for
// a level with many watches.
func TestAWatchGivesItsSeatBackOnceItHasBegun(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.NoFairness = false })
	w.own("jane", "one-at-a-time")
	w.configMap("a")
	w.config = w.as("jane")
	for _, query := range []string{"", "&resourceVersion=1", "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"} {
		resp, end := w.open("/api/v1/namespaces/default/configmaps?watch=1"+query, "application/json")
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("watch: %d", resp.StatusCode)
		}
		w.until("the watch has given back its seat", func() bool {
			resp, _ := w.doAs("jane", "GET", "/api")
			return resp.StatusCode == http.StatusOK
		})
		end()
	}
}

// own gives a user a flow schema and a level that serves one request at a time, and
// waits until the server has taken them up.
func (w *world) own(name, level string) {
	w.t.Helper()
	flow := w.client().FlowcontrolV1()
	var none int32
	if _, err := flow.PriorityLevelConfigurations().Create(w.t.Context(), &flowcontrolv1.PriorityLevelConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: level},
		Spec: flowcontrolv1.PriorityLevelConfigurationSpec{
			Type: flowcontrolv1.PriorityLevelEnablementLimited,
			Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{
				NominalConcurrencyShares: &none, BorrowingLimitPercent: &none, LimitResponse: flowcontrolv1.LimitResponse{
					Type: flowcontrolv1.LimitResponseTypeQueue, Queuing: &flowcontrolv1.QueuingConfiguration{Queues: 1, HandSize: 1, QueueLengthLimit: 1},
				},
			},
		},
	}, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
	all := []string{"*"}
	schema, err := flow.FlowSchemas().Create(w.t.Context(), &flowcontrolv1.FlowSchema{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: flowcontrolv1.FlowSchemaSpec{
			MatchingPrecedence: 2, DistinguisherMethod: &flowcontrolv1.FlowDistinguisherMethod{Type: flowcontrolv1.FlowDistinguisherMethodByUserType},
			PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: level},
			Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
				Subjects:         []flowcontrolv1.Subject{{Kind: flowcontrolv1.SubjectKindUser, User: &flowcontrolv1.UserSubject{Name: name}}},
				NonResourceRules: []flowcontrolv1.NonResourcePolicyRule{{Verbs: all, NonResourceURLs: all}},
				ResourceRules:    []flowcontrolv1.ResourcePolicyRule{{Verbs: all, APIGroups: all, Resources: all, ClusterScope: true, Namespaces: all}},
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.until("the server takes up the schema", func() bool {
		resp, _ := w.doAs(name, "GET", "/api")
		return resp.Header.Get("X-Kubernetes-PF-FlowSchema-UID") == string(schema.UID)
	})
}

// until waits for what comes soon.
func (w *world) until(what string, done func() bool) {
	w.t.Helper()
	if err := wait.PollUntilContextTimeout(w.t.Context(), time.Millisecond, 20*time.Second, true, func(context.Context) (bool, error) { return done(), nil }); err != nil {
		w.t.Fatalf("waiting until %s: %v", what, err)
	}
}

// doAs is do as another user.
func (w *world) doAs(token, method, path string) (*http.Response, string) {
	w.t.Helper()
	other := *w
	other.config = w.as(token)
	return other.do(method, path, "")
}

func lineWith(text, part string) string {
	for line := range strings.Lines(text) {
		if strings.Contains(line, part) {
			return line
		}
	}
	return ""
}
