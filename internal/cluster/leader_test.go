package cluster

import (
	"context"
	"errors"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"proa/internal/apis/builtin"
	"proa/internal/client"
	"proa/pkg/proatest"
)

// candidate is a server that wants to lead. It tells when it has read the Lease
// and when it leads.
type candidate struct {
	client.API
	read, leads chan struct{}
	stop        func() error
}

func (c *candidate) Get(ctx context.Context, ref client.Ref, opts metav1.GetOptions) (client.Object, error) {
	obj, err := c.API.Get(ctx, ref, opts)
	select {
	case c.read <- struct{}{}:
	case <-ctx.Done():
	}
	return obj, err
}

// Run is the work of a leader.
func (c *candidate) Run(ctx context.Context) error {
	if ctx.Err() == nil {
		close(c.leads)
		<-ctx.Done()
	}
	return nil
}

func stand(t *testing.T, api client.API, name string, clk clock.WithTicker) *candidate {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c := &candidate{API: api, read: make(chan struct{}), leads: make(chan struct{})}
	e := &elected{api: c, name: "kube-controller-manager", identity: name, components: []component{c}, clock: clk}
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	c.stop = func() error {
		cancel()
		for {
			select {
			case <-c.read: // of the Lease that it lets go
			case err := <-ended:
				return err
			}
		}
	}
	return c
}

// watchedClock stands still, and tells when somebody waits for it.
type watchedClock struct {
	*clocktesting.FakeClock
	waits chan struct{}
}

func newClock() watchedClock {
	return watchedClock{clocktesting.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)), make(chan struct{}, 100)}
}

func (c watchedClock) After(d time.Duration) <-chan time.Time {
	ch := c.FakeClock.After(d)
	c.waits <- struct{}{}
	return ch
}

func (c watchedClock) NewTicker(d time.Duration) clock.Ticker {
	ticker := c.FakeClock.NewTicker(d)
	c.waits <- struct{}{}
	return ticker
}

func TestACandidateAsksAgainAfterAPeriodAndItsJitter(t *testing.T) {
	api, err := client.NewHTTP(proatest.Start(t, proatest.Options{}), builtin.Catalogue())
	if err != nil {
		t.Fatal(err)
	}
	first := stand(t, api, "first", newClock())
	<-first.read
	<-first.leads

	clk := newClock()
	second := stand(t, api, "second", clk)
	<-second.read
	for range 3 {
		<-clk.waits
		clk.Step(leaseRetry - time.Nanosecond)
		select {
		case <-second.read:
			t.Fatal("asked before a period was over")
		default:
		}
		clk.Step(time.Duration(float64(leaseRetry)*leaseJitter) + time.Nanosecond)
		<-second.read
	}
	lease := leaseOf(t, api)
	if *lease.HolderIdentity != "first" || *lease.LeaseTransitions != 0 || *lease.LeaseDurationSeconds != 15 {
		t.Errorf("while the first leads: %+v", lease)
	}

	// The first is silent: its own clock stands.
	<-clk.waits
	clk.Step(leaseDuration)
	<-second.read
	<-second.leads
	lease = leaseOf(t, api)
	if *lease.HolderIdentity != "second" || *lease.LeaseTransitions != 1 {
		t.Errorf("after the first was silent: %+v", lease)
	}
	if err := first.stop(); err != nil {
		t.Error(err)
	}
	if err := second.stop(); err != nil {
		t.Error(err)
	}
	if lease = leaseOf(t, api); *lease.HolderIdentity != "" || *lease.LeaseTransitions != 1 {
		t.Errorf("after both ended: %+v", lease)
	}
}

func leaseOf(t *testing.T, api client.API) coordinationv1.LeaseSpec {
	t.Helper()
	lease, err := client.Of[*coordinationv1.Lease](api).Get(t.Context(), metav1.NamespaceSystem, "kube-controller-manager")
	if err != nil {
		t.Fatal(err)
	}
	return lease.Spec
}

func TestALeaderEndsWhenAnotherHoldsTheLease(t *testing.T) {
	api, err := client.NewHTTP(proatest.Start(t, proatest.Options{}), builtin.Catalogue())
	if err != nil {
		t.Fatal(err)
	}
	clk := newClock()
	c := &candidate{API: api, read: make(chan struct{}), leads: make(chan struct{})}
	e := &elected{api: c, name: "kube-controller-manager", identity: "first", components: []component{c}, clock: clk}
	ended := make(chan error, 1)
	go func() { ended <- e.Run(t.Context()) }()
	<-c.read
	<-c.leads
	lease, err := client.Of[*coordinationv1.Lease](api).Get(t.Context(), metav1.NamespaceSystem, e.name)
	if err != nil {
		t.Fatal(err)
	}
	lease = lease.DeepCopy()
	lease.Spec.HolderIdentity = new("another")
	if _, err := client.Of[*coordinationv1.Lease](api).Update(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	<-clk.waits
	clk.Step(leaseRetry)
	<-c.read
	<-c.read // whether there is something to let go
	if err := <-ended; err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
}
