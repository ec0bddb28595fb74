// Package dra holds Proa to what upstream promises of dynamic resource allocation,
// as far as the control plane goes: the test plays the drivers, which publish
// ResourceSlices, and nodes are simulated.
package dra

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
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
const patience = 2 * time.Minute

const (
	ns     = metav1.NamespaceDefault
	driver = "gpu.example.com"
)

// cluster is a server with controllers and scheduler, as a stock client sees it.
type cluster struct {
	kubernetes.Interface
	t      *testing.T
	ctx    context.Context // ends when the test's patience does
	access *rest.Config
}

func start(t *testing.T, nodes int) *cluster {
	t.Helper()
	t.Parallel()
	access := proatest.Start(t, proatest.Options{Controllers: []string{"*"}, Scheduler: true, Nodes: nodes})
	access.QPS = -1
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	c := &cluster{t: t, ctx: ctx, access: access}
	var err error
	c.Interface, err = kubernetes.NewForConfig(access)
	c.ok(err)
	until(c, c.CoreV1().ServiceAccounts(ns), metav1.ListOptions{}, func(l *corev1.ServiceAccountList) error {
		return want("service accounts", len(l.Items), 1)
	})
	return c
}

func (c *cluster) ok(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) refused(err error, text string) {
	c.t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		c.t.Errorf("error %v, want %q", err, text)
	}
}

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

func named(name string) metav1.ListOptions {
	return metav1.ListOptions{FieldSelector: "metadata.name=" + name}
}

func want[T comparable](what string, got, wanted T) error {
	if got != wanted {
		return fmt.Errorf("%s: %v, want %v", what, got, wanted)
	}
	return nil
}

// class makes a class of the devices that all selectors match.
func (c *cluster) class(name string, change func(*resourcev1.DeviceClassSpec), selectors ...string) {
	c.t.Helper()
	class := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourcev1.DeviceClassSpec{Selectors: cel(selectors...)}}
	if change != nil {
		change(&class.Spec)
	}
	_, err := c.ResourceV1().DeviceClasses().Create(c.ctx, class, metav1.CreateOptions{})
	c.ok(err)
}

func cel(expressions ...string) (selectors []resourcev1.DeviceSelector) {
	for _, e := range expressions {
		selectors = append(selectors, resourcev1.DeviceSelector{CEL: &resourcev1.CELDeviceSelector{Expression: e}})
	}
	return selectors
}

// slice publishes devices of a node, in a pool of the node's name. Change can make
// it another kind of slice.
func (c *cluster) slice(name, node string, devices []resourcev1.Device, change ...func(*resourcev1.ResourceSliceSpec)) {
	c.t.Helper()
	s := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourcev1.ResourceSliceSpec{
		Driver: driver, Pool: resourcev1.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1}, NodeName: &node, Devices: devices,
	}}
	for _, f := range change {
		f(&s.Spec)
	}
	_, err := c.ResourceV1().ResourceSlices().Create(c.ctx, s, metav1.CreateOptions{})
	c.ok(err)
}

// gpus are devices gpu-0, gpu-1 and so on.
func gpus(n int, change ...func(int, *resourcev1.Device)) []resourcev1.Device {
	list := make([]resourcev1.Device, n)
	for i := range list {
		list[i] = resourcev1.Device{Name: fmt.Sprint("gpu-", i), Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
			"index": {IntValue: new(int64(i))},
		}}
		for _, f := range change {
			f(i, &list[i])
		}
	}
	return list
}

// one asks for one device of class gpu.
func one(name string, change ...func(*resourcev1.ExactDeviceRequest)) resourcev1.DeviceRequest {
	r := resourcev1.DeviceRequest{Name: name, Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu"}}
	for _, f := range change {
		f(r.Exactly)
	}
	return r
}

func devices(requests ...resourcev1.DeviceRequest) resourcev1.ResourceClaimSpec {
	return resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: requests}}
}

func (c *cluster) makeClaim(name string, spec resourcev1.ResourceClaimSpec) error {
	_, err := c.ResourceV1().ResourceClaims(ns).Create(c.ctx, &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
	return err
}

// claimed makes a claim, and a pod of the same name that uses it.
func (c *cluster) claimed(name string, spec resourcev1.ResourceClaimSpec, change ...func(*corev1.Pod)) {
	c.t.Helper()
	c.ok(c.makeClaim(name, spec))
	c.pod(name, append(change, uses(name))...)
}

func (c *cluster) template(name string, spec resourcev1.ResourceClaimSpec) {
	c.t.Helper()
	t := &resourcev1.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourcev1.ResourceClaimTemplateSpec{Spec: spec}}
	_, err := c.ResourceV1().ResourceClaimTemplates(ns).Create(c.ctx, t, metav1.CreateOptions{})
	c.ok(err)
}

func (c *cluster) pod(name string, change ...func(*corev1.Pod)) {
	c.t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "c", Image: "example.com/i", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")},
		}}},
		TerminationGracePeriodSeconds: new(int64(0)),
	}}
	for _, f := range change {
		f(p)
	}
	_, err := c.CoreV1().Pods(ns).Create(c.ctx, p, metav1.CreateOptions{})
	c.ok(err)
}

func uses(claim string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: claim, ResourceClaimName: &claim})
	}
}

func makes(use, template string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: use, ResourceClaimTemplateName: &template})
	}
}

func onNode(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: name} }
}

// scheduled waits until a pod has a node, and returns the node's name.
func (c *cluster) scheduled(name string) (node string) {
	c.t.Helper()
	until(c, c.CoreV1().Pods(ns), named(name), func(l *corev1.PodList) error {
		if len(l.Items) == 0 {
			return fmt.Errorf("no pod %s", name)
		}
		if node = l.Items[0].Spec.NodeName; node == "" {
			return fmt.Errorf("pod %s has no node: %+v", name, l.Items[0].Status.Conditions)
		}
		return nil
	})
	return node
}

// waits waits until the scheduler says why a pod fits nowhere.
func (c *cluster) waits(name, why string) {
	c.t.Helper()
	until(c, c.CoreV1().Pods(ns), named(name), func(l *corev1.PodList) error {
		if len(l.Items) == 0 {
			return fmt.Errorf("no pod %s", name)
		}
		p := l.Items[0]
		if p.Spec.NodeName != "" {
			c.t.Fatalf("pod %s has got node %s", name, p.Spec.NodeName)
		}
		for _, d := range p.Status.Conditions {
			if d.Type == corev1.PodScheduled && d.Reason == corev1.PodReasonUnschedulable && strings.Contains(d.Message, why) {
				return nil
			}
		}
		return fmt.Errorf("pod %s, want %q: %+v", name, why, p.Status.Conditions)
	})
}

// claim waits for a claim to be as it should.
func (c *cluster) claim(name string, ok func(*resourcev1.ResourceClaim) error) *resourcev1.ResourceClaim {
	c.t.Helper()
	return &until(c, c.ResourceV1().ResourceClaims(ns), named(name), func(l *resourcev1.ResourceClaimList) error {
		if len(l.Items) == 0 {
			return fmt.Errorf("no claim %s", name)
		}
		return ok(&l.Items[0])
	}).Items[0]
}

// given are the devices of an allocated claim, as request=pool/device, by comma.
func (c *cluster) given(name string) string {
	c.t.Helper()
	claim := c.claim(name, func(claim *resourcev1.ResourceClaim) error {
		return want("claim "+name+" allocated", claim.Status.Allocation != nil, true)
	})
	var list []string
	for _, r := range claim.Status.Allocation.Devices.Results {
		list = append(list, r.Request+"="+r.Pool+"/"+r.Device)
	}
	return strings.Join(list, ",")
}

// free waits until a claim has no devices.
func (c *cluster) free(name string) {
	c.t.Helper()
	c.claim(name, func(claim *resourcev1.ResourceClaim) error {
		return want(name+" is free", claim.Status.Allocation == nil && len(claim.Status.ReservedFor) == 0 && len(claim.Finalizers) == 0, true)
	})
}

func (c *cluster) delete(pod string) {
	c.t.Helper()
	c.ok(c.CoreV1().Pods(ns).Delete(c.ctx, pod, metav1.DeleteOptions{}))
}

type editor[T any] interface {
	Get(context.Context, string, metav1.GetOptions) (T, error)
	Update(context.Context, T, metav1.UpdateOptions) (T, error)
}

// edit changes an object, again when somebody else was first.
func edit[T any](c *cluster, of editor[T], name string, change func(T)) {
	c.t.Helper()
	c.ok(retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		obj, err := of.Get(c.ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(obj)
		_, err = of.Update(c.ctx, obj, metav1.UpdateOptions{})
		return err
	}))
}

// status changes a claim's status, as a driver does.
func (c *cluster) status(claim string, change func(*resourcev1.ResourceClaim)) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		obj, err := c.ResourceV1().ResourceClaims(ns).Get(c.ctx, claim, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(obj)
		_, err = c.ResourceV1().ResourceClaims(ns).UpdateStatus(c.ctx, obj, metav1.UpdateOptions{})
		return err
	})
}
