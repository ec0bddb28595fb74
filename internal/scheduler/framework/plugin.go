// Package framework is the language that the scheduler and its plugins speak:
// the extension points, what a pod and a node look like to a plugin, the state
// of one pod's cycle and the events that make an unschedulable pod worth another
// try. Names and meanings are those of Kubernetes' scheduling framework (KEP-624).
package framework

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// MaxNodeScore is what Score and NormalizeScore give the best node; 0 is the worst.
	MaxNodeScore int64 = 100
	// MaxPermitTimeout bounds the wait that a Permit plugin may ask for.
	MaxPermitTimeout = 15 * time.Minute
)

// Plugin answers one question about where pods run. It takes part in every
// extension point whose interface it has.
type Plugin interface{ Name() string }

// PreEnqueuePlugin is asked before a pod enters the active queue. A pod it
// rejects is gated until an event the plugin registered for.
type PreEnqueuePlugin interface {
	Plugin
	PreEnqueue(ctx context.Context, pod *corev1.Pod) *Status
}

// QueueSortPlugin orders the active queue. A profile has exactly one.
type QueueSortPlugin interface {
	Plugin
	Less(a, b *QueuedPodInfo) bool
}

// EnqueueExtensions tells which events may make a pod schedulable that the
// plugin rejected. A plugin without it is asked again after any event.
type EnqueueExtensions interface {
	Plugin
	EventsToRegister() []HintedEvent
}

// PreFilterResult narrows the nodes to look at. Nil Nodes means all.
type PreFilterResult struct{ Nodes map[string]struct{} }

// PreFilterPlugin computes once per pod what its Filter needs for every node.
// Skip means that Filter has nothing to check for this pod.
type PreFilterPlugin interface {
	Plugin
	PreFilter(ctx context.Context, state *CycleState, pod *PodInfo) (*PreFilterResult, *Status)
}

// PreFilterExtensions keep a PreFilter's state right while a trial (preemption,
// nominated pods) adds and removes other pods.
type PreFilterExtensions interface {
	Plugin
	AddPod(ctx context.Context, state *CycleState, pod, added *PodInfo, node *NodeInfo) *Status
	RemovePod(ctx context.Context, state *CycleState, pod, removed *PodInfo, node *NodeInfo) *Status
}

// FilterPlugin tells whether a pod fits a node.
type FilterPlugin interface {
	Plugin
	Filter(ctx context.Context, state *CycleState, pod *PodInfo, node *NodeInfo) *Status
}

// PostFilterResult is what a PostFilter did about a pod that fits nowhere.
type PostFilterResult struct {
	// NominatedNode is where the pod will fit once its victims are gone. Empty
	// clears an earlier nomination; see KeepNomination.
	NominatedNode  string
	KeepNomination bool
}

// PostFilterPlugin runs when no node fits.
type PostFilterPlugin interface {
	Plugin
	PostFilter(ctx context.Context, state *CycleState, pod *PodInfo, d *Diagnosis) (*PostFilterResult, *Status)
}

// Preemption is what a PostFilter would do: the pods that it would have leave a
// node, or why it would do nothing.
type Preemption struct {
	Node    string
	Victims []*PodInfo
	Refused string
}

// PreviewPlugin tells what its PostFilter would do, and does nothing.
type PreviewPlugin interface {
	Plugin
	Preview(ctx context.Context, state *CycleState, pod *PodInfo, d *Diagnosis) (Preemption, error)
}

// ExplainPlugin has more to say about a node that its Filter rejected than would
// fit a condition.
type ExplainPlugin interface {
	Plugin
	Explain(ctx context.Context, state *CycleState, pod *PodInfo, node *NodeInfo) []string
}

// PreScorePlugin prepares Score from the nodes that fit. Skip suppresses Score.
type PreScorePlugin interface {
	Plugin
	PreScore(ctx context.Context, state *CycleState, pod *PodInfo, nodes []*NodeInfo) *Status
}

// ScorePlugin ranks a node that fits, from 0 to MaxNodeScore unless it has a
// NormalizeScore.
type ScorePlugin interface {
	Plugin
	Score(ctx context.Context, state *CycleState, pod *PodInfo, node *NodeInfo) (int64, *Status)
}

// ScoreNormalizer brings the scores of all nodes into 0 to MaxNodeScore.
type ScoreNormalizer interface {
	Plugin
	NormalizeScore(ctx context.Context, state *CycleState, pod *PodInfo, nodes []*NodeInfo, scores []int64) *Status
}

// RangeNormalizer is a ScoreNormalizer to which only the least and the greatest
// score matter besides a node's own. For a pod that it calls local, the score of a
// node before NormalizeScore depends on that node and what it signs alone.
type RangeNormalizer interface {
	ScoreNormalizer
	Equivalence
	NormalizesRange()
}

// ReservePlugin takes and gives back what a pod needs besides the node's resources.
type ReservePlugin interface {
	Plugin
	Reserve(ctx context.Context, state *CycleState, pod *PodInfo, node string) *Status
	// Unreserve undoes Reserve. It is idempotent.
	Unreserve(ctx context.Context, state *CycleState, pod *PodInfo, node string)
}

// PermitPlugin approves, refuses or delays (Wait) a binding.
type PermitPlugin interface {
	Plugin
	Permit(ctx context.Context, state *CycleState, pod *PodInfo, node string) (*Status, time.Duration)
}

// PreBindPlugin does what must be done before a pod is bound.
type PreBindPlugin interface {
	Plugin
	// PreBindNeeded tells without side effects whether PreBind has work for this pod.
	PreBindNeeded(state *CycleState) bool
	PreBind(ctx context.Context, state *CycleState, pod *PodInfo, node string) *Status
}

// BindPlugin writes the binding. Skip leaves it to the next one.
type BindPlugin interface {
	Plugin
	Bind(ctx context.Context, state *CycleState, pod *PodInfo, node string) *Status
}

// PostBindPlugin is told of a binding.
type PostBindPlugin interface {
	Plugin
	PostBind(ctx context.Context, state *CycleState, pod *PodInfo, node string)
}

// Equivalence is how a plugin takes part in the reuse of results between
// identical pods (KEP-5598).
type Equivalence interface {
	Plugin
	// Local tells that, for this pod, Filter and Score of a node depend on that
	// node and the pod's spec alone, or also on what a Signer signs, or on the
	// node's class (Classifier).
	Local(pod *PodInfo) bool
}

// Signer is an Equivalence whose answers depend on more than the pod's spec, such
// as the objects that it names.
type Signer interface {
	Equivalence
	// Sign appends what the answers for a local pod depend on besides its spec; two
	// pods for which that is equal get the same answers. When it appends anything,
	// PreFilter is asked anew for each of the pods.
	Sign(to []byte, pod *PodInfo) []byte
}

// Classifier is a Signer whose answers about a node depend, for some of the pods that
// it calls local, on other nodes too: on counts of pods in the domains that they share.
// Such nodes fall into classes: at any time the answers for two nodes of a class are
// the same, so that one node of each has to be asked about. NormalizeScore goes by the
// least and the greatest score. A profile has one Classifier.
type Classifier interface {
	FilterPlugin
	ScoreNormalizer
	Signer
	// Classify returns what names the class of a node for a pod; nil when the answers
	// depend on that node alone. State is that of PreFilter. A node keeps its class
	// until it or its pods change.
	Classify(state *CycleState, pod *PodInfo) func(to []byte, node *NodeInfo) []byte
	// PreScoreClasses is PreScore, with a node of each class and the number of nodes in
	// it. State is that of Classify.
	PreScoreClasses(ctx context.Context, state *CycleState, pod *PodInfo, nodes []*NodeInfo, sizes []int) *Status
}
