package admission

import (
	"maps"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/component-helpers/storage/ephemeral"

	"proa/internal/auth/references"
	"proa/internal/store"
)

var csiDrivers = schema.GroupResource{Group: storagev1.GroupName, Resource: "csidrivers"}

// node holds writes of Node objects: a node may register itself and then change
// its labels (those a node may set), annotations and status, and whether it
// takes pods. It may not steer workloads to itself by taints or protected
// labels, nor have itself collected by an owner reference.
func (p NodeRestriction) node(w nodeWrite) error {
	if name := nameOf(w.Attributes); name != w.node {
		return w.refuse("node %q is not allowed to modify node %q", w.node, name)
	}
	if w.Operation != admissionv1.Create && w.Operation != admissionv1.Update {
		return w.refuse("node %q is not allowed to %s itself", w.node, strings.ToLower(string(w.Operation)))
	}
	obj, ok := w.Object.(*corev1.Node)
	if !ok {
		return w.refuse("unexpected type %T", w.Object)
	}
	if w.Operation == admissionv1.Create {
		return registered(w, obj)
	}
	old, ok := w.OldObject.(*corev1.Node)
	if !ok {
		return w.refuse("unexpected type %T", w.OldObject)
	}
	return changed(w, obj, old)
}

func registered(w nodeWrite, n *corev1.Node) error {
	switch labels := forbiddenLabels(n.Labels, nil); {
	case n.Spec.ConfigSource != nil: //nolint:staticcheck // clients still send it
		return w.refuse("node %q is not allowed to create pods with a non-nil configSource", w.node)
	case len(labels) > 0:
		return w.refuse("node %q is not allowed to set the following labels: %s", w.node, strings.Join(labels, ", "))
	case len(n.OwnerReferences) > 0:
		return w.refuse("node %q is not allowed to set ownerReferences", w.node)
	case len(n.Finalizers) > 0:
		return w.refuse("node %q is not allowed to set finalizers", w.node)
	}
	return nil
}

func changed(w nodeWrite, n, old *corev1.Node) error {
	if n.Spec.ConfigSource != nil && !equality.Semantic.DeepEqual(n.Spec.ConfigSource, old.Spec.ConfigSource) { //nolint:staticcheck // clients still send it
		return w.refuse("node %q is not allowed to update configSource to a new non-nil configSource", w.node)
	}
	if !equality.Semantic.DeepEqual(n.Spec.Taints, old.Spec.Taints) {
		return w.refuse("node %q is not allowed to modify taints", w.node)
	}
	if labels := forbiddenLabels(n.Labels, old.Labels); len(labels) > 0 {
		return w.refuse("node %q is not allowed to modify labels: %s", w.node, strings.Join(labels, ", "))
	}
	if !equality.Semantic.DeepEqual(n.OwnerReferences, old.OwnerReferences) {
		return w.refuse("node %q is not allowed to modify ownerReferences", w.node)
	}
	if !equality.Semantic.DeepEqual(n.Finalizers, old.Finalizers) {
		return w.refuse("node %q is not allowed to modify finalizers", w.node)
	}
	allowed := old.Spec.DeepCopy()
	allowed.Unschedulable = n.Spec.Unschedulable
	allowed.ConfigSource = n.Spec.ConfigSource //nolint:staticcheck // only nil gets here
	if allowed.ProviderID == "" {
		allowed.ProviderID = n.Spec.ProviderID
	}
	if !equality.Semantic.DeepEqual(allowed, &n.Spec) {
		return w.refuse("node %q is not allowed to modify spec fields other than unschedulable and an unset providerID", w.node)
	}
	return nil
}

// forbiddenLabels returns the changed labels that a node may not choose: those
// of Kubernetes' domains except the ones that kubelets have always set.
func forbiddenLabels(now, before map[string]string) (out []string) {
	keys := map[string]bool{}
	for k, v := range now {
		if was, there := before[k]; !there || was != v {
			keys[k] = true
		}
	}
	for k := range before {
		if _, there := now[k]; !there {
			keys[k] = true
		}
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if protectedLabel(key) {
			out = append(out, key)
		}
	}
	return out
}

func protectedLabel(key string) bool {
	domain, _, qualified := strings.Cut(key, "/")
	if !qualified {
		return false
	}
	if within(domain, corev1.LabelNamespaceNodeRestriction) {
		return true
	}
	if !within(domain, "kubernetes.io") && !within(domain, "k8s.io") {
		return false
	}
	return !kubeletLabels[key] && !within(domain, corev1.LabelNamespaceSuffixKubelet) && !within(domain, corev1.LabelNamespaceSuffixNode)
}

func within(domain, suffix string) bool {
	return domain == suffix || strings.HasSuffix(domain, "."+suffix)
}

var kubeletLabels = map[string]bool{
	corev1.LabelHostname:                true,
	corev1.LabelTopologyZone:            true,
	corev1.LabelTopologyRegion:          true,
	corev1.LabelFailureDomainBetaZone:   true,
	corev1.LabelFailureDomainBetaRegion: true,
	corev1.LabelInstanceType:            true,
	corev1.LabelInstanceTypeStable:      true,
	corev1.LabelOSStable:                true,
	corev1.LabelArchStable:              true,
	"beta.kubernetes.io/os":             true,
	"beta.kubernetes.io/arch":           true,
}

// mirrorPod holds pods that a node creates to static pods: bound to the node,
// owned by it, and using no other object of the API.
func (p NodeRestriction) mirrorPod(w nodeWrite) error {
	pod, ok := w.Object.(*corev1.Pod)
	if !ok {
		return w.refuse("unexpected type %T", w.Object)
	}
	if !isMirror(pod) {
		return w.refuse("pod does not have %q annotation, node %q can only create mirror pods", corev1.MirrorPodAnnotationKey, w.node)
	}
	if pod.Spec.NodeName != w.node {
		return w.refuse("node %q can only create pods with spec.nodeName set to itself", w.node)
	}
	if len(pod.OwnerReferences) > 1 {
		return w.refuse("node %q can only create pods with a single owner reference set to itself", w.node)
	}
	if len(pod.OwnerReferences) == 0 {
		return w.refuse("node %q can only create pods with an owner reference set to itself", w.node)
	}
	if err := p.owner(w, &pod.OwnerReferences[0]); err != nil {
		return err
	}
	if what := usesObjects(pod); what != "" {
		return w.refuse("node %q can not create pods that reference %s", w.node, what)
	}
	return nil
}

func (p NodeRestriction) owner(w nodeWrite, owner *metav1.OwnerReference) error {
	if owner.APIVersion != "v1" || owner.Kind != "Node" || owner.Name != w.node {
		return w.refuse("node %q can only create pods with an owner reference set to itself", w.node)
	}
	if owner.Controller == nil || !*owner.Controller {
		return w.refuse("node %q can only create pods with a controller owner reference set to itself", w.node)
	}
	if owner.BlockOwnerDeletion != nil && *owner.BlockOwnerDeletion {
		return w.refuse("node %q must not set blockOwnerDeletion on an owner reference", w.node)
	}
	self, err := find[*corev1.Node](p.Store.Snapshot(), nodes, "", w.node)
	if err != nil {
		return err
	}
	if owner.UID != self.UID {
		return w.refuse("node %s UID mismatch: expected %s got %s", w.node, owner.UID, self.UID)
	}
	return nil
}

// usesObjects names the kind of an API object that a pod uses, "" for none.
func usesObjects(pod *corev1.Pod) string {
	if pod.Spec.ServiceAccountName != "" {
		return "a service account"
	}
	for range references.Secrets(pod) {
		return "secrets"
	}
	for range references.ConfigMaps(pod) {
		return "configmaps"
	}
	for range references.Claims(pod) {
		return "persistentvolumeclaims"
	}
	if len(pod.Spec.ResourceClaims) > 0 {
		return "resourceclaims"
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.CSI != nil {
			return "csidrivers"
		}
		if v.Projected == nil {
			continue
		}
		for _, s := range v.Projected.Sources {
			switch {
			case s.ServiceAccountToken != nil:
				return "serviceaccounts"
			case s.ClusterTrustBundle != nil:
				return "clustertrustbundles"
			case s.PodCertificate != nil:
				return "podcertificates"
			}
		}
	}
	return ""
}

// csiDriver is the driver of a pod's volume, "" when there is none.
func csiDriver(sn *store.Snapshot, pod *corev1.Pod, v *corev1.Volume) string {
	claim := ""
	switch {
	case v.CSI != nil:
		return v.CSI.Driver
	case v.PersistentVolumeClaim != nil:
		claim = v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		claim = ephemeral.VolumeClaimName(pod, v)
	default:
		return ""
	}
	pvc, err := find[*corev1.PersistentVolumeClaim](sn, claims, pod.Namespace, claim)
	if err != nil || pvc.Spec.VolumeName == "" {
		return ""
	}
	pv, err := find[*corev1.PersistentVolume](sn, volumes, "", pvc.Spec.VolumeName)
	if err != nil || pv.Spec.CSI == nil {
		return ""
	}
	return pv.Spec.CSI.Driver
}
