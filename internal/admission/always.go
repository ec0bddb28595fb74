package admission

import (
	"context"
	"errors"
)

// AlwaysAdmit does nothing. Off unless enabled.
type AlwaysAdmit struct{}

func (AlwaysAdmit) Name() string { return "AlwaysAdmit" }

func (AlwaysAdmit) Admit(context.Context, *Attributes) error    { return nil }
func (AlwaysAdmit) Validate(context.Context, *Attributes) error { return nil }

// AlwaysDeny refuses every change. Off unless enabled.
type AlwaysDeny struct{}

func (AlwaysDeny) Name() string { return "AlwaysDeny" }

var errDenied = errors.New("admission control is denying all modifications")

func (AlwaysDeny) Admit(_ context.Context, a *Attributes) error    { return a.forbidden(errDenied) }
func (AlwaysDeny) Validate(_ context.Context, a *Attributes) error { return a.forbidden(errDenied) }
