package walk

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// deployment goes on to the newest ReplicaSet, which makes the pods that it waits for.
func (w *Walker) deployment(ctx context.Context, namespace, name string) ([]*Step, error) {
	d, err := w.API.AppsV1().Deployments(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	s := &Step{Kind: "Deployment", Namespace: namespace, Name: name}
	deleted(s, d)
	want := ptr.Deref(d.Spec.Replicas, 1)
	switch {
	case d.Spec.Paused:
		s.say("It is paused: changes of its template are not rolled out.")
	case d.Status.ObservedGeneration < d.Generation:
		s.say("No controller has seen its last change.")
	}
	s.say("%d of %d replicas are updated, %d available.", d.Status.UpdatedReplicas, want, d.Status.AvailableReplicas)
	for _, c := range d.Status.Conditions {
		bad := c.Status == corev1.ConditionFalse
		if c.Type == appsv1.DeploymentReplicaFailure {
			bad = c.Status == corev1.ConditionTrue
		}
		if bad {
			s.say("%s: %s", c.Reason, c.Message)
		}
	}
	steps := []*Step{s}
	if d.Status.UpdatedReplicas >= want && d.Status.AvailableReplicas >= want && d.Status.Replicas == d.Status.UpdatedReplicas {
		return steps, nil
	}
	newest, err := w.newest(ctx, d)
	if newest == nil || err != nil {
		return steps, err
	}
	more, err := w.ofReplicaSet(ctx, newest)
	return append(steps, more...), err
}

// newest is the ReplicaSet of a Deployment with the highest revision.
func (w *Walker) newest(ctx context.Context, d *appsv1.Deployment) (*appsv1.ReplicaSet, error) {
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	if err != nil {
		return nil, err
	}
	list, err := w.API.AppsV1().ReplicaSets(d.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector.String()})
	if err != nil {
		return nil, fmt.Errorf("replica sets: %w", err)
	}
	var newest *appsv1.ReplicaSet
	for i := range list.Items {
		if rs := &list.Items[i]; metav1.IsControlledBy(rs, d) && (newest == nil || revision(rs) > revision(newest)) {
			newest = rs
		}
	}
	return newest, nil
}

func revision(rs *appsv1.ReplicaSet) (n int64) {
	_, _ = fmt.Sscan(rs.Annotations["deployment.kubernetes.io/revision"], &n)
	return n
}

func (w *Walker) replicaSet(ctx context.Context, namespace, name string) ([]*Step, error) {
	rs, err := w.API.AppsV1().ReplicaSets(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return w.ofReplicaSet(ctx, rs)
}

func (w *Walker) ofReplicaSet(ctx context.Context, rs *appsv1.ReplicaSet) ([]*Step, error) {
	s := &Step{Kind: "ReplicaSet", Namespace: rs.Namespace, Name: rs.Name}
	deleted(s, rs)
	s.say("%d of %d pods exist, %d are available.", rs.Status.Replicas, ptr.Deref(rs.Spec.Replicas, 1), rs.Status.AvailableReplicas)
	for _, c := range rs.Status.Conditions {
		if c.Type == appsv1.ReplicaSetReplicaFailure && c.Status == corev1.ConditionTrue {
			s.say("%s: %s", c.Reason, c.Message)
		}
	}
	return w.withPods(ctx, s, rs, rs.Spec.Selector)
}

// withPods adds the worst pod of an owner.
func (w *Walker) withPods(ctx context.Context, s *Step, owner metav1.Object, selector *metav1.LabelSelector) ([]*Step, error) {
	pods, err := w.owned(ctx, owner, selector)
	if err != nil {
		return []*Step{s}, err
	}
	more, err := w.worst(ctx, pods)
	return append([]*Step{s}, more...), err
}

// statefulSet goes on to the first pod that is not ready, for which the others wait,
// and to the claims that it waits for.
func (w *Walker) statefulSet(ctx context.Context, namespace, name string) ([]*Step, error) {
	set, err := w.API.AppsV1().StatefulSets(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	s := &Step{Kind: "StatefulSet", Namespace: namespace, Name: name}
	deleted(s, set)
	want := ptr.Deref(set.Spec.Replicas, 1)
	s.say("%d of %d pods are ready.", set.Status.ReadyReplicas, want)
	steps := []*Step{s}
	if err := w.events(ctx, s, set); err != nil || set.Status.ReadyReplicas >= want && set.Status.UpdatedReplicas >= want {
		return steps, err
	}
	pods, err := w.owned(ctx, set, set.Spec.Selector)
	if err != nil {
		return steps, err
	}
	first := int32(0)
	if set.Spec.Ordinals != nil {
		first = set.Spec.Ordinals.Start
	}
	for i := first; i < first+want; i++ {
		podName := fmt.Sprintf("%s-%d", name, i)
		at := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Name == podName })
		if at < 0 {
			s.say("Pod %s does not exist.", podName)
			return steps, nil
		}
		if ready(&pods[at]) {
			continue
		}
		if set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement && i+1 < first+want {
			s.say("Those after %s wait for it (podManagementPolicy OrderedReady).", podName)
		}
		more, err := w.pod(ctx, namespace, podName)
		if err != nil {
			return steps, err
		}
		claims, err := w.claims(ctx, &pods[at])
		return append(append(steps, more...), claims...), err
	}
	return steps, nil
}

// claims explains those of a pod without a node that are not bound.
func (w *Walker) claims(ctx context.Context, pod *corev1.Pod) (steps []*Step, err error) {
	if pod.Spec.NodeName != "" {
		return nil, nil
	}
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim == nil {
			continue
		}
		c, err := w.API.CoreV1().PersistentVolumeClaims(pod.Namespace).Get(ctx, v.PersistentVolumeClaim.ClaimName, metav1.GetOptions{})
		if err != nil || c.Status.Phase == corev1.ClaimBound {
			continue // the pod's own account tells of claims that are not there
		}
		more, err := w.ofClaim(ctx, c)
		if err != nil {
			return steps, err
		}
		steps = append(steps, more...)
	}
	return steps, nil
}

func (w *Walker) daemonSet(ctx context.Context, namespace, name string) ([]*Step, error) {
	set, err := w.API.AppsV1().DaemonSets(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	s := &Step{Kind: "DaemonSet", Namespace: namespace, Name: name}
	deleted(s, set)
	st := set.Status
	switch {
	case st.ObservedGeneration < set.Generation:
		s.say("No controller has seen its last change.")
	case st.DesiredNumberScheduled == 0:
		s.say("No node is to run it: its selector, affinity and tolerations leave none.")
	}
	s.say("%d of %d nodes run it, %d have the newest template, on %d it is available.", st.CurrentNumberScheduled, st.DesiredNumberScheduled, st.UpdatedNumberScheduled, st.NumberAvailable)
	if st.NumberMisscheduled > 0 {
		s.say("%d nodes run it that should not.", st.NumberMisscheduled)
	}
	if err := w.events(ctx, s, set); err != nil {
		return []*Step{s}, err
	}
	return w.withPods(ctx, s, set, set.Spec.Selector)
}

func (w *Walker) job(ctx context.Context, namespace, name string) ([]*Step, error) {
	job, err := w.API.BatchV1().Jobs(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	s := &Step{Kind: "Job", Namespace: namespace, Name: name}
	deleted(s, job)
	if m := job.Spec.ManagedBy; m != nil && *m != batchv1.JobControllerName {
		s.say("It is looked after by %s.", *m)
	}
	if ptr.Deref(job.Spec.Suspend, false) {
		s.say("It is suspended: it has no pods until spec.suspend is false.")
	}
	for _, c := range job.Status.Conditions {
		if c.Status != corev1.ConditionTrue || c.Type == batchv1.JobSuspended {
			continue
		}
		s.say("%s: %s: %s", c.Type, c.Reason, c.Message)
		if c.Type == batchv1.JobComplete {
			return []*Step{s}, nil
		}
	}
	of := "any number"
	if job.Spec.Completions != nil {
		of = fmt.Sprint(*job.Spec.Completions)
	}
	s.say("%d of %s completions have succeeded, %d pods have failed (backoffLimit %d), %d are active.",
		job.Status.Succeeded, of, job.Status.Failed, ptr.Deref(job.Spec.BackoffLimit, 6), job.Status.Active)
	if err := w.events(ctx, s, job); err != nil {
		return []*Step{s}, err
	}
	return w.withPods(ctx, s, job, job.Spec.Selector)
}
