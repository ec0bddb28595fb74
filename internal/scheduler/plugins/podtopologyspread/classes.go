package podtopologyspread

import (
	"context"
	"encoding/binary"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"proa/internal/scheduler/framework"
)

// Pods with the same constraints are answered alike about nodes in the same domains.
// So nodes are told apart by their domains alone (framework.Classifier); where every
// node is a domain of its own, as with host names, by how many pods it has.

// Local for all pods whose constraints can be read.
func (p *Plugin) Local(pod *framework.PodInfo) bool {
	_, _, hard := p.constraintsOf(pod.Pod, corev1.DoNotSchedule)
	_, _, soft := p.constraintsOf(pod.Pod, corev1.ScheduleAnyway)
	return hard == nil && soft == nil
}

// Sign names the constraints, with whose pods they are about.
func (p *Plugin) Sign(to []byte, pod *framework.PodInfo) []byte {
	text := func(s string) { to = append(binary.AppendUvarint(to, uint64(len(s))), s...) }
	flag := func(b bool) {
		if b {
			to = append(to, 1)
		} else {
			to = append(to, 0)
		}
	}
	for _, action := range []corev1.UnsatisfiableConstraintAction{corev1.DoNotSchedule, corev1.ScheduleAnyway} {
		constraints, own, _ := p.constraintsOf(pod.Pod, action)
		for i := range constraints {
			c := &constraints[i]
			for _, s := range []string{string(action), pod.Pod.Namespace, c.key, c.selector.String()} {
				text(s)
			}
			to = binary.AppendVarint(binary.AppendVarint(to, int64(c.maxSkew)), int64(c.minDomains))
			for _, b := range []bool{own, c.byAffinity, c.byTaint, c.selector.Matches(labels.Set(pod.Pod.Labels)), p.handle.Snapshot.Alone(c.key)} {
				flag(b)
			}
		}
	}
	return to
}

// class is what one constraint tells nodes apart by.
type class struct {
	key   string
	tally *framework.Tally
	alone bool
}

func (c *class) append(to []byte, n *framework.NodeInfo) []byte {
	value, labelled := n.Node.Labels[c.key]
	d := c.tally.Domain(n)
	switch {
	case !labelled:
		return append(to, '-')
	case c.alone && d < 0:
		return append(to, '?')
	case c.alone:
		return binary.AppendUvarint(append(to, '#'), uint64(c.tally.Count(d)))
	case d < 0: // in a domain for others that count
		to = append(to, '!')
	default:
		to = append(to, '=')
	}
	return append(binary.AppendUvarint(to, uint64(len(value))), value...)
}

const classKey = Name + "/classes"

// Classify finds the counts of both kinds of constraints; those that should hold are
// kept for PreScoreClasses.
func (p *Plugin) Classify(cs *framework.CycleState, pod *framework.PodInfo) func(to []byte, n *framework.NodeInfo) []byte {
	hard, _ := framework.Read[rules](cs, Name)
	soft, own, err := p.constraintsOf(pod.Pod, corev1.ScheduleAnyway)
	if err != nil || len(hard)+len(soft) == 0 {
		return nil // that it cannot be read, PreScore says
	}
	var classes []class
	for i := range hard {
		classes = append(classes, class{hard[i].key, hard[i].tally, p.handle.Snapshot.Alone(hard[i].key)})
	}
	w := &wishes{allKeys: own || !p.system}
	for i, t := range p.tallies(pod, soft, w.allKeys) {
		alone := p.handle.Snapshot.Alone(soft[i].key)
		w.all = append(w.all, wish{constraint: soft[i], tally: t, alone: alone})
		classes = append(classes, class{soft[i].key, t, alone})
	}
	cs.Write(classKey, w)
	return func(to []byte, n *framework.NodeInfo) []byte {
		for i := range classes {
			to = classes[i].append(to, n)
		}
		return to
	}
}

// PreScoreClasses weighs the constraints that should hold.
func (*Plugin) PreScoreClasses(_ context.Context, cs *framework.CycleState, _ *framework.PodInfo, nodes []*framework.NodeInfo, sizes []int) *framework.Status {
	w, _ := framework.Read[*wishes](cs, classKey)
	if w == nil || len(w.all) == 0 {
		return framework.NewStatus(framework.Skip)
	}
	w.weigh(nodes, func(i int) int { return sizes[i] })
	cs.Write(scoreKey, w)
	return nil
}
