package rbac

import (
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"

	"proa/internal/store"
)

var (
	roles               = schema.GroupResource{Group: rbacv1.GroupName, Resource: "roles"}
	roleBindings        = schema.GroupResource{Group: rbacv1.GroupName, Resource: "rolebindings"}
	clusterRoles        = schema.GroupResource{Group: rbacv1.GroupName, Resource: "clusterroles"}
	clusterRoleBindings = schema.GroupResource{Group: rbacv1.GroupName, Resource: "clusterrolebindings"}
	indexed             = []schema.GroupResource{roles, roleBindings, clusterRoles, clusterRoleBindings}
)

// rememberedUsers bounds the users whose grants an index keeps resolved.
const rememberedUsers = 8192

// index is every role and binding of one snapshot, by subject. It is never
// changed; a write of a role or binding makes the next decision build a new one,
// which takes over what it compiled from objects that stayed the same.
type index struct {
	seen atomic.Pointer[store.Snapshot] // the newest snapshot known to have the same roles and bindings

	roles      map[store.Key]*role
	bindings   map[store.Key]*binding
	cluster    map[subject][]*grant
	namespaced map[string]map[subject][]*grant

	users     sync.Map // hash -> *holder
	userCount atomic.Int64
}

// subject is a user or a group. Service accounts are users.
type subject struct {
	group bool
	name  string
}

type role struct {
	item  *store.Item
	rules []rule
}

type binding struct {
	item     *store.Item
	role     store.Key
	subjects []bound
}

type bound struct {
	subject subject
	reason  string
}

// grant is one role given to one subject by one binding. Role is nil when it
// does not exist; missing then says so.
type grant struct {
	role    *role
	reason  string
	missing error
}

// current returns the index of the store's newest state.
func (a *Authorizer) current() *index {
	sn := a.store.Snapshot()
	idx := a.index.Load()
	if idx != nil && idx.shows(sn) {
		return idx
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	sn = a.store.Snapshot()
	if idx = a.index.Load(); idx == nil || !idx.shows(sn) {
		idx = build(sn, idx)
		a.index.Store(idx)
	}
	return idx
}

func (idx *index) shows(sn *store.Snapshot) bool {
	seen := idx.seen.Load()
	if seen.Revision() == sn.Revision() {
		return true
	}
	for _, gr := range indexed {
		if !sn.Unchanged(gr, seen) {
			return false
		}
	}
	if sn.Revision() > seen.Revision() {
		idx.seen.CompareAndSwap(seen, sn)
	}
	return true
}

func build(sn *store.Snapshot, old *index) *index {
	idx := &index{
		roles: map[store.Key]*role{}, bindings: map[store.Key]*binding{},
		cluster: map[subject][]*grant{}, namespaced: map[string]map[subject][]*grant{},
	}
	idx.seen.Store(sn)
	if old == nil {
		old = &index{}
	}
	for _, gr := range []schema.GroupResource{clusterRoles, roles} {
		sn.Range(gr, "", store.Key{}, func(item *store.Item) bool {
			r := old.roles[item.Key]
			if r == nil || r.item != item {
				r = &role{item: item, rules: compileRules(rulesOf(item.Object))}
			}
			idx.roles[item.Key] = r
			return true
		})
	}
	for _, gr := range []schema.GroupResource{clusterRoleBindings, roleBindings} {
		sn.Range(gr, "", store.Key{}, func(item *store.Item) bool {
			b := old.bindings[item.Key]
			if b == nil || b.item != item {
				b = compileBinding(item)
			}
			idx.bindings[item.Key] = b
			idx.add(b)
			return true
		})
	}
	return idx
}

func rulesOf(obj store.Object) []rbacv1.PolicyRule {
	switch r := obj.(type) {
	case *rbacv1.ClusterRole:
		return r.Rules
	case *rbacv1.Role:
		return r.Rules
	}
	return nil
}

func (idx *index) add(b *binding) {
	bySubject := idx.cluster
	if ns := b.item.Key.Namespace; ns != "" {
		if bySubject = idx.namespaced[ns]; bySubject == nil {
			bySubject = map[subject][]*grant{}
			idx.namespaced[ns] = bySubject
		}
	}
	r := idx.roles[b.role]
	var missing error
	if r == nil {
		missing = missingRole(b.role)
	}
	for _, s := range b.subjects {
		bySubject[s.subject] = append(bySubject[s.subject], &grant{role: r, reason: s.reason, missing: missing})
	}
}

func missingRole(key store.Key) error {
	kind := "role"
	if key.Resource == clusterRoles {
		kind = "clusterrole"
	}
	return fmt.Errorf("%s.%s %q not found", kind, rbacv1.GroupName, key.Name)
}

func compileBinding(item *store.Item) *binding {
	b := &binding{item: item}
	switch o := item.Object.(type) {
	case *rbacv1.ClusterRoleBinding:
		b.role = roleKey(o.RoleRef, "")
		what := fmt.Sprintf("RBAC: allowed by ClusterRoleBinding %q of %s %q to ", o.Name, o.RoleRef.Kind, o.RoleRef.Name)
		b.subjects = compileSubjects(o.Subjects, "", what)
	case *rbacv1.RoleBinding:
		b.role = roleKey(o.RoleRef, o.Namespace)
		what := fmt.Sprintf("RBAC: allowed by RoleBinding %q of %s %q to ", o.Name+"/"+o.Namespace, o.RoleRef.Kind, o.RoleRef.Name)
		b.subjects = compileSubjects(o.Subjects, o.Namespace, what)
	}
	return b
}

func roleKey(ref rbacv1.RoleRef, namespace string) store.Key {
	if ref.Kind == "Role" {
		return store.Key{Resource: roles, Namespace: namespace, Name: ref.Name}
	}
	return store.Key{Resource: clusterRoles, Name: ref.Name}
}

func compileSubjects(subjects []rbacv1.Subject, namespace, what string) []bound {
	var out []bound
	for _, s := range subjects {
		switch s.Kind {
		case rbacv1.UserKind:
			out = append(out, bound{subject{name: s.Name}, what + fmt.Sprintf("User %q", s.Name)})
		case rbacv1.GroupKind:
			out = append(out, bound{subject{group: true, name: s.Name}, what + fmt.Sprintf("Group %q", s.Name)})
		case rbacv1.ServiceAccountKind:
			ns := s.Namespace
			if ns == "" {
				ns = namespace
			}
			if ns != "" {
				name := serviceaccount.MakeUsername(ns, s.Name)
				out = append(out, bound{subject{name: name}, what + fmt.Sprintf("ServiceAccount %q", s.Name+"/"+s.Namespace)})
			}
		}
	}
	return out
}

// holder is one user (name and groups) with its grants resolved.
type holder struct {
	name   string
	groups []string

	cluster    *scope
	namespaces sync.Map // namespace -> *scope
}

// scope is all rules a holder has cluster-wide, or by the bindings of one namespace.
type scope struct {
	grants  []*grant
	exact   map[target][]held
	wild    []held
	paths   []held
	missing []error
}

type held struct {
	rule   *rule
	reason string
}

var hashSeed = maphash.MakeSeed()

func (idx *index) holder(u user.Info) *holder {
	name, groups := u.GetName(), u.GetGroups()
	var h maphash.Hash
	h.SetSeed(hashSeed)
	h.WriteString(name)
	for _, g := range groups {
		h.WriteByte(0)
		h.WriteString(g)
	}
	key := h.Sum64()
	if known, ok := idx.users.Load(key); ok {
		if k := known.(*holder); k.name == name && slices.Equal(k.groups, groups) {
			return k
		}
	}
	fresh := &holder{name: name, groups: slices.Clone(groups)}
	fresh.cluster = resolve(idx.cluster, name, groups)
	if idx.userCount.Add(1) > rememberedUsers {
		idx.users.Clear()
		idx.userCount.Store(1)
	}
	idx.users.Store(key, fresh)
	return fresh
}

// in returns the scope of a namespace's own bindings, nil when it has none.
func (idx *index) in(h *holder, namespace string) *scope {
	bySubject := idx.namespaced[namespace]
	if bySubject == nil {
		return nil
	}
	if s, ok := h.namespaces.Load(namespace); ok {
		return s.(*scope)
	}
	s, _ := h.namespaces.LoadOrStore(namespace, resolve(bySubject, h.name, h.groups))
	return s.(*scope)
}

func resolve(bySubject map[subject][]*grant, name string, groups []string) *scope {
	s := &scope{exact: map[target][]held{}}
	s.add(bySubject[subject{name: name}])
	for i, g := range groups {
		if !slices.Contains(groups[:i], g) {
			s.add(bySubject[subject{group: true, name: g}])
		}
	}
	return s
}

func (s *scope) add(grants []*grant) {
	for _, g := range grants {
		s.grants = append(s.grants, g)
		if g.missing != nil {
			s.missing = append(s.missing, g.missing)
			continue
		}
		for i := range g.role.rules {
			r := &g.role.rules[i]
			h := held{r, g.reason}
			for _, t := range r.targets {
				s.exact[t] = append(s.exact[t], h)
			}
			if r.wild {
				s.wild = append(s.wild, h)
			}
			if len(r.source.NonResourceURLs) > 0 {
				s.paths = append(s.paths, h)
			}
		}
	}
}

// allows finds a rule for a request on a resource and returns why it allows.
func (s *scope) allows(verb string, t target, name string) (reason string, ok bool) {
	for _, h := range s.exact[t] {
		if h.rule.verbs.has(verb) && h.rule.named(name) {
			return h.reason, true
		}
	}
	for _, h := range s.wild {
		if h.rule.verbs.has(verb) && h.rule.matchesWild(t) && h.rule.named(name) {
			return h.reason, true
		}
	}
	return "", false
}

func (s *scope) allowsPath(verb, path string) (reason string, ok bool) {
	for _, h := range s.paths {
		if h.rule.verbs.has(verb) && h.rule.matchesPath(path) {
			return h.reason, true
		}
	}
	return "", false
}
