package core

import (
	"fmt"
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

// validateEvent checks an event's namespace; one that says when it happened is
// of the newer kind (KEP-383) and held to more.
func validateEvent(e *corev1.Event) field.ErrorList {
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
		errs = append(errs, field.Required(field.NewPath("reportingController"), ""))
	} else {
		errs = append(errs, validate.QualifiedName(field.NewPath("reportingController"), e.ReportingController)...)
	}
	check("reportingInstance", e.ReportingInstance, maxReportingInstance)
	check("action", e.Action, maxAction)
	check("reason", e.Reason, maxReason)
	if len(e.Message) > maxNote {
		errs = append(errs, field.Invalid(field.NewPath("message"), "", fmt.Sprintf("can have at most %v characters", maxNote)))
	}
	return errs
}

func validateEventNamespace(e *corev1.Event) field.ErrorList {
	about, at := e.InvolvedObject.Namespace, field.NewPath("involvedObject", "namespace")
	switch {
	case about == "" && e.Namespace != metav1.NamespaceDefault && e.Namespace != metav1.NamespaceSystem:
		return field.ErrorList{field.Invalid(at, about, "does not match event.namespace")}
	case about != "" && about != e.Namespace:
		return field.ErrorList{field.Invalid(at, about, "does not match event.namespace")}
	}
	return nil
}

func validateEventUpdate(e, old *corev1.Event) field.ErrorList {
	errs := validateEvent(e)
	if old.EventTime.IsZero() {
		return errs
	}
	keep := func(child string, is, was any) {
		errs = append(errs, validate.Immutable(field.NewPath(child), is, was)...)
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
