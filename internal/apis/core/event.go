package core

import (
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	pathvalidation "k8s.io/apimachinery/pkg/api/validation/path"

	"proa/internal/apis"
)

// Events is the core/v1 events resource, also served as events.k8s.io/v1.
var Events = apis.Resource{
	Version: "v1", Kind: "Event", Plural: "events", Short: []string{"ev"},
	AnyFinalizer: true,
	New:          apis.New[corev1.Event], NewList: apis.NewList[corev1.EventList],
	NoGeneration:        true,
	AllowCreateOnUpdate: true,
	ValidateName:        pathvalidation.ValidatePathSegmentName,
	Also: []apis.Served{{
		Group: "events.k8s.io", Version: "v1", Kind: "Event",
		New: apis.New[eventsv1.Event], NewList: apis.NewList[eventsv1.EventList],
		ToHub:   func(obj apis.Object) (apis.Object, error) { return eventToHub(obj.(*eventsv1.Event)), nil },
		FromHub: func(obj apis.Object) (apis.Object, error) { return eventFromHub(obj.(*corev1.Event)), nil },

		Strict:         true,
		Validate:       apis.Check(validateNewEvent),
		ValidateUpdate: apis.CheckUpdate(validateNewEventUpdate),
	}},
	Validate:       apis.Check(validateCoreEvent),
	ValidateUpdate: apis.CheckUpdate(validateCoreEventUpdate),
	Fields:         apis.Selectable(eventFields()),
	Dependents:     apis.NoDependents,
	Columns:        eventColumns,
	Row:            apis.Cells(eventRow),
}

// eventFields has the names of events.k8s.io/v1 beside those of the hub version.
func eventFields() map[string]func(*corev1.Event) string {
	of := map[string]func(*corev1.Event) string{
		"reason":              func(e *corev1.Event) string { return e.Reason },
		"reportingComponent":  func(e *corev1.Event) string { return e.ReportingController },
		"reportingController": func(e *corev1.Event) string { return e.ReportingController },
		"source":              sourceComponent,
		"deprecatedSource":    sourceComponent,
		"deprecatedCount":     func(e *corev1.Event) string { return strconv.Itoa(int(e.Count)) },
		"type":                func(e *corev1.Event) string { return e.Type },
	}
	for _, object := range []string{"involvedObject", "regarding"} {
		of[object+".kind"] = func(e *corev1.Event) string { return e.InvolvedObject.Kind }
		of[object+".namespace"] = func(e *corev1.Event) string { return e.InvolvedObject.Namespace }
		of[object+".name"] = func(e *corev1.Event) string { return e.InvolvedObject.Name }
		of[object+".uid"] = func(e *corev1.Event) string { return string(e.InvolvedObject.UID) }
		of[object+".apiVersion"] = func(e *corev1.Event) string { return e.InvolvedObject.APIVersion }
		of[object+".resourceVersion"] = func(e *corev1.Event) string { return e.InvolvedObject.ResourceVersion }
		of[object+".fieldPath"] = func(e *corev1.Event) string { return e.InvolvedObject.FieldPath }
	}
	return of
}

func sourceComponent(e *corev1.Event) string {
	if e.Source.Component == "" {
		return e.ReportingController
	}
	return e.Source.Component
}

func eventToHub(e *eventsv1.Event) *corev1.Event {
	e = e.DeepCopy()
	hub := &corev1.Event{
		ObjectMeta: e.ObjectMeta, InvolvedObject: e.Regarding, Reason: e.Reason, Message: e.Note,
		Source: e.DeprecatedSource, FirstTimestamp: e.DeprecatedFirstTimestamp, LastTimestamp: e.DeprecatedLastTimestamp,
		Count: e.DeprecatedCount, Type: e.Type, EventTime: e.EventTime, Action: e.Action, Related: e.Related,
		ReportingController: e.ReportingController, ReportingInstance: e.ReportingInstance,
	}
	if e.Series != nil {
		hub.Series = &corev1.EventSeries{Count: e.Series.Count, LastObservedTime: e.Series.LastObservedTime}
	}
	return hub
}

func eventFromHub(e *corev1.Event) *eventsv1.Event {
	e = e.DeepCopy()
	served := &eventsv1.Event{
		ObjectMeta: e.ObjectMeta, Regarding: e.InvolvedObject, Reason: e.Reason, Note: e.Message,
		DeprecatedSource: e.Source, DeprecatedFirstTimestamp: e.FirstTimestamp, DeprecatedLastTimestamp: e.LastTimestamp,
		DeprecatedCount: e.Count, Type: e.Type, EventTime: e.EventTime, Action: e.Action, Related: e.Related,
		ReportingController: e.ReportingController, ReportingInstance: e.ReportingInstance,
	}
	if e.Series != nil {
		served.Series = &eventsv1.EventSeries{Count: e.Series.Count, LastObservedTime: e.Series.LastObservedTime}
	}
	return served
}

// lastSeen says when an event was last seen.
func lastSeen(e *corev1.Event) time.Time {
	switch {
	case e.Series != nil:
		return e.Series.LastObservedTime.Time
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp.Time
	default:
		return e.EventTime.Time
	}
}
