package fairness

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"

	"proa/internal/client"
	"proa/internal/store"
)

const (
	sharePeriod  = 10 * time.Second
	ensurePeriod = time.Minute
)

// Run keeps the objects that every cluster has, follows what users configure, and
// moves seats between levels, until ctx ends or the store is closed.
func (f *Fairness) Run(ctx context.Context) error {
	changed := make(chan struct{}, 1)
	g, ctx := errgroup.WithContext(ctx)
	for _, gr := range []schema.GroupResource{levelsResource, schemasResource} {
		g.Go(func() error { return f.follow(ctx, gr, changed) })
	}
	g.Go(func() error { return f.maintain(ctx, changed) })
	if err := g.Wait(); err != nil && ctx.Err() == nil && !errors.Is(err, store.ErrClosed) {
		return fmt.Errorf("priority and fairness: %w", err)
	}
	return nil
}

// follow tells of changes of a kind.
func (f *Fairness) follow(ctx context.Context, gr schema.GroupResource, changed chan<- struct{}) error {
	for {
		w, err := f.config.Store.Watch(gr, "", 0)
		if err != nil {
			return err
		}
		notify(changed) // of what came before
		for err == nil {
			if _, err = w.Next(ctx); err == nil {
				notify(changed)
			}
		}
		w.Stop()
		if !errors.Is(err, store.ErrCompacted) {
			return err
		}
	}
}

func notify(changed chan<- struct{}) {
	select {
	case changed <- struct{}{}:
	default:
	}
}

func (f *Fairness) maintain(ctx context.Context, changed <-chan struct{}) error {
	sharing, ensuring := f.config.Clock.NewTimer(sharePeriod), f.config.Clock.NewTimer(ensurePeriod)
	defer sharing.Stop()
	defer ensuring.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
			f.reload()
			f.followed.Store(true)
			f.write(ctx)
		case <-ensuring.C():
			f.write(ctx)
			ensuring.Reset(ensurePeriod)
		case <-sharing.C():
			f.rebalance()
			sharing.Reset(sharePeriod)
		}
	}
}

// rebalance shares the seats out anew, and forgets levels that have drained.
func (f *Fairness) rebalance() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, l := range f.levels {
		l.mu.Lock()
		if l.draining && l.idleLocked() {
			delete(f.levels, name)
		}
		l.mu.Unlock()
	}
	f.shareOutLocked()
}

// write brings the objects in order. What fails is tried again with the next
// change or within a minute.
func (f *Fairness) write(ctx context.Context) {
	if f.config.API == nil {
		return
	}
	sn := f.config.Store.Snapshot()
	err := f.ensure(ctx, sn)
	if err == nil {
		f.ensured.Store(true)
	}
	err = errors.Join(err, f.tellDangling(ctx, sn))
	if err != nil && ctx.Err() == nil {
		f.config.Log.Warn("priority and fairness objects are not in order", "error", err)
	}
}

// manager owns the condition that tells whether a schema's level exists.
const manager = "api-priority-and-fairness-config-consumer-v1"

// tellDangling writes the condition Dangling of schemas that lack the right one.
func (f *Fairness) tellDangling(ctx context.Context, sn *store.Snapshot) error {
	exists := wantedLevels(objects[*flowcontrolv1.PriorityLevelConfiguration](sn, levelsResource))
	var errs []error
	for _, s := range objects[*flowcontrolv1.FlowSchema](sn, schemasResource) {
		want := danglingCondition(s.Spec.PriorityLevelConfiguration.Name, exists[s.Spec.PriorityLevelConfiguration.Name] != nil)
		if hasCondition(s, want) {
			continue
		}
		want.LastTransitionTime = metav1.NewTime(f.config.Clock.Now())
		if err := f.applyCondition(ctx, s.Name, want); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("status of flow schema %s: %w", s.Name, err))
		}
	}
	return errors.Join(errs...)
}

func danglingCondition(level string, exists bool) flowcontrolv1.FlowSchemaCondition {
	c := flowcontrolv1.FlowSchemaCondition{Type: flowcontrolv1.FlowSchemaConditionDangling}
	named := fmt.Sprintf("This FlowSchema references the PriorityLevelConfiguration object named %q ", level)
	if exists {
		c.Status, c.Reason, c.Message = flowcontrolv1.ConditionFalse, "Found", named+"and it exists"
	} else {
		c.Status, c.Reason, c.Message = flowcontrolv1.ConditionTrue, "NotFound", named+"but there is no such object"
	}
	return c
}

func hasCondition(s *flowcontrolv1.FlowSchema, want flowcontrolv1.FlowSchemaCondition) bool {
	for _, c := range s.Status.Conditions {
		if c.Type == want.Type {
			return c.Status == want.Status && c.Reason == want.Reason && c.Message == want.Message
		}
	}
	return false
}

func (f *Fairness) applyCondition(ctx context.Context, name string, c flowcontrolv1.FlowSchemaCondition) error {
	patch, err := json.Marshal(map[string]any{
		"apiVersion": flowcontrolv1.SchemeGroupVersion.String(), "kind": "FlowSchema", "metadata": map[string]string{"name": name},
		"status": map[string]any{"conditions": []flowcontrolv1.FlowSchemaCondition{c}},
	})
	if err != nil {
		return err
	}
	ref := client.Ref{Resource: schemasResource.WithVersion("v1"), Name: name, Subresource: "status"}
	_, err = f.config.API.Patch(ctx, ref, types.ApplyPatchType, patch, metav1.PatchOptions{FieldManager: manager, Force: new(true)})
	return err
}
