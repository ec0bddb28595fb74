package policy

import (
	"slices"
	"sync/atomic"

	"proa/internal/admission/manifest"
	"proa/internal/admission/review"
	"proa/internal/apis"
	"proa/internal/store"
)

// bound is a policy with its bindings, both in the order of their names.
type bound[P any] struct {
	policy   P
	bindings []*binding
}

// bind joins policies with their bindings. Those without are left out.
func bind[P interface{ base() *policy }](policies []P, bindings []*binding) []bound[P] {
	var all []bound[P]
	for _, p := range policies {
		b := bound[P]{policy: p}
		for _, candidate := range bindings {
			if candidate.policy == p.base().name {
				b.bindings = append(b.bindings, candidate)
			}
		}
		if len(b.bindings) > 0 {
			all = append(all, b)
		}
	}
	return all
}

// hooks are the policies of files and those of objects.
type hooks[P interface{ base() *policy }] struct {
	static   *manifest.Source[[]bound[P]]
	policies review.Compiled[P]
	bindings review.Compiled[*binding]
	joined   atomic.Pointer[join[P]]
}

// join is kept until one of the two sets changes.
type join[P any] struct {
	policies []P
	bindings []*binding
	bound    []bound[P]
}

// idle says that no policy judges writes to a kind.
func (h *hooks[P]) idle(s *store.Store, r *apis.Resource) bool {
	if len(h.static.Made()) == 0 && (h.bindings.None(s) || review.SaysWhoJudges(r)) {
		return true
	}
	return review.Exempt(r)
}

// of returns the policies that judge writes to a kind: those of files come first.
func (h *hooks[P]) of(sn *store.Snapshot, r *apis.Resource) []bound[P] {
	static := h.static.Made()
	if review.SaysWhoJudges(r) {
		return static
	}
	if len(static) == 0 {
		return h.stored(sn)
	}
	return slices.Concat(static, h.stored(sn))
}

// stored returns the policies of objects.
func (h *hooks[P]) stored(sn *store.Snapshot) []bound[P] {
	bindings := h.bindings.Of(sn)
	if len(bindings) == 0 {
		return nil
	}
	policies := h.policies.Of(sn)
	if len(policies) == 0 {
		return nil
	}
	if j := h.joined.Load(); j != nil && &j.policies[0] == &policies[0] && &j.bindings[0] == &bindings[0] {
		return j.bound
	}
	j := &join[P]{policies: policies, bindings: bindings, bound: bind(policies, bindings)}
	h.joined.Store(j)
	return j.bound
}
