package e2e

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// Volumes of plugins that upstream has removed: pods of them are taken, and wait
// for somebody who mounts them.
func TestVolumesOfPluginsThatWereRemoved(t *testing.T) {
	l := newLab(t)
	sources := map[string]string{
		"rbd": "rbd: {monitors: ['192.0.2.1:6789'], image: i}", "cephfs": "cephfs: {monitors: ['192.0.2.1:6789']}",
	}
	for name, source := range sources {
		l.apply(podManifest(name, "  containers: [{name: c, image: 'busybox:1.35', command: [sleep, '3600'], volumeMounts: [{name: v, mountPath: /v}]}]\n  volumes: [{name: v, "+source+"}]"))
	}
	for name := range sources {
		l.event(name, "FailedMount", `MountVolume.SetUp failed for volume "v" : no volume plugin matched: volume source `+name+" is not supported by this node")
		eventually(t, settle, func() error { // the event may come before the status
			pod := l.pod(name)
			if w := status(pod, "c").State.Waiting; pod.Status.Phase != corev1.PodPending || w == nil || w.Reason != "ContainerCreating" {
				return fmt.Errorf("%s is %s, %+v", name, pod.Status.Phase, w)
			}
			return nil
		})
	}
}

// The annotations that came before securityContext.seccompProfile say nothing any
// more: neither takes the filter away, nor does it bring one.
func TestSeccompAnnotationsSayNothing(t *testing.T) {
	l := newLab(t)
	for _, test := range []struct{ name, annotation, security string }{
		{"unconfined", "unconfined", ", securityContext: {seccompProfile: {type: RuntimeDefault}}"},
		{"filtered", "runtime/default", ""},
	} {
		l.apply("{apiVersion: v1, kind: Pod, metadata: {name: " + test.name + ", annotations: {seccomp.security.alpha.kubernetes.io/pod: " + test.annotation +
			", container.seccomp.security.alpha.kubernetes.io/c: " + test.annotation + "}}, spec: {restartPolicy: Never, containers: [" +
			"{name: c, image: 'busybox:1.35', command: [grep, 'Seccomp:', /proc/self/status]" + test.security + "}]}}")
	}
	for name, want := range map[string]string{"unconfined": "Seccomp:\t2\n", "filtered": "Seccomp:\t0\n"} {
		done := l.ended(name, corev1.PodSucceeded)
		l.is("the filter of "+name, l.logs(name, ""), want)
		if s := done.Spec.SecurityContext; s != nil && s.SeccompProfile != nil {
			t.Errorf("the annotation of %s has become %v", name, s.SeccompProfile)
		}
	}
}
