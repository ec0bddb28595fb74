package controlplane

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"proa/internal/apis"
	"proa/internal/apis/builtin"
	"proa/internal/apiserver"
	"proa/internal/store"
	"proa/internal/store/etcd"
)

// Etcd opens the engine on an etcd, for Config.Engine. Every built-in kind lies
// where upstream keeps it, served here or not.
func Etcd(c etcd.Config) func(*apis.Catalogue) (store.Engine, error) {
	return func(*apis.Catalogue) (store.Engine, error) {
		c.Resources = builtinResources()
		return etcd.Open(c)
	}
}

func builtinResources() []schema.GroupResource {
	all := builtin.Everything().All()
	list := make([]schema.GroupResource, len(all))
	for i, r := range all {
		list[i] = r.GroupResource()
	}
	return list
}

// newCompactor returns what keeps history short. On etcd the servers take turns.
func newCompactor(engine store.Engine, s *store.Store, clk clock.WithTicker) component {
	if shared, ok := engine.(*etcd.Engine); ok {
		return &etcd.Compactor{Engine: shared}
	}
	return &store.Compactor{Store: s, Clock: clk}
}

// engineChecks are those of upstream's health endpoints that concern etcd.
func engineChecks(engine store.Engine) []apiserver.Check {
	shared, ok := engine.(*etcd.Engine)
	if !ok {
		return nil
	}
	return []apiserver.Check{
		{Name: "etcd", Check: shared.Health},
		{Name: "etcd-readiness", Check: shared.Health, Ready: true},
	}
}

// newExpiry returns what removes old events. TTL 0 means upstream's hour.
func newExpiry(s *store.Store, ttl time.Duration, clk clock.WithTicker) *store.Expiry {
	return &store.Expiry{Store: s, Resource: schema.GroupResource{Resource: "events"}, TTL: ttl, Written: eventWritten, Clock: clk}
}

// eventWritten is the newest time that an event bears.
func eventWritten(obj store.Object) time.Time {
	times := []time.Time{obj.GetCreationTimestamp().Time}
	for _, m := range obj.GetManagedFields() {
		times = append(times, timeOf(m.Time))
	}
	if e, ok := obj.(*corev1.Event); ok {
		times = append(times, e.LastTimestamp.Time, e.EventTime.Time)
		if e.Series != nil {
			times = append(times, e.Series.LastObservedTime.Time)
		}
	}
	return slices.MaxFunc(times, time.Time.Compare)
}

func timeOf(t *metav1.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.Time
}
