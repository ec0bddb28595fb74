package registry

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	internalvalidation "k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"proa/internal/apis"
	"proa/internal/store"
	"proa/internal/tracing"
)

// catchUp is how long a read waits for a resourceVersion this server has not
// reached yet.
const catchUp = 3 * time.Second

// Get returns one object. The scale subresource is computed; every other
// subresource that can be read is the object itself.
func (r *Registry) Get(ctx context.Context, q *Request, opts metav1.GetOptions) (got *store.Item, err error) {
	ctx, span := tracing.Start(ctx, "Get etcd3")
	defer func() { span.End(err) }()
	if s := r.sources[q.resource()]; s != nil {
		return r.getComputed(q, s)
	}
	if rv := opts.ResourceVersion; rv != "" {
		if _, wrong := revisionOf(rv, "resourceVersion"); wrong != nil {
			return nil, unknown(wrong.Error())
		}
	}
	state, _, err := r.state(ctx, q.key(), opts.ResourceVersion)
	if err != nil {
		return nil, err
	}
	item, err := state.Get(q.key())
	if unreadable(err) && r.store.Reread(q.resource()) {
		item, err = r.store.Get(q.key())
	}
	if err != nil {
		return nil, status(err, q.asked(), q.Name)
	}
	if sub := q.View.Subresource(q.Subresource); sub != nil && sub.Scale != nil {
		return r.scaleItem(q, sub, item)
	}
	return item, nil
}

// state returns what a read of a place sees that names a resourceVersion, or none. Where
// the store lags behind its server, and only what is committed now will do, the place
// is read from there (through).
func (r *Registry) state(ctx context.Context, place store.Key, resourceVersion string) (sn *store.Snapshot, through bool, err error) {
	if resourceVersion != "" {
		err := r.reach(ctx, resourceVersion, "resourceVersion")
		return r.store.Snapshot(), false, err
	}
	err = r.store.Sync(ctx)
	if !errors.Is(err, store.ErrBehind) {
		return r.store.Snapshot(), false, status(err, place.Resource, "")
	}
	sn, err = r.store.ReadThrough(ctx, place, 0)
	return sn, true, status(err, place.Resource, "")
}

// stateAt is a state of the past. What the store does not know of it, its server may.
func (r *Registry) stateAt(ctx context.Context, place store.Key, revision int64) (*store.Snapshot, error) {
	sn, err := r.store.SnapshotAt(revision)
	if err == nil {
		return sn, nil
	}
	if through, failed := r.store.ReadThrough(ctx, place, revision); failed == nil {
		return through, nil
	}
	return nil, err
}

// reach waits until the store has published a revision at least as new as the one
// asked for: for none, everything that was committed before.
func (r *Registry) reach(ctx context.Context, resourceVersion, what string) error {
	switch {
	case anyVersion(resourceVersion):
		return nil
	case resourceVersion == "":
		return status(r.store.Sync(ctx), schema.GroupResource{}, "")
	}
	rev, err := parseRevision(resourceVersion, what)
	if err != nil || rev <= r.store.Revision() {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, catchUp)
	defer cancel()
	_ = r.store.Sync(ctx) // another server may have written it: do not wait for its event
	if err := r.store.WaitFor(ctx, rev); err != nil {
		return tooLarge(rev, r.store.Revision())
	}
	return nil
}

func parseRevision(s, what string) (int64, error) {
	rev, wrong := revisionOf(s, what)
	if wrong != nil {
		return 0, apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %v", wrong))
	}
	return rev, nil
}

func revisionOf(s, what string) (int64, *field.Error) {
	rev, err := strconv.ParseUint(s, 10, 63)
	if err != nil {
		return 0, field.Invalid(field.NewPath(what), s, err.Error())
	}
	return int64(rev), nil
}

// ItemList is a page of a list: items in key order as of one revision.
type ItemList struct {
	Items     []*store.Item
	Revision  int64
	Continue  string
	Remaining *int64
	Through   bool // it was read from the store's server, which the store lagged behind
}

// ThroughError is that of a list which the store lagged behind, and its server did not
// give either.
type ThroughError struct{ error }

func (e ThroughError) Unwrap() error { return e.error }

// List returns the objects that the options select, all from one revision.
func (r *Registry) List(ctx context.Context, q *Request, opts metav1.ListOptions) (list *ItemList, err error) {
	ctx, span := tracing.Start(ctx, "cacher.GetList")
	defer func() { span.End(err) }()
	if err := validateListOptions(&opts, false); err != nil {
		return nil, err
	}
	sel, err := newSelector(q, &opts)
	if err != nil {
		return nil, err
	}
	if s := r.sources[q.resource()]; s != nil {
		return r.listComputed(q, s, sel), nil
	}
	page, err := r.page(ctx, q, &opts)
	if err != nil {
		return nil, err
	}
	list, err = r.collect(page, q, sel)
	if err != nil {
		return nil, err
	}
	list.Through = page.through
	if c := q.View.Custom; c != nil && c.Prepare != nil {
		objs := make([]apis.Object, len(list.Items))
		for i, item := range list.Items {
			objs[i] = item.Object
		}
		c.Prepare(objs)
	}
	return list, nil
}

// page is where a list reads.
type page struct {
	snapshot *store.Snapshot
	through  bool      // the snapshot is not the store's
	after    store.Key // the last item of the page before
	served   int64     // items in the pages before
	limit    int64     // 0: none
}

// validateListOptions checks the options that go together. A watch from the newest
// or any state that says no more gets that state first, as one that asks for it.
func validateListOptions(opts *metav1.ListOptions, watching bool) error {
	unset := opts.ResourceVersionMatch == "" && opts.SendInitialEvents == nil
	if unset && watching && (opts.ResourceVersion == "" || opts.ResourceVersion == "0") {
		opts.SendInitialEvents, opts.ResourceVersionMatch, unset = ptr.To(true), metav1.ResourceVersionMatchNotOlderThan, false
	}
	if !unset {
		errs := internalvalidation.ValidateListOptions(&internalversion.ListOptions{
			Watch: watching, ResourceVersion: opts.ResourceVersion, ResourceVersionMatch: opts.ResourceVersionMatch,
			Continue: opts.Continue, SendInitialEvents: opts.SendInitialEvents,
		}, true)
		if len(errs) > 0 {
			return apierrors.NewInvalid(metav1.SchemeGroupVersion.WithKind("ListOptions").GroupKind(), "", errs)
		}
	}
	return nil
}

// anyVersion says that a resourceVersion is zero, however it is written.
func anyVersion(s string) bool { return s != "" && strings.Trim(s, "0") == "" }

// page finds the state a list reads and the position it starts after.
func (r *Registry) page(ctx context.Context, q *Request, opts *metav1.ListOptions) (*page, error) {
	if opts.Continue != "" {
		return r.resume(ctx, q, opts)
	}
	state, through, err := r.state(ctx, q.place(), opts.ResourceVersion)
	if err != nil {
		if through {
			err = ThroughError{err}
		}
		return nil, err
	}
	p := &page{snapshot: state, through: through, limit: opts.Limit}
	exact := opts.ResourceVersionMatch == metav1.ResourceVersionMatchExact ||
		opts.ResourceVersionMatch == "" && opts.Limit > 0
	if opts.ResourceVersion == "" || anyVersion(opts.ResourceVersion) || !exact {
		return p, nil
	}
	rev, err := parseRevision(opts.ResourceVersion, "resourceVersion")
	if err != nil {
		return nil, err
	}
	p.snapshot, err = r.stateAt(ctx, q.place(), rev)
	if errors.Is(err, store.ErrFuture) {
		return nil, tooLarge(rev, r.store.Revision())
	}
	return p, status(err, q.resource(), "")
}

// resume opens the state that a continue token names.
func (r *Registry) resume(ctx context.Context, q *Request, opts *metav1.ListOptions) (*page, error) {
	token, err := decodeContinue(opts.Continue)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid continue token: %v", err))
	}
	if opts.ResourceVersion != "" && opts.ResourceVersion != "0" {
		return nil, apierrors.NewBadRequest("specifying resource version is not allowed when using continue")
	}
	p := &page{after: token.after(q), served: token.Served, limit: opts.Limit}
	if token.Revision < 0 {
		p.snapshot = r.store.Snapshot()
		return p, nil
	}
	p.snapshot, err = r.stateAt(ctx, q.place(), token.Revision)
	if errors.Is(err, store.ErrCompacted) {
		token.Revision = -1
		expired := apierrors.NewResourceExpired(continueExpired)
		expired.ErrStatus.ListMeta.Continue = token.encode()
		return nil, expired
	}
	if errors.Is(err, store.ErrFuture) {
		return nil, tooLarge(token.Revision, r.store.Revision())
	}
	return p, status(err, q.resource(), "")
}

// collect reads the page.
func (p *page) collect(q *Request, sel *selector) *ItemList {
	list := &ItemList{Revision: p.snapshot.Revision()}
	gr := q.resource()
	if sel.nothing {
		return list
	}
	if sel.name != "" && (sel.namespace != "" || q.View.Scope == apis.Cluster) {
		item, err := p.snapshot.Get(store.Key{Resource: gr, Namespace: sel.namespace, Name: sel.name})
		if err == nil && sel.matches(item.Object) {
			list.Items = []*store.Item{item}
		}
		return list
	}
	if !sel.narrow && p.limit <= 0 {
		list.Items = make([]*store.Item, 0, p.snapshot.Len(gr, sel.namespace))
	}
	more := false
	visit := func(item *store.Item) bool {
		if !sel.matches(item.Object) {
			return true
		}
		if p.limit > 0 && int64(len(list.Items)) == p.limit {
			more = true
			return false
		}
		list.Items = append(list.Items, item)
		return true
	}
	if t := sel.index; t == nil || !p.snapshot.RangeField(gr, t.field, t.value, sel.namespace, p.after, visit) {
		p.snapshot.Range(gr, sel.namespace, p.after, visit)
	}
	if more {
		served := p.skipped(gr, sel) + int64(len(list.Items))
		last := list.Items[len(list.Items)-1].Key
		list.Continue = continueAfter(last, q, list.Revision, served).encode()
		if left := int64(p.snapshot.Len(gr, sel.namespace)) - served; !sel.narrow && left > 0 {
			list.Remaining = &left
		}
	}
	return list
}

// skipped is the number of items in the pages before. A token that another server
// made does not tell it.
func (p *page) skipped(gr schema.GroupResource, sel *selector) int64 {
	if p.served > 0 || p.after.Name == "" || sel.narrow {
		return p.served
	}
	all := int64(p.snapshot.Len(gr, sel.namespace))
	p.snapshot.Range(gr, sel.namespace, p.after, func(*store.Item) bool {
		all--
		return true
	})
	return all
}
