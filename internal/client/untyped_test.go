package client

import (
	"context"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// unstreamed is an API that streams no lists. It has three ConfigMaps, two to a page.
type unstreamed struct {
	API
	asked   []string
	changed bool
	stop    context.CancelFunc
}

func named(name, resourceVersion string) Object {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: resourceVersion}}
}

func (u *unstreamed) List(_ context.Context, _ Ref, opts metav1.ListOptions) (*List, error) {
	u.asked = append(u.asked, "list "+opts.Continue)
	if opts.Continue == "" {
		return &List{Items: []Object{named("a", "1"), named("b", "2")}, ResourceVersion: "7", Continue: "more"}, nil
	}
	return &List{Items: []Object{named("c", "3")}, ResourceVersion: "7"}, nil
}

func (u *unstreamed) Watch(_ context.Context, _ Ref, opts metav1.ListOptions) (Watch, error) {
	if opts.SendInitialEvents != nil {
		return nil, apierrors.NewInvalid(schema.GroupKind{Kind: "ListOptions"}, "", nil)
	}
	u.asked = append(u.asked, "watch "+opts.ResourceVersion)
	return u, nil
}

// Next brings one change, then the end.
func (u *unstreamed) Next(context.Context) ([]Event, error) {
	if u.changed {
		u.stop()
		return nil, context.Canceled
	}
	u.changed = true
	return []Event{{Type: watch.Deleted, Object: named("a", "8")}}, nil
}

func (u *unstreamed) Stop() {}

func TestAListTakesThePlaceOfAStreamedOne(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	api := &unstreamed{stop: cancel}
	var told []string
	f := Follower{
		API: api, Resource: corev1.SchemeGroupVersion.WithResource("configmaps"),
		Begin: func() { told = append(told, "begin") }, Complete: func() { told = append(told, "complete") },
		Reached: func(rv string) { told = append(told, "reached "+rv) },
		Change: func(obj Object, removed bool) error {
			if removed {
				told = append(told, "no "+obj.GetName())
			} else {
				told = append(told, obj.GetName())
			}
			return nil
		},
	}
	if err := f.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if want := []string{"list ", "list more", "watch 7"}; !slices.Equal(api.asked, want) {
		t.Errorf("it asked for %q, want %q", api.asked, want)
	}
	if want := []string{"begin", "a", "b", "c", "complete", "reached 7", "no a", "reached 8"}; !slices.Equal(told, want) {
		t.Errorf("it told %q, want %q", told, want)
	}
}
