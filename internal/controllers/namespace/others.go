package namespace

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/apis"
	"proa/internal/client"
)

// Elsewhere are the kinds that other servers keep.
type Elsewhere interface {
	// Kinds are those that are known, also of servers that do not answer.
	Kinds() *apis.Catalogue
	// Unknown are the group versions whose servers do not say what they have.
	Unknown() []schema.GroupVersion
}

// With has the controller delete the objects of other servers, too. Everywhere is the
// API that reaches them beside those of this one.
func (n *Controller) With(others Elsewhere, everywhere client.API) *Controller {
	n.others, n.api = others, everywhere
	return n
}

// deletable are the kinds that live in namespaces and can be deleted, those of other
// servers last. A server that does not say what it has holds the deletion up: unknown
// are the group versions of such.
func (n *Controller) deletable() (kinds []*apis.Resource, unknown []schema.GroupVersion) {
	kinds = slices.Clone(n.catalogue.All())
	if n.others != nil {
		elsewhere := n.others.Kinds()
		kinds = slices.DeleteFunc(kinds, func(r *apis.Resource) bool {
			_, taken := elsewhere.Lookup(r.GroupVersionResource())
			return taken
		})
		kinds, unknown = append(kinds, elsewhere.All()...), n.others.Unknown()
	}
	return slices.DeleteFunc(kinds, func(r *apis.Resource) bool {
		return r.Scope != apis.Namespaced || !can(r, "list") || !can(r, "delete") || slices.Contains(unknown, r.GroupVersionKind().GroupVersion())
	}), unknown
}

// discoveryFailure names the group versions whose servers do not answer.
func (left *remains) discoveryFailure() string {
	texts := make([]string, len(left.unknown))
	for i, gv := range left.unknown {
		texts[i] = fmt.Sprintf("%s: stale GroupVersion discovery: %s", gv, gv)
	}
	return fmt.Sprintf("Discovery failed for some groups, %d failing: unable to retrieve the complete list of server APIs: %s",
		len(texts), strings.Join(texts, ", "))
}
