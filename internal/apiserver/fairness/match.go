package fairness

import (
	"slices"
	"strings"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"proa/internal/apiserver/request"
)

// table is one configuration. It is replaced, never changed.
type table struct {
	schemas  []*flowSchema // by precedence
	catchAll *flowSchema
}

// flowSchema is a FlowSchema made ready for matching, and where its requests go.
type flowSchema struct {
	name     string
	rules    []flowcontrolv1.PolicyRulesWithSubjects
	method   flowcontrolv1.FlowDistinguisherMethodType // empty: one flow
	seed     uint64
	level    *level
	maxSeats int         // that one request may take
	header   [2][]string // of responses: the UIDs of schema and level
	tally    *tally
}

func (s *flowSchema) class(u user.Info, info *request.Info) Class {
	c := Class{schema: s, flow: s.seed}
	switch s.method {
	case flowcontrolv1.FlowDistinguisherMethodByUserType:
		c.by = u.GetName()
	case flowcontrolv1.FlowDistinguisherMethodByNamespaceType:
		c.by = info.Namespace
	default:
		return c
	}
	c.flow = hash(s.seed, c.by)
	return c
}

// hash is FNV-1a, begun with a secret and mixed at the end (as splitmix64 does),
// since queues are dealt by its low digits.
func hash(seed uint64, text string) uint64 {
	h := seed ^ 14695981039346656037
	for i := range len(text) {
		h = (h ^ uint64(text[i])) * 1099511628211
	}
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

func (s *flowSchema) matches(u user.Info, info *request.Info) bool {
	for i := range s.rules {
		r := &s.rules[i]
		if !matchesSubjects(r.Subjects, u) {
			continue
		}
		if info.IsResource && matchesResource(r.ResourceRules, info) || !info.IsResource && matchesPath(r.NonResourceRules, info) {
			return true
		}
	}
	return false
}

func matchesSubjects(subjects []flowcontrolv1.Subject, u user.Info) bool {
	for i := range subjects {
		if matchesSubject(&subjects[i], u) {
			return true
		}
	}
	return false
}

func matchesSubject(s *flowcontrolv1.Subject, u user.Info) bool {
	switch {
	case s.Kind == flowcontrolv1.SubjectKindUser && s.User != nil:
		return s.User.Name == flowcontrolv1.NameAll || s.User.Name == u.GetName()
	case s.Kind == flowcontrolv1.SubjectKindGroup && s.Group != nil:
		return s.Group.Name == flowcontrolv1.NameAll || slices.Contains(u.GetGroups(), s.Group.Name)
	case s.Kind == flowcontrolv1.SubjectKindServiceAccount && s.ServiceAccount != nil:
		rest, ok := strings.CutPrefix(u.GetName(), "system:serviceaccount:")
		if !ok {
			return false
		}
		namespace, name, ok := strings.Cut(rest, ":")
		return ok && namespace == s.ServiceAccount.Namespace && (s.ServiceAccount.Name == flowcontrolv1.NameAll || s.ServiceAccount.Name == name)
	}
	return false
}

func matchesResource(rules []flowcontrolv1.ResourcePolicyRule, info *request.Info) bool {
	for i := range rules {
		r := &rules[i]
		if !among(r.Verbs, info.Verb) || !among(r.APIGroups, info.Group) || !amongResources(r.Resources, info) {
			continue
		}
		if info.Namespace == "" && r.ClusterScope || info.Namespace != "" && among(r.Namespaces, info.Namespace) {
			return true
		}
	}
	return false
}

// among takes "*" as any value where it stands alone, which validation ensures.
func among(list []string, value string) bool {
	return len(list) == 1 && list[0] == "*" || slices.Contains(list, value)
}

// amongResources knows a subresource as resource/subresource.
func amongResources(list []string, info *request.Info) bool {
	if info.Subresource == "" {
		return among(list, info.Resource)
	}
	if len(list) == 1 && list[0] == flowcontrolv1.ResourceAll {
		return true
	}
	for _, r := range list {
		resource, sub, ok := strings.Cut(r, "/")
		if ok && resource == info.Resource && sub == info.Subresource {
			return true
		}
	}
	return false
}

func matchesPath(rules []flowcontrolv1.NonResourcePolicyRule, info *request.Info) bool {
	for i := range rules {
		if among(rules[i].Verbs, info.Verb) && slices.ContainsFunc(rules[i].NonResourceURLs, func(rule string) bool { return covers(rule, info.Path) }) {
			return true
		}
	}
	return false
}

// covers reports whether a rule means a path: itself, or what is below it.
func covers(rule, path string) bool {
	if rule == flowcontrolv1.NonResourceAll || rule == path {
		return true
	}
	below := strings.TrimSuffix(strings.TrimSuffix(rule, "*"), "/")
	return len(path) > len(below) && path[len(below)] == '/' && strings.HasPrefix(path, below)
}
