package status

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
)

// Pods is the API of pods as the writer needs it.
type Pods interface {
	Get(ctx context.Context, namespace, name string) (*corev1.Pod, error)
	Patch(ctx context.Context, namespace, name string, pt types.PatchType, data []byte, subresource ...string) (*corev1.Pod, error)
	Delete(ctx context.Context, namespace, name string, opts metav1.DeleteOptions) (*corev1.Pod, error)
}

// Writer brings statuses to the API. The newest status of a pod wins; a failed
// write is tried again with backoff and never holds up the pod itself. Each pod
// has one write in flight at most.
type Writer struct {
	pods  Pods
	clock clock.WithTicker
	log   *slog.Logger
	slots chan struct{}
	// mirror resolves a static pod to the object that stands for it in the API.
	mirror func(*corev1.Pod) (mirror *corev1.Pod, static bool)
	wg     sync.WaitGroup

	mu    sync.Mutex
	wants map[types.UID]*want // guarded by mu
	stop  chan struct{}
}

// want is what the API shall show of a pod.
type want struct {
	pod     *corev1.Pod // as last read or written
	status  *corev1.PodStatus
	last    *corev1.PodStatus // what was last written or found equal
	remove  bool              // delete the object: the pod is gone from the node
	busy    bool
	dropped bool
}

// NewWriter makes a Writer that has at most parallel writes in flight. Mirror
// tells static pods, which the API knows under another UID or not yet (nil).
func NewWriter(pods Pods, clk clock.WithTicker, log *slog.Logger, parallel int, mirror func(*corev1.Pod) (*corev1.Pod, bool)) *Writer {
	return &Writer{pods: pods, mirror: mirror, clock: clk, log: log, slots: make(chan struct{}, parallel), wants: map[types.UID]*want{}, stop: make(chan struct{})}
}

// Run writes until ctx ends.
func (w *Writer) Run(ctx context.Context) error {
	<-ctx.Done()
	w.mu.Lock()
	close(w.stop)
	w.mu.Unlock()
	w.wg.Wait()
	return ctx.Err()
}

// Set asks for the API to show status. Pod is the newest object the caller has.
func (w *Writer) Set(pod *corev1.Pod, status corev1.PodStatus) {
	w.update(pod, func(t *want) { t.status = &status })
}

// Remove deletes the pod's object once its status is written. The node calls it
// when nothing of a deleted pod is left.
func (w *Writer) Remove(pod *corev1.Pod) {
	w.update(pod, func(t *want) { t.remove = true })
}

// Again tries a pod whose mirror has come.
func (w *Writer) Again(pod *corev1.Pod) {
	w.update(pod, func(t *want) {
		if t.status == nil {
			t.status = t.last
		}
	})
}

// Forget drops a pod that the API no longer has.
func (w *Writer) Forget(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t := w.wants[uid]; t != nil {
		t.dropped = true
		delete(w.wants, uid)
	}
}

// Last is the newest status asked for, or nil.
func (w *Writer) Last(uid types.UID) *corev1.PodStatus {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t := w.wants[uid]; t != nil {
		if t.status != nil {
			return t.status
		}
		return t.last
	}
	return nil
}

func (w *Writer) update(pod *corev1.Pod, change func(*want)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.stop:
		return
	default:
	}
	t := w.wants[pod.UID]
	if t == nil {
		t = &want{pod: pod}
		w.wants[pod.UID] = t
	}
	if Newer(pod, t.pod) || pod.ResourceVersion == "" {
		t.pod = pod
	}
	change(t)
	if !t.busy {
		t.busy = true
		w.wg.Add(1)
		go w.flush(t)
	}
}

// Newer compares resource versions, which this project's stores count up.
func Newer(a, b *corev1.Pod) bool {
	return len(a.ResourceVersion) > len(b.ResourceVersion) ||
		len(a.ResourceVersion) == len(b.ResourceVersion) && a.ResourceVersion > b.ResourceVersion
}

// flush writes what is wanted of one pod until nothing is left to write.
func (w *Writer) flush(t *want) {
	defer w.wg.Done()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-w.stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	delay := 100 * time.Millisecond
	for {
		w.mu.Lock()
		if t.dropped || ctx.Err() != nil || (t.status == nil && !t.remove) {
			t.busy = false
			w.mu.Unlock()
			return
		}
		pod, status, remove := t.pod, t.status, t.remove
		if m, static := w.mirror(pod); static {
			if m == nil { // Again comes with the mirror
				t.busy = false
				w.mu.Unlock()
				return
			}
			pod, remove, t.remove = m, false, false
		}
		t.status = nil
		w.mu.Unlock()

		w.slots <- struct{}{}
		err := w.write(ctx, t, pod, status, remove)
		<-w.slots
		if err == nil {
			delay = 100 * time.Millisecond
			continue
		}
		if ctx.Err() == nil {
			w.log.Warn("write pod status", "pod", pod.Namespace+"/"+pod.Name, "err", err)
		}
		w.mu.Lock()
		if t.status == nil {
			t.status = status
		}
		w.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-w.clock.After(delay):
			delay = min(2*delay, 10*time.Second)
		}
	}
}

func (w *Writer) write(ctx context.Context, t *want, pod *corev1.Pod, status *corev1.PodStatus, remove bool) error {
	if status != nil {
		if err := w.patch(ctx, t, pod, status); err != nil {
			return w.gone(ctx, t, pod, err)
		}
	}
	if !remove {
		return nil
	}
	_, err := w.pods.Delete(ctx, pod.Namespace, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: ptr.To[int64](0), Preconditions: &metav1.Preconditions{UID: &pod.UID},
	})
	if err != nil {
		return w.gone(ctx, t, pod, err)
	}
	w.mu.Lock()
	t.remove = false
	w.mu.Unlock()
	return nil
}

// gone takes an object that is missing, or has another UID by now, for deleted.
// A refusal with the same UID is an error like others.
func (w *Writer) gone(ctx context.Context, t *want, pod *corev1.Pod, err error) error {
	if apierrors.IsConflict(err) || apierrors.IsInvalid(err) { // by precondition or by patch
		cur, getErr := w.pods.Get(ctx, pod.Namespace, pod.Name)
		if getErr == nil && cur.UID == pod.UID {
			w.mu.Lock()
			t.pod = cur
			w.mu.Unlock()
			return err
		}
		if getErr != nil && !apierrors.IsNotFound(getErr) {
			return err
		}
	} else if !apierrors.IsNotFound(err) {
		return err
	}
	w.mu.Lock()
	t.dropped = true
	w.mu.Unlock()
	return nil
}

func (w *Writer) patch(ctx context.Context, t *want, pod *corev1.Pod, status *corev1.PodStatus) error {
	merged := merge(&pod.Status, status)
	data, same, err := diff(pod, merged)
	if err != nil {
		return err
	}
	if same {
		return nil
	}
	out, err := w.pods.Patch(ctx, pod.Namespace, pod.Name, types.StrategicMergePatchType, data, "status")
	if err != nil {
		return err
	}
	w.mu.Lock()
	if out.UID == t.pod.UID && Newer(out, t.pod) {
		t.pod = out
	}
	t.last = &out.Status
	w.mu.Unlock()
	return nil
}

// Overlay is the pod with status in place of its own, except for what others
// write.
func Overlay(pod *corev1.Pod, status *corev1.PodStatus) *corev1.Pod {
	out := *pod
	out.Status = *merge(&pod.Status, status)
	return &out
}

// merge keeps what others wrote meanwhile: conditions of foreign types, and an
// ended phase.
func merge(old, status *corev1.PodStatus) *corev1.PodStatus {
	s := status.DeepCopy()
	for _, c := range old.Conditions {
		_, have := conditionStatus(s.Conditions, c.Type)
		if !have && !removable[c.Type] {
			s.Conditions = append(s.Conditions, c)
		} else if have && !owned[c.Type] {
			s.Conditions = replace(s.Conditions, c)
		}
	}
	if old.Phase == corev1.PodFailed || old.Phase == corev1.PodSucceeded {
		s.Phase = old.Phase
	}
	s.ResourceClaimStatuses, s.ExtendedResourceClaimStatus = old.ResourceClaimStatuses, old.ExtendedResourceClaimStatus
	s.NominatedNodeName = old.NominatedNodeName
	return s
}

// owned are the conditions the node writes. DisruptionTarget may come from
// either side: the newest stays.
var owned = map[corev1.PodConditionType]bool{
	corev1.PodReadyToStartContainers: true, corev1.PodInitialized: true, corev1.PodReady: true,
	corev1.ContainersReady: true, corev1.PodScheduled: true, corev1.DisruptionTarget: true,
	corev1.PodResizePending: true, corev1.PodResizeInProgress: true,
}

// removable conditions are the node's alone: one it no longer lists is gone.
var removable = map[corev1.PodConditionType]bool{corev1.PodResizePending: true, corev1.PodResizeInProgress: true}

func replace(list []corev1.PodCondition, c corev1.PodCondition) []corev1.PodCondition {
	for i := range list {
		if list[i].Type == c.Type {
			list[i] = c
		}
	}
	return list
}

// diff is the strategic merge patch from the pod's status to status. It carries
// the UID, so that it cannot hit another pod of the same name.
func diff(pod *corev1.Pod, status *corev1.PodStatus) (data []byte, same bool, err error) {
	if equality.Semantic.DeepEqual(&pod.Status, status) {
		return nil, true, nil
	}
	old, err := json.Marshal(corev1.Pod{Status: pod.Status})
	if err != nil {
		return nil, false, fmt.Errorf("marshal status: %w", err)
	}
	new := corev1.Pod{Status: *status}
	new.UID = pod.UID
	cur, err := json.Marshal(new)
	if err != nil {
		return nil, false, fmt.Errorf("marshal status: %w", err)
	}
	if data, err = strategicpatch.CreateTwoWayMergePatch(old, cur, corev1.Pod{}); err != nil {
		return nil, false, fmt.Errorf("diff status: %w", err)
	}
	return data, string(data) == fmt.Sprintf(`{"metadata":{"uid":%q}}`, pod.UID), nil
}
