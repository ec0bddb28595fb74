// Package latency sums up where the time of one request goes, for the audit trail.
// A request of which nothing is written down has no Breakdown, and a nil one takes
// no notes.
package latency

import (
	"context"
	"sync/atomic"
	"time"
)

// Part is what takes time.
type Part int

const (
	Authentication Part = iota
	Impersonation
	Queue // for the request's turn
	Authorization
	MutatingWebhooks
	ValidatingWebhooks
	Store
	Serialization // of the answer
	Network       // until the client has taken the answer
	parts
)

// names are those that upstream's audit annotations have.
var names = [parts]string{
	"authentication", "impersonation", "apf-queue-wait", "authorization", "mutating-webhook", "validating-webhook",
	"etcd", "serialize-response-object", "response-write",
}

// Breakdown is the time that each part of a request has taken. Goroutines of the
// request may share it.
type Breakdown struct{ took [parts]atomic.Int64 }

type key struct{}

// With returns a context with a new Breakdown.
func With(ctx context.Context) context.Context { return context.WithValue(ctx, key{}, &Breakdown{}) }

// Of returns the Breakdown of a request, nil when there is none.
func Of(ctx context.Context) *Breakdown {
	b, _ := ctx.Value(key{}).(*Breakdown)
	return b
}

// Add notes that a part took so long once more; less than nothing is taken off.
func (b *Breakdown) Add(p Part, d time.Duration) {
	if b != nil {
		b.took[p].Add(int64(d))
	}
}

// Track notes the time until the returned function is called.
func (b *Breakdown) Track(p Part) (stop func()) {
	if b == nil {
		return func() {}
	}
	start := time.Now()
	return func() { b.Add(p, time.Since(start)) }
}

// Annotations are the keys and values of audit annotations for a request that took
// total; parts that took no time are left out.
func (b *Breakdown) Annotations(total time.Duration) []string {
	const prefix = "apiserver.latency.k8s.io/"
	list := []string{prefix + "total", total.String()}
	for p := range parts {
		if d := time.Duration(b.took[p].Load()); d > 0 {
			list = append(list, prefix+names[p], d.String())
		}
	}
	return list
}
