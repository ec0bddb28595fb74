package attachdetach

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
)

const driver = "csi.example.com"

var ofDriver = corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "h"}}

// run starts the controller in a world with a bound volume and two nodes.
func run(t *testing.T, test func(w *controllertest.World, registry *prometheus.Registry)) {
	t.Helper()
	runWith(t, ofDriver, test)
}

func runWith(t *testing.T, source corev1.PersistentVolumeSource, test func(w *controllertest.World, registry *prometheus.Registry)) {
	t.Helper()
	controllertest.Run(t, func(w *controllertest.World) {
		registry := prometheus.NewPedanticRegistry()
		stop := w.Start(func(c controllers.Config) []controllertest.Runner {
			c.Metrics = registry
			return []controllertest.Runner{New(Config{Controllers: c})}
		})
		defer stop()
		makeNode(w, "n1", true)
		makeNode(w, "n2", true)
		makeVolume(w, corev1.ReadWriteOnce, source)
		w.Settle()
		test(w, registry)
	})
}

func makeNode(w *controllertest.World, name string, managed bool) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if managed {
		node.Annotations = map[string]string{managedAnnotation: "true"}
	}
	w.Create(node)
	changeNode(w, name, func(n *corev1.Node) {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	})
}

func changeNode(w *controllertest.World, name string, change func(*corev1.Node)) {
	w.T.Helper()
	nodes := client.Of[*corev1.Node](w.API)
	node := nodeOf(w, name).DeepCopy()
	change(node)
	taints := node.Spec.Taints
	node, err := nodes.UpdateStatus(w.T.Context(), node)
	if err == nil && len(taints) != len(node.Spec.Taints) {
		node = node.DeepCopy()
		node.Spec.Taints = taints
		_, err = nodes.Update(w.T.Context(), node)
	}
	if err != nil {
		w.T.Fatal(err)
	}
	w.Settle()
}

func nodeOf(w *controllertest.World, name string) *corev1.Node {
	w.T.Helper()
	node, err := client.Of[*corev1.Node](w.API).Get(w.T.Context(), "", name)
	if err != nil {
		w.T.Fatal(err)
	}
	return node
}

// makeVolume makes the volume pv of the claim data.
func makeVolume(w *controllertest.World, mode corev1.PersistentVolumeAccessMode, source corev1.PersistentVolumeSource) {
	w.T.Helper()
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	w.Create(&corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "data"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{mode}, VolumeName: "pv", StorageClassName: new(""),
			Resources: corev1.VolumeResourceRequirements{Requests: size},
		},
	})
	controllertest.ChangeStatus(w, "data", func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimBound })
	claim := controllertest.Get[*corev1.PersistentVolumeClaim](w, "data")
	_, err := client.Of[*corev1.PersistentVolume](w.API).Create(w.T.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv"},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: claim.Spec.AccessModes,
			PersistentVolumeSource: source,
			ClaimRef:               &corev1.ObjectReference{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
		},
	})
	if err != nil {
		w.T.Fatal(err)
	}
}

// makePod makes a pod that uses the claim data on a node.
func makePod(w *controllertest.World, name, node string) {
	w.T.Helper()
	w.Create(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}},
			Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}},
		},
	})
	w.Settle()
}

// attachments are those that are there, as "node", with a * once attached.
func attachments(w *controllertest.World) string {
	w.T.Helper()
	var all []string
	for _, va := range controllertest.List[*storagev1.VolumeAttachment](w) {
		s := va.Spec.NodeName
		if va.Status.Attached {
			s += "*"
		}
		all = append(all, s)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// answer writes the status of a node's attachment, as the external-attacher would.
func answer(w *controllertest.World, node string, status storagev1.VolumeAttachmentStatus) {
	w.T.Helper()
	vas := client.Of[*storagev1.VolumeAttachment](w.API)
	for _, va := range controllertest.List[*storagev1.VolumeAttachment](w) {
		if va.Spec.NodeName != node {
			continue
		}
		va = va.DeepCopy()
		va.Status = status
		if _, err := vas.UpdateStatus(w.T.Context(), va); err != nil {
			w.T.Fatal(err)
		}
	}
	w.Settle()
}

var attached = storagev1.VolumeAttachmentStatus{Attached: true}

func told(w *controllertest.World, node string) []corev1.AttachedVolume {
	return nodeOf(w, node).Status.VolumesAttached
}

func expect(t *testing.T, w *controllertest.World, what, want string) {
	t.Helper()
	if got := attachments(w); got != want {
		t.Fatalf("%s: attachments %q, want %q", what, got, want)
	}
}

func TestAVolumeFollowsItsPod(t *testing.T) {
	run(t, func(w *controllertest.World, _ *prometheus.Registry) {
		makePod(w, "p", "n1")
		expect(t, w, "a pod was bound", "n1")
		va := controllertest.List[*storagev1.VolumeAttachment](w)[0]
		// The SHA-256 of handle, driver and node, which kubelets compute too.
		if va.Name != attachmentName(&corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "h"}, "n1") || va.Spec.Attacher != driver || *va.Spec.Source.PersistentVolumeName != "pv" {
			t.Errorf("attachment %s %+v", va.Name, va.Spec)
		}
		if got := told(w, "n1"); len(got) != 0 {
			t.Errorf("told of %v before it is attached", got)
		}
		answer(w, "n1", attached)
		if got := told(w, "n1"); len(got) != 1 || got[0].Name != "kubernetes.io/csi/"+driver+"^h" {
			t.Errorf("told of %v", got)
		}
		if got := w.Events(); !slices.Equal(got, []string{`Normal SuccessfulAttachVolume AttachVolume.Attach succeeded for volume "pv" `}) {
			t.Errorf("events %q", got)
		}
		// The node has it in use until after the pod is gone.
		inUse := corev1.UniqueVolumeName("kubernetes.io/csi/" + driver + "^h")
		changeNode(w, "n1", func(n *corev1.Node) { n.Status.VolumesInUse = []corev1.UniqueVolumeName{inUse} })
		w.Writes()
		controllertest.Delete[*corev1.Pod](w, "p")
		expect(t, w, "the node has it mounted", "n1*")
		if writes := w.Writes(); len(writes) != 0 || len(told(w, "n1")) != 1 {
			t.Errorf("writes %v", writes)
		}
		changeNode(w, "n1", func(n *corev1.Node) { n.Status.VolumesInUse = nil })
		expect(t, w, "the node has unmounted it", "")
		if got := told(w, "n1"); len(got) != 0 {
			t.Errorf("told of %v in the end", got)
		}
	})
}

func TestAVolumeOfAnOldPluginIsAttachedByItsDriver(t *testing.T) {
	source := corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "aws://zone/vol-1"}}
	runWith(t, source, func(w *controllertest.World, _ *prometheus.Registry) {
		makePod(w, "p", "n1")
		expect(t, w, "a pod was bound", "n1")
		va := controllertest.List[*storagev1.VolumeAttachment](w)[0]
		csi := &corev1.CSIPersistentVolumeSource{Driver: "ebs.csi.aws.com", VolumeHandle: "vol-1"}
		if va.Name != attachmentName(csi, "n1") || va.Spec.Attacher != csi.Driver || *va.Spec.Source.PersistentVolumeName != "pv" {
			t.Errorf("attachment %s %+v", va.Name, va.Spec)
		}
		answer(w, "n1", attached)
		if got := told(w, "n1"); len(got) != 1 || got[0].Name != "kubernetes.io/csi/ebs.csi.aws.com^vol-1" {
			t.Errorf("told of %v", got)
		}
		changeNode(w, "n1", func(n *corev1.Node) { n.Status.VolumesInUse = []corev1.UniqueVolumeName{uniqueName(csi)} })
		controllertest.Delete[*corev1.Pod](w, "p")
		expect(t, w, "the node has it mounted", "n1*")
		changeNode(w, "n1", func(n *corev1.Node) { n.Status.VolumesInUse = nil })
		expect(t, w, "the node has unmounted it", "")
	})
}

func TestAVolumeThatIsNeededAgainStays(t *testing.T) {
	run(t, func(w *controllertest.World, _ *prometheus.Registry) {
		makePod(w, "p", "n1")
		answer(w, "n1", attached)
		changeNode(w, "n1", func(n *corev1.Node) {
			n.Status.VolumesInUse = []corev1.UniqueVolumeName{"kubernetes.io/csi/" + driver + "^h"}
		})
		controllertest.Delete[*corev1.Pod](w, "p")
		makePod(w, "q", "n1")
		changeNode(w, "n1", func(n *corev1.Node) { n.Status.VolumesInUse = nil })
		expect(t, w, "another pod has come", "n1*")
	})
}

func TestFinishedPodsNeedNoVolume(t *testing.T) {
	run(t, func(w *controllertest.World, _ *prometheus.Registry) {
		makePod(w, "p", "n1")
		answer(w, "n1", attached)
		controllertest.ChangeStatus(w, "p", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
		expect(t, w, "the pod has ended", "")
	})
}

func TestExclusiveVolumesWait(t *testing.T) {
	run(t, func(w *controllertest.World, _ *prometheus.Registry) {
		makePod(w, "p", "n1")
		answer(w, "n1", attached)
		makePod(w, "q", "n2")
		expect(t, w, "it is at n1", "n1*")
		changeNode(w, "n2", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse })
		want := `Warning FailedAttachVolume Waiting for detach for volume "pv" Volume is already used by pod(s) p`
		if got := w.Events()[1:]; !slices.Equal(got, []string{want}) {
			t.Errorf("events %q", got)
		}
		controllertest.Delete[*corev1.Pod](w, "p")
		expect(t, w, "the first user is gone", "n2")
	})
}

func TestWhoElseUsesAVolume(t *testing.T) {
	pod := func(namespace, name string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	}
	tests := []struct {
		name   string
		others []*corev1.Pod
		want   string
	}{
		{"nobody any more", nil, "Volume is already exclusively attached to one node, waiting on detach before it can be attached to another node"},
		{"pods of the same namespace", []*corev1.Pod{pod("a", "x"), pod("a", "y")}, "Volume is already used by pod(s) x, y"},
		{"pods that the user must not know", []*corev1.Pod{pod("b", "x")}, "Volume is already used by 1 pod(s) in different namespaces"},
		{"both", []*corev1.Pod{pod("a", "x"), pod("b", "y")}, "Volume is already used by pod(s) x and 1 pod(s) in different namespaces"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := usedElsewhere(pod("a", "p"), tt.others); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}

func TestSharedVolumesAreAttachedToEveryNode(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer w.Start(func(c controllers.Config) []controllertest.Runner {
			return []controllertest.Runner{New(Config{Controllers: c})}
		})()
		makeNode(w, "n1", true)
		makeNode(w, "n2", true)
		makeNode(w, "old", false) // attaches by itself
		makeVolume(w, corev1.ReadWriteMany, ofDriver)
		for _, node := range []string{"n1", "n2", "old"} {
			makePod(w, "on-"+node, node)
		}
		expect(t, w, "three pods", "n1 n2")
	})
}

func TestDriversThatDoNotAttach(t *testing.T) {
	run(t, func(w *controllertest.World, _ *prometheus.Registry) {
		makePod(w, "p", "n1")
		answer(w, "n1", attached)
		_, err := client.Of[*storagev1.CSIDriver](w.API).Create(w.T.Context(), &storagev1.CSIDriver{
			ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: storagev1.CSIDriverSpec{AttachRequired: new(false)},
		})
		if err != nil {
			t.Fatal(err)
		}
		w.Settle()
		expect(t, w, "the driver says that it does not attach", "")
	})
}

func TestFailuresToAttachAreToldToThePod(t *testing.T) {
	run(t, func(w *controllertest.World, _ *prometheus.Registry) {
		makePod(w, "p", "n1")
		failed := storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{Time: metav1.Now(), Message: "no space"}}
		answer(w, "n1", failed)
		answer(w, "n1", failed)
		synctest.Wait()
		want := []string{`Warning FailedAttachVolume AttachVolume.Attach failed for volume "pv" : no space`}
		if got := w.Events(); !slices.Equal(got, want) {
			t.Errorf("events %q", got)
		}
	})
}

func TestSilentAttachersAreToldOf(t *testing.T) {
	run(t, func(w *controllertest.World, _ *prometheus.Registry) {
		makePod(w, "p", "n1")
		time.Sleep(5 * time.Minute) // virtual
		want := `Warning FailedAttachVolume AttachVolume.Attach failed for volume "pv" : timed out waiting for external-attacher of ` + driver + ` CSI driver to attach volume h`
		if got := w.Events(); !slices.Equal(got, []string{want, want}) {
			t.Errorf("events %q", got)
		}
	})
}

// forced are the forced detaches that were counted, by their reason.
func forced(t *testing.T, r *prometheus.Registry, want string) {
	t.Helper()
	const name = "attach_detach_controller_attachdetach_controller_forced_detaches"
	if want != "" {
		want = "# HELP " + name + " [ALPHA] Volumes that were detached though their node did not say that they are unmounted\n# TYPE " + name + " counter\n" +
			name + `{reason="` + want + "\"} 1\n"
	}
	if err := testutil.GatherAndCompare(r, strings.NewReader(want), name); err != nil {
		t.Error(err)
	}
}

func TestNodesThatNeverUnmount(t *testing.T) {
	mounted := func(n *corev1.Node) {
		n.Status.VolumesInUse = []corev1.UniqueVolumeName{"kubernetes.io/csi/" + driver + "^h"}
	}
	unhealthy := func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }
	tests := []struct {
		name   string
		change func(*corev1.Node)
		after  time.Duration
		want   string
		reason string
	}{
		{"a healthy node is waited for", func(*corev1.Node) {}, time.Hour, "n1*", ""},
		{"an unhealthy one for six minutes", unhealthy, 5 * time.Minute, "n1*", ""},
		{"and no longer", unhealthy, 7 * time.Minute, "", "timeout"},
		{"one that is out of service not at all", func(n *corev1.Node) {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute})
		}, 0, "", "out-of-service"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			run(t, func(w *controllertest.World, registry *prometheus.Registry) {
				makePod(w, "p", "n1")
				answer(w, "n1", attached)
				changeNode(w, "n1", mounted)
				changeNode(w, "n1", tt.change)
				controllertest.Delete[*corev1.Pod](w, "p")
				time.Sleep(tt.after) // virtual
				w.Settle()
				expect(t, w, tt.name, tt.want)
				forced(t, registry, tt.reason)
			})
		})
	}
}

func TestAttachmentsOfOthersAreLeftAlone(t *testing.T) {
	run(t, func(w *controllertest.World, _ *prometheus.Registry) {
		_, err := client.Of[*storagev1.VolumeAttachment](w.API).Create(w.T.Context(), &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: "mine"},
			Spec:       storagev1.VolumeAttachmentSpec{Attacher: driver, NodeName: "n2", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: new("pv")}},
		})
		if err != nil {
			t.Fatal(err)
		}
		makePod(w, "p", "n1")
		answer(w, "n1", attached)
		controllertest.Delete[*corev1.Pod](w, "p")
		expect(t, w, "nobody needs either", "n2")
	})
}

func TestAnotherProcessGoesOn(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		build := func(c controllers.Config) []controllertest.Runner {
			return []controllertest.Runner{New(Config{Controllers: c})}
		}
		stop := w.Start(build)
		makeNode(w, "n1", true)
		makeVolume(w, corev1.ReadWriteOnce, ofDriver)
		makePod(w, "p", "n1")
		stop()
		answer(w, "n1", attached)
		stop = w.Start(build)
		if len(told(w, "n1")) != 1 {
			t.Error("the node was not told")
		}
		stop()
		controllertest.Delete[*corev1.Pod](w, "p")
		defer w.Start(build)()
		expect(t, w, "the pod went in between", "")
	})
}
