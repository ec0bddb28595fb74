package daemonset

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/controllers/history"
	"proa/internal/controllers/podcontrol"
)

const hashLabel = appsv1.DefaultDaemonSetUniqueLabelKey

// findRevisions makes a revision of the current template exist, as the latest,
// and fills in what s knows of revisions.
func (c *Controller) findRevisions(ctx context.Context, s *sync) error {
	revisions, err := c.history.Claim(ctx, s.ds, s.selector, c.live(s.ds))
	if err != nil {
		return fmt.Errorf("claim revisions: %w", err)
	}
	s.collisions = s.ds.Status.CollisionCount
	data, err := history.TemplatePatch(&s.ds.Spec.Template)
	if err != nil {
		return err
	}
	var same, old []*appsv1.ControllerRevision
	for _, r := range revisions {
		if r, err = c.label(ctx, r); err != nil {
			return err
		}
		if bytes.Equal(r.Data.Raw, data) {
			same = append(same, r)
		} else {
			old = append(old, r)
		}
	}
	s.revisions = old
	if len(same) == 0 {
		s.current, err = c.snapshot(ctx, s, data, history.Next(old))
	} else if s.current, err = c.dedup(ctx, s, same); err == nil {
		s.current, err = history.Renumber(ctx, c.revisions, s.current, history.Next(old))
	}
	if err != nil {
		return fmt.Errorf("current revision: %w", err)
	}
	s.hash = s.current.Labels[hashLabel]
	return nil
}

// label puts the hash on an adopted revision that lacks it: pods carry it too.
func (c *Controller) label(ctx context.Context, r *appsv1.ControllerRevision) (*appsv1.ControllerRevision, error) {
	if _, ok := r.Labels[hashLabel]; ok {
		return r, nil
	}
	r = r.DeepCopy()
	metav1.SetMetaDataLabel(&r.ObjectMeta, hashLabel, r.Name)
	return c.revisions.Update(ctx, r)
}

// snapshot records the current template under its hash.
func (c *Controller) snapshot(ctx context.Context, s *sync, data []byte, number int64) (*appsv1.ControllerRevision, error) {
	hash := podcontrol.TemplateHash(&s.ds.Spec.Template, s.ds.Status.CollisionCount)
	labels := map[string]string{}
	for k, v := range s.ds.Spec.Template.Labels {
		labels[k] = v
	}
	labels[hashLabel] = hash
	r := history.New(s.ds, c.history.Reference(s.ds), labels, data, number, nil)
	delete(r.Labels, history.HashLabel)
	r.Name = s.ds.Name + "-" + hash
	name := r.Name
	created, err := c.revisions.Create(ctx, r)
	if !apierrors.IsAlreadyExists(err) {
		return created, err
	}
	existing, err := c.revisions.Get(ctx, s.ds.Namespace, name)
	if err != nil {
		return nil, err
	}
	if bytes.Equal(existing.Data.Raw, data) {
		return existing, nil
	}
	return nil, errors.Join(fmt.Errorf("revision %s exists with another template", name), c.countCollision(ctx, s))
}

func (c *Controller) countCollision(ctx context.Context, s *sync) error {
	ds := s.ds.DeepCopy()
	if ds.Status.CollisionCount == nil {
		ds.Status.CollisionCount = new(int32(0))
	}
	*ds.Status.CollisionCount++
	_, err := c.sets.UpdateStatus(ctx, ds)
	return err
}

// dedup keeps the latest of several revisions of one template. Pods that carry
// the hash of another are given the kept one's.
func (c *Controller) dedup(ctx context.Context, s *sync, same []*appsv1.ControllerRevision) (*appsv1.ControllerRevision, error) {
	history.Sort(same)
	kept := same[len(same)-1]
	if len(same) == 1 {
		return kept, nil
	}
	for _, pod := range s.selected(c.claims.Owned(s.ds.UID)) {
		if pod.Labels[hashLabel] == kept.Labels[hashLabel] || !hasHash(same, pod) {
			continue
		}
		if err := c.control.Label(ctx, pod, hashLabel, kept.Labels[hashLabel]); err != nil {
			return nil, err
		}
	}
	return kept, history.Truncate(ctx, c.revisions, same[:len(same)-1], 0, func(*appsv1.ControllerRevision) bool { return false })
}

func hasHash(revisions []*appsv1.ControllerRevision, pod *corev1.Pod) bool {
	for _, r := range revisions {
		if r.Labels[hashLabel] == pod.Labels[hashLabel] {
			return true
		}
	}
	return false
}

// truncateHistory keeps revisionHistoryLimit old revisions and those that pods still have.
func (c *Controller) truncateHistory(ctx context.Context, s *sync) error {
	if s.ds.Spec.RevisionHistoryLimit == nil {
		return nil
	}
	live := map[string]bool{}
	for _, pod := range s.selected(c.claims.Owned(s.ds.UID)) {
		live[pod.Labels[hashLabel]] = true
	}
	return history.Truncate(ctx, c.revisions, s.revisions, *s.ds.Spec.RevisionHistoryLimit, func(r *appsv1.ControllerRevision) bool {
		return live[r.Labels[hashLabel]]
	})
}
