package controllers

import "k8s.io/client-go/tools/record"

// EventRecorder writes core/v1 Events.
type EventRecorder = record.EventRecorder

// Events returns the recorder of one component.
func (c Config) Events(component string) EventRecorder {
	if c.Recorder == nil {
		return &record.FakeRecorder{}
	}
	return c.Recorder(component)
}
