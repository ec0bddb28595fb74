// Package explain declares explain.proa.dev/v1alpha1, this project's own group:
// why a pod is where it is and in what state. It is computed when it is asked
// for, never stored, and guarded as any resource is: who may read
// podexplanations may see the names of all nodes, and of the pods that would
// have to leave.
package explain

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"proa/internal/apis"
)

// Group and Version of the kind.
const (
	Group   = "explain.proa.dev"
	Version = "v1alpha1"
)

// PodExplanation says why a pod is as it is. It has the pod's name.
type PodExplanation struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Summary is one sentence; Sentences are all there is to say, the most
	// important first.
	Summary   string   `json:"summary"`
	Sentences []string `json:"sentences,omitempty"`
	// Scheduling is set while the pod has no node.
	Scheduling *Scheduling `json:"scheduling,omitempty"`
}

// Scheduling is what stands between a pod and a node.
type Scheduling struct {
	Scheduler string `json:"scheduler"`
	// Last is the latest attempt; absent before the first.
	Last *Attempt `json:"lastAttempt,omitempty"`
	// Queue is where the pod waits now: active, backoff, unschedulable, gated or
	// in flight.
	Queue   string      `json:"queue,omitempty"`
	Until   metav1.Time `json:"until,omitempty"` // when it is tried again without any event
	GatedBy string      `json:"gatedBy,omitempty"`

	// What follows holds at the moment of the request.

	// PreFilter says why no node comes into question; Untried why some do not.
	PreFilter string `json:"preFilter,omitempty"`
	Untried   string `json:"untried,omitempty"`
	AllNodes  int    `json:"allNodes"`
	// Fits are nodes that the pod fits on: it will get one of them.
	Fits  []string `json:"fits,omitempty"`
	Nodes []Node   `json:"nodes,omitempty"`
	// Preemption is what making room for the pod would cost.
	Preemption *Preemption `json:"preemption,omitempty"`
}

// Attempt is the account of one cycle.
type Attempt struct {
	At         metav1.Time `json:"at"`
	Attempts   int         `json:"attempts"` // so far
	Reason     string      `json:"reason"`
	Message    string      `json:"message"`
	RejectedBy []string    `json:"rejectedBy,omitempty"`
	PendingOn  []string    `json:"pendingOn,omitempty"`
	PostFilter string      `json:"postFilter,omitempty"`
	Nominated  string      `json:"nominatedNode,omitempty"`
	// Nodes are the verdicts of that cycle, one plugin each: it ended a node's
	// turn at the first that rejected it.
	Nodes []Node `json:"nodes,omitempty"`
}

// Node is why a node does not take the pod.
type Node struct {
	Name     string    `json:"name"`
	Verdicts []Verdict `json:"verdicts"`
	// Lacks is what would have to be free besides, by resource.
	Lacks map[string]string `json:"lacks,omitempty"`
	// Never: the node is too small even when it is empty.
	Never bool `json:"never,omitempty"`
}

// Verdict of one plugin.
type Verdict struct {
	Plugin  string   `json:"plugin"`
	Reasons []string `json:"reasons,omitempty"`
	// Preemptable: other pods' leaving could change it.
	Preemptable bool `json:"preemptable,omitempty"`
}

// Preemption is what would happen, or why nothing would.
type Preemption struct {
	Node    string   `json:"node,omitempty"`
	Victims []string `json:"victims,omitempty"` // namespace/name
	Refused string   `json:"refused,omitempty"`
}

// PodExplanationList is a list of them.
type PodExplanationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PodExplanation `json:"items"`
}

// DeepCopyObject copies the metadata; the rest is never changed once made.
func (e *PodExplanation) DeepCopyObject() runtime.Object {
	c := *e
	c.ObjectMeta = *e.ObjectMeta.DeepCopy()
	return &c
}

// DeepCopyObject copies the list and its items' metadata.
func (l *PodExplanationList) DeepCopyObject() runtime.Object {
	c := *l
	c.ListMeta = *l.ListMeta.DeepCopy()
	c.Items = make([]PodExplanation, len(l.Items))
	for i := range l.Items {
		c.Items[i] = *l.Items[i].DeepCopyObject().(*PodExplanation)
	}
	return &c
}

// PodExplanations is the explain.proa.dev/v1alpha1 podexplanations resource.
var PodExplanations = apis.Resource{
	Group: Group, Version: Version, Kind: "PodExplanation", Plural: "podexplanations", Scope: apis.Namespaced,
	New:     func() apis.Object { return &PodExplanation{} },
	NewList: func() runtime.Object { return &PodExplanationList{} },
	Verbs:   []string{"get", "list"}, NoGeneration: true,
	Columns: []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name", Description: "Name of the pod"},
		{Name: "Why", Type: "string", Description: "The most important sentence"},
	},
	Row: apis.Cells(func(e *PodExplanation, _ time.Time) []any { return []any{e.Name, e.Summary} }),
}
