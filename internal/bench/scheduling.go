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

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
)

// Scheduling says how a scheduler is measured: with the shapes of upstream's
// scheduler_perf, on nodes that are objects only. Pods are bound and never run.
type Scheduling struct {
	Config  *rest.Config
	Server  Server
	Only    []string // names of Shapes; empty: all
	Scale   float64  // of the numbers of nodes and pods; 0 means 1
	Clients int      // that create pods at once; default 16
}

// group is the label that tells the pods of a measurement from those before.
const group = "bench.proa/group"

const (
	nodePrefix     = "bench-"
	benchNamespace = "proa-bench-scheduler"
	measured       = "measured"
)

// Run measures shape by shape and leaves nothing behind.
func (b Scheduling) Run(ctx context.Context, report Report) (err error) {
	b.Scale, b.Clients = cmp.Or(b.Scale, 1), cmp.Or(b.Clients, 16)
	for _, name := range b.Only {
		if !slices.Contains(ShapeNames(), name) {
			return fmt.Errorf("there is no shape %q, only %s", name, strings.Join(ShapeNames(), ", "))
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
	r := &schedulingRun{Scheduling: b, target: t, makers: m}
	defer func() { err = errors.Join(err, r.setNodes(context.WithoutCancel(ctx), 0)) }()
	for _, s := range shapes {
		if len(b.Only) > 0 && !slices.Contains(b.Only, s.name) {
			continue
		}
		f, err := r.measure(ctx, s)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		report(f)
	}
	return nil
}

// schedulingRun is one Run.
type schedulingRun struct {
	Scheduling
	*target
	*makers
	nodes int // there are
}

func (r *schedulingRun) scaled(n int) int {
	if n == 0 {
		return 0
	}
	return max(int(float64(n)*r.Scale), 1)
}

// measure is one shape: what is there before, then the pods that count.
func (r *schedulingRun) measure(ctx context.Context, s shape) (f Figure, err error) {
	nodes, pods := 1, r.scaled(s.pods)
	if s.nodes > 1 {
		nodes = max(r.scaled(s.nodes), fewestNodes)
	}
	if err := r.setNodes(ctx, nodes); err != nil {
		return f, fmt.Errorf("nodes: %w", err)
	}
	namespaces := make([]string, max(s.namespaces, 1))
	defer func() { err = errors.Join(err, r.clean(context.WithoutCancel(ctx), namespaces, s)) }()
	for i := range namespaces {
		namespaces[i] = benchNamespace
		if i > 0 {
			namespaces[i] = fmt.Sprintf("%s-%d", benchNamespace, i)
		}
		if err := r.makeNamespace(ctx, namespaces[i]); err != nil {
			return f, err
		}
	}
	w := &workload{run: r, namespaces: namespaces, nodes: nodes}
	if s.before != nil {
		if err := s.before(ctx, w); err != nil {
			return f, fmt.Errorf("before: %w", err)
		}
	}
	bound, err := r.count(ctx, podsPath("", measured, true), "ADDED")
	if err != nil {
		return f, err
	}
	defer bound.close()
	beside, cancel := context.WithCancel(ctx)
	defer cancel()
	during := make(chan error, 1)
	if s.during == nil {
		during <- nil
	} else {
		go func() { during <- s.during(beside, w) }()
	}
	used := r.Server.start(ctx)
	began := time.Now()
	change := s.pod
	if s.each != nil {
		change = func(i int, p *corev1.Pod) { s.each(w, i, p) }
	}
	err = w.makePods(ctx, measured, pods, change)
	if err == nil {
		err = bound.wait(ctx, pods)
	}
	spent := used.stop()
	cancel()
	if other := <-during; err == nil && other != nil && !errors.Is(other, context.Canceled) {
		err = other
	}
	if err != nil {
		return f, err
	}
	f = bound.times.figure(s.name, fmt.Sprintf("%d nodes", nodes), spent.took, spent.cpu)
	f.Memory, f.Rates, f.Floor = spent.memory, bound.rates(began), s.floor
	return f, nil
}

// podsPath is the collection of the pods of a group, in one namespace or all.
func podsPath(namespace, which string, bound bool) string {
	path := "/api/v1/pods"
	if namespace != "" {
		path = namespaces + "/" + namespace + "/pods"
	}
	q := url.Values{"labelSelector": {group + "=" + which}}
	if bound {
		q.Set("fieldSelector", "spec.nodeName!=")
	}
	return path + "?" + q.Encode()
}

// clean removes what a shape made.
func (r *schedulingRun) clean(ctx context.Context, names []string, s shape) error {
	var errs []error
	if s.after != nil {
		errs = append(errs, s.after(ctx, &workload{run: r, namespaces: names, nodes: r.nodes}))
	}
	for _, name := range names {
		if name == "" {
			continue
		}
		err := r.removeNamespace(ctx, name)
		if err == nil {
			err = r.gone(ctx, namespaces+"/"+name)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// fewestNodes give every zone two.
const fewestNodes = 6

const leases = "/apis/coordination.k8s.io/v1/namespaces/" + corev1.NamespaceNodeLease + "/leases"

func nodeName(i int) string { return fmt.Sprintf("%s%d", nodePrefix, i) }

// setNodes makes or deletes nodes until there are n. One alone is large: it takes
// all pods.
func (r *schedulingRun) setNodes(ctx context.Context, n int) error {
	if r.nodes == 1 && n > 1 || r.nodes > 1 && n == 1 {
		if err := r.setNodes(ctx, 0); err != nil {
			return err
		}
	}
	if extra := r.nodes - n; extra > 0 {
		if err := r.remove(ctx, extra, func(i int) string { return "/api/v1/nodes/" + nodeName(n+i) }); err != nil {
			return err
		}
		if err := r.remove(ctx, extra, func(i int) string { return leases + "/" + nodeName(n+i) }); err != nil {
			return err
		}
		r.nodes = n
	}
	have := r.nodes
	if have >= n {
		return nil
	}
	changes, err := r.count(ctx, "/api/v1/nodes?labelSelector=", "MODIFIED")
	if err != nil {
		return err
	}
	defer changes.close()
	// Counted before they may be there: what is not is deleted all the same.
	r.nodes = n
	if err := r.create(ctx, n-have, func(i int) (string, runtime.Object) { return leases, lease(nodeName(have + i)) }); err != nil {
		return err
	}
	err = r.create(ctx, n-have, func(i int) (string, runtime.Object) { return "/api/v1/nodes", node(have+i, n == 1) })
	if err != nil {
		return err
	}
	return changes.calm(ctx, time.Duration(r.Scale*float64(settled)))
}

// settled are nodes, at full scale, once no controller has changed any for so long.
const settled = time.Second

// lease says that a node lives for an hour: nobody renews it.
func lease(name string) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: corev1.NamespaceNodeLease},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &name, LeaseDurationSeconds: ptr.To[int32](3600), RenewTime: &metav1.MicroTime{Time: time.Now()},
		},
	}
}

// node is as large as those of scheduler_perf, or larger than any.
func node(i int, large bool) *corev1.Node {
	cidr := fmt.Sprintf("100.%d.%d.%d/25", 64+(i>>9)&63, (i>>1)&255, (i&1)<<7)
	offer := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("32Gi"), corev1.ResourcePods: resource.MustParse("110"),
		"example.com/device": resource.MustParse("10"),
	}
	if large {
		offer[corev1.ResourceCPU], offer[corev1.ResourceMemory], offer[corev1.ResourcePods] = resource.MustParse("100k"), resource.MustParse("100Ti"), resource.MustParse("1M")
	}
	now := metav1.Now()
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName(i), Labels: map[string]string{
			corev1.LabelHostname: nodeName(i), corev1.LabelTopologyZone: fmt.Sprintf("zone%d", i%3+1), corev1.LabelTopologyRegion: "region1",
		}},
		Spec:   corev1.NodeSpec{PodCIDR: cidr, PodCIDRs: []string{cidr}},
		Status: corev1.NodeStatus{Allocatable: offer, Capacity: offer, Phase: corev1.NodeRunning},
	}
	for _, c := range []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
		status := corev1.ConditionFalse
		if c == corev1.NodeReady {
			status = corev1.ConditionTrue
		}
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: c, Status: status, LastHeartbeatTime: now, LastTransitionTime: now})
	}
	return n
}

// workload is what a shape works with.
type workload struct {
	run        *schedulingRun
	namespaces []string
	nodes      int
}

// makePods creates pods of a group, in the namespaces in turn, from a template.
func (w *workload) makePods(ctx context.Context, name string, n int, change func(i int, p *corev1.Pod)) error {
	return w.run.create(ctx, n, func(i int) (string, runtime.Object) {
		p := w.pod(name, i)
		if change != nil {
			change(i, p)
		}
		p.Annotations = map[string]string{sentAnnotation: stamp(time.Now())}
		return namespaces + "/" + p.Namespace + "/pods", p
	})
}

// pod is the small one of scheduler_perf.
func (w *workload) pod(name string, i int) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: w.namespaces[i%len(w.namespaces)], Name: fmt.Sprintf("%s-%d", name, i), Labels: map[string]string{group: name},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "pause", Image: "registry.k8s.io/pause:3.10",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("500Mi"),
			}},
		}}},
	}
}

// makeBound creates pods and waits until all have nodes.
func (w *workload) makeBound(ctx context.Context, name string, n int, change func(i int, p *corev1.Pod)) error {
	return w.makeUntil(ctx, name, n, change, podsPath("", name, true), "ADDED")
}

// makeStuck creates pods and waits until the scheduler has said of all that they
// fit nowhere.
func (w *workload) makeStuck(ctx context.Context, name string, n int, change func(i int, p *corev1.Pod)) error {
	return w.makeUntil(ctx, name, n, change, podsPath("", name, false), "MODIFIED")
}

func (w *workload) makeUntil(ctx context.Context, name string, n int, change func(i int, p *corev1.Pod), path, event string) error {
	n = w.run.scaled(n)
	k, err := w.run.count(ctx, path, event)
	if err != nil {
		return err
	}
	defer k.close()
	if err := w.makePods(ctx, name, n, change); err != nil {
		return err
	}
	return k.wait(ctx, n)
}

// every calls fn now and then until ctx ends.
func every(ctx context.Context, interval time.Duration, fn func(i int) error) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		if err := fn(i); err != nil && ctx.Err() == nil && !isCode(err, http.StatusNotFound) {
			return err
		}
	}
}
