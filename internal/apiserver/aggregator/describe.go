package aggregator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/kube-openapi/pkg/aggregator"
	"k8s.io/kube-openapi/pkg/openapiconv"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"proa/internal/apiserver/discovery"
	"proa/internal/apiserver/openapi"
	"proa/internal/store"
)

const (
	// refresh is how often a server that answers is asked again.
	refresh      = time.Minute
	firstRetry   = 500 * time.Millisecond
	describers   = 2
	describeTime = time.Minute // for all documents of one server
	// maxOpenAPI is how many bytes an OpenAPI document may have.
	maxOpenAPI = 64 << 20
)

// description is what the server of one APIService said last.
type description struct {
	discovery *apidiscovery.APIVersionDiscovery // nil: nothing yet
	stale     bool                              // it did not answer when last asked
	etag      string

	v2     *spec.Swagger // of the group version alone
	v2etag string
	v3     *openapi.Document
}

// Run keeps what the extension servers say of themselves until ctx ends.
func (a *Aggregator) Run(ctx context.Context) error {
	queue := workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstRetry, refresh),
		workqueue.TypedRateLimitingQueueConfig[string]{Name: "aggregator", Clock: a.config.Clock},
	)
	var wg sync.WaitGroup
	for range describers {
		wg.Go(func() {
			for a.next(ctx, queue) {
			}
		})
	}
	err := a.follow(ctx, queue.Add)
	queue.ShutDown()
	wg.Wait()
	for _, b := range a.current().backends {
		b.close()
	}
	return err
}

// follow reports the name of every APIService that there is or that changes.
func (a *Aggregator) follow(ctx context.Context, changed func(name string)) error {
	for ctx.Err() == nil {
		sn := a.store.Snapshot()
		a.mu.Lock()
		for name := range a.described {
			changed(name)
		}
		a.mu.Unlock()
		sn.Range(apiServices, "", store.Key{}, func(item *store.Item) bool {
			changed(item.Key.Name)
			return true
		})
		err := a.followFrom(ctx, sn.Revision(), changed)
		if err != nil && ctx.Err() == nil && !errors.Is(err, store.ErrCompacted) {
			return fmt.Errorf("follow API services: %w", err)
		}
	}
	return nil
}

func (a *Aggregator) followFrom(ctx context.Context, from int64, changed func(name string)) error {
	w, err := a.store.Watch(apiServices, "", from)
	if err != nil {
		return err
	}
	defer w.Stop()
	for {
		events, err := w.Next(ctx)
		if err != nil {
			return err
		}
		for _, e := range events {
			changed(e.Item.Key.Name)
		}
	}
}

func (a *Aggregator) next(ctx context.Context, queue workqueue.TypedRateLimitingInterface[string]) bool {
	name, shutdown := queue.Get()
	if shutdown {
		return false
	}
	defer queue.Done(name)
	again, err := a.describe(ctx, name)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		a.config.Log.Debug("extension server does not describe itself", "apiservice", name, "err", err)
		queue.AddRateLimited(name)
	default:
		queue.Forget(name)
		if again {
			queue.AddAfter(name, refresh)
		}
	}
	return true
}

// describe asks the server of one APIService. Again: it is worth asking later
// although nothing changes here.
func (a *Aggregator) describe(ctx context.Context, name string) (again bool, err error) {
	var b *Backend
	for _, one := range a.current().backends {
		if one.name == name {
			b = one
		}
	}
	a.mu.Lock()
	d := a.described[name]
	if b == nil {
		delete(a.described, name)
	}
	a.mu.Unlock()
	if b == nil {
		return false, a.publishKinds()
	}
	if d.stale = true; b.available {
		ctx, cancel := context.WithTimeout(ctx, describeTime)
		defer cancel()
		if err = a.readDiscovery(ctx, b, &d); err == nil {
			d.stale = false
			err = a.readOpenAPI(ctx, b, &d)
		}
	}
	a.mu.Lock()
	a.described[name] = d
	a.mu.Unlock()
	return b.available, errors.Join(err, a.publishKinds())
}

var aggregated = strings.Join([]string{
	"application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
	"application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList",
	"application/json",
}, ",")

// readDiscovery reads the aggregated document, or the older one of the group
// version from a server that has no other.
func (a *Aggregator) readDiscovery(ctx context.Context, b *Backend, d *description) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	header := http.Header{"Accept": {aggregated}}
	if d.etag != "" {
		header.Set("If-None-Match", d.etag)
	}
	r, err := a.get(ctx, b, "/apis", header, maxDiscovery)
	if err != nil {
		return err
	}
	switch {
	case r.code == http.StatusNotModified && d.discovery != nil:
		return nil
	case r.code == http.StatusServiceUnavailable:
		return fmt.Errorf("service %s/%s:%d returned non-success response code: %d", b.spec.Service.Namespace, b.spec.Service.Name, b.port(), r.code)
	case r.code != http.StatusOK || !strings.Contains(r.header.Get("Content-Type"), "as=APIGroupDiscoveryList"):
		return a.readOldDiscovery(ctx, b, d)
	}
	var list apidiscovery.APIGroupDiscoveryList
	if err := json.Unmarshal(r.body, &list); err != nil {
		return fmt.Errorf("discovery of %s: %w", b.name, err)
	}
	d.etag = r.header.Get("ETag")
	d.keep(find(&list, b.gv.Group, b.gv.Version))
	return nil
}

func (a *Aggregator) readOldDiscovery(ctx context.Context, b *Backend, d *description) error {
	r, err := a.get(ctx, b, b.root(), http.Header{"Accept": {"application/json"}}, maxDiscovery)
	if err != nil {
		return err
	}
	if r.code != http.StatusOK {
		return fmt.Errorf("failed to download legacy discovery for %s: %d", b.root(), r.code)
	}
	found, err := discovery.FromResourceList(b.gv, r.body)
	if err != nil {
		return fmt.Errorf("discovery of %s: %w", b.name, err)
	}
	d.etag = ""
	d.keep(found)
	return nil
}

// keep keeps the old value when the new one says the same: who compares pointers
// sees no change.
func (d *description) keep(found *apidiscovery.APIVersionDiscovery) {
	if d.discovery == nil || !reflect.DeepEqual(d.discovery, found) {
		d.discovery = found
	}
}

// find returns one version of a document, without resources when it is not there.
func find(list *apidiscovery.APIGroupDiscoveryList, group, version string) *apidiscovery.APIVersionDiscovery {
	for _, g := range list.Items {
		for i := range g.Versions {
			if g.Name == group && g.Versions[i].Version == version {
				return discovery.Complete(&g.Versions[i])
			}
		}
	}
	return &apidiscovery.APIVersionDiscovery{Version: version}
}

// readOpenAPI reads both dialects. A server may have neither, or only the old one.
func (a *Aggregator) readOpenAPI(ctx context.Context, b *Backend, d *description) error {
	v2err := a.readV2(ctx, b, d)
	served, err := a.readV3(ctx, b, d)
	if !served && err == nil {
		d.v3, err = nil, v2err
		if d.v2 != nil {
			d.v3, err = openapi.NewDocument(openapiconv.ConvertV2ToV3(d.v2))
		}
	}
	return errors.Join(v2err, err)
}

func (a *Aggregator) readV2(ctx context.Context, b *Backend, d *description) error {
	header := http.Header{"Accept": {"application/json"}}
	if d.v2etag != "" {
		header.Set("If-None-Match", d.v2etag)
	}
	r, err := a.get(ctx, b, "/openapi/v2", header, maxOpenAPI)
	if err != nil {
		return err
	}
	switch r.code {
	case http.StatusNotModified:
		return nil
	case http.StatusNotFound:
		d.v2, d.v2etag = nil, ""
		return nil
	case http.StatusOK:
	default:
		return fmt.Errorf("failed to retrieve openAPI spec, http error: %d", r.code)
	}
	whole := &spec.Swagger{}
	if err := whole.UnmarshalJSON(r.body); err != nil {
		return fmt.Errorf("OpenAPI of %s: %w", b.name, err)
	}
	part := aggregator.FilterSpecByPathsWithoutSideEffects(whole, []string{b.root() + "/"})
	if d.v2etag = r.header.Get("ETag"); d.v2 == nil || !reflect.DeepEqual(d.v2, part) {
		d.v2 = part
	}
	return nil
}

// readV3 reads the document of the group version by the server's own index.
func (a *Aggregator) readV3(ctx context.Context, b *Backend, d *description) (served bool, err error) {
	r, err := a.get(ctx, b, "/openapi/v3", http.Header{"Accept": {"application/json"}}, maxDiscovery)
	if err != nil {
		return false, err
	}
	if r.code == http.StatusNotFound {
		return false, nil
	}
	var index struct {
		Paths map[string]struct {
			ServerRelativeURL string `json:"serverRelativeURL"`
		} `json:"paths"`
	}
	if r.code != http.StatusOK {
		return false, fmt.Errorf("failed to retrieve the OpenAPI index, http error: %d", r.code)
	}
	if err := json.Unmarshal(r.body, &index); err != nil {
		return false, fmt.Errorf("OpenAPI index of %s: %w", b.name, err)
	}
	entry, ok := index.Paths[strings.TrimPrefix(b.root(), "/")]
	if !ok {
		d.v3 = nil
		return true, nil
	}
	at, err := url.Parse(entry.ServerRelativeURL)
	if err != nil || at.Host != "" || at.Scheme != "" || !strings.HasPrefix(at.Path, "/") {
		return true, fmt.Errorf("OpenAPI index of %s: %q is no path of the server", b.name, entry.ServerRelativeURL)
	}
	if r, err = a.get(ctx, b, at.RequestURI(), http.Header{"Accept": {"application/json"}}, maxOpenAPI); err != nil {
		return true, err
	}
	if r.code != http.StatusOK || !json.Valid(r.body) {
		return true, fmt.Errorf("OpenAPI of %s: http status %d, %d bytes", b.name, r.code, len(r.body))
	}
	doc, err := openapi.NewDocument(json.RawMessage(r.body))
	if err == nil && (d.v3 == nil || d.v3.Hash() != doc.Hash()) {
		d.v3 = doc
	}
	return true, err
}

// Discovery is what other servers add to discovery: the same value until it changes.
func (a *Aggregator) Discovery() *discovery.Remotes {
	t := a.current()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(t.backends) == 0 {
		a.discovery = nil
		return nil
	}
	list := make([]discovery.Remote, 0, len(t.backends))
	for gv, b := range t.backends {
		d := a.described[b.name]
		list = append(list, discovery.Remote{
			GroupVersion: gv, GroupPriority: b.spec.GroupPriorityMinimum, VersionPriority: b.spec.VersionPriority,
			Document: d.discovery, Stale: d.stale || d.discovery == nil || !b.available,
		})
	}
	slices.SortFunc(list, func(a, b discovery.Remote) int { return strings.Compare(a.String(), b.String()) })
	if a.discovery == nil || !slices.Equal(a.discovery.List, list) {
		a.discovery = &discovery.Remotes{List: list}
	}
	return a.discovery
}

// OpenAPI is what other servers add to OpenAPI: the same value until it changes.
func (a *Aggregator) OpenAPI() *openapi.Remotes {
	t := a.current()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(t.backends) == 0 {
		a.openapi = nil
		return nil
	}
	list := make([]openapi.Remote, 0, len(t.backends))
	for gv, b := range t.backends {
		d := a.described[b.name]
		list = append(list, openapi.Remote{GroupVersion: gv, V2: d.v2, V3: d.v3})
	}
	slices.SortFunc(list, func(a, b openapi.Remote) int { return strings.Compare(a.String(), b.String()) })
	if a.openapi == nil || !slices.Equal(a.openapi.List, list) {
		a.openapi = &openapi.Remotes{List: list}
	}
	return a.openapi
}
