// Package abac is attribute-based access control: a file with one policy in each
// line, each of which allows something to someone. The file is read once, when the
// server starts, as upstream reads it.
package abac

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// Policy allows what all of its fields fit; "*" fits anything.
type Policy struct {
	User            string `json:"user"`
	Group           string `json:"group"`
	Readonly        bool   `json:"readonly"`
	APIGroup        string `json:"apiGroup"`
	Resource        string `json:"resource"`
	Namespace       string `json:"namespace"`
	NonResourcePath string `json:"nonResourcePath"` // may end in "*"
}

// Authorizer allows what one of its policies allows.
type Authorizer []Policy

// Open reads a policy file. Empty lines and those that begin with # mean nothing.
func Open(path string) (Authorizer, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var policies Authorizer
	lines := bufio.NewScanner(file)
	for n := 1; lines.Scan(); n++ {
		text := strings.TrimSpace(lines.Text())
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		p, err := parse([]byte(text))
		if err != nil {
			return nil, fmt.Errorf("error reading policy file %s, line %d: %s: %w", path, n, text, err)
		}
		policies = append(policies, p)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("error reading policy file %s: %w", path, err)
	}
	return policies, nil
}

const group = "abac.authorization.kubernetes.io"

func parse(line []byte) (Policy, error) {
	var versioned struct {
		APIVersion string  `json:"apiVersion"`
		Kind       string  `json:"kind"`
		Spec       *Policy `json:"spec"`
	}
	if err := json.Unmarshal(line, &versioned); err != nil {
		return Policy{}, err
	}
	switch {
	case versioned.APIVersion == "" && versioned.Kind == "":
		var p Policy
		err := json.Unmarshal(line, &p)
		return unversioned(p), err
	case versioned.APIVersion != group+"/v1beta1" && versioned.APIVersion != group+"/v0" || versioned.Kind != "Policy":
		return Policy{}, fmt.Errorf("no kind %q is registered for version %q", versioned.Kind, versioned.APIVersion)
	case versioned.APIVersion == group+"/v0":
		var p Policy
		err := json.Unmarshal(line, &p)
		return unversioned(p), err
	case versioned.Spec == nil:
		return Policy{}, nil // fits nobody
	}
	return everyone(*versioned.Spec), nil
}

// everyone makes "*" the group of all who are known: nobody meant strangers.
func everyone(p Policy) Policy {
	if p.User == "*" || p.Group == "*" {
		p.User, p.Group = "", user.AllAuthenticated
	}
	return p
}

// unversioned fills in what a line meant before policies had versions: nothing said
// was anything allowed.
func unversioned(p Policy) Policy {
	if p.User == "" && p.Group == "" {
		p.Group = user.AllAuthenticated
	}
	p.APIGroup, p.NonResourcePath = "*", ""
	if p.Namespace == "" && p.Resource == "" {
		p.NonResourcePath = "*"
	}
	if p.Namespace == "" {
		p.Namespace = "*"
	}
	if p.Resource == "" {
		p.Resource = "*"
	}
	return everyone(p)
}

// Authorize implements authorizer.Authorizer.
func (a Authorizer) Authorize(_ context.Context, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	for i := range a {
		if a[i].fits(attrs) {
			return authorizer.DecisionAllow, "", nil
		}
	}
	return authorizer.DecisionNoOpinion, "No policy matched.", nil
}

// ConditionsAwareAuthorize implements authorizer.Authorizer; decisions have no conditions.
func (a Authorizer) ConditionsAwareAuthorize(ctx context.Context, attrs authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(a.Authorize(ctx, attrs))
}

// EvaluateConditions implements authorizer.Authorizer; there are none to evaluate.
func (a Authorizer) EvaluateConditions(context.Context, authorizer.ConditionsAwareDecision, authorizer.ConditionsData) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", authorizer.ErrorConditionEvaluationNotSupported
}

func (p *Policy) fits(a authorizer.Attributes) bool {
	if !p.isFor(a.GetUser()) || p.Readonly && !a.IsReadOnly() {
		return false
	}
	if !a.IsResourceRequest() {
		return p.fitsPath(a.GetPath())
	}
	return is(p.Namespace, a.GetNamespace()) && is(p.Resource, a.GetResource()) && is(p.APIGroup, a.GetAPIGroup())
}

func is(pattern, value string) bool { return pattern == "*" || pattern == value }

func (p *Policy) isFor(u user.Info) bool {
	if u == nil || p.User == "" && p.Group == "" {
		return false
	}
	return (p.User == "" || p.User == u.GetName()) && (p.Group == "" || slices.Contains(u.GetGroups(), p.Group))
}

func (p *Policy) fitsPath(path string) bool {
	prefix, open := strings.CutSuffix(p.NonResourcePath, "*")
	return p.NonResourcePath != "" && (path == p.NonResourcePath || open && strings.HasPrefix(path, prefix))
}

// RulesFor implements authorizer.RuleResolver.
func (a Authorizer) RulesFor(_ context.Context, u user.Info, namespace string) (resources []authorizer.ResourceRuleInfo, paths []authorizer.NonResourceRuleInfo, incomplete bool, err error) {
	for i := range a {
		p := &a[i]
		if !p.isFor(u) {
			continue
		}
		verbs := []string{"*"}
		if p.Readonly {
			verbs = []string{"get", "list", "watch"}
		}
		if is(p.Namespace, namespace) {
			resources = append(resources, &authorizer.DefaultResourceRuleInfo{Verbs: verbs, APIGroups: []string{p.APIGroup}, Resources: []string{p.Resource}})
		}
		if p.NonResourcePath != "" {
			paths = append(paths, &authorizer.DefaultNonResourceRuleInfo{Verbs: verbs, NonResourceURLs: []string{p.NonResourcePath}})
		}
	}
	return resources, paths, false, nil
}
