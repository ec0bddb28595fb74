package scheduler

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"proa/internal/client"
	"proa/internal/store/memory"
)

// placement is one pod in one cluster: where it lands, or why it does not. Want is
// a node, or the beginning of the message.
type placementCase struct {
	name  string
	there []client.Object // nodes, pods with nodes, volumes ...
	pod   *corev1.Pod
	want  string
}

func runPlacements(t *testing.T, cases []placementCase) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			api := newServer(t, memory.New())
			for _, obj := range c.there {
				put(t, api, obj.DeepCopyObject().(client.Object))
			}
			mustCreate(t, api, c.pod.DeepCopy())
			w := start(t, api)
			got := w.decision(c.pod.Name)
			if got != c.want && !strings.HasPrefix(got, c.want+" preemption:") {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// put creates an object with the status it comes with.
func put(t *testing.T, api client.API, obj client.Object) {
	t.Helper()
	switch o := obj.(type) {
	case *corev1.Node:
		mustCreate(t, api, o)
	case *corev1.Pod:
		withStatus(t, api, o, func(made *corev1.Pod) {
			if o.Status.Phase != "" {
				made.Status.Phase = o.Status.Phase
			}
			made.Status.ContainerStatuses = o.Status.ContainerStatuses
		})
	case *corev1.Namespace:
		mustCreate(t, api, o)
	case *corev1.PersistentVolume:
		withStatus(t, api, o, func(made *corev1.PersistentVolume) { made.Status = o.Status })
	case *corev1.PersistentVolumeClaim:
		withStatus(t, api, o, func(made *corev1.PersistentVolumeClaim) { made.Status = o.Status })
	case *storagev1.StorageClass:
		mustCreate(t, api, o)
	case *storagev1.CSIDriver:
		mustCreate(t, api, o)
	case *storagev1.CSIStorageCapacity:
		mustCreate(t, api, o)
	case *corev1.Service:
		mustCreate(t, api, o)
	case *storagev1.CSINode:
		mustCreate(t, api, o)
	case *policyv1.PodDisruptionBudget:
		withStatus(t, api, o, func(made *policyv1.PodDisruptionBudget) { made.Status = o.Status })
	default:
		t.Fatalf("no way to create a %T", o)
	}
}

func withStatus[T client.Object](t *testing.T, api client.API, obj T, set func(T)) {
	t.Helper()
	made := mustCreate(t, api, obj.DeepCopyObject().(T)).DeepCopyObject().(T)
	set(made)
	if _, err := client.Of[T](api).UpdateStatus(t.Context(), made); err != nil {
		t.Fatal(err)
	}
}

func onNode(name string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.NodeName = name } }

func labelled(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels = map[string]string{key: value} }
}

func taint(key string, effect corev1.TaintEffect) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: effect}) }
}

func inZone(zone string) func(*corev1.Node) { return label(corev1.LabelTopologyZone, zone) }

func TestResources(t *testing.T) {
	gpu := func(p *corev1.Pod) {
		r := &p.Spec.Containers[0].Resources
		r.Requests["example.com/gpu"] = resource.MustParse("1")
		r.Limits = corev1.ResourceList{"example.com/gpu": resource.MustParse("1")}
	}
	sidecar := func(p *corev1.Pod) {
		always := corev1.ContainerRestartPolicyAlways
		p.Spec.InitContainers = []corev1.Container{{Name: "s", Image: "busybox", RestartPolicy: &always, Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("600m")}}}}
	}
	whole := func(cpu string) func(*corev1.Pod) { // pod-level resources
		return func(p *corev1.Pod) {
			p.Spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}
		}
	}
	resized := func(allocated string) func(*corev1.Pod) { // not yet as the spec says
		return func(p *corev1.Pod) {
			list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(allocated)}
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", AllocatedResources: list, Resources: &corev1.ResourceRequirements{Requests: list}}}
		}
	}
	runPlacements(t, []placementCase{
		{"the pod's own resources count instead of its containers'", []client.Object{node("a", "2", "8Gi")}, pod("p", "1", whole("3")),
			"0/1 nodes are available: 1 Insufficient cpu."},
		{"other pods' own resources count", []client.Object{node("a", "4", "8Gi"), pod("x", "1", whole("3500m"), onNode("a"))}, pod("p", "1"),
			"0/1 nodes are available: 1 Insufficient cpu."},
		{"what a shrinking pod still holds is taken", []client.Object{node("a", "4", "8Gi"), pod("x", "1", onNode("a"), resized("3500m"))}, pod("p", "1"),
			"0/1 nodes are available: 1 Insufficient cpu."},
		{"what a growing pod wants is taken", []client.Object{node("a", "4", "8Gi"), pod("x", "3500m", onNode("a"), resized("1"))}, pod("p", "1"),
			"0/1 nodes are available: 1 Insufficient cpu."},
		{"the emptier node is better", []client.Object{node("a", "4", "8Gi"), node("b", "4", "8Gi"), pod("x", "2", onNode("a"))}, pod("p", "1"), "b"},
		{"what other pods have is taken", []client.Object{node("a", "2", "8Gi"), pod("x", "1500m", onNode("a"))}, pod("p", "1"),
			"0/1 nodes are available: 1 Insufficient cpu."},
		{"a sidecar counts beside the containers", []client.Object{node("a", "1", "8Gi")}, pod("p", "500m", sidecar),
			"0/1 nodes are available: 1 Insufficient cpu."},
		{"overhead counts", []client.Object{node("a", "1", "8Gi"), node("b", "2", "8Gi")}, pod("p", "900m", func(p *corev1.Pod) {
			p.Spec.RuntimeClassName = ptr.To("vm")
			p.Spec.Overhead = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("200m")}
		}), "b"},
		{"an ended pod takes nothing", []client.Object{node("a", "1", "8Gi"), pod("x", "1", onNode("a"), func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodSucceeded
		})}, pod("p", "1"), "a"},
		{"an extended resource is counted", []client.Object{node("a", "4", "8Gi")}, pod("p", "1", gpu),
			"0/1 nodes are available: 1 Insufficient example.com/gpu."},
		{"pods are counted", []client.Object{node("a", "4", "8Gi", func(n *corev1.Node) {
			n.Status.Allocatable[corev1.ResourcePods] = resource.MustParse("1")
		}), pod("x", "1", onNode("a"))}, pod("p", "1"), "0/1 nodes are available: 1 Too many pods."},
	})
}

func TestNodeRules(t *testing.T) {
	selector := func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} }
	port := func(ip string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 8080, HostIP: ip, Protocol: corev1.ProtocolTCP}}
		}
	}
	tolerate := func(p *corev1.Pod) {
		p.Spec.Tolerations = []corev1.Toleration{{Key: "gpu", Operator: corev1.TolerationOpExists}}
	}
	prefer := func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
			Weight: 100, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "disk", Operator: corev1.NodeSelectorOpExists}}}}}}}
	}
	named := func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"b"}}}}}}}}
	}
	runPlacements(t, []placementCase{
		{"a node selector must match", []client.Object{node("a", "4", "8Gi"), node("b", "4", "8Gi", label("disk", "ssd"))}, pod("p", "1", selector), "b"},
		{"no node matches the selector", []client.Object{node("a", "4", "8Gi")}, pod("p", "1", selector),
			"0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."},
		{"a preferred label draws", []client.Object{node("a", "4", "8Gi"), node("b", "4", "8Gi", label("disk", "ssd"))}, pod("p", "1", prefer), "b"},
		{"affinity by name looks at that node only", []client.Object{node("a", "4", "8Gi"), node("b", "1", "8Gi")}, pod("p", "2", named),
			"0/2 nodes are available: 1 Insufficient cpu, 1 node(s) didn't satisfy plugin(s) [NodeAffinity]."},
		{"a taint keeps away", []client.Object{node("a", "4", "8Gi", taint("gpu", corev1.TaintEffectNoSchedule))}, pod("p", "1"),
			"0/1 nodes are available: 1 node(s) had untolerated taint(s)."},
		{"a toleration lets in", []client.Object{node("a", "4", "8Gi", taint("gpu", corev1.TaintEffectNoExecute))}, pod("p", "1", tolerate), "a"},
		{"a soft taint makes a node worse", []client.Object{node("a", "4", "8Gi", taint("gpu", corev1.TaintEffectPreferNoSchedule)), node("b", "4", "8Gi")}, pod("p", "1"), "b"},
		{"a cordoned node takes no pods", []client.Object{node("a", "4", "8Gi", func(n *corev1.Node) { n.Spec.Unschedulable = true })}, pod("p", "1"),
			"0/1 nodes are available: 1 node(s) were unschedulable."},
		{"a host port on all addresses conflicts with one", []client.Object{node("a", "4", "8Gi"), pod("x", "1", port(""), onNode("a"))}, pod("p", "1", port("127.0.0.1")),
			"0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports."},
		{"the same host port on two addresses does not", []client.Object{node("a", "4", "8Gi"), pod("x", "1", port("127.0.0.2"), onNode("a"))}, pod("p", "1", port("127.0.0.1")), "a"},
		{"an image that is there draws", []client.Object{
			node("a", "4", "8Gi", func(n *corev1.Node) {
				n.Status.Images = []corev1.ContainerImage{{Names: []string{"busybox:latest"}, SizeBytes: 900 << 20}}
			}),
			node("b", "4", "8Gi"), node("c", "4", "8Gi")}, pod("p", "1"), "a"},
	})
}

func near(app, key string, change ...func(*corev1.PodAffinityTerm)) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms(app, key, change)}}
	}
}

func apart(app, key string, change ...func(*corev1.PodAffinityTerm)) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms(app, key, change)}}
	}
}

func terms(app, key string, change []func(*corev1.PodAffinityTerm)) []corev1.PodAffinityTerm {
	t := corev1.PodAffinityTerm{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}, TopologyKey: key}
	for _, f := range change {
		f(&t)
	}
	return []corev1.PodAffinityTerm{t}
}

func TestPodAffinity(t *testing.T) {
	zone := corev1.LabelTopologyZone
	two := []client.Object{node("a", "4", "8Gi", inZone("x")), node("b", "4", "8Gi", inZone("y"))}
	with := func(more ...client.Object) []client.Object {
		return append(append([]client.Object(nil), two...), more...)
	}
	inTeam := func(t *corev1.PodAffinityTerm) {
		t.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}}
	}
	byKey := func(t *corev1.PodAffinityTerm) { t.MatchLabelKeys = []string{"rev"} }
	notByKey := func(t *corev1.PodAffinityTerm) { t.MismatchLabelKeys = []string{"rev"} }
	rev := func(app, n string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Labels = map[string]string{"app": app, "rev": n} }
	}
	elsewhere := func(p *corev1.Pod) { p.Namespace = "other" }
	other := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other", Labels: map[string]string{"team": "a"}}}
	runPlacements(t, []placementCase{
		{"affinity goes where the other pod is", with(pod("x", "1", labelled("app", "db"), onNode("b"))), pod("p", "1", near("db", zone)), "b"},
		{"affinity without the other pod waits", two, pod("p", "1", near("db", zone)),
			"0/2 nodes are available: 2 node(s) didn't match pod affinity rules."},
		{"the first of a group may go anywhere", two[:1], pod("p", "1", near("web", zone)), "a"},
		{"anti-affinity keeps away", with(pod("x", "1", labelled("app", "db"), onNode("b"))), pod("p", "1", apart("db", zone)), "a"},
		{"anti-affinity everywhere waits", with(pod("x", "1", onNode("a")), pod("y", "1", onNode("b"))), pod("p", "1", apart("web", zone)),
			"0/2 nodes are available: 2 node(s) didn't match pod anti-affinity rules."},
		{"another pod's anti-affinity binds too", with(pod("x", "1", apart("web", zone), onNode("a"))), pod("p", "1"), "b"},
		{"another pod's anti-affinity is named", append(two[:1:1], pod("x", "1", apart("web", zone), onNode("a"))), pod("p", "1"),
			"0/1 nodes are available: 1 node(s) didn't satisfy existing pods anti-affinity rules."},
		{"pods of another namespace do not count", append(with(), other, pod("x", "1", labelled("app", "db"), elsewhere, onNode("b"))), pod("p", "1", near("db", zone)),
			"0/2 nodes are available: 2 node(s) didn't match pod affinity rules."},
		{"a namespace selector counts them", append(with(), other, pod("x", "1", labelled("app", "db"), elsewhere, onNode("b"))), pod("p", "1", near("db", zone, inTeam)), "b"},
		{"match label keys narrow the group", with(pod("x", "1", rev("web", "1"), onNode("a")), pod("y", "1", rev("web", "2"), onNode("b"))),
			pod("p", "1", rev("web", "2"), near("web", zone, byKey)), "b"},
		{"mismatch label keys look at the other groups", with(pod("x", "1", rev("web", "1"), onNode("a")), pod("y", "1", rev("web", "2"), onNode("b"))),
			pod("p", "1", rev("web", "2"), apart("web", zone, notByKey)), "b"},
		{"a preference draws", with(pod("x", "1", labelled("app", "db"), onNode("b"))), pod("p", "100m", func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{
				{Weight: 100, PodAffinityTerm: terms("db", zone, nil)[0]}}}}
		}), "b"},
	})
}

func TestTopologySpread(t *testing.T) {
	constrain := func(change ...func(*corev1.TopologySpreadConstraint)) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			c := corev1.TopologySpreadConstraint{MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule,
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}
			for _, f := range change {
				f(&c)
			}
			p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{c}
		}
	}
	big, small := node("a", "40", "80Gi", inZone("x")), node("b", "4", "8Gi", inZone("y"))
	minDomains := func(n int32) func(*corev1.TopologySpreadConstraint) {
		return func(c *corev1.TopologySpreadConstraint) { c.MinDomains = &n }
	}
	honorTaints := func(c *corev1.TopologySpreadConstraint) { c.NodeTaintsPolicy = ptr.To(corev1.NodeInclusionPolicyHonor) }
	soft := func(c *corev1.TopologySpreadConstraint) { c.WhenUnsatisfiable = corev1.ScheduleAnyway }
	revision := func(c *corev1.TopologySpreadConstraint) { c.MatchLabelKeys = []string{"rev"} }
	rev := func(n string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Labels = map[string]string{"app": "web", "rev": n} }
	}
	runPlacements(t, []placementCase{
		{"the emptier zone it must be", []client.Object{big, small, pod("x", "1", onNode("a"))}, pod("p", "1", constrain()), "b"},
		{"skew is refused", []client.Object{big, node("b", "4", "8Gi", inZone("y"), taint("k", corev1.TaintEffectNoSchedule)), pod("x", "1", onNode("a"))}, pod("p", "1", constrain()),
			"0/2 nodes are available: 1 node(s) didn't match pod topology spread constraints, 1 node(s) had untolerated taint(s)."},
		{"a tainted zone does not count when taints are honored", []client.Object{big, node("b", "4", "8Gi", inZone("y"), taint("k", corev1.TaintEffectNoSchedule)), pod("x", "1", onNode("a"))},
			pod("p", "1", constrain(honorTaints)), "a"},
		{"a zone out of the pod's reach does not count", []client.Object{node("a", "40", "80Gi", inZone("x"), label("disk", "ssd")), small, pod("x", "1", onNode("a"))},
			pod("p", "1", constrain(), func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} }), "a"},
		{"fewer domains than wanted count as empty ones", []client.Object{big, small, pod("x", "1", onNode("a")), pod("y", "1", onNode("b"))}, pod("p", "1", constrain(minDomains(3))),
			"0/2 nodes are available: 2 node(s) didn't match pod topology spread constraints."},
		{"a node without the label is none", []client.Object{node("a", "4", "8Gi")}, pod("p", "1", constrain()),
			"0/1 nodes are available: 1 node(s) didn't match pod topology spread constraints (missing required label)."},
		{"pods of one service are spread by default", []client.Object{big, small, service("web"), pod("x", "10m", onNode("a")), pod("y", "10m", onNode("a")), pod("z", "10m", onNode("a"))}, pod("p", "100m"), "b"},
		{"a soft constraint draws", []client.Object{big, small, pod("x", "1", onNode("a"))}, pod("p", "100m", constrain(soft)), "b"},
		{"match label keys count one revision only", []client.Object{big, small, pod("x", "1", rev("1"), onNode("a")), pod("y", "1", rev("2"), onNode("b"))},
			pod("p", "1", rev("2"), constrain(revision)), "a"},
	})
}

func service(app string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: app},
		Spec: corev1.ServiceSpec{Selector: map[string]string{"app": app}, Ports: []corev1.ServicePort{{Port: 80}}}}
}

func TestVolumes(t *testing.T) {
	usesNamed := func(name string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}}
		}
	}
	uses := usesNamed("c")
	one := node("a", "4", "8Gi", inZone("x"))
	two := node("b", "4", "8Gi", inZone("y"))
	runPlacements(t, []placementCase{
		{"a claim that does not exist", []client.Object{one}, pod("p", "1", uses),
			`0/1 nodes are available: persistentvolumeclaim "c" not found.`},
		{"an unbound claim of immediate binding", []client.Object{one, claim("c")}, pod("p", "1", uses),
			"0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims."},
		{"a bound volume decides the node", []client.Object{one, two, volume("v", atNode("b")), claim("c", boundTo("v"))}, pod("p", "1", uses), "b"},
		{"a bound volume on no node", []client.Object{one, volume("v", atNode("z")), claim("c", boundTo("v"))}, pod("p", "1", uses),
			"0/1 nodes are available: 1 node(s) didn't match PersistentVolume's node affinity."},
		{"a volume's zone label decides", []client.Object{one, two, volume("v", func(v *corev1.PersistentVolume) {
			v.Labels = map[string]string{corev1.LabelTopologyZone: "y"}
		}), claim("c", boundTo("v"))}, pod("p", "1", uses), "b"},
		{"a waiting claim without any volume", []client.Object{one, class("late", "kubernetes.io/no-provisioner"), claim("c", ofClass("late"))}, pod("p", "1", uses),
			"0/1 nodes are available: 1 node(s) didn't find available persistent volumes to bind."},
		{"a driver with room on one node only", []client.Object{one, two, tracked("d"), class("late", "d"), claim("c", ofClass("late")), room("small", "a", "1Mi"), room("big", "b", "5Gi")},
			pod("p", "1", uses), "selected b"},
		{"a driver with room for small volumes only", []client.Object{one, tracked("d"), class("late", "d"), claim("c", ofClass("late")), room("big", "a", "5Gi", "1Mi")}, pod("p", "1", uses),
			"0/1 nodes are available: 1 node(s) did not have enough free storage."},
		{"a driver without room", []client.Object{one, two, tracked("d"), class("late", "d"), claim("c", ofClass("late")), room("small", "a", "1Mi")}, pod("p", "1", uses),
			"0/2 nodes are available: 2 node(s) did not have enough free storage."},
		{"one pod at a time", []client.Object{one, volume("v"), claim("c", boundTo("v"), func(c *corev1.PersistentVolumeClaim) {
			c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
		}), pod("x", "1", uses, onNode("a"))}, pod("p", "1", uses),
			"0/1 nodes are available: 1 node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode."},
		{"the driver's limit", []client.Object{one, csiNode("a", 1),
			volume("v", ofDriver("d", "1")), claim("c", boundTo("v")), volume("w", ofDriver("d", "2")), claim("e", boundTo("w")),
			pod("x", "1", uses, onNode("a"))}, pod("p", "1", usesNamed("e")),
			"0/1 nodes are available: 1 node(s) exceed max volume count."},
		{"the limit of the driver that has an old plugin's volumes", []client.Object{one, two, attaching("a", "ebs.csi.aws.com", 1), attaching("b", "ebs.csi.aws.com", 1),
			volume("v", ofEBS("vol-1")), claim("c", boundTo("v")), pod("x", "1", uses, onNode("a"))}, pod("p", "1", inlineEBS("vol-2")), "b"},
		{"the same volume counts once", []client.Object{one, attaching("a", "pd.csi.storage.gke.io", 1), pod("x", "1", inlineReadOnlyPD("disk"), onNode("a"))},
			pod("p", "1", inlineReadOnlyPD("disk")), "a"},
		{"all at the limit of a driver that took over", []client.Object{one, attaching("a", "ebs.csi.aws.com", 1), pod("x", "1", inlineEBS("vol-1"), onNode("a"))},
			pod("p", "1", inlineEBS("vol-2")), "0/1 nodes are available: 1 node(s) exceed max volume count."},
	})
}

func ofEBS(id string) func(*corev1.PersistentVolume) {
	return func(v *corev1.PersistentVolume) {
		v.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: id}}
	}
}

func inlineEBS(id string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: id}}}}
	}
}

func inlineReadOnlyPD(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: name, ReadOnly: true}}}}
	}
}

// attaching is a node on which a driver attaches so many volumes.
func attaching(name, driver string, limit int32) *storagev1.CSINode {
	n := csiNode(name, limit)
	n.Spec.Drivers[0].Name = driver
	return n
}

func claim(name string, change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: ptr.To(""),
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
	}
	for _, f := range change {
		f(c)
	}
	return c
}

func boundTo(volume string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) {
		c.Spec.VolumeName = volume
		c.Annotations = map[string]string{"pv.kubernetes.io/bind-completed": "yes"}
		c.Status.Phase = corev1.ClaimBound
	}
}

func ofClass(name string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = &name }
}

func volume(name string, change ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:               corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			AccessModes:            []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/x"}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable},
	}
	for _, f := range change {
		f(v)
	}
	return v
}

func atNode(name string) func(*corev1.PersistentVolume) {
	return func(v *corev1.PersistentVolume) {
		v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{name}}}}}}}
	}
}

func ofDriver(driver, handle string) func(*corev1.PersistentVolume) {
	return func(v *corev1.PersistentVolume) {
		v.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: handle}}
	}
}

func class(name, provisioner string) *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner,
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)}
}

// tracked is a driver that says how much room it has where.
func tracked(driver string) *storagev1.CSIDriver {
	return &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: storagev1.CSIDriverSpec{StorageCapacity: ptr.To(true)}}
}

func room(name, node, size string, largest ...string) *storagev1.CSIStorageCapacity {
	c := &storagev1.CSIStorageCapacity{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, StorageClassName: "late", Capacity: ptr.To(resource.MustParse(size)),
		NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelHostname: node}},
	}
	for _, l := range largest {
		c.MaximumVolumeSize = ptr.To(resource.MustParse(l))
	}
	return c
}

func csiNode(name string, limit int32) *storagev1.CSINode {
	return &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
		{Name: "d", NodeID: name, Allocatable: &storagev1.VolumeNodeResources{Count: &limit}}}}}
}

// The scheduler names the node, the provisioner makes the volume, then the pod is bound.
func TestAWaitingClaimIsProvisionedForTheChosenNode(t *testing.T) {
	w := newWorld(t)
	create(w, node("a", "4", "8Gi"))
	create(w, class("late", "example.com/disk"))
	create(w, claim("c", ofClass("late")))
	create(w, pod("p", "1", func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
	}))
	w.until("node selected", func() bool {
		c, ok := w.claims.Cached("default", "c")
		return ok && c.Annotations["volume.kubernetes.io/selected-node"] == "a"
	})
	if p, _ := w.pods.Cached("default", "p"); p.Spec.NodeName != "" {
		t.Fatal("bound before its volume")
	}
	c, _ := w.claims.Cached("default", "c")
	c = c.DeepCopy()
	c.Spec.VolumeName = "v"
	c.Annotations["pv.kubernetes.io/bind-completed"] = "yes"
	if _, err := w.claims.Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	w.on("p")
}

func TestAWaitingClaimTakesTheVolumeOfItsNode(t *testing.T) {
	w := newWorld(t)
	put(t, w.api, node("a", "4", "8Gi"))
	put(t, w.api, node("b", "4", "8Gi"))
	put(t, w.api, class("late", "kubernetes.io/no-provisioner"))
	put(t, w.api, volume("v", atNode("b"), func(v *corev1.PersistentVolume) { v.Spec.StorageClassName = "late" }))
	put(t, w.api, claim("c", ofClass("late")))
	create(w, pod("p", "1", func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
	}))
	volumes := client.Of[*corev1.PersistentVolume](w.api)
	watch, err := volumes.Watch(t.Context(), "", metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	for bound := false; !bound; {
		changes, err := watch.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, ev := range changes {
			v, ok := ev.Object.(*corev1.PersistentVolume)
			bound = bound || ok && v.Spec.ClaimRef != nil && v.Spec.ClaimRef.Name == "c"
		}
	}
	w.until("claim", func() bool { _, ok := w.claims.Cached("default", "c"); return ok })
	c, _ := w.claims.Cached("default", "c")
	c = c.DeepCopy()
	c.Spec.VolumeName = "v"
	c.Annotations = map[string]string{"pv.kubernetes.io/bind-completed": "yes"}
	if _, err := w.claims.Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if got := w.on("p"); got != "b" {
		t.Errorf("on %q", got)
	}
}

func TestPreemptionHurtsLeast(t *testing.T) {
	high := pod("high", "1", priority(100))
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "b"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "kept"}}},
	}
	for _, c := range []struct {
		name   string
		there  []client.Object
		victim string
	}{
		{"the lowest priority goes", []client.Object{node("a", "1", "8Gi"), node("b", "1", "8Gi"),
			pod("x", "1", priority(10), onNode("a")), pod("y", "1", priority(5), onNode("b"))}, "y"},
		{"a protected pod stays", []client.Object{node("a", "1", "8Gi"), node("b", "1", "8Gi"), budget,
			pod("x", "1", priority(10), onNode("a")), pod("y", "1", priority(5), labelled("app", "kept"), onNode("b"))}, "x"},
		{"no more than needed go", []client.Object{node("a", "2", "8Gi"),
			pod("x", "1", priority(10), onNode("a")), pod("y", "1", priority(5), onNode("a"))}, "y"},
		{"fewer victims are better", []client.Object{node("a", "1", "8Gi"), node("b", "1", "8Gi"),
			pod("x", "500m", onNode("a")), pod("y", "500m", onNode("a")), pod("z", "1", onNode("b"))}, "z"},
	} {
		t.Run(c.name, func(t *testing.T) {
			api := newServer(t, memory.New())
			for _, obj := range c.there {
				put(t, api, obj.DeepCopyObject().(client.Object))
			}
			mustCreate(t, api, high.DeepCopy())
			w := start(t, api)
			w.noted(c.victim + " Normal Preempted")
			w.mu.Lock()
			defer w.mu.Unlock()
			for _, note := range w.notes {
				if strings.Contains(note, "Preempted") && !strings.HasPrefix(note, c.victim+" ") {
					t.Error(note)
				}
			}
		})
	}
}

func TestPodsWaitForAsManyDomainsAsTheyWant(t *testing.T) {
	w := newWorld(t)
	create(w, node("a", "40", "80Gi", inZone("x")))
	create(w, node("b", "40", "80Gi", inZone("y")))
	three := int32(3)
	spread := func(p *corev1.Pod) {
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, MinDomains: &three, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule,
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		}}
	}
	w.until("nodes", func() bool { _, ok := w.nodes.Cached("", "b"); return ok })
	create(w, pod("p", "1", spread))
	create(w, pod("q", "1", spread))
	w.on("p")
	w.on("q")
	create(w, pod("r", "1", spread))
	if c := w.pending("r"); !strings.HasPrefix(c.Message, "0/2 nodes are available: 2 node(s) didn't match pod topology spread constraints.") {
		t.Error(c.Message)
	}
	create(w, node("c", "40", "80Gi", inZone("z")))
	if got := w.on("r"); got != "c" {
		t.Errorf("on %q", got)
	}
}
