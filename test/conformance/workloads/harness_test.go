// Package workloads holds Proa to what upstream's conformance suite and feature
// documents demand of apps, batch, policy, autoscaling and scheduling: stock
// clients over HTTP, a server in the test's own process, and nodes that are
// simulated, or played by the test where it must decide what becomes of a pod.
package workloads

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	batchclient "k8s.io/client-go/kubernetes/typed/batch/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	"proa/pkg/proatest"
)

func TestMain(m *testing.M) {
	if code := m.Run(); code != 0 {
		os.Exit(code)
	}
	if err := goleak.Find(goleak.IgnoreTopFunction("internal/synctest.Run")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// patience is how long a test waits for what must come; it is a bound, not a measure.
const patience = 60 * time.Second

const ns = metav1.NamespaceDefault

// cluster is a server with controllers and scheduler, as a stock client sees it.
type cluster struct {
	kubernetes.Interface
	t       *testing.T
	ctx     context.Context // ends when the test's patience does
	access  *rest.Config
	dynamic dynamic.Interface
}

// start starts a cluster with simulated nodes.
func start(t *testing.T, nodes int, change ...func(*proatest.Options)) *cluster {
	t.Helper()
	t.Parallel()
	o := proatest.Options{Controllers: []string{"*"}, Scheduler: true, Nodes: nodes}
	for _, f := range change {
		f(&o)
	}
	access := proatest.Start(t, o)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	c := &cluster{t: t, ctx: ctx, access: access}
	var err error
	if c.Interface, err = kubernetes.NewForConfig(access); err != nil {
		t.Fatal(err)
	}
	if c.dynamic, err = dynamic.NewForConfig(access); err != nil {
		t.Fatal(err)
	}
	until(c, c.CoreV1().ServiceAccounts(ns), metav1.ListOptions{}, func(l *corev1.ServiceAccountList) error {
		return want("service accounts", len(l.Items), 1)
	})
	return c
}

// must ends the test on an error.
func must[T any](obj T, err error) func(*cluster) T {
	return func(c *cluster) T {
		c.t.Helper()
		c.ok(err)
		return obj
	}
}

func (c *cluster) ok(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// collection is what typed clients have in common.
type collection[L any] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// until lists a collection again whenever it changes, until ok agrees.
func until[L any](c *cluster, of collection[L], opts metav1.ListOptions, ok func(L) error) L {
	c.t.Helper()
	w, err := of.Watch(c.ctx, opts)
	c.ok(err)
	defer func() { w.Stop() }()
	for {
		list, err := of.List(c.ctx, opts)
		if err == nil {
			if err = ok(list); err == nil {
				return list
			}
		}
		select {
		case _, open := <-w.ResultChan():
			if !open {
				w, err = of.Watch(c.ctx, opts)
				c.ok(err)
			}
		case <-c.ctx.Done():
			c.t.Fatalf("%v", err)
		}
	}
}

// named restricts to one object.
func named(name string) metav1.ListOptions {
	return metav1.ListOptions{FieldSelector: "metadata.name=" + name}
}

// labelled restricts to objects with labels.
func labelled(selector string) metav1.ListOptions { return metav1.ListOptions{LabelSelector: selector} }

// want compares, in words.
func want[T comparable](what string, got, wanted T) error {
	if got != wanted {
		return fmt.Errorf("%s: %v, want %v", what, got, wanted)
	}
	return nil
}

// all returns the first error.
func all(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// editor is the part of a typed client that changes an object.
type editor[T any] interface {
	Get(context.Context, string, metav1.GetOptions) (T, error)
	Update(context.Context, T, metav1.UpdateOptions) (T, error)
}

// edit changes an object, again when somebody else was first.
func edit[T any](c *cluster, of editor[T], name string, change func(T)) (changed T) {
	c.t.Helper()
	c.ok(retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		obj, err := of.Get(c.ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(obj)
		changed, err = of.Update(c.ctx, obj, metav1.UpdateOptions{})
		return err
	}))
	return changed
}

// pods waits for the pods with labels to be as they should.
func (c *cluster) pods(selector string, ok func([]corev1.Pod) error) []corev1.Pod {
	c.t.Helper()
	return until(c, c.CoreV1().Pods(ns), labelled(selector), func(l *corev1.PodList) error { return ok(l.Items) }).Items
}

// pod waits for one pod to be as it should.
func (c *cluster) pod(name string, ok func(*corev1.Pod) error) *corev1.Pod {
	c.t.Helper()
	l := until(c, c.CoreV1().Pods(ns), named(name), func(l *corev1.PodList) error {
		if len(l.Items) == 0 {
			return fmt.Errorf("no pod %s", name)
		}
		return ok(&l.Items[0])
	})
	return &l.Items[0]
}

// ready counts the pods that are Ready and stay.
func ready(pods []corev1.Pod) (n int) {
	for i := range pods {
		if isReady(&pods[i]) && pods[i].DeletionTimestamp == nil {
			n++
		}
	}
	return n
}

func isReady(p *corev1.Pod) bool {
	return podCondition(p, corev1.PodReady).Status == corev1.ConditionTrue
}

// podCondition returns a condition of a pod, a zero one when it is not there.
func podCondition(p *corev1.Pod, kind corev1.PodConditionType) corev1.PodCondition {
	for _, c := range p.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return corev1.PodCondition{}
}

// readyPods is a condition of cluster.pods.
func readyPods(n int) func([]corev1.Pod) error {
	return func(pods []corev1.Pod) error {
		return all(want("pods", len(pods), n), want("ready pods", ready(pods), n))
	}
}

// anyPods is a condition of cluster.pods: so many, ready or not.
func anyPods(n int) func([]corev1.Pod) error {
	return func(pods []corev1.Pod) error { return want("pods", len(pods), n) }
}

// gone waits until what a selector names is no more.
func gone[L any](c *cluster, of collection[L], opts metav1.ListOptions, count func(L) int) {
	c.t.Helper()
	until(c, of, opts, func(l L) error { return want("objects left", count(l), 0) })
}

// labels are those of all objects of a test.
func labels(name string) map[string]string { return map[string]string{"app": name} }

func selector(name string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: labels(name)}
}

// podSpec is of one container that asks for cpu; "" asks for nothing.
func podSpec(cpu string) corev1.PodSpec {
	container := corev1.Container{Name: "c", Image: "registry.example/app:1"}
	if cpu != "" {
		container.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	}
	return corev1.PodSpec{Containers: []corev1.Container{container}, TerminationGracePeriodSeconds: new(int64)}
}

func template(name string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels(name)}, Spec: podSpec("")}
}

func newPod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels(name)}, Spec: podSpec("")}
	for _, f := range change {
		f(p)
	}
	return p
}

// createPod creates a pod.
func (c *cluster) createPod(p *corev1.Pod) *corev1.Pod {
	c.t.Helper()
	return must(c.CoreV1().Pods(ns).Create(c.ctx, p, metav1.CreateOptions{}))(c)
}

// deletePod deletes a pod at once, as the kubelet of a node would in the end.
func (c *cluster) deletePod(name string) {
	c.t.Helper()
	c.ok(c.CoreV1().Pods(ns).Delete(c.ctx, name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
}

// node adds a node that nobody simulates: the test says what its pods do.
func (c *cluster) node(name string, change ...func(*corev1.Node)) {
	c.t.Helper()
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
		Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}},
			Allocatable: corev1.ResourceList{
				corev1.ResourcePods: resource.MustParse("110"), corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("16Gi"),
			},
		},
	}
	for _, f := range change {
		f(n)
	}
	n.Status.Capacity = n.Status.Allocatable
	must(c.CoreV1().Nodes().Create(c.ctx, n, metav1.CreateOptions{}))(c)
}

// play sets what a kubelet says of a pod.
func (c *cluster) play(name string, change func(*corev1.PodStatus)) {
	c.t.Helper()
	c.ok(retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		p, err := c.CoreV1().Pods(ns).Get(c.ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(&p.Status)
		_, err = c.CoreV1().Pods(ns).UpdateStatus(c.ctx, p, metav1.UpdateOptions{})
		return err
	}))
}

// running is for play: the pod is Ready since a time.
func running(since time.Time) func(*corev1.PodStatus) {
	return func(s *corev1.PodStatus) {
		at := metav1.NewTime(since)
		s.Phase, s.StartTime = corev1.PodRunning, &at
		setReady(s, corev1.ConditionTrue, at)
		s.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at}}}}
	}
}

// unready is for play: the pod runs, but is not Ready.
func unready(s *corev1.PodStatus) {
	running(time.Now())(s)
	setReady(s, corev1.ConditionFalse, metav1.Now())
	s.ContainerStatuses[0].Ready = false
}

// exited is for play: the container has ended, and the pod with it.
func exited(code int32) func(*corev1.PodStatus) {
	return func(s *corev1.PodStatus) {
		now := metav1.Now()
		s.Phase = corev1.PodSucceeded
		if code != 0 {
			s.Phase = corev1.PodFailed
		}
		setReady(s, corev1.ConditionFalse, now)
		s.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: code, StartedAt: now, FinishedAt: now},
		}}}
	}
}

func setReady(s *corev1.PodStatus, status corev1.ConditionStatus, at metav1.Time) {
	ready := corev1.PodCondition{Type: corev1.PodReady, Status: status, LastTransitionTime: at}
	for i := range s.Conditions {
		if s.Conditions[i].Type == corev1.PodReady {
			s.Conditions[i] = ready
			return
		}
	}
	s.Conditions = append(s.Conditions, ready)
}

// statusRoundTrip reads, updates and patches the status of an object: later
// reads and watches show it, and its spec stays as it was.
func (c *cluster) statusRoundTrip(gvr schema.GroupVersionResource, name string) {
	c.t.Helper()
	of := c.dynamic.Resource(gvr).Namespace(ns)
	before := must(of.Get(c.ctx, name, metav1.GetOptions{}, "status"))(c)
	w := must(of.Watch(c.ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name, ResourceVersion: before.GetResourceVersion()}))(c)
	defer w.Stop()
	spec, _ := json.Marshal(before.Object["spec"])

	c.ok(retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		obj, err := of.Get(c.ctx, name, metav1.GetOptions{}, "status")
		if err != nil {
			return err
		}
		list, _, _ := unstructured.NestedSlice(obj.Object, "status", "conditions")
		list = append(list, map[string]any{"type": "StatusUpdate", "status": "True", "reason": "E2E", "message": "Set from a test"})
		c.ok(unstructured.SetNestedSlice(obj.Object, list, "status", "conditions"))
		c.ok(unstructured.SetNestedField(obj.Object, "changed", "spec", "template", "metadata", "annotations", "spec"))
		_, err = of.UpdateStatus(c.ctx, obj, metav1.UpdateOptions{})
		return err
	}))
	c.seen(w, "StatusUpdate")
	obj := must(of.Get(c.ctx, name, metav1.GetOptions{}))(c)
	if now, _ := json.Marshal(obj.Object["spec"]); string(now) != string(spec) {
		c.t.Errorf("an update of the status changed the spec to %s", now)
	}

	patch := `{"metadata":{"annotations":{"patched":"status"}},"status":{"conditions":[{"type":"StatusPatched","status":"True"}]}}`
	patched := must(of.Patch(c.ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status"))(c)
	if condition(patched, "StatusPatched") == nil || patched.GetAnnotations()["patched"] != "status" {
		c.t.Errorf("a patched status: %v", patched.Object)
	}
	c.seen(w, "StatusPatched")
	if obj = must(of.Get(c.ctx, name, metav1.GetOptions{}, "status"))(c); condition(obj, "StatusPatched") == nil {
		c.t.Errorf("read again: %v", obj.Object["status"])
	}
}

// seen waits for an event whose object has a condition.
func (c *cluster) seen(w watch.Interface, kind string) {
	c.t.Helper()
	for {
		select {
		case e, open := <-w.ResultChan():
			if !open {
				c.t.Fatalf("the watch ended before the condition %s", kind)
			}
			if obj, ok := e.Object.(*unstructured.Unstructured); ok && e.Type == watch.Modified && condition(obj, kind) != nil {
				return
			}
		case <-c.ctx.Done():
			c.t.Fatalf("no event shows the condition %s", kind)
		}
	}
}

// condition returns a condition of any object, nil when it is not there.
func condition(obj *unstructured.Unstructured, kind string) map[string]any {
	list, _, _ := unstructured.NestedSlice(obj.Object, "status", "conditions")
	for _, entry := range list {
		if c, ok := entry.(map[string]any); ok && c["type"] == kind {
			return c
		}
	}
	return nil
}

// refused checks that a call failed as invalid with a message.
func (c *cluster) refused(err error, message string) {
	c.t.Helper()
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), message) {
		c.t.Errorf("%v, want invalid: %s", err, message)
	}
}

// event waits for an event of an object.
func (c *cluster) event(object, reason, message string) {
	c.t.Helper()
	until(c, c.CoreV1().Events(ns), metav1.ListOptions{FieldSelector: "involvedObject.name=" + object + ",reason=" + reason}, func(l *corev1.EventList) error {
		for _, e := range l.Items {
			if strings.Contains(e.Message, message) {
				return nil
			}
		}
		return fmt.Errorf("%s has no event %s: %s", object, reason, message)
	})
}

// statusOf edits the status of jobs.
type statusOf struct{ batchclient.JobInterface }

// Update updates the status alone.
func (s statusOf) Update(ctx context.Context, j *batchv1.Job, o metav1.UpdateOptions) (*batchv1.Job, error) {
	return s.UpdateStatus(ctx, j, o)
}

func evictionOf(pod string) *policyv1.Eviction {
	return &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: ns}}
}
