package identity

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// connection is one of its own that bears a token.
func (s *server) connection(t *testing.T, token string) func(path string) (*http.Response, error) {
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	t.Cleanup(transport.CloseIdleConnections)
	return func(path string) (*http.Response, error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d%s", s.port, path), nil)
		if err != nil {
			return nil, err
		}
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := transport.RoundTrip(req)
		if err != nil {
			return nil, err
		}
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		return resp, err
	}
}

// narrow makes a level of one seat for the users of a group, a flow for each user.
func (s *server) narrow(t *testing.T, group string) {
	t.Helper()
	flow := s.admin(t).FlowcontrolV1()
	if _, err := flow.PriorityLevelConfigurations().Create(t.Context(), &flowcontrolv1.PriorityLevelConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "narrow"},
		Spec: flowcontrolv1.PriorityLevelConfigurationSpec{Type: flowcontrolv1.PriorityLevelEnablementLimited, Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{
			NominalConcurrencyShares: ptr.To[int32](1), BorrowingLimitPercent: ptr.To[int32](0),
			LimitResponse: flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeQueue, Queuing: &flowcontrolv1.QueuingConfiguration{Queues: 64, HandSize: 6, QueueLengthLimit: 4}},
		}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := flow.FlowSchemas().Create(t.Context(), &flowcontrolv1.FlowSchema{
		ObjectMeta: metav1.ObjectMeta{Name: "readers"},
		Spec: flowcontrolv1.FlowSchemaSpec{
			PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: "narrow"}, MatchingPrecedence: 100,
			DistinguisherMethod: &flowcontrolv1.FlowDistinguisherMethod{Type: flowcontrolv1.FlowDistinguisherMethodByUserType},
			Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
				Subjects: []flowcontrolv1.Subject{{Kind: flowcontrolv1.SubjectKindGroup, Group: &flowcontrolv1.GroupSubject{Name: group}}},
				ResourceRules: []flowcontrolv1.ResourcePolicyRule{{
					Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}, Namespaces: []string{"*"}, ClusterScope: true,
				}},
			}},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// One user asks for long lists on 64 connections as fast as it can; another of the
// same level asks now and then, and is always answered. What is too much for the
// first one's queues is refused and counted.
func TestAFloodOfOneUserLeavesRoomForAnother(t *testing.T) {
	t.Parallel()
	s := start(t, "--max-requests-inflight=20", "--max-mutating-requests-inflight=10",
		"--token-auth-file", file(t, "tokens.csv", "flood,fay,1,readers\npolite,pat,2,readers\n"))
	if _, err := s.admin(t).RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "readers"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "readers"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		if _, err := s.admin(t).CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("c", i)}, Data: map[string]string{"k": strings.Repeat("x", 20_000)},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	s.narrow(t, "readers")
	polite := s.connection(t, "polite")
	eventually(t, func() error {
		resp, err := polite("/api/v1/namespaces/default/configmaps/c0")
		if err == nil && (resp.StatusCode != http.StatusOK || resp.Header.Get("X-Kubernetes-PF-FlowSchema-UID") == "" || s.metrics(t, `apiserver_flowcontrol_dispatched_requests_total{flow_schema="readers"`) == "") {
			err = fmt.Errorf("%s, and the schema is not in force", resp.Status)
		}
		return err
	})

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var flood sync.WaitGroup
	var mu sync.Mutex
	refused, wrong := 0, map[string]int{}
	for range 64 {
		ask := s.connection(t, "flood")
		flood.Go(func() {
			for ctx.Err() == nil {
				resp, err := ask("/api/v1/namespaces/default/configmaps")
				mu.Lock()
				switch {
				case err != nil:
					wrong[err.Error()]++
				case resp.StatusCode == http.StatusTooManyRequests && resp.Header.Get("Retry-After") != "":
					refused++
				case resp.StatusCode != http.StatusOK:
					wrong[resp.Status]++
				}
				mu.Unlock()
			}
		})
	}
	running := func() string {
		text, err := s.admin(t).Discovery().RESTClient().Get().AbsPath("/debug/api_priority_and_fairness/dump_requests").Param("includeRequestDetails", "1").DoRaw(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if f := strings.Split(strings.Join(strings.Fields(line), ""), ","); len(f) == 18 && f[0] == "narrow" && f[3] == "-1" {
				return strings.Join([]string{f[1], f[4], f[10], f[11], f[16]}, " ")
			}
		}
		return ""
	}
	eventually(t, func() error {
		got := running()
		mu.Lock()
		defer mu.Unlock()
		if refused < 100 || got != "readers fay fay list configmaps" {
			return fmt.Errorf("%d are refused, the dump shows %q", refused, got)
		}
		return nil
	})
	for range 30 {
		if resp, err := polite("/api/v1/namespaces/default/configmaps/c0"); err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("the polite one gets %v, %v", resp, err)
		}
	}
	stop()
	flood.Wait()
	if len(wrong) > 0 {
		t.Errorf("the flood got %v", wrong)
	}
	for _, name := range []string{
		`apiserver_flowcontrol_rejected_requests_total{flow_schema="readers",priority_level="narrow",reason="queue-full"}`,
		`apiserver_flowcontrol_priority_level_request_utilization_bucket{phase="waiting",priority_level="narrow",le="0.1"}`,
		`apiserver_flowcontrol_priority_level_request_utilization_sum{phase="executing",priority_level="narrow"}`,
		`apiserver_flowcontrol_priority_level_seat_utilization_bucket{phase="executing",priority_level="narrow",le="0.99"}`,
		`apiserver_flowcontrol_read_vs_write_current_requests_bucket{phase="executing",request_kind="mutating",le="0"}`,
		`apiserver_flowcontrol_read_vs_write_current_requests_sum{phase="waiting",request_kind="readOnly"}`,
	} {
		if line := s.metrics(t, name); line == "" || strings.HasSuffix(line, " 0\n") {
			t.Errorf("%s: %q", name, line)
		}
	}
}
