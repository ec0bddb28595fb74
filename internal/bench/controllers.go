package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
)

// Controllers says how a whole control plane is measured: Deployments that come
// up, roll over and go, on nodes that somebody simulates.
type Controllers struct {
	Config      *rest.Config
	Server      Server
	Only        []string      // of ControllerTasks; empty: all
	Deployments int           // default 1000
	Replicas    int           // of each; default 10
	Objects     int           // of the namespace that is deleted; default 50 000
	Idle        time.Duration // how long nothing happens while CPU is measured; default 30 s
	Clients     int           // default 16
}

// ControllerTasks are what control planes are measured by, in order.
var ControllerTasks = []string{"rollout", "namespace"}

const (
	controllersNamespace = "proa-bench-controllers"
	objectsNamespace     = "proa-bench-objects"
)

// Run measures and leaves nothing behind.
func (b Controllers) Run(ctx context.Context, report Report) error {
	b.Deployments, b.Replicas, b.Clients = cmp.Or(b.Deployments, 1000), cmp.Or(b.Replicas, 10), cmp.Or(b.Clients, 16)
	b.Objects, b.Idle = cmp.Or(b.Objects, 50_000), cmp.Or(b.Idle, 30*time.Second)
	for _, task := range b.Only {
		if !slices.Contains(ControllerTasks, task) {
			return fmt.Errorf("there is no task %q, only %s", task, strings.Join(ControllerTasks, ", "))
		}
	}
	t, err := newTarget(b.Config, false)
	if err != nil {
		return err
	}
	m, err := t.newMakers(b.Clients)
	if err != nil {
		return err
	}
	defer m.close()
	r := &controllersRun{Controllers: b, target: t, makers: m, report: report}
	tasks := map[string]func(context.Context) error{"rollout": r.rollout, "namespace": r.namespace}
	for _, name := range ControllerTasks {
		if len(b.Only) > 0 && !slices.Contains(b.Only, name) {
			continue
		}
		if err := tasks[name](ctx); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

type controllersRun struct {
	Controllers
	*target
	*makers
	report Report
}

// revisionLabel tells the pods of one revision of the Deployments.
const revisionLabel = "bench.proa/revision"

// running watches for pods of a revision that come to run.
func (r *controllersRun) running(ctx context.Context, revision string) (*counter, error) {
	q := url.Values{"labelSelector": {revisionLabel + "=" + revision}, "fieldSelector": {"status.phase=Running"}}
	return r.count(ctx, namespaces+"/"+controllersNamespace+"/pods?"+q.Encode(), "ADDED")
}

const deployments = "/apis/apps/v1/namespaces/" + controllersNamespace + "/deployments"

func (r *controllersRun) rollout(ctx context.Context) (err error) {
	if err := r.makeNamespace(ctx, controllersNamespace); err != nil {
		return err
	}
	pods := r.Deployments * r.Replicas
	what := fmt.Sprintf("%d Deployments x %d", r.Deployments, r.Replicas)
	removed := false
	defer func() {
		if !removed {
			ctx := context.WithoutCancel(ctx)
			err = errors.Join(err, r.removeNamespace(ctx, controllersNamespace))
		}
	}()
	err = r.phase(ctx, "to all Running", what, "1", pods, func() error {
		return r.create(ctx, r.Deployments, func(i int) (string, runtime.Object) { return deployments, r.deployment(i) })
	})
	if err != nil {
		return err
	}
	if err := r.idle(ctx, pods); err != nil {
		return err
	}
	patch := fmt.Appendf(nil, `{"spec":{"template":{"metadata":{"labels":{%q:"2"}}}}}`, revisionLabel)
	err = r.phase(ctx, "rolling update", what, "2", pods, func() error {
		return r.each(ctx, r.Deployments, func(ctx context.Context, c *client, i int) error {
			_, err := c.drain(ctx, request{method: http.MethodPatch, path: fmt.Sprintf("%s/bench-%d", deployments, i), body: patch, media: mediaMerge})
			return err
		})
	})
	if err != nil {
		return err
	}
	removed = true
	return r.deleteNamespace(ctx, controllersNamespace, "with "+what, pods)
}

// phase starts something that leads to pods of a revision running, and waits.
func (r *controllersRun) phase(ctx context.Context, task, how, revision string, pods int, start func() error) error {
	k, err := r.running(ctx, revision)
	if err != nil {
		return err
	}
	defer k.close()
	m := r.Server.start(ctx)
	began := time.Now()
	if err = start(); err == nil {
		err = k.wait(ctx, pods)
	}
	used := m.stop()
	if err != nil {
		return err
	}
	f := Figure{
		Task: task, How: how, Count: pods, Seconds: used.took.Seconds(), PerSecond: float64(pods) / used.took.Seconds(),
		CPU: millis(used.cpu) / float64(pods), Memory: used.memory, Rates: k.rates(began),
	}
	r.report(f)
	return nil
}

func (r *controllersRun) deployment(i int) *appsv1.Deployment {
	name := fmt.Sprintf("bench-%d", i)
	app := map[string]string{"app": name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: controllersNamespace},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(int32(r.Replicas)), Selector: &metav1.LabelSelector{MatchLabels: app},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": name, revisionLabel: "1"}},
				Spec: corev1.PodSpec{
					Tolerations: []corev1.Toleration{{Key: "kwok.x-k8s.io/node", Operator: corev1.TolerationOpExists}},
					Containers: []corev1.Container{{Name: "c", Image: "registry.k8s.io/pause:3.10", Resources: corev1.ResourceRequirements{
						Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1m"), corev1.ResourceMemory: resource.MustParse("1Mi")},
					}}},
				},
			},
		},
	}
}

// idle measures what the server spends while nothing happens.
func (r *controllersRun) idle(ctx context.Context, pods int) error {
	if len(r.Server.Processes) == 0 {
		return nil
	}
	const settle = 5 * time.Second // what is still under way
	for _, wait := range []time.Duration{settle, r.Idle} {
		m := r.Server.start(ctx)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			m.stop()
			return ctx.Err()
		}
		if used := m.stop(); wait == r.Idle {
			percent := 100 * used.cpu.Seconds() / used.took.Seconds()
			r.report(Figure{
				Task: "idle", How: fmt.Sprintf("%d pods, %.2f %% of a core", pods, percent),
				Seconds: used.took.Seconds(), Memory: used.memory,
			})
		}
	}
	return nil
}

// namespace deletes one with many objects.
func (r *controllersRun) namespace(ctx context.Context) error {
	if err := r.makeNamespace(ctx, objectsNamespace); err != nil {
		return err
	}
	err := r.create(ctx, r.Objects, func(i int) (string, runtime.Object) {
		return namespaces + "/" + objectsNamespace + "/configmaps", &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("bench-%d", i), Namespace: objectsNamespace}, Data: map[string]string{"key": "value"},
		}
	})
	if err != nil {
		return errors.Join(err, r.removeNamespace(context.WithoutCancel(ctx), objectsNamespace))
	}
	return r.deleteNamespace(ctx, objectsNamespace, fmt.Sprintf("with %d ConfigMaps", r.Objects), r.Objects)
}

func (r *controllersRun) deleteNamespace(ctx context.Context, name, how string, objects int) error {
	m := r.Server.start(ctx)
	_, err := r.clients[0].drain(ctx, request{method: http.MethodDelete, path: namespaces + "/" + name})
	if err == nil {
		err = r.gone(ctx, namespaces+"/"+name)
	}
	used := m.stop()
	if err != nil {
		return err
	}
	r.report(Figure{
		Task: "delete namespace", How: how, Count: objects, Seconds: used.took.Seconds(),
		PerSecond: float64(objects) / used.took.Seconds(), CPU: millis(used.cpu) / float64(objects), Memory: used.memory,
	})
	return nil
}
