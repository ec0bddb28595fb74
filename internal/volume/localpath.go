package volume

import (
	"context"
	"fmt"
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/reference"
	storagehelpers "k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	"proa/internal/apis"
)

const (
	// LocalPathClass is the StorageClass that every cluster has.
	LocalPathClass = "local-path"
	// LocalPathProvisioner makes a directory on the node that a pod was
	// scheduled to. Size is not enforced.
	LocalPathProvisioner = "proa.dev/local-path"
	// LocalPathAnnotation on a Node is the directory that its local volumes are in.
	LocalPathAnnotation = "proa.dev/local-path-root"

	defaultLocalRoot = "/var/lib/proa/local-path"
)

// LocalPath configures the provisioner of directories on nodes.
type LocalPath struct {
	// Root is where directories are on nodes that do not say otherwise in
	// LocalPathAnnotation. Default /var/lib/proa/local-path.
	Root string
	// Remove removes a volume's directory on a node: only the node's agent can,
	// and only it knows whether a container still uses it. It returns nil when
	// there is none. Nil: the class is not made and nothing is provisioned.
	Remove func(ctx context.Context, node, volume string) error
}

// provision has a volume made for a claim: here for local-path, else by the
// provisioner outside that the class names.
func (b *binder) provision(ctx context.Context, claim *corev1.PersistentVolumeClaim, className string) error {
	class, ok := b.classes.Cached("", className)
	if !ok {
		err := apierrors.NewNotFound(storagev1.Resource("storageclass"), className)
		b.events.Event(claim, corev1.EventTypeWarning, "ProvisioningFailed", err.Error())
		return nil
	}
	if class.Provisioner == storagehelpers.NotSupportedProvisioner {
		return nil
	}
	claim, err := b.announce(ctx, claim, class.Provisioner)
	if err != nil {
		return err
	}
	if class.Provisioner == LocalPathProvisioner && b.local.Remove != nil {
		return b.provisionLocal(ctx, claim, class)
	}
	b.events.Event(claim, corev1.EventTypeNormal, "ExternalProvisioning", fmt.Sprintf(
		"Waiting for a volume to be created either by the external provisioner '%s' or manually by the system administrator. "+
			"If volume creation is delayed, please verify that the provisioner is running and correctly registered.", class.Provisioner))
	return nil
}

// announce writes the provisioner's name where it looks for its claims.
func (b *binder) announce(ctx context.Context, claim *corev1.PersistentVolumeClaim, provisioner string) (*corev1.PersistentVolumeClaim, error) {
	if claim.Annotations[storagehelpers.AnnStorageProvisioner] == provisioner {
		return claim, nil
	}
	claim = claim.DeepCopy()
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, storagehelpers.AnnBetaStorageProvisioner, provisioner)
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, storagehelpers.AnnStorageProvisioner, provisioner)
	return b.claims.Update(ctx, claim)
}

func (b *binder) provisionLocal(ctx context.Context, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) error {
	if claim.DeletionTimestamp != nil {
		return nil
	}
	volume, err := b.localVolume(claim, class)
	if err != nil {
		b.events.Event(claim, corev1.EventTypeWarning, "ProvisioningFailed",
			fmt.Sprintf("failed to provision volume with StorageClass %q: %s", class.Name, err))
		return b.reschedule(ctx, claim)
	}
	if _, err := b.volumes.Create(ctx, volume); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create volume %s: %w", volume.Name, err)
	}
	b.events.Event(claim, corev1.EventTypeNormal, "ProvisioningSucceeded", "Successfully provisioned volume "+volume.Name)
	return nil // the new volume refers to the claim and brings it back
}

// reschedule gives the choice of a node back to the scheduler when the chosen
// one is gone.
func (b *binder) reschedule(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	name := claim.Annotations[storagehelpers.AnnSelectedNode]
	if _, ok := b.nodes.Cached("", name); ok || name == "" {
		return nil
	}
	claim = claim.DeepCopy()
	delete(claim.Annotations, storagehelpers.AnnSelectedNode)
	_, err := b.claims.Update(ctx, claim)
	return err
}

// localVolume plans the volume of a claim on its selected node.
func (b *binder) localVolume(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) (*corev1.PersistentVolume, error) {
	name := claim.Annotations[storagehelpers.AnnSelectedNode]
	node, ok := b.nodes.Cached("", name)
	switch {
	case name == "":
		return nil, fmt.Errorf("no node was selected: the class needs volumeBindingMode WaitForFirstConsumer")
	case !ok:
		return nil, fmt.Errorf("node %q not found", name)
	case claim.Spec.Selector != nil:
		return nil, fmt.Errorf("claim.Spec.Selector is not supported")
	case ptr.Deref(claim.Spec.VolumeMode, corev1.PersistentVolumeFilesystem) != corev1.PersistentVolumeFilesystem:
		return nil, fmt.Errorf("volumeMode %s is not supported", *claim.Spec.VolumeMode)
	case claim.Spec.DataSource != nil || claim.Spec.DataSourceRef != nil:
		return nil, fmt.Errorf("data sources are not supported")
	case slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteMany), slices.Contains(claim.Spec.AccessModes, corev1.ReadOnlyMany):
		return nil, fmt.Errorf("only access modes ReadWriteOnce and ReadWriteOncePod are supported")
	}
	hostname := node.Labels[corev1.LabelHostname]
	if hostname == "" {
		return nil, fmt.Errorf("node %q has no label %s", name, corev1.LabelHostname)
	}
	ref, err := reference.GetReference(apis.Scheme(), claim)
	if err != nil {
		return nil, err
	}
	return planLocal(claim, class, node, hostname, b.local.Root, ref), nil
}

func planLocal(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, node *corev1.Node, hostname, root string, ref *corev1.ObjectReference) *corev1.PersistentVolume {
	if own := node.Annotations[LocalPathAnnotation]; own != "" {
		root = own
	}
	name := "pvc-" + string(claim.UID)
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name:        name,
			Annotations: map[string]string{storagehelpers.AnnDynamicallyProvisioned: LocalPathProvisioner},
		},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: ptr.Deref(class.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete),
			StorageClassName:              class.Name,
			MountOptions:                  class.MountOptions,
			AccessModes:                   claim.Spec.AccessModes,
			VolumeMode:                    ptr.To(corev1.PersistentVolumeFilesystem),
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: claim.Spec.Resources.Requests[corev1.ResourceStorage]},
			ClaimRef:                      ref,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: path.Join(root, name)}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{hostname}}},
			}}}},
		},
	}
	if volume.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete {
		// Deleting the volume first must not leave its directory behind (KEP-2644).
		volume.Finalizers = []string{storagehelpers.PVDeletionInTreeProtectionFinalizer}
	}
	return volume
}

// deleteLocal removes a released volume's directory, then the volume.
func (b *binder) deleteLocal(ctx context.Context, volume *corev1.PersistentVolume) error {
	if b.local.Remove == nil {
		return nil
	}
	if node := b.nodeOf(volume); node != "" {
		if err := b.local.Remove(ctx, node, volume.Name); err != nil {
			b.events.Event(volume, corev1.EventTypeWarning, "VolumeFailedDelete", err.Error())
			return fmt.Errorf("delete directory of volume %s on node %s: %w", volume.Name, node, err)
		}
	}
	if volume.DeletionTimestamp == nil {
		deleted, err := b.volumes.Delete(ctx, "", volume.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &volume.UID}})
		if err != nil {
			return err
		}
		volume = deleted
	}
	want := volume.DeepCopy()
	want.Finalizers = slices.DeleteFunc(want.Finalizers, func(f string) bool { return f == storagehelpers.PVDeletionInTreeProtectionFinalizer })
	if len(want.Finalizers) == len(volume.Finalizers) {
		return nil
	}
	_, err := b.volumes.Update(ctx, want)
	return err
}

// nodeOf is the node that a local volume is on, "" when it has left the cluster
// and taken the directory along.
func (b *binder) nodeOf(volume *corev1.PersistentVolume) string {
	for _, node := range b.nodes.Select("", everything) {
		if storagehelpers.CheckNodeAffinity(volume, node.Labels) == nil {
			return node.Name
		}
	}
	return ""
}
