package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// Running says how the start of pods is measured, on a cluster with nodes.
type Running struct {
	Config    *rest.Config
	Server    Server
	Namespace string // made, and deleted at the end; default proa-bench
	Image     string // present on the nodes; runs until it is ended
	Command   []string
	Series    int // pods one after another; default 20
	AtOnce    int // pods at once, after that; default 30
}

// Run measures the time from before a pod is sent to the event that shows it
// Running.
func (b Running) Run(ctx context.Context, report Report) (err error) {
	if b.Namespace == "" {
		b.Namespace = "proa-bench"
	}
	if b.Series <= 0 {
		b.Series = 20
	}
	if b.AtOnce <= 0 {
		b.AtOnce = 30
	}
	t, err := newTarget(b.Config, false)
	if err != nil {
		return err
	}
	if err := t.makeNamespace(ctx, b.Namespace); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.removeNamespace(context.WithoutCancel(ctx), b.Namespace)) }()
	c, err := t.newClient()
	if err != nil {
		return err
	}
	defer c.close()
	r := &runningRun{Running: b, client: c, path: namespaces + "/" + b.Namespace + "/pods", seen: make(chan podSeen)}
	ctx, cancel := context.WithCancel(ctx)
	var watcher sync.WaitGroup
	defer watcher.Wait()
	defer cancel()
	stream, err := r.watch(ctx)
	if err != nil {
		return err
	}
	watcher.Go(func() {
		defer stream.Close()
		r.follow(ctx, stream)
	})
	if err := r.rounds(ctx, fmt.Sprintf("%d, one after another", b.Series), b.Series, 1, report); err != nil {
		return err
	}
	return r.rounds(ctx, fmt.Sprintf("%d at once", b.AtOnce), 1, b.AtOnce, report)
}

// runningRun is one Run.
type runningRun struct {
	Running
	client *client
	path   string
	seen   chan podSeen
	made   int
}

// podSeen is what an event says of a pod; err ends the watch.
type podSeen struct {
	name    string
	running bool
	ended   bool // by itself
	gone    bool
	at      time.Time
	err     error
}

func (r *runningRun) watch(ctx context.Context) (io.ReadCloser, error) {
	revision, err := r.client.target.revision(ctx, r.client, r.path)
	if err != nil {
		return nil, err
	}
	resp, err := r.client.open(ctx, request{method: http.MethodGet, path: r.path + "?watch=1&resourceVersion=" + revision})
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// follow passes on what the watch says.
func (r *runningRun) follow(ctx context.Context, from io.Reader) {
	events := json.NewDecoder(from)
	for {
		var e struct {
			Type   string     `json:"type"`
			Object corev1.Pod `json:"object"`
		}
		err := events.Decode(&e)
		phase := e.Object.Status.Phase
		seen := podSeen{
			name: e.Object.Name, gone: e.Type == "DELETED", at: time.Now(), err: err,
			running: phase == corev1.PodRunning,
			ended:   (phase == corev1.PodFailed || phase == corev1.PodSucceeded) && e.Object.DeletionTimestamp == nil,
		}
		select {
		case r.seen <- seen:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// rounds starts pods, so many at once each time, and deletes them again.
func (r *runningRun) rounds(ctx context.Context, how string, rounds, atOnce int, report Report) error {
	var s sample
	m := r.Server.start(ctx)
	for range rounds {
		if err := r.round(ctx, atOnce, &s); err != nil {
			m.stop()
			return err
		}
	}
	used := m.stop()
	f := s.figure("pod to Running", how, used.took, used.cpu)
	f.Memory = used.memory
	report(f)
	return nil
}

func (r *runningRun) round(ctx context.Context, n int, s *sample) error {
	sent := map[string]time.Time{}
	for range n {
		r.made++
		name := fmt.Sprintf("running-%04d", r.made)
		sent[name] = time.Now()
		if err := r.create(ctx, name); err != nil {
			return err
		}
	}
	err := r.await(ctx, n, func(p podSeen) bool {
		began, waiting := sent[p.name]
		if !p.running || !waiting {
			return false
		}
		s.add(p.at.Sub(began))
		delete(sent, p.name)
		return true
	})
	if err != nil {
		return err
	}
	if _, err := r.client.drain(ctx, request{method: http.MethodDelete, path: r.path + "?gracePeriodSeconds=1"}); err != nil {
		return err
	}
	return r.await(ctx, n, func(p podSeen) bool { return p.gone })
}

// await waits for n events that are wanted.
func (r *runningRun) await(ctx context.Context, n int, wanted func(podSeen) bool) error {
	limit := time.NewTimer(2*time.Minute + time.Duration(n)*time.Second)
	defer limit.Stop()
	for n > 0 {
		select {
		case p := <-r.seen:
			switch {
			case p.err != nil:
				return fmt.Errorf("watch pods: %w", p.err)
			case p.ended:
				return fmt.Errorf("pod %s ended by itself", p.name)
			case wanted(p):
				n--
			}
		case <-limit.C:
			return fmt.Errorf("%d pods are not where they should be in time", n)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (r *runningRun) create(ctx context.Context, name string) error {
	pod := corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", Image: r.Image, Command: r.Command, ImagePullPolicy: corev1.PullIfNotPresent}},
		},
	}
	body, err := json.Marshal(&pod)
	if err != nil {
		return err
	}
	_, err = r.client.do(ctx, request{method: http.MethodPost, path: r.path, body: body, media: mediaJSON})
	return err
}
