// Package node decides what a node may do: read its own Node object and the
// pods bound to it, and only those secrets, config maps, claims, volumes and
// service accounts that these pods use.
package node

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"proa/internal/auth/rbac"
	"proa/internal/store"
)

const userPrefix = "system:node:"

// Identity returns the node that a user is. IsNode is true for members of
// system:nodes named system:node:<name>; name may then still be empty.
func Identity(u user.Info) (name string, isNode bool) {
	if u == nil || !strings.HasPrefix(u.GetName(), userPrefix) {
		return "", false
	}
	for _, g := range u.GetGroups() {
		if g == user.NodesGroup {
			return strings.TrimPrefix(u.GetName(), userPrefix), true
		}
	}
	return "", false
}

// Authorizer allows nodes what their pods need and has no opinion on the rest.
type Authorizer struct {
	store *store.Store
	pods  podIndex
	rules *rbac.Static
}

var _ authorizer.Authorizer = (*Authorizer)(nil)

// New returns an authorizer for the nodes and pods in s.
func New(s *store.Store) *Authorizer {
	return &Authorizer{store: s, pods: podIndex{store: s}, rules: rbac.NewStatic(rbac.NodeRules())}
}

// RulesFor lists nothing, and says so to nodes: what they may do follows from
// their pods.
func (a *Authorizer) RulesFor(_ context.Context, u user.Info, _ string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	if _, isNode := Identity(u); isNode {
		return nil, nil, true, errors.New("node authorizer does not support user rule resolution")
	}
	return nil, nil, false, nil
}

// request is one question of a node.
type request struct {
	authorizer.Attributes
	ctx  context.Context
	node string
}

// decide answers one request on one resource. An empty refusal means yes.
type decide func(a *Authorizer, r request) (refusal string, err error)

// subdivided are the resources that a node sees only in part; the others are
// decided by static rules.
var subdivided = map[schema.GroupResource]decide{
	{Resource: "secrets"}:                                              (*Authorizer).readNamespaced,
	{Resource: "configmaps"}:                                           (*Authorizer).readNamespaced,
	{Resource: "persistentvolumeclaims"}:                               (*Authorizer).claim,
	{Resource: "persistentvolumes"}:                                    (*Authorizer).getOnly,
	{Resource: "serviceaccounts"}:                                      (*Authorizer).serviceAccount,
	{Resource: "nodes"}:                                                (*Authorizer).nodes,
	{Resource: "pods"}:                                                 (*Authorizer).podAccess,
	{Group: "storage.k8s.io", Resource: "volumeattachments"}:           (*Authorizer).getOnly,
	{Group: "storage.k8s.io", Resource: "csinodes"}:                    (*Authorizer).csiNode,
	{Group: "resource.k8s.io", Resource: "resourceclaims"}:             (*Authorizer).getOnly,
	{Group: "resource.k8s.io", Resource: "resourceslices"}:             (*Authorizer).resourceSlice,
	{Group: "coordination.k8s.io", Resource: "leases"}:                 (*Authorizer).lease,
	{Group: "certificates.k8s.io", Resource: "podcertificaterequests"}: (*Authorizer).podCertificateRequest,
}

// Authorize implements authorizer.Authorizer.
func (a *Authorizer) Authorize(ctx context.Context, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	name, isNode := Identity(attrs.GetUser())
	if !isNode {
		return authorizer.DecisionNoOpinion, "", nil
	}
	if name == "" {
		return authorizer.DecisionNoOpinion, fmt.Sprintf("unknown node for user %q", attrs.GetUser().GetName()), nil
	}
	if attrs.IsResourceRequest() {
		gr := schema.GroupResource{Group: attrs.GetAPIGroup(), Resource: attrs.GetResource()}
		if f := subdivided[gr]; f != nil {
			refusal, err := f(a, request{attrs, ctx, name})
			if err != nil || refusal != "" {
				return authorizer.DecisionNoOpinion, refusal, err
			}
			return authorizer.DecisionAllow, "", nil
		}
	}
	if a.rules.Allow(attrs) {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// ConditionsAwareAuthorize implements authorizer.Authorizer; decisions have no conditions.
func (a *Authorizer) ConditionsAwareAuthorize(ctx context.Context, attrs authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(a.Authorize(ctx, attrs))
}

// EvaluateConditions implements authorizer.Authorizer; there are none to evaluate.
func (a *Authorizer) EvaluateConditions(context.Context, authorizer.ConditionsAwareDecision, authorizer.ConditionsData) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", authorizer.ErrorConditionEvaluationNotSupported
}

func (a *Authorizer) readNamespaced(r request) (string, error) {
	switch r.GetVerb() {
	case "get", "list", "watch":
	default:
		return "can only read resources of this type", nil
	}
	if r.GetSubresource() != "" {
		return "cannot read subresource", nil
	}
	if r.GetNamespace() == "" {
		return "can only read namespaced object of this type", nil
	}
	return a.related(r)
}

func (a *Authorizer) getOnly(r request) (string, error) {
	if r.GetVerb() != "get" {
		return "can only get individual resources of this type", nil
	}
	if r.GetSubresource() != "" {
		return "cannot get subresource", nil
	}
	return a.related(r)
}

func (a *Authorizer) claim(r request) (string, error) {
	if r.GetSubresource() == "" {
		return a.getOnly(r)
	}
	switch r.GetVerb() {
	case "get", "update", "patch":
	default:
		return "can only get/update/patch this type", nil
	}
	if r.GetSubresource() != "status" {
		return "can only update status subresource", nil
	}
	return a.related(r)
}

func (a *Authorizer) serviceAccount(r request) (string, error) {
	if r.GetVerb() == "get" && r.GetSubresource() == "" { // for image credential providers
		return a.related(r)
	}
	if r.GetVerb() != "create" || r.GetSubresource() != "token" {
		return "can only create tokens for individual service accounts", nil
	}
	return a.related(r)
}

func (a *Authorizer) lease(r request) (string, error) {
	switch r.GetVerb() {
	case "get", "create", "update", "patch", "delete":
	default:
		return "can only get, create, update, patch, or delete a node lease", nil
	}
	if r.GetNamespace() != corev1.NamespaceNodeLease {
		return fmt.Sprintf("can only access leases in the %q system namespace", corev1.NamespaceNodeLease), nil
	}
	if r.GetVerb() != "create" && r.GetName() != r.node {
		return "can only access node lease with the same name as the requesting node", nil
	}
	return "", nil
}

func (a *Authorizer) csiNode(r request) (string, error) {
	switch r.GetVerb() {
	case "get", "create", "update", "patch", "delete":
	default:
		return "can only get, create, update, patch, or delete a CSINode", nil
	}
	if r.GetSubresource() != "" {
		return "cannot authorize CSINode subresources", nil
	}
	if r.GetVerb() != "create" && r.GetName() != r.node {
		return "can only access CSINode with the same name as the requesting node", nil
	}
	return "", nil
}

func (a *Authorizer) resourceSlice(r request) (string, error) {
	if r.GetSubresource() != "" {
		return "cannot authorize ResourceSlice subresources", nil
	}
	switch r.GetVerb() {
	case "create": // admission compares spec.nodeName
		return "", nil
	case "get", "update", "patch", "delete":
		return a.related(r)
	case "list", "watch", "deletecollection":
		if r.selects("spec.nodeName") {
			return "", nil
		}
		return "can only list/watch/deletecollection resourceslices with nodeName field selector", nil
	}
	return "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, delete, deletecollection", nil
}

func (a *Authorizer) podCertificateRequest(r request) (string, error) {
	if r.GetSubresource() != "" {
		return "cannot authorize PodCertificateRequest subresources", nil
	}
	switch r.GetVerb() {
	case "create": // admission compares the pod's node
		return "", nil
	case "get":
		return a.related(r)
	case "list", "watch":
		if r.selects("spec.nodeName") {
			return "", nil
		}
		return "can only list/watch podcertificaterequests with nodeName field selector", nil
	}
	return "only the following verbs are allowed for a PodCertificateRequest: create, get, list, watch", nil
}

// nodes allows a node its own Node object. Admission holds writes to it.
func (a *Authorizer) nodes(r request) (string, error) {
	switch r.GetSubresource() {
	case "":
		switch r.GetVerb() {
		case "create", "update", "patch":
			return "", nil
		case "get", "list", "watch":
			if r.GetName() == r.node || r.GetName() == "" && r.selects("metadata.name") {
				return "", nil
			}
			if r.GetName() == "" {
				return fmt.Sprintf("node %q cannot read all nodes, only its own Node object", r.node), nil
			}
			return fmt.Sprintf("node %q cannot read %q, only its own Node object", r.node, r.GetName()), nil
		}
	case "status":
		if r.GetVerb() == "update" || r.GetVerb() == "patch" {
			return "", nil
		}
	}
	return fmt.Sprintf("node %q cannot %s nodes in this way", r.node, r.GetVerb()), nil
}

// podAccess allows reading the pods bound to the node. Admission holds the
// writes: mirror pods, status and evictions of the node's own pods.
func (a *Authorizer) podAccess(r request) (string, error) {
	switch r.GetSubresource() {
	case "":
		switch r.GetVerb() {
		case "get":
			return a.related(r)
		case "list", "watch":
			if r.selects("spec.nodeName") {
				return "", nil
			}
			return "can only list/watch pods with spec.nodeName field selector", nil
		case "create", "delete":
			return "", nil
		}
	case "status":
		if r.GetVerb() == "update" || r.GetVerb() == "patch" {
			return "", nil
		}
	case "eviction":
		if r.GetVerb() == "create" {
			return "", nil
		}
	}
	return fmt.Sprintf("node %q cannot %s pods in this way", r.node, r.GetVerb()), nil
}

// selects reports whether the request's field selector limits it to objects
// whose field is this node.
func (r request) selects(field string) bool {
	requirements, err := r.GetFieldSelector()
	if err != nil {
		return false
	}
	for _, q := range requirements {
		if matches(q, field, r.node) {
			return true
		}
	}
	return false
}

func matches(q fields.Requirement, field, value string) bool {
	return q.Field == field && q.Value == value &&
		(q.Operator == selection.Equals || q.Operator == selection.DoubleEquals || q.Operator == selection.In)
}
