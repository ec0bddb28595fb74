package garbagecollector

import (
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"proa/internal/apis"
	"proa/internal/client"
)

// node is one object as last seen. It is replaced, not changed.
type node struct {
	resource *apis.Resource
	obj      client.Object
	list     int // the full list of its kind that showed it last
}

// graph knows which object depends on which. An edge is the UID that an owner
// reference names, whether or not an object with it was seen: an owner that
// comes later, or never, needs no stand-in.
type graph struct {
	catalogue *apis.Catalogue
	elsewhere *apis.Catalogue // of other servers; nil: there are none

	mu         sync.RWMutex // guards what follows
	nodes      map[types.UID]*node
	dependents map[types.UID]map[types.UID]struct{} // by the owner's UID
	lists      map[schema.GroupResource]int         // number of the kind's current list
}

func newGraph(catalogue *apis.Catalogue) *graph {
	return &graph{
		catalogue: catalogue, nodes: map[types.UID]*node{},
		dependents: map[types.UID]map[types.UID]struct{}{}, lists: map[schema.GroupResource]int{},
	}
}

func (g *graph) node(uid types.UID) (*node, bool) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	n, ok := g.nodes[uid]
	return n, ok
}

// begin starts a full list of a kind.
func (g *graph) begin(r *apis.Resource) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.lists[r.GroupResource()]++
}

// complete forgets the objects of a kind that its current list did not show, and
// returns them with whom to look at.
func (g *graph) complete(r *apis.Resource) (gone []*node, look []types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	current := g.lists[r.GroupResource()]
	for _, n := range g.nodes {
		if n.resource.GroupResource() == r.GroupResource() && n.list != current {
			gone = append(gone, n)
		}
	}
	for _, n := range gone {
		look = append(look, g.removeLocked(n.obj)...)
	}
	return gone, look
}

// set takes in an object as it is now and returns whom to look at because of it.
func (g *graph) set(r *apis.Resource, obj client.Object) (look []types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	uid := obj.GetUID()
	old := g.nodes[uid]
	g.nodes[uid] = &node{resource: r, obj: obj, list: g.lists[r.GroupResource()]}
	var before []metav1.OwnerReference
	if old != nil {
		before = old.obj.GetOwnerReferences()
	}
	if refs := obj.GetOwnerReferences(); !slices.EqualFunc(before, refs, sameReference) {
		g.unlinkLocked(uid, before)
		g.linkLocked(uid, refs)
		look = append(look, g.releasedLocked(before, refs)...)
		if !g.allSolidLocked(r, obj) {
			look = append(look, uid)
		}
	}
	if orphans(obj) && (old == nil || !orphans(old.obj)) {
		look = append(look, uid)
	}
	if waits(obj) && (old == nil || !waits(old.obj)) {
		look = append(look, uid)
		for dependent := range g.dependents[uid] {
			look = append(look, dependent)
		}
	}
	return look
}

// remove takes an object out and returns whom to look at because of it.
func (g *graph) remove(obj client.Object) (look []types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.removeLocked(obj)
}

func (g *graph) removeLocked(obj client.Object) (look []types.UID) {
	uid := obj.GetUID()
	n, ok := g.nodes[uid]
	if !ok {
		return nil
	}
	refs := n.obj.GetOwnerReferences()
	delete(g.nodes, uid)
	g.unlinkLocked(uid, refs)
	for dependent := range g.dependents[uid] {
		look = append(look, dependent)
	}
	return append(look, g.releasedLocked(refs, nil)...)
}

func (g *graph) linkLocked(dependent types.UID, refs []metav1.OwnerReference) {
	for i := range refs {
		of := g.dependents[refs[i].UID]
		if of == nil {
			of = map[types.UID]struct{}{}
			g.dependents[refs[i].UID] = of
		}
		of[dependent] = struct{}{}
	}
}

func (g *graph) unlinkLocked(dependent types.UID, refs []metav1.OwnerReference) {
	for i := range refs {
		of := g.dependents[refs[i].UID]
		delete(of, dependent)
		if len(of) == 0 {
			delete(g.dependents, refs[i].UID)
		}
	}
}

// releasedLocked returns the owners that wait for their dependents and that
// before held back and now does not.
func (g *graph) releasedLocked(before, now []metav1.OwnerReference) (owners []types.UID) {
	for i := range before {
		owner, ok := g.nodes[before[i].UID]
		if !ok || !waits(owner.obj) || !blocks(&before[i]) {
			continue
		}
		if !slices.ContainsFunc(now, func(r metav1.OwnerReference) bool { return r.UID == before[i].UID && blocks(&r) }) {
			owners = append(owners, before[i].UID)
		}
	}
	return owners
}

func (g *graph) allSolidLocked(r *apis.Resource, obj client.Object) bool {
	refs := obj.GetOwnerReferences()
	for i := range refs {
		owner, ok := g.nodes[refs[i].UID]
		if !ok || waits(owner.obj) || !g.names(&refs[i], r, obj, owner) {
			return false
		}
	}
	return true
}

// names reports whether ref, which has n's UID, also says where n is. Only an
// owner in the dependent's namespace, or in none, counts.
func (g *graph) names(ref *metav1.OwnerReference, r *apis.Resource, dependent client.Object, n *node) bool {
	named, _, ok := g.kind(ref.APIVersion, ref.Kind)
	if !ok || named.GroupResource() != n.resource.GroupResource() || ref.Name != n.obj.GetName() {
		return false
	}
	return n.resource.Scope == apis.Cluster || r.Scope == apis.Namespaced && dependent.GetNamespace() == n.obj.GetNamespace()
}

// owner returns the object that ref of dependent means, if it was seen.
func (g *graph) owner(dependent *node, ref *metav1.OwnerReference) (*node, bool) {
	n, ok := g.node(ref.UID)
	if !ok || !g.names(ref, dependent.resource, dependent.obj, n) {
		return nil, false
	}
	return n, true
}

// dependentsOf returns the objects that refer to an owner, where it is, ordered by UID.
func (g *graph) dependentsOf(owner *node) []*node {
	g.mu.RLock()
	defer g.mu.RUnlock()
	var found []*node
	for uid := range g.dependents[owner.obj.GetUID()] {
		n, ok := g.nodes[uid]
		if !ok {
			continue
		}
		if i := referenceTo(n.obj, owner.obj.GetUID()); i >= 0 && g.names(&n.obj.GetOwnerReferences()[i], n.resource, n.obj, owner) {
			found = append(found, n)
		}
	}
	slices.SortFunc(found, func(a, b *node) int {
		if a.obj.GetUID() < b.obj.GetUID() {
			return -1
		}
		return 1
	})
	return found
}

func referenceTo(obj client.Object, owner types.UID) int {
	return slices.IndexFunc(obj.GetOwnerReferences(), func(r metav1.OwnerReference) bool { return r.UID == owner })
}

func sameReference(a, b metav1.OwnerReference) bool {
	return a.UID == b.UID && a.Name == b.Name && a.Kind == b.Kind && a.APIVersion == b.APIVersion && blocks(&a) == blocks(&b)
}

func blocks(ref *metav1.OwnerReference) bool {
	return ref.BlockOwnerDeletion != nil && *ref.BlockOwnerDeletion
}

// waits reports whether an object is being deleted after its dependents.
func waits(obj client.Object) bool {
	return obj.GetDeletionTimestamp() != nil && slices.Contains(obj.GetFinalizers(), metav1.FinalizerDeleteDependents)
}

// orphans reports whether an object is being deleted but not its dependents.
func orphans(obj client.Object) bool {
	return obj.GetDeletionTimestamp() != nil && slices.Contains(obj.GetFinalizers(), metav1.FinalizerOrphanDependents)
}
