// Package podcondition writes what controllers other than the kubelet know about
// a pod into its status.
package podcondition

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"proa/internal/client"
)

// Patch sets one condition of the pod, and the phase unless it is empty. A pod
// that is gone, or another of that name, is no error and not changed.
func Patch(ctx context.Context, pods *client.Informer[*corev1.Pod], pod *corev1.Pod, c *corev1.PodCondition, phase corev1.PodPhase, now metav1.Time) error {
	status := map[string]any{}
	if phase != "" {
		status["phase"] = phase
	}
	if c != nil {
		set := *c
		set.ObservedGeneration = pod.Generation
		set.LastTransitionTime = now
		for _, old := range pod.Status.Conditions {
			if old.Type == set.Type && old.Status == set.Status {
				set.LastTransitionTime = old.LastTransitionTime
			}
		}
		status["conditions"] = []corev1.PodCondition{set}
	}
	data, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": status})
	if err != nil {
		return fmt.Errorf("marshal status patch: %w", err)
	}
	_, err = pods.Patch(ctx, pod.Namespace, pod.Name, types.StrategicMergePatchType, data, "status")
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
