package attachdetach

import (
	"crypto/sha256"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/controllers/podclaims"
)

// managedAnnotation is on nodes whose agent leaves attaching to this controller.
const managedAnnotation = "volumes.kubernetes.io/controller-managed-attach-detach"

// attachmentName is the name that the attachment of a volume to a node has.
func attachmentName(csi *corev1.CSIPersistentVolumeSource, node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(csi.VolumeHandle+csi.Driver+node)))
}

// uniqueName is a volume in the status of nodes.
func uniqueName(csi *corev1.CSIPersistentVolumeSource) corev1.UniqueVolumeName {
	return corev1.UniqueVolumeName("kubernetes.io/csi/" + csi.Driver + "^" + csi.VolumeHandle)
}

// volumeOf is the PersistentVolume of an attachment that this controller has
// made, or ""; other people's attachments are left to them.
func volumeOf(va *storagev1.VolumeAttachment) string {
	const length = len("csi-") + 2*sha256.Size
	if len(va.Name) != length || va.Name[:len("csi-")] != "csi-" || va.Spec.Source.PersistentVolumeName == nil {
		return ""
	}
	return *va.Spec.Source.PersistentVolumeName
}

// attachable says whether a driver's volumes are attached at all. A driver that
// nobody has told about is asked.
func (a *Controller) attachable(driver string) bool {
	d, ok := a.drivers.Cached("", driver)
	return !ok || d.Spec.AttachRequired == nil || *d.Spec.AttachRequired
}

// csiNamed is csiOf of a volume by its name.
func (a *Controller) csiNamed(volume string) *corev1.CSIPersistentVolumeSource {
	pv, ok := a.volumes.Cached("", volume)
	if !ok {
		return nil
	}
	return csiOf(pv)
}

// users are the pods that need a volume, by their nodes.
func (a *Controller) users(pv *corev1.PersistentVolume) map[string][]*corev1.Pod {
	ref, csi := pv.Spec.ClaimRef, csiOf(pv)
	if ref == nil || csi == nil || !a.attachable(csi.Driver) {
		return nil
	}
	claim, ok := a.claims.Cached(ref.Namespace, ref.Name)
	if !ok || claim.UID != ref.UID || claim.Spec.VolumeName != pv.Name || claim.Status.Phase != corev1.ClaimBound {
		return nil
	}
	users := map[string][]*corev1.Pod{}
	for _, pod := range a.pods.ByIndex(podclaims.Index, claim.Namespace+"/"+claim.Name) {
		if pod.Spec.NodeName == "" || ended(pod) || !podclaims.Uses(pod, claim) {
			continue
		}
		if node, ok := a.nodes.Cached("", pod.Spec.NodeName); ok && managed(node) {
			users[node.Name] = append(users[node.Name], pod)
		}
	}
	return users
}

// ended says whether a pod's volumes are needed no longer: it is over, or it is
// being deleted and none of its containers runs.
func ended(pod *corev1.Pod) bool {
	if pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		return true
	}
	return pod.DeletionTimestamp != nil && !slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.State.Terminated == nil && s.State.Waiting == nil
	})
}

func managed(node *corev1.Node) bool { return metav1.HasAnnotation(node.ObjectMeta, managedAnnotation) }

func healthy(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

func outOfService(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
}

// exclusive says whether a volume can be at one node only. One that does not
// say is left to its driver.
func exclusive(pv *corev1.PersistentVolume) bool {
	return len(pv.Spec.AccessModes) > 0 && !slices.ContainsFunc(pv.Spec.AccessModes, func(m corev1.PersistentVolumeAccessMode) bool {
		return m == corev1.ReadWriteMany || m == corev1.ReadOnlyMany
	})
}
