package framework

import (
	"errors"
	"strings"
)

// Code is the outcome of one plugin call.
type Code int

const (
	Success Code = iota
	// Error is an unexpected failure: the pod is retried with backoff.
	Error
	// Unschedulable: the node does not fit, but removing other pods may help.
	Unschedulable
	// UnschedulableAndUnresolvable: the node does not fit and preemption cannot help.
	UnschedulableAndUnresolvable
	// Wait holds the pod in Permit.
	Wait
	// Skip: the plugin has nothing to say about this pod (PreFilter, PreScore) or
	// leaves the work to the next (Bind).
	Skip
	// Pending: the pod waits for something that is under way; it needs no backoff.
	Pending
)

var codeNames = []string{"Success", "Error", "Unschedulable", "UnschedulableAndUnresolvable", "Wait", "Skip", "Pending"}

func (c Code) String() string { return codeNames[c] }

// Status is a plugin's answer. Nil is Success. A Status is immutable, so a
// plugin can return the same one for every node.
type Status struct {
	code    Code
	reasons []string
	err     error
}

// NewStatus returns an answer with the reasons that a user reads.
func NewStatus(code Code, reasons ...string) *Status { return &Status{code: code, reasons: reasons} }

// AsStatus wraps an unexpected error. Nil is Success.
func AsStatus(err error) *Status {
	if err == nil {
		return nil
	}
	return &Status{code: Error, err: err, reasons: []string{err.Error()}}
}

func (s *Status) Code() Code {
	if s == nil {
		return Success
	}
	return s.code
}

// Reasons are sentences for the user, counted over nodes in the pod's condition.
func (s *Status) Reasons() []string {
	if s == nil {
		return nil
	}
	return s.reasons
}

// Message joins the reasons.
func (s *Status) Message() string { return strings.Join(s.Reasons(), ", ") }

func (s *Status) IsSuccess() bool { return s.Code() == Success }
func (s *Status) IsSkip() bool    { return s.Code() == Skip }
func (s *Status) IsWait() bool    { return s.Code() == Wait }

// IsRejected tells whether the plugin refused the pod, as opposed to failing.
func (s *Status) IsRejected() bool {
	switch s.Code() {
	case Unschedulable, UnschedulableAndUnresolvable, Pending:
		return true
	}
	return false
}

// Err is the error of a Status other than Success.
func (s *Status) Err() error {
	if s.IsSuccess() {
		return nil
	}
	if s.err != nil {
		return s.err
	}
	return errors.New(s.Message())
}
