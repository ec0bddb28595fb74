package admission

import (
	"context"
	"testing"

	"k8s.io/apiserver/pkg/audit"
)

// annotating is a plugin that records a fact in each of its phases.
type annotating struct{}

func (annotating) Name() string { return "annotating" }

func (annotating) Admit(_ context.Context, a *Attributes) error {
	a.AddAuditAnnotation("example.com/admitted", "so")
	return nil
}

func (annotating) Validate(_ context.Context, a *Attributes) error {
	a.AddAuditAnnotation("example.com/validated", "too")
	return nil
}

func TestFactsReachTheAuditEvent(t *testing.T) {
	ctx := audit.WithAuditContext(t.Context())
	c := NewChain(annotating{})
	a := &Attributes{}
	if err := c.Admit(ctx, a); err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(ctx, a); err != nil {
		t.Fatal(err)
	}
	got := audit.AuditContextFrom(ctx).GetEventAnnotations()
	if len(got) != 2 || got["example.com/admitted"] != "so" || got["example.com/validated"] != "too" {
		t.Error(got)
	}
}
