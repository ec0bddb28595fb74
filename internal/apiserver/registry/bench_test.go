package registry

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// largePod is about the 2.7 KB pod that the design's figures are measured with.
func largePod(name string) *corev1.Pod {
	p := pod(name)
	p.Annotations = map[string]string{"prometheus.io/scrape": "true", "prometheus.io/port": "8080"}
	c := &p.Spec.Containers[0]
	c.Command = []string{"/bin/server", "--listen=:8080", "--config=/etc/config/server.yaml"}
	for i := range 8 {
		c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("VARIABLE_%d", i), Value: "some value of a usual length"})
	}
	c.Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}, {Name: "metrics", ContainerPort: 9090}}
	c.Resources = corev1.ResourceRequirements{
		Requests: corev1.ResourceList{"cpu": resource.MustParse("100m"), "memory": resource.MustParse("128Mi")},
		Limits:   corev1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("256Mi")},
	}
	c.VolumeMounts = []corev1.VolumeMount{{Name: "config", MountPath: "/etc/config"}, {Name: "data", MountPath: "/data"}}
	p.Spec.Volumes = []corev1.Volume{
		{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "config"}}}},
		{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
	}
	p.Spec.Tolerations = []corev1.Toleration{{Key: "node.kubernetes.io/not-ready", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}}
	return p
}

// measure reports allocations and, when its result is called, the process's CPU
// time per operation, the figure that a busy machine distorts least.
func measure(b *testing.B) func() {
	b.ReportAllocs()
	before := cpuTime()
	return func() { b.ReportMetric(float64(cpuTime()-before)/float64(b.N), "cpu-ns/op") }
}

func cpuTime() int64 {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return u.Utime.Nano() + u.Stime.Nano()
}

func BenchmarkCreatePod(b *testing.B) {
	w := newWorld(b)
	w.create(podsV1, largePod("warm"))
	template := largePod("")
	defer measure(b)()
	for i := 0; b.Loop(); i++ {
		p := template.DeepCopy()
		p.Name = "p" + strconv.Itoa(i)
		w.create(podsV1, p)
	}
}

func BenchmarkCreatePodParallel(b *testing.B) {
	w := newWorld(b)
	w.create(podsV1, largePod("warm"))
	template := largePod("")
	template.GenerateName = "p-"
	defer measure(b)()
	b.SetParallelism(8)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			w.create(podsV1, template.DeepCopy())
		}
	})
}

func BenchmarkGetPod(b *testing.B) {
	w := newWorld(b)
	w.create(podsV1, largePod("a"))
	defer measure(b)()
	for b.Loop() {
		w.get(podsV1, "a")
	}
}

func BenchmarkUpdatePodStatus(b *testing.B) {
	w := newWorld(b)
	cur := w.create(podsV1, largePod("a")).(*corev1.Pod)
	defer measure(b)()
	for i := 0; b.Loop(); i++ {
		next := cur.DeepCopy()
		next.Status.Message = strconv.Itoa(i)
		obj, err := w.admin.Update(w.ctx, in(podsV1, "a", "status"), next, metav1.UpdateOptions{})
		if err != nil {
			b.Fatal(err)
		}
		cur = obj.(*corev1.Pod)
	}
}

func BenchmarkApplyDeployment(b *testing.B) {
	w := newWorld(b)
	const config = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","labels":{"round":"%d"}},"spec":{"replicas":3,
"selector":{"matchLabels":{"app":"web"}},"template":{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"c","image":"nginx","ports":[{"containerPort":80}]}]}}}}`
	defer measure(b)()
	for i := 0; b.Loop(); i++ {
		if _, err := w.patch(deployments, "web", types.ApplyYAMLPatchType, fmt.Sprintf(config, i)); err != nil {
			b.Fatal(err)
		}
	}
}

// appliedPod is largePod as a person would apply it, with a name and a label.
func appliedPod(b *testing.B) func(name, label string) string {
	b.Helper()
	p := largePod("NAME")
	p.APIVersion, p.Kind = "v1", "Pod"
	p.Labels = map[string]string{"LABEL": "x"}
	data, err := json.Marshal(p)
	if err != nil {
		b.Fatal(err)
	}
	return func(name, label string) string {
		return strings.NewReplacer("NAME", name, "LABEL", label).Replace(string(data))
	}
}

// BenchmarkApplyNewPod makes a pod by each apply.
func BenchmarkApplyNewPod(b *testing.B) {
	w := newWorld(b)
	config := appliedPod(b)
	defer measure(b)()
	for i := 0; b.Loop(); i++ {
		name := "p" + strconv.Itoa(i)
		if _, err := w.patch(podsV1, name, types.ApplyYAMLPatchType, config(name, "a")); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkApplySamePod names the same fields each time, of which one changes.
func BenchmarkApplySamePod(b *testing.B) {
	w := newWorld(b)
	config := appliedPod(b)
	defer measure(b)()
	for i := 0; b.Loop(); i++ {
		text := strings.Replace(config("p", "a"), `"a":"x"`, fmt.Sprintf(`"a":"x%d"`, i), 1)
		if _, err := w.patch(podsV1, "p", types.ApplyYAMLPatchType, text); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkApplyOtherFields names a label that the apply before did not, and not
// the one that it did.
func BenchmarkApplyOtherFields(b *testing.B) {
	w := newWorld(b)
	config := appliedPod(b)
	defer measure(b)()
	for i := 0; b.Loop(); i++ {
		if _, err := w.patch(podsV1, "p", types.ApplyYAMLPatchType, config("p", "a"+strconv.Itoa(i%7))); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkMergePatchPod(b *testing.B) {
	w := newWorld(b)
	w.create(podsV1, largePod("a"))
	defer measure(b)()
	for i := 0; b.Loop(); i++ {
		if _, err := w.patch(podsV1, "a", types.MergePatchType, fmt.Sprintf(`{"metadata":{"labels":{"round":"%d"}}}`, i)); err != nil {
			b.Fatal(err)
		}
	}
}
