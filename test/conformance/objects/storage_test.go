package objects

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/util/retry"

	"proa/pkg/proatest"
)

var storageKinds = []kind{
	{
		gvr: resourceOf("storage.k8s.io", "v1", "csidrivers"), kind: "CSIDriver", clustered: true, counts: true,
		object: "spec: {attachRequired: true}",
		change: "spec: {requiresRepublish: true}",
	},
	{
		gvr: resourceOf("storage.k8s.io", "v1", "csinodes"), kind: "CSINode", clustered: true, bareStatus: true,
		object: "spec: {drivers: []}",
		change: "spec: {drivers: [{name: d.example.com, nodeID: node, topologyKeys: [zone]}]}",
	},
	{
		gvr: resourceOf("storage.k8s.io", "v1", "csistoragecapacities"), kind: "CSIStorageCapacity",
		object: "{storageClassName: fast, capacity: 1Gi, nodeTopology: {matchLabels: {zone: a}}}",
		change: "{capacity: 2Gi, maximumVolumeSize: 1Gi}",
	},
	{
		gvr: resourceOf("", "v1", "persistentvolumes"), kind: "PersistentVolume", clustered: true,
		object: "spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], hostPath: {path: /tmp/x}}",
		change: "spec: {capacity: {storage: 2Gi}}",
		status: `{"status":{"reason":"Test","message":"m"}}`,
	},
	{
		gvr: resourceOf("", "v1", "persistentvolumeclaims"), kind: "PersistentVolumeClaim",
		object: "spec: {accessModes: [ReadWriteOnce], storageClassName: '', resources: {requests: {storage: 1Gi}}}",
		status: `{"status":{"conditions":[{"type":"Test","status":"True","reason":"Test","message":"m","lastProbeTime":null,"lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`,
	},
	{
		gvr: resourceOf("storage.k8s.io", "v1", "storageclasses"), kind: "StorageClass", clustered: true,
		object: "{provisioner: d.example.com, parameters: {type: ssd}}",
		change: "allowVolumeExpansion: true",
	},
	{
		gvr: resourceOf("storage.k8s.io", "v1", "volumeattachments"), kind: "VolumeAttachment", clustered: true,
		object: "spec: {attacher: d.example.com, nodeName: node, source: {persistentVolumeName: volume}}",
		status: `{"status":{"attached":true}}`,
	},
	{
		gvr: resourceOf("storage.k8s.io", "v1", "volumeattributesclasses"), kind: "VolumeAttributesClass", clustered: true,
		object: "{driverName: d.example.com, parameters: {iops: '100'}}",
	},
}

func TestEveryVerbOfStorageKinds(t *testing.T) {
	t.Parallel()
	// Without controllers nothing would take the finalizers of the protection away.
	s := newServer(t, proatest.Options{DisableAdmissionPlugins: []string{"StorageObjectInUseProtection"}})
	everyVerb(t, s, storageKinds)
}

// volumes are a volume and a claim for it.
func volumes(name string) (*corev1.PersistentVolume, *corev1.PersistentVolumeClaim) {
	meta := metav1.ObjectMeta{Name: name, Labels: map[string]string{"pair": "yes"}}
	modes, size := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, amounts{"storage": "1Gi"}.list()
	class := "none-such"
	return &corev1.PersistentVolume{ObjectMeta: meta, Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: modes, StorageClassName: class, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "d.example.com", VolumeHandle: name}},
		}}, &corev1.PersistentVolumeClaim{ObjectMeta: meta, Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: modes, StorageClassName: &class, VolumeName: name, Resources: corev1.VolumeResourceRequirements{Requests: size},
		}}
}

// TestTheLifeOfAVolumeAndItsClaim binds a claim, changes both and deletes both:
// first one by one, then as collections.
func TestTheLifeOfAVolumeAndItsClaim(t *testing.T) {
	t.Parallel()
	s := newServer(t, proatest.Options{Controllers: []string{
		"persistentvolume-binder-controller", "persistentvolume-protection-controller", "persistentvolumeclaim-protection-controller",
	}, DisableAdmissionPlugins: []string{"ServiceAccount"}})
	ctx := within(t)
	pvs, claims := s.CoreV1().PersistentVolumes(), s.CoreV1().PersistentVolumeClaims(space)
	byLabel := metav1.ListOptions{LabelSelector: "pair=yes"}
	changes := must(claims.Watch(ctx, byLabel))(t)
	defer changes.Stop()
	pvChanges := must(pvs.Watch(ctx, byLabel))(t)
	defer pvChanges.Stop()
	bound := func(name string) (*corev1.PersistentVolume, *corev1.PersistentVolumeClaim) {
		t.Helper()
		pv, claim := volumes(name)
		pv = must(pvs.Create(ctx, pv, metav1.CreateOptions{}))(t)
		claim = must(claims.Create(ctx, claim, metav1.CreateOptions{}))(t)
		for e := next(ctx, t, changes); ; e = next(ctx, t, changes) {
			if c := e.Object.(*corev1.PersistentVolumeClaim); c.UID == claim.UID && c.Status.Phase == corev1.ClaimBound {
				break
			}
		}
		for _, list := range []*corev1.PersistentVolumeClaimList{
			must(claims.List(ctx, metav1.ListOptions{}))(t), must(s.CoreV1().PersistentVolumeClaims("").List(ctx, byLabel))(t),
		} {
			if len(list.Items) != 1 || list.Items[0].UID != claim.UID || list.Items[0].Spec.VolumeName != name {
				t.Errorf("listed are the claims %v", list.Items)
			}
		}
		if list := must(pvs.List(ctx, byLabel))(t); len(list.Items) != 1 || list.Items[0].UID != pv.UID || list.Items[0].Spec.ClaimRef.UID != claim.UID {
			t.Errorf("listed are the volumes %v", list.Items)
		}
		return pv, claim
	}
	gone := func(w watch.Interface) {
		t.Helper()
		for next(ctx, t, w).Type != watch.Deleted {
		}
	}

	pv, claim := bound("first")
	label := []byte(`{"metadata":{"labels":{"patched":"yes"}}}`)
	if got := must(pvs.Patch(ctx, "first", types.StrategicMergePatchType, label, metav1.PatchOptions{}))(t); got.Labels["patched"] != "yes" || got.UID != pv.UID {
		t.Errorf("the volume is patched to %v", got)
	}
	if got := must(claims.Patch(ctx, "first", types.StrategicMergePatchType, label, metav1.PatchOptions{}))(t); got.Labels["patched"] != "yes" || got.UID != claim.UID {
		t.Errorf("the claim is patched to %v", got)
	}
	if err := claims.Delete(ctx, "first", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	gone(changes)
	if err := pvs.Delete(ctx, "first", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	gone(pvChanges)
	if _, err := claims.Get(ctx, "first", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the deleted claim reads %v", err)
	}

	bound("second")
	updatedPV := must(retried(ctx, pvs.Get, pvs.Update, "second", func(pv *corev1.PersistentVolume) { pv.Labels["updated"] = "yes" }))(t)
	updated := must(retried(ctx, claims.Get, claims.Update, "second", func(c *corev1.PersistentVolumeClaim) { c.Labels["updated"] = "yes" }))(t)
	if updatedPV.Labels["updated"] != "yes" || updated.Labels["updated"] != "yes" {
		t.Errorf("updated to %v and %v", updatedPV.Labels, updated.Labels)
	}
	byUpdate := metav1.ListOptions{LabelSelector: "updated=yes"}
	if err := claims.DeleteCollection(ctx, metav1.DeleteOptions{}, byUpdate); err != nil {
		t.Fatal(err)
	}
	gone(changes)
	if err := pvs.DeleteCollection(ctx, metav1.DeleteOptions{}, byUpdate); err != nil {
		t.Fatal(err)
	}
	gone(pvChanges)
	if left := must(pvs.List(ctx, byLabel))(t); len(left.Items) != 0 {
		t.Errorf("left are %v", left.Items)
	}
}

// retried changes an object that others change, too.
func retried[T any](ctx context.Context, get func(context.Context, string, metav1.GetOptions) (T, error),
	update func(context.Context, T, metav1.UpdateOptions) (T, error), name string, change func(T)) (updated T, err error) {
	return updated, retry.RetryOnConflict(retry.DefaultRetry, func() error {
		obj, err := get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(obj)
		updated, err = update(ctx, obj, metav1.UpdateOptions{})
		return err
	})
}

// TestTheStatusOfAVolumeAndItsClaim reads a phase, patches and updates a
// condition of the claim, and what the volume says.
func TestTheStatusOfAVolumeAndItsClaim(t *testing.T) {
	t.Parallel()
	s := newServer(t, proatest.Options{})
	ctx := within(t)
	pvs, claims := s.CoreV1().PersistentVolumes(), s.CoreV1().PersistentVolumeClaims(space)
	pv, claim := volumes("v")
	must(pvs.Create(ctx, pv, metav1.CreateOptions{}))(t)
	must(claims.Create(ctx, claim, metav1.CreateOptions{}))(t)
	if err := s.CoreV1().RESTClient().Get().Namespace(space).Resource("persistentvolumeclaims").Name("v").SubResource("status").Do(ctx).Into(claim); err != nil {
		t.Fatal(err)
	}
	if err := s.CoreV1().RESTClient().Get().Resource("persistentvolumes").Name("v").SubResource("status").Do(ctx).Into(pv); err != nil {
		t.Fatal(err)
	}
	if claim.Status.Phase != corev1.ClaimPending || pv.Status.Phase != corev1.VolumePending || pv.Status.LastPhaseTransitionTime == nil {
		t.Errorf("the statuses are %v and %v", claim.Status, pv.Status)
	}

	claim = must(claims.Patch(ctx, "v", types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"status":"patched"}},"status":{"conditions":[{"type":"StatusPatched","status":"True","reason":"E2E","message":"m"}]}}`),
		metav1.PatchOptions{}, "status"))(t)
	if len(claim.Status.Conditions) != 1 || claim.Status.Conditions[0].Type != "StatusPatched" || claim.Labels["status"] != "patched" {
		t.Errorf("the claim is patched to %v, %v", claim.Labels, claim.Status)
	}
	pv = must(pvs.Patch(ctx, "v", types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"status":"patched"}},"status":{"message":"StatusPatched","reason":"E2E patchStatus"}}`), metav1.PatchOptions{}, "status"))(t)
	if pv.Status.Message != "StatusPatched" || pv.Status.Reason != "E2E patchStatus" || pv.Labels["status"] != "patched" {
		t.Errorf("the volume is patched to %v, %v", pv.Labels, pv.Status)
	}

	claim.Status.Conditions = append(claim.Status.Conditions, corev1.PersistentVolumeClaimCondition{Type: "StatusUpdated", Status: corev1.ConditionTrue, Reason: "E2E"})
	if claim = must(claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{}))(t); len(claim.Status.Conditions) != 2 || claim.Status.Conditions[1].Type != "StatusUpdated" {
		t.Errorf("the claim is updated to %v", claim.Status)
	}
	pv.Status.Message, pv.Status.Reason = "StatusUpdated", "E2E updateStatus"
	if pv = must(pvs.UpdateStatus(ctx, pv, metav1.UpdateOptions{}))(t); pv.Status.Message != "StatusUpdated" || pv.Status.Reason != "E2E updateStatus" {
		t.Errorf("the volume is updated to %v", pv.Status)
	}
}

// TestThePodsOfInlineVolumes are objects as any: a driver need not be there.
func TestThePodsOfInlineVolumes(t *testing.T) {
	t.Parallel()
	s := newServer(t, proatest.Options{})
	ctx := within(t)
	pods := s.CoreV1().Pods(space)
	readOnly := true
	spec := podSpec(nil, nil)
	spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
	source := &corev1.CSIVolumeSource{Driver: "d.example.com", ReadOnly: &readOnly, VolumeAttributes: map[string]string{"size": "1"}}
	spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{CSI: source}}}
	created := must(s.pod(ctx, "p", spec))(t)
	read := must(pods.Get(ctx, "p", metav1.GetOptions{}))(t)
	list := must(pods.List(ctx, metav1.ListOptions{}))(t)
	patched := must(pods.Patch(ctx, "p", types.MergePatchType, []byte(`{"metadata":{"labels":{"patched":"yes"}}}`), metav1.PatchOptions{}))(t)
	if len(list.Items) != 1 || patched.Labels["patched"] != "yes" {
		t.Errorf("listed are %v, patched is %v", list.Items, patched.Labels)
	}
	for _, pod := range []*corev1.Pod{created, read, &list.Items[0], patched} {
		if !equality.Semantic.DeepEqual(pod.Spec.Volumes[0].CSI, source) {
			t.Errorf("the volume is %v", pod.Spec.Volumes[0])
		}
	}
	if err := pods.Delete(ctx, "p", atOnce); err != nil {
		t.Fatal(err)
	}
	if _, err := pods.Get(ctx, "p", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("deleted, it reads %v", err)
	}
}
