package selinuxwarning

import (
	"slices"
	"strings"
	"testing"

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

const (
	labelMetric  = "selinux_warning_controller_selinux_volume_conflict"
	metricHeader = "# HELP " + labelMetric + " [ALPHA] Conflict between two Pods using the same volume\n# TYPE " + labelMetric + " gauge\n"
)

func run(t *testing.T, test func(w *controllertest.World, r *prometheus.Registry)) {
	controllertest.Run(t, func(w *controllertest.World) {
		r := prometheus.NewPedanticRegistry()
		defer w.Start(func(c controllers.Config) []controllertest.Runner {
			c.Metrics = r
			return []controllertest.Runner{New(c)}
		})()
		makeDriver(w, true)
		makeVolume(w)
		w.Settle()
		test(w, r)
	})
}

func makeDriver(w *controllertest.World, mounts bool) {
	w.T.Helper()
	_, err := client.Of[*storagev1.CSIDriver](w.API).Create(w.T.Context(), &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: "csi.example.com"}, Spec: storagev1.CSIDriverSpec{SELinuxMount: &mounts},
	})
	if err != nil {
		w.T.Fatal(err)
	}
}

func makeVolume(w *controllertest.World) {
	w.T.Helper()
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	w.Create(&corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "data"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: modes, VolumeName: "pv", StorageClassName: new(""), Resources: corev1.VolumeResourceRequirements{Requests: size},
		},
	})
	claim := controllertest.Get[*corev1.PersistentVolumeClaim](w, "data")
	_, err := client.Of[*corev1.PersistentVolume](w.API).Create(w.T.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv"},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: modes,
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "csi.example.com", VolumeHandle: "h"}},
			ClaimRef:               &corev1.ObjectReference{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
		},
	})
	if err != nil {
		w.T.Fatal(err)
	}
}

// makePod makes a pod of containers with levels, all of which mount the volume.
func makePod(w *controllertest.World, name string, policy *corev1.PodSELinuxChangePolicy, levels ...string) {
	w.T.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			SecurityContext: &corev1.PodSecurityContext{SELinuxChangePolicy: policy},
			Volumes:         []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}},
		},
	}
	for _, level := range levels {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{
			Name: "c" + level[1:2], Image: "i", VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v"}},
			SecurityContext: &corev1.SecurityContext{SELinuxOptions: &corev1.SELinuxOptions{Level: level}},
		})
	}
	w.Create(pod)
	w.Settle()
}

func gather(t *testing.T, r *prometheus.Registry, want string) {
	t.Helper()
	if want != "" {
		want = metricHeader + want
	}
	if err := testutil.GatherAndCompare(r, strings.NewReader(want), labelMetric); err != nil {
		t.Error(err)
	}
}

func TestPodsWithOtherLabelsAreWarned(t *testing.T) {
	run(t, func(w *controllertest.World, r *prometheus.Registry) {
		makePod(w, "a", nil, "s0")
		makePod(w, "same", nil, "s0")
		if got := w.Events(); len(got) != 0 {
			t.Errorf("events without a conflict: %q", got)
		}
		controllertest.Delete[*corev1.Pod](w, "same")
		makePod(w, "b", nil, "s1")
		want := []string{
			`Normal SELinuxLabelConflict SELinuxLabel ":::s1" conflicts with pod a that uses the same volume as this pod with SELinuxLabel ":::s0". If both pods land on the same node, only one of them may access the volume.`,
			`Normal SELinuxLabelConflict SELinuxLabel ":::s0" conflicts with pod b that uses the same volume as this pod with SELinuxLabel ":::s1". If both pods land on the same node, only one of them may access the volume.`,
		}
		if got := w.Events(); !slices.Equal(got, want) {
			t.Errorf("events %q", got)
		}
		gather(t, r, labelMetric+`{pod1_name="a",pod1_namespace="default",pod1_value=":::s0",pod2_name="b",pod2_namespace="default",pod2_value=":::s1",property="SELinuxLabel"} 1
`+labelMetric+`{pod1_name="b",pod1_namespace="default",pod1_value=":::s1",pod2_name="a",pod2_namespace="default",pod2_value=":::s0",property="SELinuxLabel"} 1
`)
		controllertest.ChangeStatus(w, "b", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
		gather(t, r, "")
		if writes := w.Writes(); len(writes) != 0 {
			t.Errorf("writes %v", writes)
		}
	})
}

func TestPodsWithAnotherPolicyAreWarned(t *testing.T) {
	run(t, func(w *controllertest.World, _ *prometheus.Registry) {
		makePod(w, "a", nil, "s0")
		makePod(w, "b", new(corev1.SELinuxChangePolicyRecursive), "s0")
		var reasons []string
		for _, e := range w.Events() {
			reasons = append(reasons, strings.Join(strings.Fields(e)[1:4], " "))
		}
		want := []string{ // the label is not mounted with where it is applied to each file
			`SELinuxChangePolicyConflict SELinuxChangePolicy "Recursive"`, `SELinuxChangePolicyConflict SELinuxChangePolicy "MountOption"`,
			`SELinuxLabelConflict SELinuxLabel ""`, `SELinuxLabelConflict SELinuxLabel ":::s0"`,
		}
		if !slices.Equal(reasons, want) {
			t.Errorf("%q", reasons)
		}
	})
}

func TestDriversThatDoNotMountWithLabels(t *testing.T) {
	run(t, func(w *controllertest.World, r *prometheus.Registry) {
		controllertest.Change(w, "csi.example.com", func(d *storagev1.CSIDriver) { d.Spec.SELinuxMount = new(false) })
		makePod(w, "a", nil, "s0")
		makePod(w, "b", nil, "s1")
		if got := w.Events(); len(got) != 0 {
			t.Errorf("events %q", got)
		}
		controllertest.Change(w, "csi.example.com", func(d *storagev1.CSIDriver) { d.Spec.SELinuxMount = new(true) })
		if got, err := testutil.GatherAndCount(r, labelMetric); err != nil || got != 2 {
			t.Errorf("%d series after the driver has changed, %v", got, err)
		}
	})
}

func TestContainersOfOnePodDisagree(t *testing.T) {
	run(t, func(w *controllertest.World, _ *prometheus.Registry) {
		makePod(w, "a", nil, "s0", "s1")
		want := []string{`Warning MultipleSELinuxLabels Volume "v" is mounted twice with different SELinux labels inside this pod`}
		if got := w.Events(); !slices.Equal(got, want) {
			t.Errorf("events %q", got)
		}
	})
}

func TestLabelsThatConflict(t *testing.T) {
	tests := []struct {
		a, b string
		want bool
	}{
		{"", "", false},
		{":::s0:c1,c2", ":::s0:c1,c2", false},
		{"system_u:system_r:container_t:s0:c1,c2", ":::s0:c1,c2", false},
		{"system_u:system_r:container_t:s0:c1,c2", ":::s0:c98,c99", true},
		{":::s0:c1,c2", "", true},
		{"a:::s0", "b:::s0", true},
	}
	for _, tt := range tests {
		if got := conflicting(tt.a, tt.b); got != tt.want || conflicting(tt.b, tt.a) != tt.want {
			t.Errorf("%q and %q: %v", tt.a, tt.b, got)
		}
	}
}

func TestOtherNamespacesAreNotNamed(t *testing.T) {
	c := conflict{property: "SELinuxLabel", pod: controllers.Key{Namespace: "a", Name: "p"}, other: controllers.Key{Namespace: "b", Name: "q"}, value: ":::s0", otherwise: ":::s1"}
	want := `SELinuxLabel":::s0" conflicts with another pod that uses the same volume as this pod with a different SELinuxLabel. If both pods land on the same node, only one of them may access the volume.`
	if got := c.message(); got != want {
		t.Error(got)
	}
}
