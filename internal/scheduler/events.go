package scheduler

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"

	"proa/internal/client"
)

// newBroadcaster writes events.k8s.io/v1 events, with client-go's series of equal ones.
func newBroadcaster(api client.API) events.EventBroadcaster {
	return events.NewBroadcaster(eventSink{api})
}

func newRecorder(b events.EventBroadcaster, name string) events.EventRecorder {
	return b.NewRecorder(scheme.Scheme, name)
}

// eventSink writes copies: the broadcaster keeps and changes what it passes.
type eventSink struct{ api client.API }

func (s eventSink) ref(ev *eventsv1.Event, name string) client.Ref {
	namespace := ev.Namespace
	if namespace == "" {
		namespace = corev1.NamespaceDefault
	}
	return client.Ref{Resource: eventsv1.SchemeGroupVersion.WithResource("events"), Namespace: namespace, Name: name}
}

func (s eventSink) Create(ctx context.Context, ev *eventsv1.Event) (*eventsv1.Event, error) {
	return eventCopy(s.api.Create(ctx, s.ref(ev, ""), ev.DeepCopy(), metav1.CreateOptions{}))
}

func (s eventSink) Update(ctx context.Context, ev *eventsv1.Event) (*eventsv1.Event, error) {
	return eventCopy(s.api.Update(ctx, s.ref(ev, ev.Name), ev.DeepCopy(), metav1.UpdateOptions{}))
}

func (s eventSink) Patch(ctx context.Context, ev *eventsv1.Event, data []byte) (*eventsv1.Event, error) {
	return eventCopy(s.api.Patch(ctx, s.ref(ev, ev.Name), types.StrategicMergePatchType, data, metav1.PatchOptions{}))
}

func eventCopy(obj client.Object, err error) (*eventsv1.Event, error) {
	if err != nil {
		return nil, err
	}
	ev, _ := obj.(*eventsv1.Event)
	return ev.DeepCopy(), nil
}

// maxNote is the longest message of an event, in bytes.
const maxNote = 1024

func truncated(message string) string {
	const suffix = " ..."
	if len(message) <= maxNote {
		return message
	}
	return message[:maxNote-len(suffix)] + suffix
}
