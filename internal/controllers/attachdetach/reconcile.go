package attachdetach

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/controllers"
)

// reconcileVolume detaches a volume from nodes that need it no longer, then
// attaches it to those that need it.
func (a *Controller) reconcileVolume(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	var users map[string][]*corev1.Pod
	pv, ok := a.volumes.Cached("", key.Name)
	if ok {
		users = a.users(pv)
	}
	attached := map[string]*storagev1.VolumeAttachment{}
	for _, va := range a.attachments.ByIndex(byVolume, key.Name) {
		attached[va.Spec.NodeName] = va
	}
	again := controllers.Result{}
	for _, node := range slices.Sorted(maps.Keys(attached)) {
		if len(users[node]) > 0 {
			continue
		}
		after, err := a.detach(ctx, attached[node])
		if err != nil {
			return again, err
		}
		again.After = sooner(again.After, after)
	}
	for _, node := range slices.Sorted(maps.Keys(users)) {
		a.need(place{pv.Name, node})
		if va := attached[node]; va != nil {
			again.After = sooner(again.After, a.report(pv, va, users[node]))
			continue
		}
		if exclusive(pv) && len(attached) > 0 {
			a.reportElsewhere(pv, node, users, slices.Sorted(maps.Keys(attached)))
			continue
		}
		va, err := a.attach(ctx, pv, node)
		if err != nil {
			a.warn(users[node], "AttachVolume.Attach failed", pv.Name, ": kubernetes.io/csi: attacher.Attach failed: "+err.Error())
			return again, err
		}
		attached[node] = va
		again.After = sooner(again.After, attachTimeout)
	}
	a.forgetOthers(key.Name, users, attached)
	return again, nil
}

// sooner is the first of two waits, of which 0 is none.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

func (a *Controller) attach(ctx context.Context, pv *corev1.PersistentVolume, node string) (*storagev1.VolumeAttachment, error) {
	csi := csiOf(pv)
	va := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: attachmentName(csi, node)},
		Spec: storagev1.VolumeAttachmentSpec{
			NodeName: node, Attacher: csi.Driver,
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv.Name},
		},
	}
	a.remembered(place{pv.Name, node}, func(m *memory) { m.awaited, m.multiAttach = true, false })
	made, err := a.attachments.Create(ctx, va)
	if apierrors.IsAlreadyExists(err) {
		return va, nil // it comes as an event
	}
	return made, err
}

// detach deletes an attachment that no pod needs once that does no harm: when
// the node says that the volume is unmounted and knows that it goes, or when
// nothing can be expected from the node any more.
func (a *Controller) detach(ctx context.Context, va *storagev1.VolumeAttachment) (again time.Duration, err error) {
	if va.DeletionTimestamp != nil {
		return 0, nil // its driver's turn
	}
	at := place{volumeOf(va), va.Spec.NodeName}
	waited := a.unneededFor(at)
	why, wait, err := a.mayDetach(ctx, va, waited)
	if err != nil || wait > 0 {
		return wait, err
	}
	a.remembered(at, func(m *memory) { m.going = true })
	if csi := a.csiNamed(at.volume); csi != nil && a.believes(at.node, csi) {
		a.nodeLoop.Enqueue(controllers.Key{Name: at.node})
		return 0, nil // the node's change brings the volume back here
	}
	if why != "" {
		a.forced.WithLabelValues(why).Inc()
	}
	_, err = a.attachments.Delete(ctx, "", va.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &va.UID}})
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("detach volume %s from node %s: %w", at.volume, at.node, err)
	}
	return 0, nil
}

// need notes that a pod needs a volume at a node.
func (a *Controller) need(at place) {
	a.remembered(at, func(m *memory) {
		if m.going {
			a.nodeLoop.Enqueue(controllers.Key{Name: at.node})
		}
		m.unneeded, m.going = time.Time{}, false
	})
}

// unneededFor is how long no pod has needed a volume at a node.
func (a *Controller) unneededFor(at place) (waited time.Duration) {
	now := a.clock.Now()
	a.remembered(at, func(m *memory) {
		if m.unneeded.IsZero() {
			m.unneeded = now
		}
		waited = now.Sub(m.unneeded)
	})
	return waited
}

// mayDetach says how long to wait before a volume may be detached; 0: now. why
// is the reason to do so without the node's consent, or "".
func (a *Controller) mayDetach(ctx context.Context, va *storagev1.VolumeAttachment, waited time.Duration) (why string, wait time.Duration, err error) {
	node, ok := a.nodes.Cached("", va.Spec.NodeName)
	if ok && outOfService(node) {
		return "out-of-service", 0, nil
	}
	if ok && !a.mounted(va, node) {
		// The cache may be older than a mount: ask the API before what cannot be undone.
		latest, err := a.nodes.Get(ctx, "", va.Spec.NodeName)
		if err == nil && !a.mounted(va, latest) {
			return "", 0, nil
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return "", 0, err
		}
	}
	switch {
	case a.keepMounted:
		return "", unmountTimeout, nil
	case waited <= unmountTimeout:
		return "", unmountTimeout - waited + time.Second, nil
	case ok && healthy(node):
		return "", unmountTimeout, nil
	}
	return "timeout", 0, nil
}

// mounted says whether a node has a volume in use; where nobody knows the volume
// any more, whether it has any of its driver.
func (a *Controller) mounted(va *storagev1.VolumeAttachment, node *corev1.Node) bool {
	if csi := a.csiNamed(volumeOf(va)); csi != nil {
		return slices.Contains(node.Status.VolumesInUse, uniqueName(csi))
	}
	ofDriver := string(uniqueName(&corev1.CSIPersistentVolumeSource{Driver: va.Spec.Attacher}))
	return slices.ContainsFunc(node.Status.VolumesInUse, func(name corev1.UniqueVolumeName) bool {
		return strings.HasPrefix(string(name), ofDriver)
	})
}

// report tells the users of a volume how its attaching went, once. It returns
// when to look again.
func (a *Controller) report(pv *corev1.PersistentVolume, va *storagev1.VolumeAttachment, users []*corev1.Pod) time.Duration {
	at := place{pv.Name, va.Spec.NodeName}
	age := a.clock.Since(va.CreationTimestamp.Time)
	var failure, identity string
	switch failed := va.Status.AttachError; {
	case va.Status.Attached || va.DeletionTimestamp != nil:
	case failed != nil:
		failure, identity = failed.Message, failed.Time.String()+failed.Message
	case age >= attachTimeout:
		failure = fmt.Sprintf("timed out waiting for external-attacher of %s CSI driver to attach volume %s", va.Spec.Attacher, csiOf(pv).VolumeHandle)
		identity = fmt.Sprint(failure, age/attachTimeout)
	}
	succeeded, fails := false, false
	a.remembered(at, func(m *memory) {
		succeeded = m.awaited && va.Status.Attached
		fails = identity != "" && m.reported != identity
		m.reported, m.awaited, m.multiAttach = identity, !va.Status.Attached, false
	})
	if fails {
		a.warn(users, "AttachVolume.Attach failed", pv.Name, ": "+failure)
	}
	if succeeded {
		for _, pod := range users {
			a.events.Eventf(pod, corev1.EventTypeNormal, "SuccessfulAttachVolume", "AttachVolume.Attach succeeded for volume %q ", pv.Name)
		}
	}
	if va.Status.Attached || va.DeletionTimestamp != nil {
		return 0
	}
	return attachTimeout - age%attachTimeout
}

// reportElsewhere tells the users of a volume at one node, once, that it is at
// another, and who uses it there, as far as they may know.
func (a *Controller) reportElsewhere(pv *corev1.PersistentVolume, node string, users map[string][]*corev1.Pod, elsewhere []string) {
	told := false
	a.remembered(place{pv.Name, node}, func(m *memory) { told, m.multiAttach = m.multiAttach, true })
	if told {
		return
	}
	var others []*corev1.Pod
	for _, other := range elsewhere {
		others = append(others, users[other]...)
	}
	for _, pod := range users[node] {
		a.warn([]*corev1.Pod{pod}, "Waiting for detach", pv.Name, usedElsewhere(pod, others))
	}
}

func usedElsewhere(pod *corev1.Pod, others []*corev1.Pod) string {
	var names []string
	foreign := 0
	for _, other := range others {
		if other.Namespace == pod.Namespace {
			names = append(names, other.Name)
		} else {
			foreign++
		}
	}
	switch {
	case len(others) == 0:
		return "Volume is already exclusively attached to one node, waiting on detach before it can be attached to another node"
	case len(names) == 0:
		return fmt.Sprintf("Volume is already used by %d pod(s) in different namespaces", foreign)
	case foreign > 0:
		return fmt.Sprintf("Volume is already used by pod(s) %s and %d pod(s) in different namespaces", strings.Join(names, ", "), foreign)
	}
	return "Volume is already used by pod(s) " + strings.Join(names, ", ")
}

func (a *Controller) warn(pods []*corev1.Pod, what, volume, detail string) {
	for _, pod := range pods {
		a.events.Eventf(pod, corev1.EventTypeWarning, "FailedAttachVolume", "%s for volume %q %s", what, volume, detail)
	}
}

// forgetOthers drops what is known of places where a volume is neither needed
// nor attached.
func (a *Controller) forgetOthers(volume string, users map[string][]*corev1.Pod, attached map[string]*storagev1.VolumeAttachment) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for at := range a.known {
		if at.volume == volume && users[at.node] == nil && attached[at.node] == nil {
			delete(a.known, at)
		}
	}
}
