package bench

import (
	"context"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
)

// shape is one workload of scheduler_perf.
type shape struct {
	name        string
	nodes, pods int // pods that count
	namespaces  int // over which they are spread; 0 means 1
	floor       float64
	pod         func(i int, p *corev1.Pod)              // what is special about them
	each        func(w *workload, i int, p *corev1.Pod) // or this, where it depends on the nodes
	before      func(context.Context, *workload) error  // what is there before
	during      func(context.Context, *workload) error  // what happens meanwhile, until its context ends
	after       func(context.Context, *workload) error  // removes what is in no namespace
}

// ShapeNames lists the shapes in order.
func ShapeNames() []string {
	var names []string
	for _, s := range shapes {
		names = append(names, s.name)
	}
	return names
}

// plain makes so many ordinary pods before.
func plain(n int) func(context.Context, *workload) error {
	return func(ctx context.Context, w *workload) error { return w.makeBound(ctx, "init", n, nil) }
}

// alike makes so many pods before that are like those that count.
func alike(n int, change func(int, *corev1.Pod)) func(context.Context, *workload) error {
	return func(ctx context.Context, w *workload) error { return w.makeBound(ctx, "init", n, change) }
}

// shapes have the numbers of upstream's 5000-node cases; floors are those that a
// run of its continuous integration has to reach.
var shapes = []shape{
	{name: "basic", nodes: 5000, pods: 10000, floor: 680, before: plain(1000)},
	{name: "basic-50000", nodes: 5000, pods: 50000, floor: 810, before: plain(5000)},
	{name: "node-affinity", nodes: 5000, pods: 10000, floor: 220, pod: inZones("zone1", "zone2"), before: alike(5000, inZones("zone1", "zone2"))},
	{name: "affinity", nodes: 5000, pods: 5000, floor: 35, pod: affine(false, true, corev1.LabelTopologyZone, nil), before: alike(5000, affine(false, true, corev1.LabelTopologyZone, nil))},
	{name: "anti-affinity", nodes: 5000, pods: 2000, floor: 60, pod: affine(true, true, corev1.LabelHostname, nil), before: alike(1000, affine(true, true, corev1.LabelHostname, nil))},
	{name: "matching-anti-affinity", nodes: 5000, pods: 5000, floor: 543, pod: colored(nil), before: alike(1000, affine(true, true, corev1.LabelHostname, nil))},
	{name: "preferred-affinity", nodes: 5000, pods: 5000, floor: 90, pod: affine(false, false, corev1.LabelHostname, nil), before: alike(5000, affine(false, false, corev1.LabelHostname, nil))},
	{name: "preferred-anti-affinity", nodes: 5000, pods: 5000, floor: 90, pod: affine(true, false, corev1.LabelHostname, nil), before: alike(5000, affine(true, false, corev1.LabelHostname, nil))},
	{name: "anti-affinity-ns-selector", nodes: 6000, pods: 1000, namespaces: 50, floor: 24, pod: affine(true, true, corev1.LabelHostname, anyNamespace), before: alike(2000, affine(true, true, corev1.LabelHostname, anyNamespace))},
	{name: "preferred-anti-affinity-ns-selector", nodes: 5000, pods: 5000, namespaces: 50, floor: 55, pod: affine(true, false, corev1.LabelHostname, anyNamespace), before: alike(2000, affine(true, false, corev1.LabelHostname, anyNamespace))},
	{name: "topology-spread", nodes: 5000, pods: 5000, floor: 460, pod: spreadOver(corev1.DoNotSchedule), before: plain(5000)},
	{name: "preferred-topology-spread", nodes: 5000, pods: 5000, floor: 340, pod: spreadOver(corev1.ScheduleAnyway), before: plain(5000)},
	{name: "mixed-base", nodes: 5000, pods: 5000, floor: 140, before: mixedBase},
	{name: "unschedulable", nodes: 5000, pods: 10000, floor: 590, before: func(ctx context.Context, w *workload) error {
		return w.makeStuck(ctx, "stuck", 100, requesting("9"))
	}},
	{name: "unschedulable-20000", nodes: 5000, pods: 10000, floor: 600, before: func(ctx context.Context, w *workload) error {
		return w.makeStuck(ctx, "stuck", 20000, requesting("9"))
	}},
	{name: "churn", nodes: 5000, pods: 10000, floor: 710, during: churn},
	{name: "preemption", nodes: 500, pods: 500, pod: important, before: crowd(2000), after: removeClass},
	{name: "claim-templates", nodes: 500, pods: 2500, floor: 56, pod: withClaimTemplate, before: devices, after: removeDevices},
	{name: "preemption-async", nodes: 5000, pods: 5000, floor: 570, before: crowd(20000), during: preemptors, after: removeClass},
	{name: "gated", nodes: 1, pods: 20000, floor: 910, before: func(ctx context.Context, w *workload) error {
		return w.makePods(ctx, "gated", w.run.scaled(10000), func(_ int, p *corev1.Pod) {
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "bench.proa/gate"}}
		})
	}},
	{name: "finalizers", nodes: 5000, pods: 5000, floor: 830, before: dyingPods, after: releasePods},
	{name: "secrets", nodes: 5000, pods: 10000, floor: 790, pod: withSecret, before: func(ctx context.Context, w *workload) error {
		err := w.run.create(ctx, 1, func(int) (string, runtime.Object) {
			return w.in("secrets"), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "secret"}, Data: map[string][]byte{"k": []byte("v")}}
		})
		if err != nil {
			return err
		}
		return w.makeBound(ctx, "init", 5000, withSecret)
	}},
	{name: "extended-resource", nodes: 5000, pods: 5000, floor: 180, pod: func(_ int, p *corev1.Pod) {
		one := resource.MustParse("1")
		r := &p.Spec.Containers[0].Resources
		r.Requests["example.com/device"] = one
		r.Limits = corev1.ResourceList{"example.com/device": one}
	}},
	{name: "csi-volumes", nodes: 5000, pods: 5000, floor: 100, pod: withClaim, before: volumes, after: removeVolumes},
	{name: "daemonset", nodes: 15000, pods: 30000, floor: 1100, each: func(w *workload, i int, p *corev1.Pod) { pinned(i%w.nodes, p) }},
}

// in is the collection of a resource in the first namespace.
func (w *workload) in(plural string) string {
	return namespaces + "/" + w.namespaces[0] + "/" + plural
}

func inZones(zones ...string) func(int, *corev1.Pod) {
	return func(_ int, p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
				Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: zones,
			}}}},
		}}}
	}
}

// pinned is to one node, as a DaemonSet's pod is.
func pinned(node int, p *corev1.Pod) {
	p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{
			Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{nodeName(node)},
		}}}},
	}}}
}

var anyNamespace = &metav1.LabelSelector{}

func colored(labels map[string]string) func(int, *corev1.Pod) {
	return func(_ int, p *corev1.Pod) {
		p.Labels["color"] = "green"
		for k, v := range labels {
			p.Labels[k] = v
		}
	}
}

// affine pods are together with (or apart from) those of their color.
func affine(anti, required bool, key string, in *metav1.LabelSelector) func(int, *corev1.Pod) {
	return func(_ int, p *corev1.Pod) {
		p.Labels["color"] = "green"
		term := corev1.PodAffinityTerm{
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"color": "green"}}, TopologyKey: key, NamespaceSelector: in,
		}
		var must []corev1.PodAffinityTerm
		var should []corev1.WeightedPodAffinityTerm
		if required {
			must = append(must, term)
		} else {
			should = append(should, corev1.WeightedPodAffinityTerm{Weight: 1, PodAffinityTerm: term})
		}
		p.Spec.Affinity = &corev1.Affinity{}
		if anti {
			p.Spec.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: must, PreferredDuringSchedulingIgnoredDuringExecution: should}
		} else {
			p.Spec.Affinity.PodAffinity = &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: must, PreferredDuringSchedulingIgnoredDuringExecution: should}
		}
	}
}

func spreadOver(action corev1.UnsatisfiableConstraintAction) func(int, *corev1.Pod) {
	return func(_ int, p *corev1.Pod) {
		p.Labels["color"] = "blue"
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 5, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: action,
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"color": "blue"}},
		}}
	}
}

func requesting(cpu string) func(int, *corev1.Pod) {
	return func(_ int, p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse(cpu)
	}
}

// mixedBase is a cluster with pods of all kinds of affinity.
func mixedBase(ctx context.Context, w *workload) error {
	for name, change := range map[string]func(int, *corev1.Pod){
		"plain": nil, "affine": affine(false, true, corev1.LabelTopologyZone, nil), "apart": affine(true, true, corev1.LabelHostname, nil),
		"near": affine(false, false, corev1.LabelHostname, nil), "far": affine(true, false, corev1.LabelHostname, nil),
	} {
		n := 2000
		if name == "apart" {
			n = 500
		}
		if err := w.makeBound(ctx, name, n, change); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// churn makes and deletes a node, a pod that fits nowhere and a Service every second.
func churn(ctx context.Context, w *workload) error {
	c, err := w.run.newClient()
	if err != nil {
		return err
	}
	defer c.close()
	extra := w.nodes + 1
	remove := func(path string) error {
		_, err := c.drain(ctx, request{method: http.MethodDelete, path: path + "?gracePeriodSeconds=0"})
		return err
	}
	defer func() {
		ctx := context.WithoutCancel(ctx)
		for _, path := range []string{"/api/v1/nodes/" + nodeName(extra), leases + "/" + nodeName(extra)} {
			_, _ = c.drain(ctx, request{method: http.MethodDelete, path: path}) // it may be gone
		}
	}()
	return every(ctx, time.Second, func(i int) error {
		p := w.pod("churn", 0)
		requesting("9")(0, p)
		steps := []func() error{
			func() error { return c.post(ctx, leases, lease(nodeName(extra))) },
			func() error { return c.post(ctx, "/api/v1/nodes", node(extra, false)) },
			func() error { return c.post(ctx, w.in("pods"), p) },
			func() error {
				return c.post(ctx, w.in("services"), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "churn"}, Spec: corev1.ServiceSpec{
					Selector: map[string]string{"a": "b"}, Ports: []corev1.ServicePort{{Port: 80}},
				}})
			},
		}
		if i%2 == 1 {
			steps = []func() error{
				func() error { return remove("/api/v1/nodes/" + nodeName(extra)) },
				func() error { return remove(leases + "/" + nodeName(extra)) },
				func() error { return remove(w.in("pods") + "/" + p.Name) },
				func() error { return remove(w.in("services") + "/churn") },
			}
		}
		for _, step := range steps {
			if err := step(); err != nil {
				return err
			}
		}
		return nil
	})
}

const importance = "/apis/scheduling.k8s.io/v1/priorityclasses"

// important pods displace others. They ask for most of a node.
func important(_ int, p *corev1.Pod) {
	p.Spec.Priority = ptr.To[int32](10)
	p.Spec.PriorityClassName = "bench-important"
	requesting("3")(0, p)
}

// crowd fills nodes, four pods each, with pods of no importance.
func crowd(n int) func(context.Context, *workload) error {
	return func(ctx context.Context, w *workload) error {
		err := w.run.create(ctx, 1, func(int) (string, runtime.Object) {
			return importance, &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "bench-important"}, Value: 10}
		})
		if err != nil && !isCode(err, http.StatusConflict) {
			return err
		}
		return w.makeBound(ctx, "crowd", n, func(_ int, p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("900m")
			p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](0)
		})
	}
}

func removeClass(ctx context.Context, w *workload) error {
	return w.run.remove(ctx, 1, func(int) string { return importance + "/bench-important" })
}

// preemptors come five a second.
func preemptors(ctx context.Context, w *workload) error {
	c, err := w.run.newClient()
	if err != nil {
		return err
	}
	defer c.close()
	return every(ctx, time.Second/5, func(i int) error {
		p := w.pod("preemptor", i)
		important(i, p)
		return c.post(ctx, w.in("pods"), p)
	})
}

// dyingPods have nodes, are deleted, and stay for their finalizers.
func dyingPods(ctx context.Context, w *workload) error {
	err := w.makeBound(ctx, "dying", 5000, func(_ int, p *corev1.Pod) { p.Finalizers = []string{"bench.proa/hold"} })
	if err != nil {
		return err
	}
	return w.run.remove(ctx, w.run.scaled(5000), func(i int) string { return w.in("pods") + "/" + fmt.Sprintf("dying-%d", i) })
}

// releasePods lets them go.
func releasePods(ctx context.Context, w *workload) error {
	free := []byte(`{"metadata":{"finalizers":null}}`)
	return w.run.each(ctx, w.run.scaled(5000), func(ctx context.Context, c *client, i int) error {
		_, err := c.drain(ctx, request{method: http.MethodPatch, path: w.in("pods") + "/" + fmt.Sprintf("dying-%d", i), body: free, media: mediaMerge})
		if isCode(err, http.StatusNotFound) {
			return nil
		}
		return err
	})
}

func withSecret(_ int, p *corev1.Pod) {
	p.Spec.Volumes = []corev1.Volume{{Name: "secret", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "secret"}}}}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "secret", MountPath: "/secret"}}
}

func withClaim(i int, p *corev1.Pod) {
	p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: fmt.Sprintf("claim-%d", i)},
	}}}
}

const (
	csiDriver = "csi.bench.proa"
	csiNodes  = "/apis/storage.k8s.io/v1/csinodes"
	pvs       = "/api/v1/persistentvolumes"
)

// volumes makes a bound volume and claim for every pod, and a driver on every node.
func volumes(ctx context.Context, w *workload) error {
	err := w.run.create(ctx, w.nodes, func(i int) (string, runtime.Object) {
		return csiNodes, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i)}, Spec: storagev1.CSINodeSpec{
			Drivers: []storagev1.CSINodeDriver{{Name: csiDriver, NodeID: nodeName(i), Allocatable: &storagev1.VolumeNodeResources{Count: ptr.To[int32](39)}}},
		}}
	})
	if err != nil {
		return err
	}
	n := w.run.scaled(5000)
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	k, err := w.run.count(ctx, w.in("persistentvolumeclaims")+"?labelSelector=", "MODIFIED")
	if err != nil {
		return err
	}
	defer k.close()
	err = w.run.create(ctx, n, func(i int) (string, runtime.Object) {
		return pvs, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: volumeName(i)}, Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: modes, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: csiDriver, VolumeHandle: volumeName(i)}},
			ClaimRef:               &corev1.ObjectReference{Namespace: w.namespaces[0], Name: fmt.Sprintf("claim-%d", i)},
		}}
	})
	if err != nil {
		return err
	}
	err = w.run.create(ctx, n, func(i int) (string, runtime.Object) {
		return w.in("persistentvolumeclaims"), &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("claim-%d", i)},
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: modes, Resources: corev1.VolumeResourceRequirements{Requests: size}, VolumeName: volumeName(i), StorageClassName: ptr.To(""),
			},
		}
	})
	if err != nil {
		return err
	}
	if err := k.wait(ctx, n); err != nil { // the controller that binds them writes at least once
		return err
	}
	return k.calm(ctx, time.Duration(w.run.Scale*float64(settled)))
}

func volumeName(i int) string { return fmt.Sprintf("bench-volume-%d", i) }

func removeVolumes(ctx context.Context, w *workload) error {
	if err := w.run.remove(ctx, w.nodes, func(i int) string { return csiNodes + "/" + nodeName(i) }); err != nil {
		return err
	}
	return w.run.remove(ctx, w.run.scaled(5000), func(i int) string { return pvs + "/" + volumeName(i) })
}
