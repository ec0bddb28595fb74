package deployment

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"proa/internal/controllers/podcontrol"
)

// Annotations that kubectl and other clients read.
const (
	revisionKey     = "deployment.kubernetes.io/revision"
	historyKey      = "deployment.kubernetes.io/revision-history"
	desiredReplicas = "deployment.kubernetes.io/desired-replicas"
	maxReplicas     = "deployment.kubernetes.io/max-replicas"
	lastApplied     = corev1.LastAppliedConfigAnnotation
)

const (
	hashLabel     = appsv1.DefaultDeploymentUniqueLabelKey
	historyLength = 2000 // characters of the history annotation
)

// ownAnnotations describe one object and are not copied between a Deployment
// and its ReplicaSets.
var ownAnnotations = map[string]bool{
	lastApplied: true, revisionKey: true, historyKey: true,
	desiredReplicas: true, maxReplicas: true, appsv1.DeprecatedRollbackTo: true,
}

func sameTemplate(a, b *corev1.PodTemplateSpec) bool {
	x, y := *a, *b
	x.Labels, y.Labels = withoutHash(a.Labels), withoutHash(b.Labels)
	return apiequality.Semantic.DeepEqual(&x, &y)
}

func withoutHash(labels map[string]string) map[string]string {
	if _, ok := labels[hashLabel]; !ok {
		return labels
	}
	labels = maps.Clone(labels)
	delete(labels, hashLabel)
	return labels
}

// revision of a ReplicaSet, 0 if it has none.
func revision(rs *appsv1.ReplicaSet) int64 {
	n, err := strconv.ParseInt(rs.Annotations[revisionKey], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// next is the revision that the newest set has, or is to have.
func (r *rollout) next() int64 {
	var latest int64
	for _, rs := range r.old {
		latest = max(latest, revision(rs))
	}
	return latest + 1
}

// ensureNew makes the newest revision's ReplicaSet exist, with its annotations.
func (c *Controller) ensureNew(ctx context.Context, r *rollout) error {
	if r.new == nil {
		return c.createNew(ctx, r)
	}
	return c.syncNew(ctx, r)
}

// syncNew brings what an existing newest ReplicaSet copies from its Deployment
// up to date, and the Deployment's revision with it.
func (c *Controller) syncNew(ctx context.Context, r *rollout) error {
	if r.new == nil {
		return nil
	}
	rs := r.new.DeepCopy()
	changed := annotate(rs, r.d, r.next())
	if changed || rs.Spec.MinReadySeconds != r.d.Spec.MinReadySeconds {
		rs.Spec.MinReadySeconds = r.d.Spec.MinReadySeconds
		updated, err := c.sets.Update(ctx, rs)
		if err != nil {
			return fmt.Errorf("update replica set %s: %w", rs.Name, err)
		}
		r.new = updated
	}
	metav1.SetMetaDataAnnotation(&r.d.ObjectMeta, revisionKey, r.new.Annotations[revisionKey])
	if hasDeadline(r.d) && condition(&r.d.Status, appsv1.DeploymentProgressing) == nil {
		r.setCondition(appsv1.DeploymentProgressing, corev1.ConditionTrue, "FoundNewReplicaSet",
			fmt.Sprintf("Found new replica set %q", r.new.Name))
	}
	return nil
}

func (c *Controller) createNew(ctx context.Context, r *rollout) error {
	wanted := r.newReplicaSet(c.claims.Reference(r.d))
	rs, err := c.sets.Create(ctx, wanted.DeepCopy())
	existed := false
	switch {
	case apierrors.IsAlreadyExists(err):
		if rs, err = c.own(ctx, r, wanted.Name); err != nil {
			return err
		}
		existed = true
	case podcontrol.NamespaceGoes(err):
		return nil
	case err != nil:
		msg := fmt.Sprintf("Failed to create new replica set %q: %v", wanted.Name, err)
		if hasDeadline(r.d) {
			r.setCondition(appsv1.DeploymentProgressing, corev1.ConditionFalse, reasonCreateFailed, msg)
		}
		c.events.Event(r.d, corev1.EventTypeWarning, reasonCreateFailed, msg)
		return fmt.Errorf("create replica set %s: %w", wanted.Name, err)
	}
	r.new = rs
	metav1.SetMetaDataAnnotation(&r.d.ObjectMeta, revisionKey, rs.Annotations[revisionKey])
	if existed {
		return nil
	}
	c.scaled(r.d, rs.Name, 0, *rs.Spec.Replicas)
	if hasDeadline(r.d) {
		r.setCondition(appsv1.DeploymentProgressing, corev1.ConditionTrue, "NewReplicaSetCreated",
			fmt.Sprintf("Created new replica set %q", rs.Name))
	}
	return nil
}

// own returns the ReplicaSet that has the name of a new one, if it is this
// Deployment's and has its template: a create whose answer was lost. Otherwise
// the hash collided: the next attempt uses another.
func (c *Controller) own(ctx context.Context, r *rollout, name string) (*appsv1.ReplicaSet, error) {
	rs, err := c.sets.Get(ctx, r.d.Namespace, name)
	if err != nil {
		return nil, fmt.Errorf("get replica set %s: %w", name, err)
	}
	if ref := metav1.GetControllerOfNoCopy(rs); ref != nil && ref.UID == r.d.UID && sameTemplate(&rs.Spec.Template, &r.d.Spec.Template) {
		return rs, nil
	}
	collisions := int32(0)
	if r.d.Status.CollisionCount != nil {
		collisions = *r.d.Status.CollisionCount
	}
	r.d.Status.CollisionCount = new(collisions + 1)
	return nil, fmt.Errorf("replica set %s exists with another template", name)
}

func (r *rollout) newReplicaSet(ref *metav1.OwnerReference) *appsv1.ReplicaSet {
	template := r.d.Spec.Template.DeepCopy()
	hash := podcontrol.TemplateHash(&r.d.Spec.Template, r.d.Status.CollisionCount)
	template.Labels = withHash(template.Labels, hash)
	selector := r.d.Spec.Selector.DeepCopy()
	selector.MatchLabels = withHash(selector.MatchLabels, hash)
	base := r.d.Name
	if longest := validation.DNS1123SubdomainMaxLength - len(hash) - 1; len(base) > longest {
		base = base[:longest]
	}
	rs := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Name: base + "-" + hash, Namespace: r.d.Namespace,
			OwnerReferences: []metav1.OwnerReference{*ref},
			Labels:          maps.Clone(template.Labels),
		},
		Spec: appsv1.ReplicaSetSpec{
			Replicas:        new(newSize(r, 0, specReplicas(r.old))),
			MinReadySeconds: r.d.Spec.MinReadySeconds,
			Selector:        selector,
			Template:        *template,
		},
	}
	annotate(rs, r.d, r.next())
	setSizeAnnotations(rs, r.d)
	return rs
}

func withHash(labels map[string]string, hash string) map[string]string {
	labels = maps.Clone(labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[hashLabel] = hash
	return labels
}

// annotate copies the Deployment's annotations to a ReplicaSet and raises its
// revision, keeping the revisions it had before. It tells whether rs changed.
func annotate(rs *appsv1.ReplicaSet, d *appsv1.Deployment, next int64) bool {
	changed := false
	for k, v := range d.Annotations {
		if have, ok := rs.Annotations[k]; ownAnnotations[k] || ok && have == v {
			continue
		}
		metav1.SetMetaDataAnnotation(&rs.ObjectMeta, k, v)
		changed = true
	}
	before := rs.Annotations[revisionKey]
	if _, err := strconv.ParseInt(before, 10, 64); before != "" && err != nil || revision(rs) >= next {
		return changed
	}
	if before != "" {
		metav1.SetMetaDataAnnotation(&rs.ObjectMeta, historyKey, withHistory(rs.Annotations[historyKey], before))
	}
	metav1.SetMetaDataAnnotation(&rs.ObjectMeta, revisionKey, strconv.FormatInt(next, 10))
	return true
}

// withHistory appends a revision to a list of them, dropping the oldest that no longer fit.
func withHistory(list, revision string) string {
	if list == "" {
		return revision
	}
	list += "," + revision
	for len(list) > historyLength {
		_, rest, more := strings.Cut(list, ",")
		if !more {
			return ""
		}
		list = rest
	}
	return list
}

// setSizeAnnotations notes the Deployment's size on a ReplicaSet, which
// proportional scaling starts from. It tells whether rs changed.
func setSizeAnnotations(rs *appsv1.ReplicaSet, d *appsv1.Deployment) bool {
	changed := false
	for key, n := range map[string]int32{desiredReplicas: *d.Spec.Replicas, maxReplicas: *d.Spec.Replicas + maxSurge(d)} {
		if value := strconv.Itoa(int(n)); rs.Annotations[key] != value {
			metav1.SetMetaDataAnnotation(&rs.ObjectMeta, key, value)
			changed = true
		}
	}
	return changed
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
