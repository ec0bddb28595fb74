package deployment

import (
	"context"
	"fmt"
	"maps"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// rollbackRevision reads the annotation by which clients of extensions/v1beta1
// ask for a rollback; 0 means the revision before the newest.
func rollbackRevision(d *appsv1.Deployment) (int64, bool) {
	n, err := strconv.ParseInt(d.Annotations[appsv1.DeprecatedRollbackTo], 10, 64)
	return n, err == nil
}

// rollback puts an earlier revision's template back and removes the request for
// it, whether or not that revision still exists.
func (c *Controller) rollback(ctx context.Context, r *rollout, to int64) error {
	d := r.d
	delete(d.Annotations, appsv1.DeprecatedRollbackTo)
	if to == 0 {
		to = r.previous()
	}
	var target *appsv1.ReplicaSet
	for _, rs := range r.all() {
		if to != 0 && revision(rs) == to {
			target = rs
		}
	}
	switch {
	case to == 0:
		c.events.Event(d, corev1.EventTypeWarning, "DeploymentRollbackRevisionNotFound", "Unable to find last revision.")
	case target == nil:
		c.events.Event(d, corev1.EventTypeWarning, "DeploymentRollbackRevisionNotFound", "Unable to find the revision to rollback to.")
	case sameTemplate(&d.Spec.Template, &target.Spec.Template):
		c.events.Eventf(d, corev1.EventTypeWarning, "DeploymentRollbackTemplateUnchanged",
			"The rollback revision contains the same template as current deployment %q", d.Name)
	default:
		target.Spec.Template.DeepCopyInto(&d.Spec.Template)
		d.Spec.Template.Labels = withoutHash(d.Spec.Template.Labels)
		restoreAnnotations(d, target)
		c.events.Eventf(d, corev1.EventTypeNormal, "DeploymentRollback", "Rolled back deployment %q to revision %d", d.Name, to)
	}
	if _, err := c.deployments.Update(ctx, d); err != nil {
		return fmt.Errorf("roll back deployment: %w", err)
	}
	return nil
}

// previous is the revision before the newest, 0 if there is none.
func (r *rollout) previous() int64 {
	var last, before int64
	for _, rs := range r.all() {
		switch n := revision(rs); {
		case n >= last:
			last, before = n, last
		case n > before:
			before = n
		}
	}
	return before
}

// restoreAnnotations gives the Deployment those of an earlier revision; the ones
// that describe the Deployment alone stay.
func restoreAnnotations(d *appsv1.Deployment, rs *appsv1.ReplicaSet) {
	kept := map[string]string{}
	for k, v := range d.Annotations {
		if ownAnnotations[k] {
			kept[k] = v
		}
	}
	for k, v := range rs.Annotations {
		if !ownAnnotations[k] {
			kept[k] = v
		}
	}
	d.Annotations = maps.Clone(kept)
}
