package peers

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/dynamic-resource-allocation/structured"
)

const driver = "gpu.example.com"

// An autoscaler's question, answered by a program that may only read: how many nodes
// like this one do the pods that wait for devices need? It asks upstream's allocator,
// without a word of the driver's, and what it says is what the scheduler then does.
func TestStructuredParametersAreSimulated(t *testing.T) {
	t.Parallel()
	c := serve(t, 1)
	reads := []string{"get", "list", "watch"}
	c.allow(t, "autoscaler",
		rbacv1.PolicyRule{APIGroups: []string{resourcev1.GroupName}, Resources: []string{"resourceclaims", "resourceslices", "deviceclasses"}, Verbs: reads},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods", "nodes"}, Verbs: reads},
	)
	autoscaler := reach(t, c.as(t, metav1.NamespaceSystem, "autoscaler"), "")
	c.publish(t, "sim-0")
	c.askForDevices(t, 8)
	eventually(t, func() error {
		waiting, err := unschedulable(t.Context(), c)
		if err != nil || len(waiting) != 5 {
			return fmt.Errorf("%d pods wait: %v", len(waiting), err)
		}
		return nil
	})

	s := simulate(t, autoscaler, "sim-0")
	if fits := s.addNodes(t); !slices.Equal(fits, []int{3, 2}) || len(s.waiting) != 0 {
		t.Fatalf("new nodes take %v pods, and %d are left; want 3 and 2", fits, len(s.waiting))
	}
	_, err := autoscaler.ResourceV1().ResourceSlices().Create(t.Context(), slice("another"), metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("it writes: %v", err)
	}

	c.publish(t, "first")
	c.join(t, "first")
	eventually(t, func() error {
		waiting, err := unschedulable(t.Context(), c)
		if err != nil || len(waiting) != 2 {
			return fmt.Errorf("with one more node %d pods wait: %v", len(waiting), err)
		}
		return nil
	})
	if fits := simulate(t, autoscaler, "sim-0").addNodes(t); !slices.Equal(fits, []int{2}) {
		t.Errorf("then new nodes take %v pods, want 2", fits)
	}
	c.publish(t, "second")
	c.join(t, "second")
	c.podsUntil(t, "worker", func(on map[string]int) bool {
		return maps.Equal(on, map[string]int{"sim-0": 3, "first": 3, "second": 2})
	})
	if fits := simulate(t, autoscaler, "sim-0").addNodes(t); len(fits) != 0 {
		t.Errorf("a pod with a gate asks for %v", fits)
	}
}

// publish has a driver offer four devices on a node, one of which is too small.
func (c *cluster) publish(t *testing.T, node string) {
	t.Helper()
	if _, err := c.ResourceV1().ResourceSlices().Create(t.Context(), slice(node), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func slice(node string) *resourcev1.ResourceSlice {
	s := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node + "-gpu"}, Spec: resourcev1.ResourceSliceSpec{
		Driver: driver, NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
	}}
	for i, memory := range []string{"8Gi", "16Gi", "40Gi", "80Gi"} {
		s.Spec.Devices = append(s.Spec.Devices, resourcev1.Device{
			Name:     fmt.Sprint("gpu-", i),
			Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"memory": {Value: resource.MustParse(memory)}},
		})
	}
	return s
}

// join adds a node that somebody plays.
func (c *cluster) join(t *testing.T, name string) {
	t.Helper()
	has := corev1.ResourceList{corev1.ResourcePods: resource.MustParse("110"), corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("16Gi")}
	_, err := c.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{corev1.LabelHostname: name}, Annotations: map[string]string{"kwok.x-k8s.io/node": "fake"},
		},
		Status: corev1.NodeStatus{Capacity: has, Allocatable: has, Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
		}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// askForDevices makes pods that want a device of 16Gi or more each, and one with a gate.
func (c *cluster) askForDevices(t *testing.T, pods int) {
	t.Helper()
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	selector := func(expression string) []resourcev1.DeviceSelector {
		return []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: expression}}}
	}
	_, err := c.ResourceV1().DeviceClasses().Create(t.Context(), &resourcev1.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: "gpu"}, Spec: resourcev1.DeviceClassSpec{Selectors: selector(`device.driver == "` + driver + `"`)},
	}, metav1.CreateOptions{})
	ok(err)
	request := resourcev1.DeviceRequest{Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{
		DeviceClassName: "gpu", Selectors: selector(`device.capacity["` + driver + `"].memory.compareTo(quantity("16Gi")) >= 0`),
	}}
	template := "large"
	_, err = c.ResourceV1().ResourceClaimTemplates(metav1.NamespaceDefault).Create(t.Context(), &resourcev1.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: template}, Spec: resourcev1.ResourceClaimTemplateSpec{
			Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{request}}},
		},
	}, metav1.CreateOptions{})
	ok(err)
	eventually(t, func() error {
		_, err := c.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
	for i := range pods + 1 {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("worker-", i), Labels: map[string]string{"app": "worker"}},
			Spec: corev1.PodSpec{
				Containers:     []corev1.Container{{Name: "c", Image: "worker", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}}}},
				ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &template}},
			},
		}
		if i == pods {
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/quota"}}
		}
		_, err := c.CoreV1().Pods(metav1.NamespaceDefault).Create(t.Context(), p, metav1.CreateOptions{})
		ok(err)
	}
}

// unschedulable are the pods that an autoscaler looks at.
func unschedulable(ctx context.Context, api kubernetes.Interface) (waiting []*corev1.Pod, err error) {
	l, err := api.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName="})
	if err != nil {
		return nil, err
	}
	for i := range l.Items {
		for _, d := range l.Items[i].Status.Conditions {
			if d.Type == corev1.PodScheduled && d.Status == corev1.ConditionFalse && d.Reason == corev1.PodReasonUnschedulable {
				waiting = append(waiting, &l.Items[i])
			}
		}
	}
	return waiting, nil
}

// simulation is what an autoscaler remembers of a cluster while it adds nodes to it in
// thought.
type simulation struct {
	like        *corev1.Node                // what new nodes are like
	offers      []*resourcev1.ResourceSlice // those of that node
	slices      []*resourcev1.ResourceSlice // all there are
	classes     classes
	claims      map[string]*resourcev1.ResourceClaim // by namespace/name
	allocated   sets.Set[structured.DeviceID]
	expressions *cel.Cache
	waiting     []*corev1.Pod
	added       int
}

type classes []*resourcev1.DeviceClass

func (c classes) List() ([]*resourcev1.DeviceClass, error) { return c, nil }

func (c classes) Get(name string) (*resourcev1.DeviceClass, error) {
	for _, class := range c {
		if class.Name == name {
			return class, nil
		}
	}
	return nil, apierrors.NewNotFound(resourcev1.Resource("deviceclasses"), name)
}

// simulate reads all that it takes.
func simulate(t *testing.T, api kubernetes.Interface, like string) *simulation {
	t.Helper()
	s := &simulation{
		claims: map[string]*resourcev1.ResourceClaim{}, allocated: sets.New[structured.DeviceID](), expressions: cel.NewCache(10, cel.Features{}),
	}
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	s.like, err = api.CoreV1().Nodes().Get(t.Context(), like, metav1.GetOptions{})
	ok(err)
	s.waiting, err = unschedulable(t.Context(), api)
	ok(err)
	published, err := api.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
	ok(err)
	for i := range published.Items {
		s.slices = append(s.slices, &published.Items[i])
		if node := published.Items[i].Spec.NodeName; node != nil && *node == like {
			s.offers = append(s.offers, &published.Items[i])
		}
	}
	known, err := api.ResourceV1().DeviceClasses().List(t.Context(), metav1.ListOptions{})
	ok(err)
	for i := range known.Items {
		s.classes = append(s.classes, &known.Items[i])
	}
	claims, err := api.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
	ok(err)
	for i := range claims.Items {
		claim := &claims.Items[i]
		s.claims[claim.Namespace+"/"+claim.Name] = claim
		if claim.Status.Allocation != nil {
			s.take(claim.Status.Allocation)
		}
	}
	return s
}

func (s *simulation) take(a *resourcev1.AllocationResult) {
	for _, r := range a.Devices.Results {
		s.allocated.Insert(structured.MakeDeviceID(r.Driver, r.Pool, r.Device))
	}
}

// addNodes adds nodes as long as they take pods, and returns how many each takes.
func (s *simulation) addNodes(t *testing.T) (fits []int) {
	t.Helper()
	for len(s.waiting) > 0 {
		node, before := s.addNode(), len(s.waiting)
		s.waiting = slices.DeleteFunc(s.waiting, func(p *corev1.Pod) bool { return s.fits(t, p, node) })
		if len(s.waiting) == before {
			break
		}
		fits = append(fits, before-len(s.waiting))
	}
	return fits
}

// addNode adds one with what its like offers.
func (s *simulation) addNode() *corev1.Node {
	s.added++
	node := s.like.DeepCopy()
	node.Name = fmt.Sprint("new-", s.added)
	node.Labels[corev1.LabelHostname] = node.Name
	for _, offer := range s.offers {
		offer = offer.DeepCopy()
		offer.Spec.NodeName, offer.Spec.Pool.Name = &node.Name, node.Name
		s.slices = append(s.slices, offer)
	}
	return node
}

// fits gives a pod the devices of a node, if it has what the pod's claims ask for.
func (s *simulation) fits(t *testing.T, p *corev1.Pod, node *corev1.Node) bool {
	t.Helper()
	var claims []*resourcev1.ResourceClaim
	for i := range p.Spec.ResourceClaims {
		name, _, err := resourceclaim.Name(p, &p.Spec.ResourceClaims[i])
		if err != nil || name == nil {
			t.Fatalf("claim %d of pod %s: %v", i, p.Name, err)
		}
		claims = append(claims, s.claims[p.Namespace+"/"+*name])
	}
	state := structured.AllocatedState{
		AllocatedDevices: s.allocated, AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](), AggregatedCapacity: structured.NewConsumedCapacityCollection(),
	}
	allocator, err := structured.NewAllocator(t.Context(), structured.Features{PrioritizedList: true, AdminAccess: true}, state, s.classes, s.slices, s.expressions)
	if err != nil {
		t.Fatal(err)
	}
	given, err := allocator.Allocate(t.Context(), node, claims)
	if err != nil {
		t.Fatal(err)
	}
	for i := range given {
		s.take(&given[i])
	}
	return len(given) > 0
}
