// Package apiservice keeps APIServices: it registers every group version that
// this server serves itself as a local one, and says of each whether it is
// available, which is what requests for other servers' group versions go by.
package apiservice

import (
	"context"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"proa/internal/apis"
	"proa/internal/apis/apiregistration"
	"proa/internal/client"
	"proa/internal/controllers"
)

type apiService = apiregistrationv1.APIService

// Registration keeps the local APIServices. Those of built-in group versions are
// made right once, when the server starts: a user may then change them. Those of
// custom resources follow their definitions.
type Registration struct {
	loop      *controllers.Loop
	catalogue *apis.Catalogue
	services  *client.Informer[*apiService]

	present sets.Set[string] // APIServices that were there at the start
	settled sets.Set[string] // those made right at the start; only the worker looks
}

// NewRegistration returns a controller that registers what catalogue serves.
func NewRegistration(c controllers.Config, catalogue *apis.Catalogue) *Registration {
	r := &Registration{
		catalogue: catalogue, services: client.Shared[*apiService](c.Cache),
		present: sets.New[string](), settled: sets.New[string](),
	}
	c.Workers = 1
	r.loop = controllers.NewLoop("apiservice-registration", c, r.reconcile)
	r.services.OnChange(func(old, s *apiService) {
		if s == nil {
			s = old
		}
		r.loop.EnqueueObject(s)
	})
	return r
}

// Run works until ctx ends.
func (r *Registration) Run(ctx context.Context) error {
	for _, s := range r.services.Select("", labels.Everything()) {
		r.present.Insert(s.Name)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.followCatalogue(ctx)
	}()
	err := r.loop.Run(ctx)
	<-done
	return err
}

// followCatalogue looks at every group version that comes or goes.
func (r *Registration) followCatalogue(ctx context.Context) {
	seen := map[string]*apiService{}
	for {
		changed := r.catalogue.Changed()
		now := r.desired()
		for name := range seen {
			if now[name] == nil {
				r.loop.Enqueue(controllers.Key{Name: name})
			}
		}
		for name := range now {
			if seen[name] == nil {
				r.loop.Enqueue(controllers.Key{Name: name})
			}
		}
		seen = now
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// desired are the local APIServices by name.
func (r *Registration) desired() map[string]*apiService {
	all := map[string]*apiService{}
	add := func(group, version, manage string) {
		gv := schema.GroupVersion{Group: group, Version: version}
		p := apiregistration.PriorityOf(gv)
		all[apiregistration.Name(gv)] = &apiService{
			ObjectMeta: metav1.ObjectMeta{Name: apiregistration.Name(gv), Labels: map[string]string{apiregistration.AutomanagedLabel: manage}},
			Spec: apiregistrationv1.APIServiceSpec{
				Group: group, Version: version, GroupPriorityMinimum: p.Group, VersionPriority: p.Version,
			},
		}
	}
	for _, res := range r.catalogue.All() {
		manage := apiregistration.OnStart
		if res.Custom != nil {
			manage = apiregistration.Always
		}
		if !res.Unserved {
			add(res.Group, res.Version, manage)
		}
		for _, s := range res.Also {
			add(s.Group, s.Version, manage)
		}
		for _, v := range res.Versions {
			add(v.Group, v.Version, manage)
		}
	}
	return all
}

// reconcile makes one APIService what it should be. One without the label is its
// owner's business.
func (r *Registration) reconcile(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	want := r.desired()[key.Name]
	have, ok := r.services.Cached("", key.Name)
	var err error
	switch {
	case !ok && want == nil:
	case !ok:
		err = r.create(ctx, want)
	case want == nil:
		err = r.remove(ctx, have)
	default:
		err = r.mend(ctx, have, want)
	}
	if err == nil {
		r.settled.Insert(key.Name)
	}
	return controllers.Result{}, ignoreRace(err)
}

func (r *Registration) create(ctx context.Context, want *apiService) error {
	if want.Labels[apiregistration.AutomanagedLabel] == apiregistration.OnStart && r.settled.Has(want.Name) {
		return nil // a user deleted it
	}
	_, err := r.services.Create(ctx, want)
	return err
}

// remove deletes what registered a group version that is no longer served.
func (r *Registration) remove(ctx context.Context, have *apiService) error {
	switch have.Labels[apiregistration.AutomanagedLabel] {
	case apiregistration.Always:
	case apiregistration.OnStart:
		if !r.present.Has(have.Name) || r.settled.Has(have.Name) {
			return nil
		}
	default:
		return nil
	}
	_, err := r.services.Delete(ctx, "", have.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &have.UID}})
	return err
}

func (r *Registration) mend(ctx context.Context, have, want *apiService) error {
	switch have.Labels[apiregistration.AutomanagedLabel] {
	case apiregistration.Always:
	case apiregistration.OnStart:
		if !r.present.Has(have.Name) || r.settled.Has(have.Name) || givesWay(have) {
			return nil
		}
	default:
		return nil
	}
	if equality.Semantic.DeepEqual(have.Spec, want.Spec) && have.Labels[apiregistration.AutomanagedLabel] == want.Labels[apiregistration.AutomanagedLabel] {
		return nil
	}
	next := have.DeepCopy()
	next.Spec = want.Spec
	metav1.SetMetaDataLabel(&next.ObjectMeta, apiregistration.AutomanagedLabel, want.Labels[apiregistration.AutomanagedLabel])
	_, err := r.services.Update(ctx, next)
	return err
}

// givesWay says that a user has set up a server in place of a group that is only
// built in for want of one.
func givesWay(have *apiService) bool {
	return have.Spec.Group == apiregistration.MetricsGroup && have.Spec.Service != nil
}

// ignoreRace: who created, changed or deleted the object meanwhile has enqueued it.
func ignoreRace(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
