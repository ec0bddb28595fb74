// Package admission decides whether a change is allowed and completes it: the
// chain of built-in plugins that a write passes between authorization and the
// store, in upstream's default order.
//
// A write passes three phases. Mutators complete the object, validators judge
// the completed object, and committers repeat, inside the store transaction that
// carries the write, the checks that depend on other objects (a namespace that is
// not going away, a quota that is not used up), so that two writes at the same
// moment cannot both slip through.
package admission

import (
	"context"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"

	"proa/internal/apis"
	"proa/internal/store"
)

// Attributes describe one write as the plugins see it.
type Attributes struct {
	Operation   admissionv1.Operation
	Resource    *apis.Resource
	Served      *apis.Served // the version that the client speaks; nil: the hub version
	Subresource string
	Namespace   string
	Name        string

	// Object is the new state in the hub version, the one Admit may change; nil
	// on DELETE and CONNECT. For subresources with a body of their own (binding,
	// eviction, token, scale) it is that body.
	Object apis.Object
	// OldObject is the stored state, shared and read-only; nil on CREATE.
	OldObject apis.Object

	Options runtime.Object
	User    user.Info
	DryRun  bool

	auditAnnotations map[string]string
	rounds           rounds
}

// rounds is the way of an object through the mutators. A policy or webhook that
// changes it has those before it look again, once.
type rounds struct {
	again, second bool
	memory        map[string]any
}

// AskAgain asks for a second round of the mutators. In the second round it does nothing.
func (a *Attributes) AskAgain() { a.rounds.again = true }

// SecondRound says that the mutators have all seen the object before.
func (a *Attributes) SecondRound() bool { return a.rounds.second }

// Memory returns what a plugin kept from the first round, nil for nothing.
func (a *Attributes) Memory(plugin string) any { return a.rounds.memory[plugin] }

// Remember keeps something of a plugin for the second round.
func (a *Attributes) Remember(plugin string, v any) {
	if a.rounds.memory == nil {
		a.rounds.memory = map[string]any{}
	}
	a.rounds.memory[plugin] = v
}

// AddAuditAnnotation records a fact about the decision for the audit event. The
// first value of a key stays.
func (a *Attributes) AddAuditAnnotation(key, value string) {
	if _, taken := a.auditAnnotations[key]; taken {
		return
	}
	if a.auditAnnotations == nil {
		a.auditAnnotations = map[string]string{}
	}
	a.auditAnnotations[key] = value
}

// AuditAnnotations returns what the plugins recorded, by key. The map is shared.
func (a *Attributes) AuditAnnotations() map[string]string { return a.auditAnnotations }

// tell passes what was recorded on to the request's audit event, if it has one.
func (a *Attributes) tell(ctx context.Context) {
	if len(a.auditAnnotations) > 0 {
		audit.AddAuditAnnotationsMap(ctx, a.auditAnnotations)
	}
}

// Mutator is a plugin that completes an object. Admit must be idempotent: it
// runs again when a mutating webhook changed the object after it.
type Mutator interface {
	Name() string
	Admit(ctx context.Context, a *Attributes) error
}

// Validator is a plugin that judges the completed object and changes nothing.
type Validator interface {
	Name() string
	Validate(ctx context.Context, a *Attributes) error
}

// Committer is a plugin with a check that has to hold at the moment of the
// write. Commit runs inside the write's transaction, may run more than once,
// and may write what belongs to the same change (a quota's usage).
type Committer interface {
	Name() string
	Commit(tx *store.Tx, a *Attributes) error
}

// Chain is the ordered set of plugins of one server.
type Chain struct {
	mutators   []Mutator
	validators []Validator
	committers []Committer
	durations  *durations
}

// NewChain returns a chain of the given plugins in the given order. Each plugin
// takes part in the phases it has a method for.
func NewChain(plugins ...any) *Chain {
	c := &Chain{durations: newDurations()}
	for _, p := range plugins {
		if m, ok := p.(Mutator); ok {
			c.mutators = append(c.mutators, m)
			c.durations.mutators = append(c.durations.mutators, &series{plugin: m.Name(), phase: phaseAdmit})
		}
		if v, ok := p.(Validator); ok {
			c.validators = append(c.validators, v)
			c.durations.validators = append(c.durations.validators, &series{plugin: v.Name(), phase: phaseValidate})
		}
		if m, ok := p.(Committer); ok {
			c.committers = append(c.committers, m)
		}
	}
	return c
}

// Admit completes a.Object. The first error ends the request; it is a StatusError.
func (c *Chain) Admit(ctx context.Context, a *Attributes) error {
	defer a.tell(ctx)
	a.rounds = rounds{}
	if err := c.admit(ctx, a); err != nil || !a.rounds.again {
		return err
	}
	a.rounds.second = true
	return c.admit(ctx, a)
}

func (c *Chain) admit(ctx context.Context, a *Attributes) error {
	if len(c.mutators) == 0 {
		return nil
	}
	watch := c.durations.start(a)
	defer watch.stop(&c.durations.admit)
	for i, p := range c.mutators {
		err := p.Admit(ctx, a)
		if watch.lap(c.durations.mutators[i], err); err != nil {
			return err
		}
	}
	return nil
}

// Validate judges the completed object. The first error ends the request.
func (c *Chain) Validate(ctx context.Context, a *Attributes) error {
	defer a.tell(ctx)
	if len(c.validators) == 0 {
		return nil
	}
	watch := c.durations.start(a)
	defer watch.stop(&c.durations.validate)
	for i, p := range c.validators {
		err := p.Validate(ctx, a)
		if watch.lap(c.durations.validators[i], err); err != nil {
			return err
		}
	}
	return nil
}

// Commit repeats the checks that depend on other objects inside the write's
// transaction. The request path calls it in the function it gives to
// store.Update, dry runs included: with a.DryRun set nothing is written.
func (c *Chain) Commit(tx *store.Tx, a *Attributes) error {
	for _, p := range c.committers {
		if err := p.Commit(tx, a); err != nil {
			return err
		}
	}
	return nil
}
