package apiserver

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/utils/clock"
)

// grants allows what it lists, each as "verb group/resource[/subresource] name".
type grants []string

func (g grants) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	what := a.GetAPIGroup() + "/" + a.GetResource()
	if a.GetSubresource() != "" {
		what += "/" + a.GetSubresource()
	}
	if slices.Contains(g, strings.TrimSpace(a.GetVerb()+" "+what+" "+a.GetName())) {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

func (g grants) ConditionsAwareAuthorize(ctx context.Context, a authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(g.Authorize(ctx, a))
}

func (g grants) EvaluateConditions(context.Context, authorizer.ConditionsAwareDecision, authorizer.ConditionsData) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", authorizer.ErrorConditionEvaluationNotSupported
}

func TestImpersonationModes(t *testing.T) {
	agent := &user.DefaultInfo{
		Name: "system:serviceaccount:ns:agent", Groups: []string{"system:serviceaccounts"},
		Extra: map[string][]string{"authentication.kubernetes.io/node-name": {"n1"}},
	}
	bob := &user.DefaultInfo{Name: "bob"}
	const auth = "authentication.k8s.io"
	tests := []struct {
		name       string
		requestor  user.Info
		wanted     user.DefaultInfo
		granted    grants
		as         string // groups of the user that one becomes; empty: refused
		constraint string
		refusal    string // part of the error
	}{
		{"a user, as it has always been", bob, user.DefaultInfo{Name: "jane", Groups: []string{"devs"}},
			grants{"impersonate /users jane", "impersonate /groups devs"}, "devs,system:authenticated", "", ""},
		{"a user for listing pods only", bob, user.DefaultInfo{Name: "jane"},
			grants{"impersonate-on:user-info:list /pods", "impersonate:user-info " + auth + "/users jane"}, "system:authenticated", "impersonate:user-info", ""},
		{"a user for something else", bob, user.DefaultInfo{Name: "jane"},
			grants{"impersonate-on:user-info:get /pods", "impersonate:user-info " + auth + "/users jane"}, "", "", "cannot impersonate-on:user-info:list resource"},
		{"another user than granted", bob, user.DefaultInfo{Name: "joan"},
			grants{"impersonate-on:user-info:list /pods", "impersonate:user-info " + auth + "/users jane"}, "", "", `users.authentication.k8s.io "joan" is forbidden`},
		{"every part of an identity", bob, user.DefaultInfo{Name: "jane", UID: "7", Groups: []string{"devs"}, Extra: map[string][]string{"example.com/scope": {"few"}}},
			grants{"impersonate-on:user-info:list /pods", "impersonate:user-info " + auth + "/users jane", "impersonate:user-info " + auth + "/uids 7",
				"impersonate:user-info " + auth + "/groups devs", "impersonate:user-info " + auth + "/userextras/example.com/scope few"}, "devs,system:authenticated", "impersonate:user-info", ""},
		{"a group that is not granted", bob, user.DefaultInfo{Name: "jane", Groups: []string{"devs"}},
			grants{"impersonate-on:user-info:list /pods", "impersonate:user-info " + auth + "/users jane"}, "", "", `groups.authentication.k8s.io "devs" is forbidden`},
		{"all groups at once", bob, user.DefaultInfo{Name: "jane", Groups: []string{"a", "b", "c", "d"}},
			grants{"impersonate-on:user-info:list /pods", "impersonate:user-info " + auth + "/users jane", "impersonate:user-info " + auth + "/groups *"}, "a,b,c,d,system:authenticated", "impersonate:user-info", ""},
		{"masters, never", bob, user.DefaultInfo{Name: "jane", Groups: []string{"system:masters"}},
			grants{"impersonate-on:user-info:list /pods", "impersonate:user-info " + auth + "/users jane", "impersonate:user-info " + auth + "/groups system:masters"}, "", "", "impersonating the system:masters group is not allowed"},
		{"masters, as it has always been", bob, user.DefaultInfo{Name: "jane", Groups: []string{"system:masters"}},
			grants{"impersonate /users jane", "impersonate /groups system:masters"}, "system:masters,system:authenticated", "", ""},
		{"an extra key without a domain", bob, user.DefaultInfo{Name: "jane", Extra: map[string][]string{"scope": {"few"}}},
			grants{"impersonate-on:user-info:list /pods", "impersonate:user-info " + auth + "/users jane", "impersonate:user-info " + auth + "/userextras/scope few"}, "", "", "impersonating an invalid key in extra is not allowed"},
		{"a service account", bob, user.DefaultInfo{Name: "system:serviceaccount:ns:sa"},
			grants{"impersonate-on:serviceaccount:list /pods", "impersonate:serviceaccount " + auth + "/serviceaccounts sa"},
			"system:serviceaccounts,system:serviceaccounts:ns,system:authenticated", "impersonate:serviceaccount", ""},
		{"a service account is no other user", bob, user.DefaultInfo{Name: "system:serviceaccount:ns:sa"},
			grants{"impersonate-on:user-info:list /pods", "impersonate:user-info " + auth + "/serviceaccounts sa", "impersonate:user-info " + auth + "/users system:serviceaccount:ns:sa"}, "", "", "is forbidden"},
		{"any node", bob, user.DefaultInfo{Name: "system:node:n2"},
			grants{"impersonate-on:arbitrary-node:list /pods", "impersonate:arbitrary-node " + auth + "/nodes n2"}, "system:nodes,system:authenticated", "impersonate:arbitrary-node", ""},
		{"its own node", agent, user.DefaultInfo{Name: "system:node:n1"},
			grants{"impersonate-on:associated-node:list /pods", "impersonate:associated-node " + auth + "/nodes *"}, "system:nodes,system:authenticated", "impersonate:associated-node", ""},
		{"another than its own node", agent, user.DefaultInfo{Name: "system:node:n2"},
			grants{"impersonate-on:associated-node:list /pods", "impersonate:associated-node " + auth + "/nodes *"}, "", "", "is forbidden"},
		{"a node with groups", bob, user.DefaultInfo{Name: "system:node:n2", Groups: []string{"x"}},
			grants{"impersonate-on:arbitrary-node:list /pods", "impersonate:arbitrary-node " + auth + "/nodes n2", "impersonate:arbitrary-node " + auth + "/groups x"}, "", "", "is forbidden"},
		{"anonymous", bob, user.DefaultInfo{Name: "system:anonymous"},
			grants{"impersonate /users system:anonymous"}, "system:unauthenticated", "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := &Server{config: Config{Authorizer: tt.granted, Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler)}}
			modes := append(slices.Clone(constrainedImpersonation), legacyImpersonation)
			a := &authorizer.AttributesRecord{User: tt.requestor, Verb: "list", Resource: "pods", APIVersion: "v1", ResourceRequest: true}
			as, constraint, err := s.impersonate(t.Context(), modes, &tt.wanted, a)
			if tt.as == "" {
				if err == nil || !strings.Contains(err.Error(), tt.refusal) {
					t.Errorf("err is %v, want one about %q", err, tt.refusal)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(as.GetGroups(), ","); as.GetName() != tt.wanted.Name || got != tt.as || constraint != tt.constraint {
				t.Errorf("became %s in %s by %q, want groups %s by %q", as.GetName(), got, constraint, tt.as, tt.constraint)
			}
		})
	}
}
