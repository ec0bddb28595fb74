package aggregator

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"

	"proa/internal/apiserver/discovery"
)

// Kind is a kind of another server whose objects live in namespaces.
type Kind struct {
	schema.GroupVersionResource
	verbs []string
}

// Namespaced lists the kinds whose objects live in namespaces and can be listed
// and deleted, each in the version that its group prefers. Unknown are the group
// versions whose servers do not say what they have.
func (a *Aggregator) Namespaced() (kinds []Kind, unknown []schema.GroupVersion) {
	remotes := a.Discovery()
	if remotes == nil {
		return nil, nil
	}
	list := slices.Clone(remotes.List)
	slices.SortStableFunc(list, func(a, b discovery.Remote) int { return int(b.VersionPriority) - int(a.VersionPriority) })
	seen := map[schema.GroupResource]bool{}
	for _, r := range list {
		if r.Stale {
			unknown = append(unknown, r.GroupVersion)
			continue
		}
		for _, res := range r.Document.Resources {
			gvr := r.WithResource(res.Resource)
			if res.Scope != apidiscovery.ScopeNamespace || seen[gvr.GroupResource()] || !slices.Contains(res.Verbs, "list") || !slices.Contains(res.Verbs, "delete") {
				continue
			}
			seen[gvr.GroupResource()] = true
			kinds = append(kinds, Kind{gvr, res.Verbs})
		}
	}
	slices.SortFunc(unknown, func(a, b schema.GroupVersion) int { return strings.Compare(a.String(), b.String()) })
	return kinds, unknown
}

// maxList is how many bytes the metadata of a kind's objects in a namespace may have.
const maxList = 64 << 20

// List reads the metadata of a kind's objects in a namespace, as u.
func (a *Aggregator) List(ctx context.Context, u user.Info, k Kind, namespace string) ([]metav1.ObjectMeta, error) {
	r, err := a.send(ctx, http.MethodGet, u, k, namespace, "")
	if err != nil || r.code == http.StatusNotFound {
		return nil, err
	}
	var list metav1.PartialObjectMetadataList
	if r.code != http.StatusOK {
		return nil, fmt.Errorf("list %s in %s: http status %d", k.GroupResource(), namespace, r.code)
	}
	if err := json.Unmarshal(r.body, &list); err != nil {
		return nil, fmt.Errorf("list %s in %s: %w", k.GroupResource(), namespace, err)
	}
	metas := make([]metav1.ObjectMeta, len(list.Items))
	for i := range list.Items {
		metas[i] = list.Items[i].ObjectMeta
	}
	return metas, nil
}

// Delete deletes a kind's objects in a namespace in the background, as u.
func (a *Aggregator) Delete(ctx context.Context, u user.Info, k Kind, namespace string, objs []metav1.ObjectMeta) error {
	if slices.Contains(k.verbs, "deletecollection") {
		return a.delete(ctx, u, k, namespace, "")
	}
	for _, o := range objs {
		if err := a.delete(ctx, u, k, namespace, o.Name); err != nil {
			return err
		}
	}
	return nil
}

func (a *Aggregator) delete(ctx context.Context, u user.Info, k Kind, namespace, name string) error {
	r, err := a.send(ctx, http.MethodDelete, u, k, namespace, name)
	if err != nil {
		return err
	}
	switch r.code {
	case http.StatusOK, http.StatusAccepted, http.StatusNotFound:
		return nil
	}
	return fmt.Errorf("delete %s in %s: http status %d", k.GroupResource(), namespace, r.code)
}

func (a *Aggregator) send(ctx context.Context, method string, u user.Info, k Kind, namespace, name string) (*reply, error) {
	b := a.Backend(k.GroupVersion())
	if b == nil || !b.available {
		return nil, fmt.Errorf("%s: service unavailable", k.GroupVersion())
	}
	path := b.root() + "/namespaces/" + url.PathEscape(namespace) + "/" + k.Resource
	if name != "" {
		path += "/" + url.PathEscape(name)
	}
	if method == http.MethodDelete {
		path += "?propagationPolicy=" + string(metav1.DeletePropagationBackground)
	}
	return a.ask(ctx, method, b, u, path, http.Header{"Accept": {"application/json"}}, maxList)
}
