package status_test

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"proa/internal/kubelet/status"
)

// recreated is an API where the pod was replaced by another of its name.
type recreated struct {
	now     corev1.Pod
	refuse  error
	patches int
}

func (r *recreated) Get(context.Context, string, string) (*corev1.Pod, error) {
	return r.now.DeepCopy(), nil
}

func (r *recreated) Patch(context.Context, string, string, types.PatchType, []byte, ...string) (*corev1.Pod, error) {
	r.patches++
	return nil, r.refuse
}

func (r *recreated) Delete(context.Context, string, string, metav1.DeleteOptions) (*corev1.Pod, error) {
	return nil, r.refuse
}

// A server words the refusal of a write meant for an earlier pod in one of two
// ways; neither is worth a second attempt.
func TestAPodThatWasReplacedIsWrittenOnce(t *testing.T) {
	pods := corev1.Resource("pods")
	for _, refuse := range []error{
		apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Pod").GroupKind(), "p", nil),
		apierrors.NewConflict(pods, "p", nil),
		apierrors.NewNotFound(pods, "p"),
	} {
		t.Run(string(apierrors.ReasonForError(refuse)), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := &recreated{refuse: refuse, now: corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: "second"}}}
				w := status.NewWriter(api, clock.RealClock{}, slog.New(slog.DiscardHandler), 1,
					func(*corev1.Pod) (*corev1.Pod, bool) { return nil, false })
				ctx, stop := context.WithCancel(t.Context())
				go w.Run(ctx)
				first := api.now.DeepCopy()
				first.UID = "first"
				w.Set(first, corev1.PodStatus{Phase: corev1.PodRunning})
				time.Sleep(time.Minute)
				stop()
				synctest.Wait()
				if api.patches != 1 {
					t.Errorf("%d writes", api.patches)
				}
			})
		})
	}
}
