package admission

import (
	"context"

	corev1 "k8s.io/api/core/v1"
)

// DefaultTolerationSeconds lets pods stay for a while on a node that became
// not ready or unreachable.
type DefaultTolerationSeconds struct{}

func (DefaultTolerationSeconds) Name() string { return "DefaultTolerationSeconds" }

const tolerationSeconds = 300

func (DefaultTolerationSeconds) Admit(_ context.Context, a *Attributes) error {
	pod, ok := a.podWritten()
	if !ok {
		return nil
	}
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		if !toleratesExecution(pod, key) {
			seconds := int64(tolerationSeconds)
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{
				Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds,
			})
		}
	}
	return nil
}

func toleratesExecution(pod *corev1.Pod, key string) bool {
	for i := range pod.Spec.Tolerations {
		t := &pod.Spec.Tolerations[i]
		if (t.Key == key || t.Key == "") && (t.Effect == corev1.TaintEffectNoExecute || t.Effect == "") {
			return true
		}
	}
	return false
}
