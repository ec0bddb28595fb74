package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"proa/internal/auth/node"
	"proa/internal/store"
)

// NodeRestriction holds nodes to what they may write: their own Node, and the
// status and eviction of the pods bound to them. The Node authorizer decides by
// name; this plugin sees the content.
//
// What a node may change is listed; everything else it must leave as it is. It
// runs on the completed object too, so that no later plugin opens a way around it.
type NodeRestriction struct {
	Store      *store.Store
	Authorizer authorizer.Authorizer
}

func (NodeRestriction) Name() string { return "NodeRestriction" }

// nodeWrite is one write by a node.
type nodeWrite struct {
	*Attributes
	ctx  context.Context
	node string
}

func (w nodeWrite) refuse(format string, args ...any) error {
	return w.forbidden(fmt.Errorf(format, args...))
}

var restricted = map[schema.GroupResource]func(NodeRestriction, nodeWrite) error{
	pods:     NodeRestriction.pod,
	nodes:    NodeRestriction.node,
	claims:   NodeRestriction.claim,
	accounts: NodeRestriction.token,
	{Group: coordinationv1.GroupName, Resource: "leases"}:                     NodeRestriction.lease,
	{Group: storagev1.GroupName, Resource: "csinodes"}:                        NodeRestriction.csiNode,
	{Group: resourcev1.GroupName, Resource: "resourceslices"}:                 NodeRestriction.resourceSlice,
	{Group: certificatesv1.GroupName, Resource: "certificatesigningrequests"}: NodeRestriction.signingRequest,
	{Group: certificatesv1.GroupName, Resource: "podcertificaterequests"}:     NodeRestriction.podCertificate,
}

func (p NodeRestriction) Admit(ctx context.Context, a *Attributes) error { return p.Validate(ctx, a) }

func (p NodeRestriction) Validate(ctx context.Context, a *Attributes) error {
	name, isNode := node.Identity(a.User)
	if !isNode {
		return nil
	}
	if name == "" {
		return a.forbidden(fmt.Errorf("could not determine node from user %q", a.User.GetName()))
	}
	if check := restricted[a.Resource.GroupResource()]; check != nil {
		return check(p, nodeWrite{a, ctx, name})
	}
	return nil
}

func (p NodeRestriction) pod(w nodeWrite) error {
	switch w.Subresource {
	case "":
		switch w.Operation {
		case admissionv1.Create:
			return p.mirrorPod(w)
		case admissionv1.Delete:
			return p.ownPod(w, w.Name, "node %q can only delete pods with spec.nodeName set to itself")
		}
		return w.refuse("unexpected operation %q, node %q can only create and delete mirror pods", w.Operation, w.node)
	case "status":
		return p.podStatus(w)
	case "eviction":
		return p.eviction(w)
	}
	return w.refuse("unexpected pod subresource %q, only 'status' and 'eviction' are allowed", w.Subresource)
}

func (p NodeRestriction) ownPod(w nodeWrite, name, refusal string) error {
	pod, err := find[*corev1.Pod](p.Store.Snapshot(), pods, w.Namespace, name)
	if err != nil {
		return err
	}
	if pod.Spec.NodeName != w.node {
		return w.refuse(refusal, w.node)
	}
	return nil
}

func (p NodeRestriction) podStatus(w nodeWrite) error {
	if w.Operation != admissionv1.Update {
		return w.refuse("unexpected operation %q, node %q can only update pod status", w.Operation, w.node)
	}
	pod, ok := w.Object.(*corev1.Pod)
	old, okOld := w.OldObject.(*corev1.Pod)
	if !ok || !okOld {
		return w.refuse("unexpected type %T", w.Object)
	}
	switch {
	case old.Spec.NodeName != w.node:
		return w.refuse("node %q can only update pod status for pods with spec.nodeName set to itself", w.node)
	case !equality.Semantic.DeepEqual(pod.Labels, old.Labels):
		return w.refuse("node %q cannot update labels through pod status", w.node)
	case !equality.Semantic.DeepEqual(pod.OwnerReferences, old.OwnerReferences):
		return w.refuse("node %q cannot update owner references through pod status", w.node)
	case !equality.Semantic.DeepEqual(pod.Status.ResourceClaimStatuses, old.Status.ResourceClaimStatuses):
		return w.refuse("node %q cannot update resource claim statuses", w.node)
	case !equality.Semantic.DeepEqual(pod.Status.ExtendedResourceClaimStatus, old.Status.ExtendedResourceClaimStatus):
		return w.refuse("node %q cannot update extended resource claim status", w.node)
	}
	return nil
}

func (p NodeRestriction) eviction(w nodeWrite) error {
	if w.Operation != admissionv1.Create {
		return w.refuse("unexpected operation %s for pod eviction", w.Operation)
	}
	eviction, ok := w.Object.(*policyv1.Eviction)
	if !ok {
		return w.refuse("unexpected type %T", w.Object)
	}
	name := w.Name
	if name == "" {
		name = eviction.Name
	}
	if name == "" {
		return w.refuse("could not determine pod from request data")
	}
	return p.ownPod(w, name, "node %s can only evict pods with spec.nodeName set to itself")
}

func (p NodeRestriction) claim(w nodeWrite) error {
	if w.Subresource != "status" {
		return w.refuse("may only update PVC status")
	}
	if w.Operation != admissionv1.Update {
		return w.refuse("unexpected operation %q", w.Operation)
	}
	claim, ok := w.Object.(*corev1.PersistentVolumeClaim)
	old, okOld := w.OldObject.(*corev1.PersistentVolumeClaim)
	if !ok || !okOld {
		return w.refuse("unexpected type %T", w.Object)
	}
	if !equality.Semantic.DeepEqual(claimForNode(claim), claimForNode(old)) {
		return w.refuse("node %q is not allowed to update fields other than status.quantity and status.conditions", w.node)
	}
	return nil
}

// claimForNode is a claim without what a node may change.
func claimForNode(c *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	c = c.DeepCopy()
	c.ResourceVersion, c.ManagedFields, c.Generation = "", nil, 0
	c.Status.Capacity, c.Status.Conditions = nil, nil
	c.Status.AllocatedResources, c.Status.AllocatedResourceStatuses = nil, nil
	return c
}

func (p NodeRestriction) lease(w nodeWrite) error {
	if w.Namespace != corev1.NamespaceNodeLease {
		return w.refuse("can only access leases in the %q system namespace", corev1.NamespaceNodeLease)
	}
	if nameOf(w.Attributes) != w.node {
		return w.refuse("can only access node lease with the same name as the requesting node")
	}
	return nil
}

func (p NodeRestriction) csiNode(w nodeWrite) error {
	if nameOf(w.Attributes) != w.node {
		return w.refuse("can only access CSINode with the same name as the requesting node")
	}
	return nil
}

func nameOf(a *Attributes) string {
	if a.Operation == admissionv1.Create && a.Object != nil {
		return a.Object.GetName()
	}
	return a.Name
}

func (p NodeRestriction) resourceSlice(w nodeWrite) error {
	for _, obj := range []store.Object{w.Object, w.OldObject} {
		slice, ok := obj.(*resourcev1.ResourceSlice)
		if ok && (slice.Spec.NodeName == nil || *slice.Spec.NodeName != w.node) {
			verb := strings.ToLower(string(w.Operation))
			return w.refuse("can only %s ResourceSlice with the same NodeName as the requesting node", verb)
		}
	}
	return nil
}

// signingRequest holds a node's certificate requests to its own name.
func (p NodeRestriction) signingRequest(w nodeWrite) error {
	csr, ok := w.Object.(*certificatesv1.CertificateSigningRequest)
	if !ok || w.Operation != admissionv1.Create || w.Subresource != "" {
		return nil
	}
	switch csr.Spec.SignerName {
	case certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.KubeletServingSignerName:
	default:
		return nil
	}
	request, err := parseRequest(csr.Spec.Request)
	if err != nil {
		return w.refuse("unable to parse csr: %v", err)
	}
	if want := w.User.GetName(); request.Subject.CommonName != want {
		return w.refuse("can only create a node CSR with CN=%s", want)
	}
	return nil
}

// podCertificate holds requests for pod certificates to running pods of the node.
func (p NodeRestriction) podCertificate(w nodeWrite) error {
	if w.Operation != admissionv1.Create || w.Subresource != "" {
		return w.refuse("unexpected operation %q, node %q can only create PodCertificateRequests", w.Operation, w.node)
	}
	request, ok := w.Object.(*certificatesv1.PodCertificateRequest)
	if !ok {
		return w.refuse("unexpected type %T", w.Object)
	}
	s := &request.Spec
	if string(s.NodeName) != w.node {
		return w.refuse("PodCertificateRequest.Spec.NodeName=%q, which is not the requesting node %q", s.NodeName, w.node)
	}
	pod, err := find[*corev1.Pod](p.Store.Snapshot(), pods, w.Namespace, s.PodName)
	if err != nil {
		return w.refuse("while retrieving pod named in the PodCertificateRequest: %v", err)
	}
	switch {
	case pod.Spec.NodeName != w.node:
		return w.refuse("pod %q is not running on node %q", s.PodName, w.node)
	case pod.UID != s.PodUID:
		return w.refuse("PodCertificateRequest for pod %q contains pod UID (%q) which differs from running pod %q", s.PodName, s.PodUID, pod.UID)
	case isMirror(pod):
		return w.refuse("pod %q is a mirror pod", s.PodName)
	case pod.Spec.ServiceAccountName != s.ServiceAccountName:
		return w.refuse("PodCertificateRequest for pod %q contains serviceAccountName (%q) that differs from running pod %q", s.PodName, s.ServiceAccountName, pod.Spec.ServiceAccountName)
	}
	sa, err := find[*corev1.ServiceAccount](p.Store.Snapshot(), accounts, w.Namespace, s.ServiceAccountName)
	if err != nil {
		return w.refuse("while retrieving service account named in the PodCertificateRequest: %v", err)
	}
	if sa.UID != s.ServiceAccountUID {
		return w.refuse("PodCertificateRequest names service account UID %q, the service account has %q", s.ServiceAccountUID, sa.UID)
	}
	return nil
}

// token holds token requests of a node to its running pods and to the audiences
// that these pods, or the drivers of their volumes, ask for.
func (p NodeRestriction) token(w nodeWrite) error {
	if w.Operation != admissionv1.Create || w.Subresource != "token" {
		return nil
	}
	request, ok := w.Object.(*authenticationv1.TokenRequest)
	if !ok {
		return w.refuse("unexpected type %T", w.Object)
	}
	ref := request.Spec.BoundObjectRef
	if ref == nil || ref.APIVersion != "v1" || ref.Kind != "Pod" || ref.Name == "" {
		return w.refuse("node requested token not bound to a pod")
	}
	if ref.UID == "" {
		return w.refuse("node requested token with a pod binding without a uid")
	}
	sn := p.Store.Snapshot()
	pod, err := find[*corev1.Pod](sn, pods, w.Namespace, ref.Name)
	if err != nil {
		return err
	}
	if ref.UID != pod.UID {
		return w.refuse("the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", ref.UID)
	}
	if pod.Spec.NodeName != w.node {
		return w.refuse("node requested token bound to a pod scheduled on a different node")
	}
	return p.audience(w, sn, pod, request.Spec.Audiences)
}

func (p NodeRestriction) audience(w nodeWrite, sn *store.Snapshot, pod *corev1.Pod, audiences []string) error {
	if len(audiences) > 1 {
		return w.refuse("node may only request 0 or 1 audiences")
	}
	asked := strings.Join(audiences, "")
	if slices.Contains(podAudiences(sn, pod), asked) {
		return nil
	}
	decision, _, err := p.Authorizer.Authorize(w.ctx, authorizer.AttributesRecord{
		User: w.User, Verb: "request-serviceaccounts-token-audience", Namespace: w.Namespace,
		APIVersion: "v1", Resource: asked, Name: pod.Spec.ServiceAccountName, ResourceRequest: true,
	})
	if decision == authorizer.DecisionAllow {
		return nil
	}
	return w.forbidden(errors.Join(fmt.Errorf("audience %q not found in pod spec volume", asked), err))
}

// podAudiences are the audiences of tokens projected into a pod and of those
// that the CSI drivers of its volumes want.
func podAudiences(sn *store.Snapshot, pod *corev1.Pod) (out []string) {
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.Projected != nil {
			for _, s := range v.Projected.Sources {
				if s.ServiceAccountToken != nil {
					out = append(out, s.ServiceAccountToken.Audience)
				}
			}
		}
		if driver := csiDriver(sn, pod, v); driver != "" {
			if d, err := find[*storagev1.CSIDriver](sn, csiDrivers, "", driver); err == nil {
				for _, t := range d.Spec.TokenRequests {
					out = append(out, t.Audience)
				}
			}
		}
	}
	return out
}
