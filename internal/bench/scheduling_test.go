package bench

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"proa/internal/apis/builtin"
	"proa/internal/apiserver/registry"
	apiclient "proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/deployment"
	"proa/internal/controllers/garbagecollector"
	"proa/internal/controllers/namespace"
	"proa/internal/controllers/replicaset"
	"proa/internal/controllers/resourceclaim"
	"proa/internal/scheduler"
	"proa/internal/simulate"
	"proa/internal/store"
	"proa/internal/volume"
)

type runner interface{ Run(context.Context) error }

// control runs a scheduler, some controllers and so many simulated nodes over a store.
func control(t *testing.T, st *store.Store, nodes int) {
	t.Helper()
	catalogue := builtin.Catalogue()
	r, err := registry.New(registry.Config{Store: st, Catalogue: catalogue})
	if err != nil {
		t.Fatal(err)
	}
	cache := apiclient.NewCache(r.As(&user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}}))
	c := controllers.Config{Cache: cache, Clock: clock.RealClock{}, Recorder: func(string) record.EventRecorder { return &record.FakeRecorder{} }}
	s, err := scheduler.New(scheduler.Config{Cache: cache})
	if err != nil {
		t.Fatal(err)
	}
	sim, err := simulate.New(simulate.Config{Cache: cache, Fleet: simulate.Fleet{Nodes: nodes}})
	if err != nil {
		t.Fatal(err)
	}
	all := []runner{
		s, sim, namespace.New(c, catalogue), deployment.New(c), replicaset.New(c), garbagecollector.New(c, catalogue), resourceclaim.New(c),
		volume.New(volume.Config{Controllers: c}),
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	wg.Go(func() { _ = cache.Run(ctx) })
	if err := cache.WaitForSync(ctx); err != nil {
		t.Fatal(err)
	}
	for _, one := range all {
		wg.Go(func() {
			if err := one.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}

func left(st *store.Store, what ...string) int {
	n := 0
	for _, plural := range what {
		group := map[string]string{"leases": "coordination.k8s.io", "priorityclasses": "scheduling.k8s.io", "csinodes": "storage.k8s.io", "deployments": "apps", "deviceclasses": "resource.k8s.io", "resourceslices": "resource.k8s.io", "resourceclaims": "resource.k8s.io"}[plural]
		n += st.Snapshot().Len(schema.GroupResource{Group: group, Resource: plural}, "")
	}
	return n
}

func TestEveryShapeIsScheduledAndNothingIsLeft(t *testing.T) {
	config, st := serve(t)
	control(t, st, 0)
	var names []string
	err := Scheduling{Config: config, Scale: 0.002, Clients: 4}.Run(t.Context(), func(f Figure) {
		if f.Count == 0 || f.Failed > 0 || f.PerSecond <= 0 || f.P99 < f.P50 || f.P50 <= 0 || f.Rates == nil {
			t.Errorf("%+v", f)
		}
		t.Log(f.Task, f.Count, f.Seconds)
		names = append(names, f.Task)
	})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(names, ShapeNames()) {
		t.Errorf("measured %v", names)
	}
	if n := left(st, "nodes", "pods", "leases", "priorityclasses", "csinodes", "persistentvolumes", "secrets", "deviceclasses", "resourceslices", "resourceclaims"); n != 0 {
		t.Errorf("%d objects are left", n)
	}
}

func TestAShapeThatDoesNotExistIsRefused(t *testing.T) {
	err := Scheduling{Only: []string{"round"}}.Run(t.Context(), nil)
	if err == nil || !strings.Contains(err.Error(), "basic") {
		t.Error(err)
	}
}

func TestControllersAreMeasuredAndNothingIsLeft(t *testing.T) {
	config, st := serve(t)
	control(t, st, 3)
	var tasks []string
	err := Controllers{Config: config, Deployments: 5, Replicas: 2, Objects: 60, Clients: 2}.Run(t.Context(), func(f Figure) {
		if f.Count == 0 || f.PerSecond <= 0 {
			t.Errorf("%+v", f)
		}
		tasks = append(tasks, f.Task)
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"to all Running", "rolling update", "delete namespace", "delete namespace"}; !slices.Equal(tasks, want) {
		t.Errorf("measured %q", tasks)
	}
	if n := left(st, "pods", "deployments", "configmaps"); n != 0 {
		t.Errorf("%d objects are left", n)
	}
}
