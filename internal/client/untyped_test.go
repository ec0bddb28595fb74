package client

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

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

// unwell is an API whose watches fail, the failing ones between those that work.
type unwell struct {
	API
	asked []time.Time
	works int // the attempt that brings a change before it fails
	stop  context.CancelFunc
}

func (u *unwell) Watch(context.Context, Ref, metav1.ListOptions) (Watch, error) {
	u.asked = append(u.asked, time.Now())
	switch len(u.asked) {
	case u.works:
		return &once{}, nil
	case 12:
		u.stop()
	}
	return nil, errors.New("out of order")
}

// once is a watch with an empty state that breaks.
type once struct{ told bool }

func (o *once) Next(context.Context) ([]Event, error) {
	if o.told {
		return nil, errors.New("broken")
	}
	o.told = true
	end := named("", "7").(*corev1.ConfigMap)
	end.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	return []Event{{Type: watch.Bookmark, Object: end}}, nil
}

func (o *once) Stop() {}

func TestAFailingWatchIsTriedLessAndLess(t *testing.T) {
	var log bytes.Buffer
	old := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(old)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		api := &unwell{stop: cancel, works: 8}
		f := Follower{API: api, Resource: corev1.SchemeGroupVersion.WithResource("configmaps"), Begin: func() {}, Complete: func() {}}
		if err := f.Run(ctx); err != nil {
			t.Fatal(err)
		}
		var pauses []int
		for i, at := range api.asked[1:] {
			pauses = append(pauses, int(at.Sub(api.asked[i]).Seconds()))
		}
		if want := []int{1, 2, 4, 8, 16, 30, 30, 1, 2, 4, 8}; !slices.Equal(pauses, want) {
			t.Errorf("it waited %v seconds, want %v", pauses, want)
		}
	})
	if n := strings.Count(log.String(), "level=WARN"); n != 2 {
		t.Errorf("%d warnings of two breaks:\n%s", n, log.String())
	}
}
