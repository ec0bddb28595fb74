package cri

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"
)

func TestAPodIsRememberedByItsContainers(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{TerminationGracePeriodSeconds: ptr.To[int64](7)}}
	pod.Name, pod.Namespace, pod.UID = "p", "ns", "u"
	spec := corev1.Container{Name: "c", Image: "i", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 80}},
		Lifecycle: &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 3}}}}
	status := &runtimeapi.ContainerStatus{Id: "id", Labels: ContainerLabels(pod, "c"), Annotations: ContainerAnnotations(pod, &spec, 5)}
	c := container(status, "box")
	if c.Name != "c" || c.RestartCount != 5 || c.Hash != Hash(&spec) || c.SandboxID != "box" {
		t.Errorf("container %+v", c)
	}
	got := (&Pod{UID: "u", Name: "p", Namespace: "ns", Containers: []*Container{c}}).Orphan()
	if got.UID != "u" || *got.Spec.TerminationGracePeriodSeconds != 7 || got.Spec.Containers[0].Lifecycle.PreStop.Sleep.Seconds != 3 || got.Spec.Containers[0].Ports[0].ContainerPort != 80 {
		t.Errorf("orphan %+v", got.Spec)
	}
}

func TestHashChangesWithTheImageOnly(t *testing.T) {
	a, b, c := corev1.Container{Name: "c", Image: "i"}, corev1.Container{Name: "c", Image: "i", TTY: true}, corev1.Container{Name: "c", Image: "j"}
	if Hash(&a) != Hash(&b) || Hash(&a) == Hash(&c) {
		t.Error("hash does not follow the image alone")
	}
}

func TestFingerprintsAgree(t *testing.T) {
	p := &Pod{Sandboxes: []*runtimeapi.PodSandboxStatus{{Id: "b"}}, Containers: []*Container{{ID: "x"}, {ID: "a"}}}
	s := &Summary{parts: []string{"a:CONTAINER_CREATED", "b:SANDBOX_READY", "x:CONTAINER_CREATED"}}
	if p.Fingerprint() != s.Fingerprint() {
		t.Errorf("%q and %q", p.Fingerprint(), s.Fingerprint())
	}
	p.Containers[0].State = runtimeapi.ContainerState_CONTAINER_RUNNING
	if p.Fingerprint() == s.Fingerprint() {
		t.Error("a start went unseen")
	}
}
