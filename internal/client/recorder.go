package client

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
)

// NewRecorder returns a recorder of core/v1 Events, with client-go's
// deduplication and rate limits. Events are written in the background until ctx
// ends; they are best effort, as everywhere in Kubernetes.
func NewRecorder(ctx context.Context, api API, component, host string) record.EventRecorder {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(eventSink{ctx: ctx, events: Of[*corev1.Event](api)})
	context.AfterFunc(ctx, broadcaster.Shutdown)
	return broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component, Host: host})
}

// eventSink writes what client-go's broadcaster decided on. Each event is copied:
// the broadcaster keeps and changes the one it passed.
type eventSink struct {
	ctx    context.Context
	events Resource[*corev1.Event]
}

func (s eventSink) Create(ev *corev1.Event) (*corev1.Event, error) {
	return copied(s.events.Create(s.ctx, ev.DeepCopy()))
}

func (s eventSink) Update(ev *corev1.Event) (*corev1.Event, error) {
	return copied(s.events.Update(s.ctx, ev.DeepCopy()))
}

func (s eventSink) Patch(old *corev1.Event, data []byte) (*corev1.Event, error) {
	ref := s.events.ref(old.Namespace, old.Name, "")
	return copied(typed[*corev1.Event](s.events.api.Patch(s.ctx, ref, types.StrategicMergePatchType, data, metav1.PatchOptions{})))
}

func copied(ev *corev1.Event, err error) (*corev1.Event, error) {
	if err != nil {
		return nil, err
	}
	return ev.DeepCopy(), nil
}
