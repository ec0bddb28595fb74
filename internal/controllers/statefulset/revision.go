package statefulset

import (
	"bytes"
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"

	"proa/internal/controllers/history"
)

// findRevisions makes a revision of the set's template exist, as the latest, and
// finds the one that pods of the current revision are made from.
func (c *Controller) findRevisions(ctx context.Context, s *step) error {
	revisions, err := c.history.Claim(ctx, s.set, s.selector, c.live(s.set))
	if err != nil {
		return fmt.Errorf("claim revisions: %w", err)
	}
	history.Sort(revisions)
	s.revisions = revisions
	if s.set.Status.CollisionCount != nil {
		s.collisions = *s.set.Status.CollisionCount
	}
	if s.update, err = c.updateRevision(ctx, s); err != nil {
		return fmt.Errorf("update revision: %w", err)
	}
	s.current, s.currentTemplate = s.update, &s.set.Spec.Template
	for _, r := range revisions {
		if r.Name != s.set.Status.CurrentRevision || r.Name == s.update.Name {
			continue
		}
		s.current = r
		if s.currentTemplate, err = history.Template(r); err != nil {
			return err
		}
	}
	return nil
}

// updateRevision reuses an earlier revision with the same template: rolling back
// makes no new one.
func (c *Controller) updateRevision(ctx context.Context, s *step) (*appsv1.ControllerRevision, error) {
	data, err := history.TemplatePatch(&s.set.Spec.Template)
	if err != nil {
		return nil, err
	}
	number := history.Next(s.revisions)
	var same *appsv1.ControllerRevision
	for _, r := range s.revisions {
		if bytes.Equal(r.Data.Raw, data) {
			same = r
		}
	}
	switch {
	case same == nil:
		r := history.New(s.set, c.history.Reference(s.set), s.set.Spec.Template.Labels, data, number, &s.collisions)
		return history.Create(ctx, c.revisions, s.set.Name, r, &s.collisions)
	case same == s.revisions[len(s.revisions)-1]:
		return same, nil
	default:
		return history.Renumber(ctx, c.revisions, same, number)
	}
}

// truncateHistory keeps revisionHistoryLimit revisions beside those in use.
func (c *Controller) truncateHistory(ctx context.Context, s *step) error {
	if s.set.Spec.RevisionHistoryLimit == nil {
		return nil
	}
	live := map[string]bool{s.current.Name: true, s.update.Name: true}
	for _, pod := range c.members(s) {
		live[pod.Labels[revisionLabel]] = true
	}
	return history.Truncate(ctx, c.revisions, s.revisions, *s.set.Spec.RevisionHistoryLimit,
		func(r *appsv1.ControllerRevision) bool { return live[r.Name] })
}
