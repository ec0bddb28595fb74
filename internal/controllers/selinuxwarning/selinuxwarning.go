// Package selinuxwarning warns of pods that want one volume with different
// SELinux labels, or with different ways to apply them (KEP-1710): a node that
// mounts the volume with the label of one would keep the other from running. It
// writes nothing but events, looks at pods wherever they are and whether they
// run or not, and makes sense only where nodes have SELinux; it is off unless
// named.
package selinuxwarning

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/podclaims"
)

// Controller compares the pods of every volume.
type Controller struct {
	loop    *controllers.Loop
	events  controllers.EventRecorder
	pods    *client.Informer[*corev1.Pod]
	claims  *client.Informer[*corev1.PersistentVolumeClaim]
	volumes *client.Informer[*corev1.PersistentVolume]
	drivers *client.Informer[*storagev1.CSIDriver]
	uses    *uses
}

// New returns a controller that reads through c.Cache.
func New(c controllers.Config) *Controller {
	w := &Controller{
		events:  c.Events("selinux_warning"),
		pods:    client.Shared[*corev1.Pod](c.Cache),
		claims:  client.Shared[*corev1.PersistentVolumeClaim](c.Cache),
		volumes: client.Shared[*corev1.PersistentVolume](c.Cache),
		drivers: client.Shared[*storagev1.CSIDriver](c.Cache),
		uses:    newUses(),
	}
	c.Register(w.uses)
	w.loop = controllers.NewLoop("selinux_warning", c, w.reconcile)
	w.pods.AddIndex(podclaims.Index, podclaims.Keys)
	w.watch()
	return w
}

// Run works until ctx ends.
func (w *Controller) Run(ctx context.Context) error { return w.loop.Run(ctx) }

func (w *Controller) watch() {
	w.pods.OnChange(func(old, pod *corev1.Pod) {
		switch {
		case pod == nil:
			w.loop.EnqueueObject(old)
		case old == nil || ended(pod) && !ended(old):
			w.loop.EnqueueObject(pod)
		}
	})
	w.claims.OnChange(func(old, claim *corev1.PersistentVolumeClaim) {
		if claim != nil && claim.Spec.VolumeName != "" && (old == nil || old.Spec.VolumeName != claim.Spec.VolumeName) {
			w.enqueueUsers(claim.Namespace, claim.Name)
		}
	})
	w.volumes.OnChange(func(old, pv *corev1.PersistentVolume) {
		if pv == nil || pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID == "" {
			return
		}
		if old == nil || old.Spec.ClaimRef == nil || old.Spec.ClaimRef.UID != pv.Spec.ClaimRef.UID {
			w.enqueueUsers(pv.Spec.ClaimRef.Namespace, pv.Spec.ClaimRef.Name)
		}
	})
	w.drivers.OnChange(func(old, driver *storagev1.CSIDriver) {
		if mountsLabels(old) == mountsLabels(driver) {
			return
		}
		name := ""
		if driver != nil {
			name = driver.Name
		} else {
			name = old.Name
		}
		for _, pod := range w.uses.podsOf(name) {
			w.loop.Enqueue(pod)
		}
	})
}

func (w *Controller) enqueueUsers(namespace, claim string) {
	for _, pod := range w.pods.ByIndex(podclaims.Index, namespace+"/"+claim) {
		w.loop.EnqueueObject(pod)
	}
}

func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
}

// mountsLabels says whether a driver mounts volumes with a label.
func mountsLabels(d *storagev1.CSIDriver) bool {
	return d != nil && ptr.Deref(d.Spec.SELinuxMount, false)
}

// reconcile notes how one pod uses its volumes, and warns of what is new.
func (w *Controller) reconcile(_ context.Context, key controllers.Key) (controllers.Result, error) {
	pod, ok := w.pods.Cached(key.Namespace, key.Name)
	if !ok || ended(pod) {
		w.uses.drop(key)
		return controllers.Result{}, nil
	}
	labels := labelsOf(pod)
	for _, name := range mounted(pod) {
		volume, driver, mounts := w.volume(pod, name)
		if volume == "" {
			continue
		}
		if len(labels[name]) > 1 {
			w.events.Eventf(pod, corev1.EventTypeWarning, "MultipleSELinuxLabels", "Volume %q is mounted twice with different SELinux labels inside this pod", name)
			continue
		}
		w.warn(w.uses.note(volume, driver, key, useBy(pod, labels[name], mounts)))
	}
	return controllers.Result{}, nil
}

func (w *Controller) warn(conflicts []conflict) {
	for _, c := range conflicts {
		if pod, ok := w.pods.Cached(c.pod.Namespace, c.pod.Name); ok {
			w.events.Event(pod, corev1.EventTypeNormal, c.property+"Conflict", c.message())
		}
	}
}

// volume identifies what a pod's volume is on its storage, "" when that is
// nothing that could be mounted with a label, or not known yet. mounts says
// whether it is.
func (w *Controller) volume(pod *corev1.Pod, name string) (volume, driver string, mounts bool) {
	i := slices.IndexFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == name })
	if i < 0 {
		return "", "", false
	}
	claim, ok := w.claims.Cached(pod.Namespace, podclaims.Name(pod, &pod.Spec.Volumes[i]))
	if !ok || claim.Spec.VolumeName == "" || !podclaims.Uses(pod, claim) {
		return "", "", false
	}
	pv, ok := w.volumes.Cached("", claim.Spec.VolumeName)
	if !ok || pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != claim.UID {
		return "", "", false
	}
	switch source := pv.Spec.PersistentVolumeSource; {
	case source.CSI != nil:
		d, _ := w.drivers.Cached("", source.CSI.Driver)
		return "csi/" + source.CSI.Driver + "^" + source.CSI.VolumeHandle, source.CSI.Driver, mountsLabels(d)
	case source.ISCSI != nil:
		return fmt.Sprintf("iscsi/%s:%s:%d", source.ISCSI.TargetPortal, source.ISCSI.IQN, source.ISCSI.Lun), "", true
	case source.FC != nil:
		return fmt.Sprintf("fc/%s:%d:%s", strings.Join(source.FC.TargetWWNs, ","), ptr.Deref(source.FC.Lun, 0), strings.Join(source.FC.WWIDs, ",")), "", true
	}
	return "", "", false
}
