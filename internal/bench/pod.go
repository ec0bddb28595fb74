package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// sentAnnotation holds when a pod was last written, in nanoseconds of Unix
// time. The number always has stampDigits, so that it can be replaced in place.
const (
	sentAnnotation = "bench.proa/sent"
	stampDigits    = 19
)

// stampMark precedes the time in JSON.
var stampMark = []byte(`"` + sentAnnotation + `":"`)

// nobody is a scheduler that does not exist: the pods stay as they were created.
const nobody = "bench.proa/nobody"

// podBody is the JSON of a pod of about 2.7 KB, the size of a usual one.
func podBody(namespace, name string) []byte {
	p := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name,
			Labels: map[string]string{"app": "bench", "tier": "backend", "pod-template-hash": "5d8f9c7b6d"},
			Annotations: map[string]string{
				sentAnnotation: stamp(time.Unix(0, 0)), "prometheus.io/scrape": "true", "prometheus.io/port": "8080",
				"example.com/note": strings.Repeat("what somebody wrote about it, ", 38),
			},
		},
		Spec: corev1.PodSpec{
			SchedulerName: nobody, RestartPolicy: corev1.RestartPolicyAlways,
			Volumes: []corev1.Volume{
				{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "config"}}}},
				{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			},
			Tolerations: []corev1.Toleration{{Key: "dedicated", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}},
			Containers:  []corev1.Container{container("server", 8)},
		},
	}
	body, err := json.Marshal(p)
	if err != nil {
		panic(err) // the pod is a constant
	}
	return body
}

func container(name string, variables int) corev1.Container {
	c := corev1.Container{
		Name: name, Image: "registry.example/team/" + name + ":v1.2.3",
		Command: []string{"/bin/" + name, "--listen=:8080", "--config=/etc/config/server.yaml", "--log-level=info"},
		Ports:   []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}, {Name: "metrics", ContainerPort: 9090}},
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{"cpu": resource.MustParse("100m"), "memory": resource.MustParse("128Mi")},
			Limits:   corev1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("256Mi")},
		},
		VolumeMounts:   []corev1.VolumeMount{{Name: "config", MountPath: "/etc/config", ReadOnly: true}, {Name: "data", MountPath: "/data"}},
		ReadinessProbe: &corev1.Probe{PeriodSeconds: 5, ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/ready"}}},
	}
	c.ReadinessProbe.HTTPGet.Port.StrVal, c.ReadinessProbe.HTTPGet.Port.Type = "http", 1
	for i := range variables {
		c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("SETTING_%02d", i), Value: "a value of a usual length"})
	}
	return c
}

func stamp(t time.Time) string { return fmt.Sprintf("%0*d", stampDigits, t.UnixNano()) }

// setStamp replaces the time in a pod's JSON and reports whether it has one.
func setStamp(body []byte, t time.Time) bool {
	at := bytes.Index(body, stampMark)
	if at < 0 || len(body) < at+len(stampMark)+stampDigits {
		return false
	}
	copy(body[at+len(stampMark):], stamp(t))
	return true
}

// stampPatch is a merge patch that writes the time.
func stampPatch(t time.Time) []byte {
	return fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, sentAnnotation, stamp(t))
}
