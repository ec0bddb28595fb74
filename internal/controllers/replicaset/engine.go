package replicaset

import (
	"context"
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/ownership"
	"proa/internal/controllers/podcontrol"
)

// Kind shows the engine a kind of objects as ReplicaSets.
type Kind[T client.Object] struct {
	schema.GroupVersionKind
	Name string // of the controller, in events and logs
	// View returns obj as a ReplicaSet, which may share obj's memory.
	View func(obj T) *appsv1.ReplicaSet
	// CountsTerminating says that the kind's status has terminatingReplicas.
	CountsTerminating bool
	// WithStatus returns a copy of obj with a status.
	WithStatus func(obj T, status appsv1.ReplicaSetStatus) T
}

// Engine reconciles the objects of one kind.
type Engine[T client.Object] struct {
	kind    Kind[T]
	loop    *controllers.Loop
	sets    *client.Informer[T]
	claims  *ownership.Claims[*corev1.Pod]
	control *podcontrol.Control
	clock   clock.PassiveClock
}

// siblingIndex holds sets by their own controller: a Deployment's ReplicaSets.
const siblingIndex = "siblings"

// NewEngine returns a controller for a kind.
func NewEngine[T client.Object](c controllers.Config, kind Kind[T]) *Engine[T] {
	pods := client.Shared[*corev1.Pod](c.Cache)
	e := &Engine[T]{
		kind:    kind,
		sets:    client.Shared[T](c.Cache),
		claims:  ownership.New(pods, kind.GroupVersionKind),
		control: podcontrol.New(pods, c.Events(kind.Name)),
		clock:   c.Clock,
	}
	e.loop = controllers.NewLoop(strings.ToLower(kind.Kind), c, e.reconcile)
	e.sets.AddIndex(siblingIndex, func(obj T) []string {
		if ref := metav1.GetControllerOfNoCopy(obj); ref != nil {
			return []string{string(ref.UID)}
		}
		return nil
	})
	e.sets.OnChange(func(old, obj T) {
		if client.Object(obj) != client.Object(*new(T)) {
			e.loop.EnqueueObject(obj)
		}
	})
	e.claims.OnChange(e.loop.Enqueue, e.adopters)
	return e
}

// Run works until ctx ends.
func (e *Engine[T]) Run(ctx context.Context) error { return e.loop.Run(ctx) }

// adopters names the sets whose selector matches an orphan.
func (e *Engine[T]) adopters(pod *corev1.Pod) []controllers.Key {
	if len(pod.Labels) == 0 {
		return nil
	}
	var keys []controllers.Key
	for _, obj := range e.sets.Select(pod.Namespace, labels.Everything()) {
		selector, err := metav1.LabelSelectorAsSelector(e.kind.View(obj).Spec.Selector)
		if err == nil && !selector.Empty() && selector.Matches(labels.Set(pod.Labels)) {
			keys = append(keys, controllers.Key{Namespace: obj.GetNamespace(), Name: obj.GetName()})
		}
	}
	return keys
}

// reconcile makes the pods of one set match its number and template, then its
// status match the pods.
func (e *Engine[T]) reconcile(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	obj, ok := e.sets.Cached(key.Namespace, key.Name)
	if !ok {
		return controllers.Result{}, nil // garbage collection removes its pods
	}
	rs := e.kind.View(obj)
	selector, err := metav1.LabelSelectorAsSelector(rs.Spec.Selector)
	if err != nil {
		return controllers.Result{}, nil // accepted by an older server; nothing it could select
	}
	active, err := e.claims.ClaimWhere(ctx, obj, selector, podcontrol.Active, func(ctx context.Context) (client.Object, error) {
		return e.sets.Get(ctx, key.Namespace, key.Name)
	})
	if err != nil {
		return controllers.Result{}, fmt.Errorf("claim pods: %w", err)
	}
	var p plan
	var manageErr error
	if rs.DeletionTimestamp == nil {
		p = planReplicas(rs, active, e.related(rs), e.clock.Now())
		manageErr = e.apply(ctx, obj, rs, p)
	}
	status, wait := statusOf(rs, selected(e.claims.Owned(rs.UID), selector), e.clock.Now())
	if !e.kind.CountsTerminating {
		status.TerminatingReplicas = nil
	}
	setFailure(&status, p, manageErr, e.clock.Now())
	if err := e.writeStatus(ctx, obj, rs, status); err != nil {
		return controllers.Result{}, err
	}
	return controllers.Result{After: wait}, manageErr
}

// related returns the pods of all sets that share rs's controller, which one
// wants spread over nodes together.
func (e *Engine[T]) related(rs *appsv1.ReplicaSet) func() []*corev1.Pod {
	return func() []*corev1.Pod {
		ref := metav1.GetControllerOfNoCopy(rs)
		if ref == nil {
			return e.claims.Owned(rs.UID)
		}
		var pods []*corev1.Pod
		for _, sibling := range e.sets.ByIndex(siblingIndex, string(ref.UID)) {
			pods = append(pods, e.claims.Owned(sibling.GetUID())...)
		}
		return pods
	}
}

func selected(pods []*corev1.Pod, selector labels.Selector) []*corev1.Pod {
	kept := pods[:0]
	for _, pod := range pods {
		if selector.Matches(labels.Set(pod.Labels)) {
			kept = append(kept, pod)
		}
	}
	return kept
}

func (e *Engine[T]) apply(ctx context.Context, obj T, rs *appsv1.ReplicaSet, p plan) error {
	if len(p.delete) > 0 {
		return e.control.DeleteAll(ctx, obj, p.delete)
	}
	ref := e.claims.Reference(obj)
	_, err := podcontrol.SlowStart(p.create, func(int) error {
		_, err := e.control.Create(ctx, obj, podcontrol.FromTemplate(rs, ref, &rs.Spec.Template))
		if podcontrol.NamespaceGoes(err) {
			return nil
		}
		return err
	})
	return err
}

func (e *Engine[T]) writeStatus(ctx context.Context, obj T, rs *appsv1.ReplicaSet, status appsv1.ReplicaSetStatus) error {
	if apiequality.Semantic.DeepEqual(rs.Status, status) {
		return nil
	}
	if _, err := e.sets.UpdateStatus(ctx, e.kind.WithStatus(obj, status)); err != nil {
		return fmt.Errorf("update status: %w", err)
	}
	return nil
}

// plan is what a set lacks: pods to create or pods to delete, never both.
type plan struct {
	create int
	delete []*corev1.Pod
	over   bool // more pods than asked for
}

// planReplicas compares the active pods of a set with its number of replicas.
// related is asked only to choose what to delete.
func planReplicas(rs *appsv1.ReplicaSet, active []*corev1.Pod, related func() []*corev1.Pod, now time.Time) plan {
	diff := len(active) - int(*rs.Spec.Replicas)
	if diff <= 0 {
		return plan{create: min(-diff, podcontrol.Burst)}
	}
	diff = min(diff, podcontrol.Burst)
	if diff < len(active) {
		podcontrol.DeletionOrder(active, related(), now)
	}
	return plan{delete: active[:diff], over: true}
}
