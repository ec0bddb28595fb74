// Package security plays attacks on an API server over HTTP: one test for each
// class of known vulnerabilities that an API server can have.
//
//	class (example)                                          test
//	node identity too strong (CVE-2025-5187)                 TestANodeChangesOnlyWhatIsItsOwn
//	checked on update, not on create (CVE-2025-4563)         TestWhatANodeMayNotCreate
//	a node reads what is another's                           TestANodeReadsOnlyWhatItsPodsUse
//	anonymous and debugging endpoints (CVE-2019-11248)       TestStrangersSeeHealthOnly
//	identity by headers (CVE-2018-1002105, front proxy)      TestHeadersThatNameAUserAreNotBelieved
//	a policy forgets a kind of container (CVE-2023-2727/8,
//	  CVE-2024-3177)                                         TestPoliciesSeeEveryContainer
//	names that are paths (CVE-2022-3162)                     TestNamesAreNoPaths
//	proxying to the server's own host (CVE-2020-8562,
//	  CVE-2022-3294)                                         TestProxiesReachNoLocalAddress
//	traffic of other tenants (CVE-2020-8554, CVE-2021-25740) TestEndpointsNameNoLocalAddress
//	bombs of YAML, JSON and patches (CVE-2019-11253,
//	  CVE-2019-1002100)                                      TestBombsAreRefused
//	schemas and expressions without bound                    TestDefinitionsAreBounded
//	roles that grant more than their author has              TestNobodyGrantsMoreThanTheyHold
//	impersonation without the right to it                    TestImpersonationNeedsEveryPartOfIt
//	signing requests in another's name                       TestSigningRequestsTellWhoAsked
//	status and subresources by the way of the object         TestEveryWayToASubresourceIsItsOwn
//	owners in another namespace                              TestOwnersReachIntoNoOtherNamespace
//	secrets in what others read                              TestRefusalsTellNoSecret
//
// Further classes are held elsewhere: HTTP/2 floods by internal/apiserver
// (TestStreamsThatAreResetAtOnceEndTheConnection and those beside it), redirects
// by TestWhatAnExtensionServerMustNotDo there, headers to extension servers by
// TestRequestsGoToTheServerBehindAnAPIService, webhooks and subresources by
// internal/admission/webhook (TestRulesSayWhoIsAsked, TestScaleIsShownAsScale),
// paths on a host and the node agent's port by internal/kubelet and test/e2e.
package security

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"proa/pkg/proatest"
)

// patience is for one request: what is refused is refused well within it.
const patience = 30 * time.Second

type server struct {
	access   *rest.Config
	admin    *http.Client
	stranger *http.Client // without a certificate
}

func start(t *testing.T, o proatest.Options) *server {
	t.Helper()
	access := proatest.Start(t, o)
	s := &server{access: access}
	for config, into := range map[*rest.Config]**http.Client{access: &s.admin, rest.AnonymousClientConfig(access): &s.stranger} {
		c, err := rest.HTTPClientFor(config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.CloseIdleConnections)
		*into = c
	}
	return s
}

// node is how a node's name is told from a user's.
const node = "system:node:"

const stranger = "stranger"

// step is one request and what has to come of it. A user who is not named is the
// administrator.
type step struct {
	as, method, path string
	body             string // JSON unless kind says otherwise
	kind             string
	code             int
	says             string // a part of the answer
	never            string // what the answer must not have
	header           map[string]string
}

func (s *server) play(t *testing.T, steps ...step) {
	t.Helper()
	for _, st := range steps {
		code, text := s.do(t, st)
		title := fmt.Sprintf("%s: %s %s %.200s", st.as, st.method, st.path, st.body)
		if code != st.code || !strings.Contains(text, st.says) {
			t.Errorf("%s\n\twant %d %s\n\tgot  %d %.1000s", title, st.code, st.says, code, text)
		}
		if st.never != "" && strings.Contains(text, st.never) {
			t.Errorf("%s\n\tthe answer has %q: %.1000s", title, st.never, text)
		}
	}
}

func (s *server) do(t *testing.T, st step) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, st.method, s.access.Host+st.path, strings.NewReader(st.body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if st.method == http.MethodPatch {
		r.Header.Set("Content-Type", "application/merge-patch+json")
	}
	if st.kind != "" {
		r.Header.Set("Content-Type", st.kind)
	}
	client := s.admin
	switch {
	case st.as == stranger:
		client = s.stranger
	case st.as != "":
		r.Header.Set("Impersonate-User", st.as)
		r.Header.Set("Impersonate-Group", "system:authenticated")
		if strings.HasPrefix(st.as, node) {
			r.Header.Add("Impersonate-Group", "system:nodes")
		}
	}
	for name, value := range st.header {
		r.Header.Set(name, value)
	}
	resp, err := client.Do(r)
	if err != nil {
		t.Fatalf("%s %s: %v", st.method, st.path, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	if err != nil {
		t.Fatalf("%s %s: %v", st.method, st.path, err)
	}
	return resp.StatusCode, string(text)
}

// make creates objects as the administrator, at a collection's path.
func (s *server) make(t *testing.T, path string, bodies ...string) {
	t.Helper()
	for _, b := range bodies {
		s.play(t, step{method: http.MethodPost, path: path, body: b, code: http.StatusCreated})
	}
}

// grant lets a user do everything that rules, in JSON, say.
func (s *server) grant(t *testing.T, who, rules string) {
	t.Helper()
	const rbac = "/apis/rbac.authorization.k8s.io/v1"
	s.make(t, rbac+"/clusterroles", fmt.Sprintf(`{"metadata": {"name": "of-%s"}, "rules": %s}`, who, rules))
	s.make(t, rbac+"/clusterrolebindings", fmt.Sprintf(`{"metadata": {"name": "of-%s"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "of-%s"},
		"subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": %q}]}`, who, who, who))
}

func quoted(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // plain values
	}
	return string(text)
}

const (
	get, post, put, patch, remove = http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete
	forbidden, invalid, bad       = http.StatusForbidden, http.StatusUnprocessableEntity, http.StatusBadRequest
)

const core, pods, secrets = "/api/v1", "/api/v1/namespaces/default/pods", "/api/v1/namespaces/default/secrets"

// pod is one of a node, with more in its spec.
func pod(name, of, more string) string {
	return fmt.Sprintf(`{"metadata": {"name": %q}, "spec": {"nodeName": %q, "containers": [{"name": "c", "image": "i"}]%s}}`, name, of, more)
}

func mirror(name, of, more string) string {
	return strings.Replace(pod(name, of, more), `"metadata": {`, fmt.Sprintf(
		`"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}, "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": %q, "uid": "UID", "controller": true}], `, of), 1)
}

func newServer(t *testing.T, o proatest.Options) *server {
	t.Helper()
	s := start(t, o)
	s.do(t, step{method: post, path: core + "/namespaces", body: `{"metadata": {"name": "default"}}`}) // it may be there
	return s
}
