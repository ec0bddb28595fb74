package core

import (
	"fmt"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis/validate"
)

const (
	maxReportingInstance = 128
	maxAction            = 128
	maxReason            = 128
	maxNote              = 1024
)

// validateEvent holds an event to what every version asks of it: its namespace,
// and of one that says when it happened, which is of the newer kind (KEP-383),
// more. Reporter is the version's name of the field that says who reports.
func validateEvent(e *corev1.Event, reporter string) field.ErrorList {
	errs := validateEventNamespace(e)
	if e.EventTime.IsZero() {
		return errs
	}
	check := func(child, value string, max int) {
		at := field.NewPath(child)
		if value == "" {
			errs = append(errs, field.Required(at, ""))
		}
		if len(value) > max {
			errs = append(errs, field.Invalid(at, "", fmt.Sprintf("can have at most %v characters", max)))
		}
	}
	if e.ReportingController == "" {
		errs = append(errs, field.Required(field.NewPath(reporter), ""))
	}
	errs = append(errs, validate.QualifiedName(field.NewPath(reporter), e.ReportingController)...)
	check("reportingInstance", e.ReportingInstance, maxReportingInstance)
	check("action", e.Action, maxAction)
	check("reason", e.Reason, maxReason)
	if len(e.Message) > maxNote {
		errs = append(errs, field.Invalid(field.NewPath("message"), "", fmt.Sprintf("can have at most %v characters", maxNote)))
	}
	return errs
}

func validateEventNamespace(e *corev1.Event) field.ErrorList {
	about, newer := e.InvolvedObject.Namespace, !e.EventTime.IsZero()
	switch {
	case about == e.Namespace, about != "" && newer:
		return nil
	case about == "" && (e.Namespace == metav1.NamespaceDefault || newer && e.Namespace == metav1.NamespaceSystem):
		return nil // of an object that has no namespace
	}
	return field.ErrorList{field.Invalid(field.NewPath("involvedObject", "namespace"), about, "does not match event.namespace")}
}

func validateCoreEvent(e *corev1.Event) field.ErrorList {
	return validateEvent(e, "reportingComponent")
}

// A core event may be changed in all that it may be created with.
func validateCoreEventUpdate(e, _ *corev1.Event) field.ErrorList { return validateCoreEvent(e) }

// validateNewEvent is for events created as events.k8s.io/v1: they are of the
// newer kind, and leave out what only the older has.
func validateNewEvent(e *corev1.Event) field.ErrorList {
	errs := append(validateEvent(e, "reportingController"), validateEventSeries(e)...)
	if e.EventTime.IsZero() {
		errs = append(errs, field.Required(field.NewPath("eventTime"), ""))
	}
	if e.Type != corev1.EventTypeNormal && e.Type != corev1.EventTypeWarning {
		errs = append(errs, field.Invalid(field.NewPath("type"), "", fmt.Sprintf("has invalid value: %v", e.Type)))
	}
	unset := func(child string, is bool) {
		if !is {
			errs = append(errs, field.Invalid(field.NewPath(child), "", "needs to be unset"))
		}
	}
	unset("firstTimestamp", e.FirstTimestamp.IsZero())
	unset("lastTimestamp", e.LastTimestamp.IsZero())
	unset("count", e.Count == 0)
	unset("source", e.Source == corev1.EventSource{})
	return errs
}

func validateEventSeries(e *corev1.Event) field.ErrorList {
	if e.Series == nil {
		return nil
	}
	var errs field.ErrorList
	if e.Series.Count < 2 {
		errs = append(errs, field.Invalid(field.NewPath("series.count"), "", "should be at least 2"))
	}
	if e.Series.LastObservedTime.IsZero() {
		errs = append(errs, field.Required(field.NewPath("series.lastObservedTime"), ""))
	}
	return errs
}

// validateNewEventUpdate is for updates as events.k8s.io/v1, which may change the
// series and nothing else.
func validateNewEventUpdate(e, old *corev1.Event) field.ErrorList {
	errs := validateEvent(e, "reportingController")
	if !reflect.DeepEqual(e.Series, old.Series) {
		errs = append(errs, validateEventSeries(e)...)
	}
	keep := func(child string, is, was any) {
		for _, e := range validate.Immutable(field.NewPath(child), is, was) {
			e.BadValue = validate.Hub(e.BadValue)
			errs = append(errs, e)
		}
	}
	keep("involvedObject", e.InvolvedObject, old.InvolvedObject)
	keep("reason", e.Reason, old.Reason)
	keep("message", e.Message, old.Message)
	keep("source", e.Source, old.Source)
	keep("firstTimestamp", e.FirstTimestamp, old.FirstTimestamp)
	keep("lastTimestamp", e.LastTimestamp, old.LastTimestamp)
	keep("count", e.Count, old.Count)
	keep("type", e.Type, old.Type)
	if !e.EventTime.Truncate(time.Microsecond).Equal(old.EventTime.Truncate(time.Microsecond)) { // as encoded
		errs = append(errs, field.Invalid(field.NewPath("eventTime"), e.EventTime, "field is immutable"))
	}
	keep("action", e.Action, old.Action)
	keep("related", e.Related, old.Related)
	keep("reportingController", e.ReportingController, old.ReportingController)
	keep("reportingInstance", e.ReportingInstance, old.ReportingInstance)
	return errs
}
