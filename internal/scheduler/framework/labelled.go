package framework

import "k8s.io/apimachinery/pkg/types"

// Label is one that the pods of a namespace may have.
type Label struct{ Namespace, Key, Value string }

// labelled finds pods with a node by their labels, for the keys that were asked
// for of late: selectors of a cluster agree on a few keys.
type labelled struct {
	byKey map[string]*labelKey
	clock int64
}

const maxLabelKeys = 8

type labelKey struct {
	pods map[Label]map[types.UID]standing
	made int64 // layout generation: pods of nodes that were not known are missing
	used int64
}

// standing is a pod on a node. The pod may be an older version with the SameDemand.
type standing struct {
	pod  *PodInfo
	node *NodeInfo
}

// rarest returns the pods with that label of some that the fewest have; false when
// there are no labels to go by.
func (l *labelled) rarest(s *Snapshot, of []Label) (map[types.UID]standing, bool) {
	var found map[types.UID]standing
	for i, label := range of {
		pods := l.of(s, label.Key).pods[label]
		if i == 0 || len(pods) < len(found) {
			found = pods
		}
	}
	return found, len(of) > 0
}

func (l *labelled) of(s *Snapshot, key string) *labelKey {
	l.clock++
	k := l.byKey[key]
	if k == nil || k.made != s.LayoutGeneration {
		if l.byKey == nil {
			l.byKey = map[string]*labelKey{}
		}
		if k == nil && len(l.byKey) >= maxLabelKeys {
			delete(l.byKey, leastUsed(l.byKey, func(k *labelKey) int64 { return k.used }))
		}
		k = &labelKey{pods: map[Label]map[types.UID]standing{}, made: s.LayoutGeneration}
		for _, n := range s.Nodes {
			for _, p := range n.Pods {
				k.add(key, n, p)
			}
		}
		l.byKey[key] = k
	}
	k.used = l.clock
	return k
}

func (l *labelled) podsChanged(n *NodeInfo, p *PodInfo, sign int) {
	for key, k := range l.byKey {
		if sign > 0 {
			k.add(key, n, p)
		} else {
			k.remove(key, p)
		}
	}
}

func (k *labelKey) add(key string, n *NodeInfo, p *PodInfo) {
	value, ok := p.Pod.Labels[key]
	if !ok {
		return
	}
	label := Label{p.Pod.Namespace, key, value}
	if k.pods[label] == nil {
		k.pods[label] = map[types.UID]standing{}
	}
	k.pods[label][p.Pod.UID] = standing{p, n}
}

func (k *labelKey) remove(key string, p *PodInfo) {
	label := Label{p.Pod.Namespace, key, p.Pod.Labels[key]}
	delete(k.pods[label], p.Pod.UID)
	if len(k.pods[label]) == 0 {
		delete(k.pods, label)
	}
}
