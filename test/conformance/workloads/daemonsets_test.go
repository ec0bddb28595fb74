package workloads

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func (c *cluster) createDaemonSet(name string) *appsv1.DaemonSet {
	c.t.Helper()
	must(c.AppsV1().DaemonSets(ns).Create(c.ctx, &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels(name)},
		Spec:       appsv1.DaemonSetSpec{Selector: selector(name), Template: template(name)},
	}, metav1.CreateOptions{}))(c)
	l := until(c, c.AppsV1().DaemonSets(ns), named(name), func(l *appsv1.DaemonSetList) error {
		st := l.Items[0].Status
		if st.DesiredNumberScheduled == 0 {
			return fmt.Errorf("no pod of %s is wanted", name)
		}
		return all(want("available", st.NumberAvailable, st.DesiredNumberScheduled), want("updated", st.UpdatedNumberScheduled, st.DesiredNumberScheduled))
	})
	return &l.Items[0]
}

func TestDaemonSetsAreFoundByLabelAndRemovedTogether(t *testing.T) {
	c := start(t, 2)
	sets := c.AppsV1().DaemonSets(ns)
	c.createDaemonSet("agent")
	c.createDaemonSet("kept")
	if l := must(c.AppsV1().DaemonSets("").List(c.ctx, labelled("app=agent")))(c); len(l.Items) != 1 || l.Items[0].Name != "agent" {
		t.Errorf("found by label: %v", l.Items)
	}
	c.ok(sets.DeleteCollection(c.ctx, background, labelled("app=agent")))
	gone(c, sets, labelled("app=agent"), func(l *appsv1.DaemonSetList) int { return len(l.Items) })
	c.pods("app=agent", anyPods(0))
	c.pods("app=kept", readyPods(2))
}

func TestStatusOfADaemonSet(t *testing.T) {
	c := start(t, 1)
	c.createDaemonSet("agent")
	c.statusRoundTrip(appsv1.SchemeGroupVersion.WithResource("daemonsets"), "agent")
}

func TestLifeOfControllerRevisions(t *testing.T) {
	c := start(t, 1)
	c.createDaemonSet("agent")
	revisions := c.AppsV1().ControllerRevisions(ns)
	count := func(n int) []appsv1.ControllerRevision {
		t.Helper()
		return until(c, revisions, labelled("app=agent"), func(l *appsv1.ControllerRevisionList) error {
			return want("revisions", len(l.Items), n)
		}).Items
	}
	first := count(1)[0]
	if found := must(c.AppsV1().ControllerRevisions("").List(c.ctx, labelled("app=agent")))(c); len(found.Items) != 1 {
		t.Errorf("%d revisions in all namespaces", len(found.Items))
	}
	patched := must(revisions.Patch(c.ctx, first.Name, types.StrategicMergePatchType, []byte(`{"metadata":{"labels":{"stage":"patched"}}}`), metav1.PatchOptions{}))(c)
	if patched.Labels["stage"] != "patched" || patched.Revision != 1 {
		t.Errorf("patched: %+v", patched)
	}
	second := &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{Name: "agent-by-hand", Labels: first.Labels, OwnerReferences: first.OwnerReferences},
		Data:       first.Data, Revision: first.Revision + 1,
	}
	must(revisions.Create(c.ctx, second, metav1.CreateOptions{}))(c)
	until(c, revisions, named("agent-by-hand"), func(l *appsv1.ControllerRevisionList) error { return want("revisions", len(l.Items), 1) })
	if err := revisions.Delete(c.ctx, first.Name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) { // the controller has been faster
		c.ok(err)
	}
	if left := count(1); left[0].Data.Raw == nil {
		t.Errorf("left: %+v", left)
	}
	// It takes away what equals another, so that the one read may be gone.
	mark := func(n int) (marked *appsv1.ControllerRevision) {
		t.Helper()
		until(c, revisions, labelled("app=agent"), func(l *appsv1.ControllerRevisionList) (err error) {
			if err := want("revisions", len(l.Items), n); err != nil {
				return err
			}
			oldest := slices.MinFunc(l.Items, func(a, b appsv1.ControllerRevision) int { return cmp.Compare(a.Revision, b.Revision) })
			oldest.Labels["stage"] = "updated"
			marked, err = revisions.Update(c.ctx, &oldest, metav1.UpdateOptions{})
			return err
		})
		return marked
	}
	updated := mark(1)
	if updated.Labels["stage"] != "updated" {
		t.Errorf("updated: %+v", updated)
	}
	must(c.AppsV1().DaemonSets(ns).Patch(c.ctx, "agent", types.StrategicMergePatchType, []byte(`{"spec":{"template":{"spec":{"terminationGracePeriodSeconds":1}}}}`), metav1.PatchOptions{}))(c)
	old := mark(2)
	c.ok(revisions.DeleteCollection(c.ctx, background, labelled("stage=updated")))
	if left := count(1); left[0].UID == old.UID {
		t.Errorf("the revision %s is left, which was to go", old.Name)
	}
}
