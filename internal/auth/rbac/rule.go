package rbac

import (
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
)

// verbs is a set of verbs. The common ones are bits, the rest a list.
type verbs struct {
	bits  uint16
	other []string
}

const allVerbs = 1 << 15

func verbBit(verb string) uint16 {
	switch verb {
	case "get":
		return 1
	case "list":
		return 1 << 1
	case "watch":
		return 1 << 2
	case "create":
		return 1 << 3
	case "update":
		return 1 << 4
	case "patch":
		return 1 << 5
	case "delete":
		return 1 << 6
	case "deletecollection":
		return 1 << 7
	case "post":
		return 1 << 8
	case "put":
		return 1 << 9
	}
	return 0
}

func compileVerbs(names []string) verbs {
	var v verbs
	for _, name := range names {
		if name == rbacv1.VerbAll {
			v.bits |= allVerbs
		} else if bit := verbBit(name); bit != 0 {
			v.bits |= bit
		} else {
			v.other = append(v.other, name)
		}
	}
	return v
}

func (v *verbs) has(verb string) bool {
	if v.bits&allVerbs != 0 {
		return true
	}
	if bit := verbBit(verb); bit != 0 {
		return v.bits&bit != 0
	}
	return slices.Contains(v.other, verb)
}

// target is one resource or subresource of one API group.
type target struct{ group, resource, subresource string }

// rule is a compiled PolicyRule. Targets are what it names exactly; anything
// with a star in it makes it wild and is matched against the source.
type rule struct {
	verbs   verbs
	targets []target
	wild    bool
	source  *rbacv1.PolicyRule
}

func compileRules(source []rbacv1.PolicyRule) []rule {
	out := make([]rule, len(source))
	for i := range source {
		r := &source[i]
		out[i] = rule{verbs: compileVerbs(r.Verbs), source: r}
		out[i].targets, out[i].wild = compileTargets(r)
	}
	return out
}

func compileTargets(r *rbacv1.PolicyRule) (targets []target, wild bool) {
	for _, group := range r.APIGroups {
		for _, name := range r.Resources {
			resource, subresource, _ := strings.Cut(name, "/")
			if group == rbacv1.APIGroupAll || resource == rbacv1.ResourceAll {
				wild = true
				continue
			}
			targets = append(targets, target{group, resource, subresource})
		}
	}
	return targets, wild
}

// named reports whether the rule allows an object of this name.
func (r *rule) named(name string) bool {
	return len(r.source.ResourceNames) == 0 || slices.Contains(r.source.ResourceNames, name)
}

// matchesWild matches t against groups and resources with stars: "*" is
// everything, "*/scale" that subresource of everything.
func (r *rule) matchesWild(t target) bool {
	return slices.ContainsFunc(r.source.APIGroups, func(g string) bool { return g == rbacv1.APIGroupAll || g == t.group }) &&
		slices.ContainsFunc(r.source.Resources, func(name string) bool {
			if name == rbacv1.ResourceAll {
				return true
			}
			resource, subresource, _ := strings.Cut(name, "/")
			if resource == rbacv1.ResourceAll {
				return t.subresource != "" && subresource == t.subresource
			}
			return resource == t.resource && subresource == t.subresource
		})
}

// matchesPath matches a path that is no resource. A trailing star is a prefix.
func (r *rule) matchesPath(path string) bool {
	for _, url := range r.source.NonResourceURLs {
		if url == rbacv1.NonResourceAll || url == path {
			return true
		}
		if strings.HasSuffix(url, "*") && strings.HasPrefix(path, strings.TrimRight(url, "*")) {
			return true
		}
	}
	return false
}
