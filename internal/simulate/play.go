package simulate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"proa/internal/client"
	"proa/internal/simulate/lifecycle"
)

// manager is the field manager of what stages apply.
const manager = "kwok"

// play carries a stage out and returns the object as it is then, nil once it is
// on its way out.
func (s *Simulator) play(ctx context.Context, k key, stage *lifecycle.Stage, subject *lifecycle.Subject) (lifecycle.Object, error) {
	actions, err := stage.Actions(subject)
	if err != nil {
		return nil, err
	}
	ref, err := s.refOf(subject.Object)
	if err != nil {
		return nil, err
	}
	latest := subject.Object
	for _, a := range actions {
		switch {
		case a.Event != nil:
			if s.config.Recorder != nil {
				s.config.Recorder.Event(latest, a.Event.Type, a.Event.Reason, a.Event.Message)
			}
		case a.Delete:
			return nil, s.remove(ctx, ref, subject.Object)
		case a.Apply != nil:
			err = s.apply(ctx, subject.Object, a.Apply)
		case a.Patch != nil:
			latest, err = s.patch(ctx, ref, a.Patch)
		}
		if err != nil {
			return nil, fmt.Errorf("stage %s: %w", stage.Name, err)
		}
	}
	return latest, nil
}

func (s *Simulator) remove(ctx context.Context, ref client.Ref, obj metav1.Object) error {
	opts := metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0), Preconditions: &metav1.Preconditions{UID: ptr.To(obj.GetUID())}}
	_, err := s.config.Cache.API().Delete(ctx, ref, opts)
	return err
}

func (s *Simulator) as(user string) (client.API, error) {
	switch {
	case user == "":
		return s.config.Cache.API(), nil
	case s.config.As == nil:
		return nil, errors.New("changes as another user are not possible here")
	}
	return s.config.As(user)
}

func (s *Simulator) patch(ctx context.Context, ref client.Ref, p *lifecycle.Patch) (lifecycle.Object, error) {
	api, err := s.as(p.As)
	if err != nil {
		return nil, err
	}
	ref.Subresource = p.Subresource
	return api.Patch(ctx, ref, p.Type, p.Data, metav1.PatchOptions{})
}

// apply makes another object, or changes it where it is there already.
func (s *Simulator) apply(ctx context.Context, source metav1.Object, p *lifecycle.Patch) error {
	api, err := s.as(p.As)
	if err != nil {
		return err
	}
	var named metav1.PartialObjectMetadata
	if err := json.Unmarshal(p.Data, &named); err != nil {
		return err
	}
	view, ok := catalogue().Kind(named.GroupVersionKind())
	if !ok {
		return fmt.Errorf("template must include a known apiVersion and kind, not %s", named.GroupVersionKind())
	}
	ref := client.Ref{Resource: view.Resource.GroupVersionResource(), Name: named.Name, Subresource: p.Subresource}
	if view.Resource.Scope == namespaced {
		if ref.Namespace = named.Namespace; ref.Namespace == "" {
			ref.Namespace = source.GetNamespace()
		}
	}
	if p.Type != types.ApplyPatchType && p.Subresource == "" {
		obj := view.Resource.New()
		if err := json.Unmarshal(p.Data, obj); err != nil {
			return err
		}
		obj.SetNamespace(ref.Namespace)
		_, err = api.Create(ctx, client.Ref{Resource: ref.Resource, Namespace: ref.Namespace}, obj, metav1.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	opts := metav1.PatchOptions{}
	if p.Type == types.ApplyPatchType {
		opts.FieldManager, opts.Force = manager, ptr.To(true)
	}
	_, err = api.Patch(ctx, ref, p.Type, p.Data, opts)
	return err
}

func (s *Simulator) refOf(obj lifecycle.Object) (client.Ref, error) {
	r, ok := catalogue().Of(obj)
	if !ok {
		return client.Ref{}, fmt.Errorf("%T is not a known kind", obj)
	}
	return client.Ref{Resource: r.GroupVersionResource(), Namespace: obj.GetNamespace(), Name: obj.GetName()}, nil
}

// resourceOf finds the resource of a kind that stages name.
func resourceOf(kind schema.GroupKind) (schema.GroupVersionResource, bool) {
	for _, r := range catalogue().All() {
		if r.Kind == kind.Kind && r.Group == kind.Group {
			return r.GroupVersionResource(), true
		}
	}
	return schema.GroupVersionResource{}, false
}
