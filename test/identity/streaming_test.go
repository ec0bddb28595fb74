package identity

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/features"
	featuretesting "k8s.io/client-go/features/testing"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
)

// reads notes how a client reads, and what it is told.
type reads struct {
	http.RoundTripper
	mu   sync.Mutex
	seen []string
}

func (r *reads) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := r.RoundTripper.RoundTrip(req)
	how, q := "list", req.URL.Query()
	switch {
	case q.Get("sendInitialEvents") == "true":
		how = "streamed list"
	case q.Has("watch"):
		how = "watch"
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		r.seen = append(r.seen, fmt.Sprint(how, " ", resp.StatusCode))
	}
	return resp, err
}

// An informer that would stream its first list takes it as a whole from a server whose
// gate is off.
func TestInformersFallBackToLists(t *testing.T) { // a gate of the whole process: not parallel
	featuretesting.SetFeatureDuringTest(t, features.WatchListClient, true)
	for gate, want := range map[string][]string{
		"true":  {"streamed list 200"},
		"false": {"streamed list 422", "list 200", "watch 200"},
	} {
		t.Run(gate, func(t *testing.T) {
			s := start(t, "--feature-gates=WatchList="+gate)
			config, err := s.config("", "")
			if err != nil {
				t.Fatal(err)
			}
			seen := &reads{}
			config.Wrap(func(rt http.RoundTripper) http.RoundTripper { seen.RoundTripper = rt; return seen })
			client, err := kubernetes.NewForConfig(config)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			factory := informers.NewSharedInformerFactory(client, 0)
			informer := factory.Core().V1().Namespaces().Informer()
			factory.Start(ctx.Done())
			eventually(t, func() error {
				if _, found, _ := informer.GetStore().GetByKey("kube-system"); !found || !informer.HasSynced() {
					return fmt.Errorf("it holds %v", informer.GetStore().ListKeys())
				}
				return nil
			})
			if _, err := s.admin(t).CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "later"}}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			eventually(t, func() error {
				if _, found, _ := informer.GetStore().GetByKey("later"); !found {
					return fmt.Errorf("it holds %v", informer.GetStore().ListKeys())
				}
				return nil
			})
			cancel()
			factory.Shutdown()
			seen.mu.Lock()
			defer seen.mu.Unlock()
			if !slices.Equal(seen.seen, want) {
				t.Errorf("it has asked for %q, want %q", seen.seen, want)
			}
		})
	}
}
