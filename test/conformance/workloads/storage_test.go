package workloads

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
)

// The tests play a CSI driver's sidecars (external-provisioner, external-resizer):
// they read and write what those do.

const driver = "csi.example.com"

func size(s string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(s)}
}

var once = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}

// class makes a StorageClass of the driver.
func (c *cluster) class(name string, expands bool) {
	c.t.Helper()
	must(c.StorageV1().StorageClasses().Create(c.ctx, &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: driver, AllowVolumeExpansion: &expands,
	}, metav1.CreateOptions{}))(c)
}

// claim asks for 1Gi.
func (c *cluster) claim(name, class string, change ...func(*corev1.PersistentVolumeClaim)) {
	c.t.Helper()
	pvc := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: once, StorageClassName: &class, Resources: corev1.VolumeResourceRequirements{Requests: size("1Gi")},
	}}
	for _, f := range change {
		f(pvc)
	}
	must(c.CoreV1().PersistentVolumeClaims(ns).Create(c.ctx, pvc, metav1.CreateOptions{}))(c)
}

// provisioned is what external-provisioner makes for a claim, which is bound then.
func (c *cluster) provisioned(claim string, change ...func(*corev1.PersistentVolume)) (volume string) {
	c.t.Helper()
	l := until(c, c.CoreV1().PersistentVolumeClaims(ns), named(claim), func(l *corev1.PersistentVolumeClaimList) error {
		if len(l.Items) == 0 {
			return fmt.Errorf("no claim %s", claim)
		}
		return want("provisioner", l.Items[0].Annotations["volume.kubernetes.io/storage-provisioner"], driver)
	})
	pvc := &l.Items[0]
	volume = "pvc-" + string(pvc.UID)
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: volume, Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": driver}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: pvc.Spec.Resources.Requests, AccessModes: pvc.Spec.AccessModes, StorageClassName: *pvc.Spec.StorageClassName,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete, VolumeAttributesClassName: pvc.Spec.VolumeAttributesClassName,
			ClaimRef:               &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: ns, Name: claim, UID: pvc.UID},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: volume}},
		},
	}
	for _, f := range change {
		f(pv)
	}
	must(c.CoreV1().PersistentVolumes().Create(c.ctx, pv, metav1.CreateOptions{}))(c)
	c.claimed(claim, func(pvc *corev1.PersistentVolumeClaim) error {
		return want("phase", pvc.Status.Phase, corev1.ClaimBound)
	})
	c.volume(volume, func(pv *corev1.PersistentVolume) error { return want("phase", pv.Status.Phase, corev1.VolumeBound) })
	return volume
}

func (c *cluster) claimed(name string, ok func(*corev1.PersistentVolumeClaim) error) *corev1.PersistentVolumeClaim {
	c.t.Helper()
	l := until(c, c.CoreV1().PersistentVolumeClaims(ns), named(name), func(l *corev1.PersistentVolumeClaimList) error {
		if len(l.Items) == 0 {
			return fmt.Errorf("no claim %s", name)
		}
		return ok(&l.Items[0])
	})
	return &l.Items[0]
}

func (c *cluster) volume(name string, ok func(*corev1.PersistentVolume) error) *corev1.PersistentVolume {
	c.t.Helper()
	l := until(c, c.CoreV1().PersistentVolumes(), named(name), func(l *corev1.PersistentVolumeList) error {
		if len(l.Items) == 0 {
			return fmt.Errorf("no volume %s", name)
		}
		return ok(&l.Items[0])
	})
	return &l.Items[0]
}

// asks changes what a claim asks for.
func (c *cluster) asks(claim, patch string) error {
	_, err := c.CoreV1().PersistentVolumeClaims(ns).Patch(c.ctx, claim, types.MergePatchType, []byte(`{"spec":`+patch+`}`), metav1.PatchOptions{})
	return err
}

func storage(s string) string { return `{"resources":{"requests":{"storage":"` + s + `"}}}` }

// claimStatus edits the status of claims.
type claimStatus struct {
	coreclient.PersistentVolumeClaimInterface
}

// Update updates the status alone.
func (s claimStatus) Update(ctx context.Context, p *corev1.PersistentVolumeClaim, o metav1.UpdateOptions) (*corev1.PersistentVolumeClaim, error) {
	return s.UpdateStatus(ctx, p, o)
}

func (c *cluster) sidecar(claim string, change func(*corev1.PersistentVolumeClaimStatus)) {
	c.t.Helper()
	edit(c, claimStatus{c.CoreV1().PersistentVolumeClaims(ns)}, claim, func(p *corev1.PersistentVolumeClaim) { change(&p.Status) })
}

func (c *cluster) quota(name string, spec corev1.ResourceQuotaSpec) {
	c.t.Helper()
	must(c.CoreV1().ResourceQuotas(ns).Create(c.ctx, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{}))(c)
}

// used waits for the usage that a quota tells.
func (c *cluster) used(name string, of corev1.ResourceName, amount string) {
	c.t.Helper()
	until(c, c.CoreV1().ResourceQuotas(ns), named(name), func(l *corev1.ResourceQuotaList) error {
		if len(l.Items) == 0 {
			return fmt.Errorf("no quota %s", name)
		}
		used := l.Items[0].Status.Used[of]
		return want("used "+string(of), used.String(), amount)
	})
}

// KEP-284: a claim asks for more, and its driver is left to it.
func TestAClaimGrows(t *testing.T) {
	c := start(t, 0)
	c.class("grows", true)
	c.class("stays", false)
	c.claim("data", "grows")
	c.claim("fixed", "stays")
	volume := c.provisioned("data")
	c.provisioned("fixed")
	c.measured(`pv_collector_bound_pv_count{storage_class="grows"} 1`, `pv_collector_total_pv_count{plugin_name="kubernetes.io/csi:csi.example.com",volume_mode="Filesystem"} 2`,
		`pv_collector_bound_pvc_count{namespace="default",storage_class="stays",volume_attributes_class=""} 1`)

	if err := c.asks("fixed", storage("2Gi")); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "the storageclass that provisions the pvc must support resize") {
		t.Errorf("a class that does not allow it: %v", err)
	}
	c.ok(c.asks("data", storage("2Gi")))
	c.event("data", "ExternalExpanding", "waiting for an external controller to expand this PVC")
	c.sidecar("data", func(s *corev1.PersistentVolumeClaimStatus) {
		s.Conditions = []corev1.PersistentVolumeClaimCondition{{Type: corev1.PersistentVolumeClaimResizing, Status: corev1.ConditionTrue}}
		s.AllocatedResources = size("2Gi")
		s.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{corev1.ResourceStorage: corev1.PersistentVolumeClaimControllerResizeInProgress}
	})
	edit(c, c.CoreV1().PersistentVolumes(), volume, func(pv *corev1.PersistentVolume) { pv.Spec.Capacity = size("2Gi") })
	c.sidecar("data", func(s *corev1.PersistentVolumeClaimStatus) {
		s.Conditions = []corev1.PersistentVolumeClaimCondition{{Type: corev1.PersistentVolumeClaimFileSystemResizePending, Status: corev1.ConditionTrue}}
		s.AllocatedResourceStatuses[corev1.ResourceStorage] = corev1.PersistentVolumeClaimNodeResizePending
	})
	c.sidecar("data", func(s *corev1.PersistentVolumeClaimStatus) { // the node's kubelet
		s.Conditions, s.AllocatedResources, s.AllocatedResourceStatuses, s.Capacity = nil, nil, nil, size("2Gi")
	})
	c.refused(c.asks("data", storage("1Gi")), "field can not be less than status.capacity")
	pvc := c.claimed("data", func(p *corev1.PersistentVolumeClaim) error { return want("phase", p.Status.Phase, corev1.ClaimBound) })
	if has := pvc.Status.Capacity[corev1.ResourceStorage]; has.String() != "2Gi" {
		t.Errorf("capacity %s", has.String())
	}
}

// KEP-1790: what could not be had is asked for again, with less.
func TestAClaimThatAskedForTooMuchAsksForLess(t *testing.T) {
	c := start(t, 0)
	c.class("grows", true)
	c.quota("all", corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourceRequestsStorage: resource.MustParse("200Gi")}})
	c.claim("data", "grows")
	volume := c.provisioned("data")
	c.used("all", corev1.ResourceRequestsStorage, "1Gi")

	c.ok(c.asks("data", storage("100Gi")))
	c.used("all", corev1.ResourceRequestsStorage, "100Gi")
	infeasible := func(s *corev1.PersistentVolumeClaimStatus) {
		s.AllocatedResources = size("100Gi")
		s.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{corev1.ResourceStorage: corev1.PersistentVolumeClaimControllerResizeInfeasible}
		s.Conditions = []corev1.PersistentVolumeClaimCondition{{Type: corev1.PersistentVolumeClaimControllerResizeError, Status: corev1.ConditionTrue, Message: "at most 5Gi"}}
	}
	c.sidecar("data", infeasible)
	c.refused(c.asks("data", storage("1Gi")), "spec.resources.requests.storage: Forbidden: field can not be less than status.capacity")
	c.ok(c.asks("data", storage("4Gi")))
	c.used("all", corev1.ResourceRequestsStorage, "100Gi") // as long as so much is allocated
	if err := c.asks("data", storage("300Gi")); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota: all") {
		t.Errorf("more than the quota: %v", err)
	}
	c.sidecar("data", func(s *corev1.PersistentVolumeClaimStatus) {
		s.AllocatedResources = size("4Gi")
		s.AllocatedResourceStatuses[corev1.ResourceStorage] = corev1.PersistentVolumeClaimControllerResizeInProgress
		s.Conditions = nil
	})
	c.used("all", corev1.ResourceRequestsStorage, "4Gi")
	edit(c, c.CoreV1().PersistentVolumes(), volume, func(pv *corev1.PersistentVolume) { pv.Spec.Capacity = size("4Gi") })
	c.sidecar("data", func(s *corev1.PersistentVolumeClaimStatus) {
		s.AllocatedResourceStatuses, s.AllocatedResources, s.Capacity = nil, nil, size("4Gi")
	})
	c.used("all", corev1.ResourceRequestsStorage, "4Gi")
	bad := c.claimed("data", func(*corev1.PersistentVolumeClaim) error { return nil }).DeepCopy()
	bad.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{corev1.ResourceStorage: "Sometime"}
	_, err := c.CoreV1().PersistentVolumeClaims(ns).UpdateStatus(c.ctx, bad, metav1.UpdateOptions{})
	c.refused(err, "status.allocatedResourceStatuses: Unsupported value")
}

// KEP-2644: a volume that is deleted before its claim stays until what it stands
// for is deleted.
func TestAVolumeThatIsDeletedFirstIsReclaimed(t *testing.T) {
	c := start(t, 0)
	c.class("fast", false)
	c.claim("data", "fast")
	const finalizer = "external-provisioner.volume.kubernetes.io/finalizer"
	volume := c.provisioned("data", func(pv *corev1.PersistentVolume) { pv.Finalizers = []string{finalizer} })
	c.ok(c.CoreV1().PersistentVolumes().Delete(c.ctx, volume, metav1.DeleteOptions{}))
	c.volume(volume, func(pv *corev1.PersistentVolume) error {
		return all(want("terminating", pv.DeletionTimestamp != nil, true), want("phase", pv.Status.Phase, corev1.VolumeBound))
	})
	c.ok(c.CoreV1().PersistentVolumeClaims(ns).Delete(c.ctx, "data", metav1.DeleteOptions{}))
	c.volume(volume, func(pv *corev1.PersistentVolume) error {
		return all(want("phase", pv.Status.Phase, corev1.VolumeReleased), want("finalizers", fmt.Sprint(pv.Finalizers), fmt.Sprint([]string{finalizer})))
	})
	edit(c, c.CoreV1().PersistentVolumes(), volume, func(pv *corev1.PersistentVolume) { pv.Finalizers = nil }) // after DeleteVolume
	gone(c, c.CoreV1().PersistentVolumes(), named(volume), func(l *corev1.PersistentVolumeList) int { return len(l.Items) })
}

// KEP-3762: when a volume came into its phase.
func TestAVolumeTellsSinceWhenItIsInItsPhase(t *testing.T) {
	c := start(t, 0)
	c.class("fast", false)
	c.claim("data", "fast")
	volume := c.provisioned("data", func(pv *corev1.PersistentVolume) {
		pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	})
	back := metav1.Unix(1_000_000_000, 0)
	since := func(phase corev1.PersistentVolumePhase) *metav1.Time {
		t.Helper()
		pv := c.volume(volume, func(pv *corev1.PersistentVolume) error { return want("phase", pv.Status.Phase, phase) })
		if pv.Status.LastPhaseTransitionTime == nil {
			t.Fatalf("%s since nobody knows", phase)
		}
		return pv.Status.LastPhaseTransitionTime
	}
	setBack := func() { // so that a second need not pass
		t.Helper()
		patch := fmt.Sprintf(`{"status":{"lastPhaseTransitionTime":%q}}`, back.UTC().Format("2006-01-02T15:04:05Z"))
		must(c.CoreV1().PersistentVolumes().Patch(c.ctx, volume, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status"))(c)
	}
	created := c.volume(volume, func(*corev1.PersistentVolume) error { return nil }).CreationTimestamp
	if at := since(corev1.VolumeBound); at.Before(&created) {
		t.Errorf("bound since %s, made at %s", at, created)
	}
	setBack()
	edit(c, c.CoreV1().PersistentVolumes(), volume, func(pv *corev1.PersistentVolume) { pv.Labels = map[string]string{"a": "b"} })
	if at := since(corev1.VolumeBound); !at.Equal(&back) {
		t.Errorf("a label moved the time to %s", at)
	}
	c.ok(c.CoreV1().PersistentVolumeClaims(ns).Delete(c.ctx, "data", metav1.DeleteOptions{}))
	if at := since(corev1.VolumeReleased); at.Before(&created) {
		t.Errorf("released since %s", at)
	}
}

// KEP-3751: a claim changes its class of attributes, and its driver does it.
func TestAClaimChangesItsAttributes(t *testing.T) {
	c := start(t, 0)
	c.class("fast", false)
	classes := c.StorageV1().VolumeAttributesClasses()
	for _, name := range []string{"silver", "gold"} {
		must(classes.Create(c.ctx, &storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: name}, DriverName: driver,
			Parameters: map[string]string{"tier": name}}, metav1.CreateOptions{}))(c)
	}
	_, err := classes.Patch(c.ctx, "gold", types.MergePatchType, []byte(`{"parameters":{"tier":"lead"}}`), metav1.PatchOptions{})
	c.refused(err, "parameters: Forbidden")
	c.quota("gold", corev1.ResourceQuotaSpec{
		Hard: corev1.ResourceList{"persistentvolumeclaims": resource.MustParse("1")},
		ScopeSelector: &corev1.ScopeSelector{MatchExpressions: []corev1.ScopedResourceSelectorRequirement{{
			ScopeName: corev1.ResourceQuotaScopeVolumeAttributesClass, Operator: corev1.ScopeSelectorOpIn, Values: []string{"gold"},
		}}},
	})
	silver := func(p *corev1.PersistentVolumeClaim) { p.Spec.VolumeAttributesClassName = new("silver") }
	c.claim("data", "fast", silver)
	c.claim("more", "fast", silver)
	volume := c.provisioned("data")
	c.provisioned("more")
	has := func(current string, modifying bool) func(*corev1.PersistentVolumeClaim) error {
		return func(p *corev1.PersistentVolumeClaim) error {
			if p.Status.CurrentVolumeAttributesClassName == nil {
				return fmt.Errorf("no current class")
			}
			return all(want("current", *p.Status.CurrentVolumeAttributesClassName, current), want("modifying", p.Status.ModifyVolumeStatus != nil, modifying))
		}
	}
	c.claimed("data", has("silver", false))
	c.used("gold", "persistentvolumeclaims", "0")

	c.ok(c.asks("data", `{"volumeAttributesClassName":"gold"}`))
	c.used("gold", "persistentvolumeclaims", "1")
	if err := c.asks("more", `{"volumeAttributesClassName":"gold"}`); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota: gold") {
		t.Errorf("a second claim of gold: %v", err)
	}
	c.sidecar("data", func(s *corev1.PersistentVolumeClaimStatus) {
		s.ModifyVolumeStatus = &corev1.ModifyVolumeStatus{TargetVolumeAttributesClassName: "gold", Status: corev1.PersistentVolumeClaimModifyVolumeInProgress}
		s.Conditions = []corev1.PersistentVolumeClaimCondition{{Type: corev1.PersistentVolumeClaimVolumeModifyingVolume, Status: corev1.ConditionTrue}}
	})
	c.claimed("data", has("silver", true))
	c.ok(classes.Delete(c.ctx, "silver", metav1.DeleteOptions{}))
	edit(c, c.CoreV1().PersistentVolumes(), volume, func(pv *corev1.PersistentVolume) { pv.Spec.VolumeAttributesClassName = new("gold") })
	c.sidecar("data", func(s *corev1.PersistentVolumeClaimStatus) {
		s.CurrentVolumeAttributesClassName, s.ModifyVolumeStatus, s.Conditions = new("gold"), nil, nil
	})
	c.claimed("data", has("gold", false))
	until(c, classes, named("silver"), func(l *storagev1.VolumeAttributesClassList) error {
		return want("classes in use that stay", len(l.Items), 1)
	})
	c.refused(c.asks("data", `{"volumeAttributesClassName":null}`), "update to nil is forbidden when status.currentVolumeAttributesClassName is not nil")
	c.ok(c.CoreV1().PersistentVolumeClaims(ns).Delete(c.ctx, "more", metav1.DeleteOptions{}))
	c.ok(c.CoreV1().PersistentVolumes().DeleteCollection(c.ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	gone(c, classes, named("silver"), func(l *storagev1.VolumeAttributesClassList) int { return len(l.Items) })
}

// KEP-2485: a claim for one pod is used by one pod, and goes to a more important one.
func TestOnePodAtATimeUsesAClaimForOne(t *testing.T) {
	c := start(t, 1)
	c.class("fast", false)
	uses := func(claim string, change ...func(*corev1.Pod)) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			}}}
			for _, f := range change {
				f(p)
			}
		}
	}
	c.claim("shared", "fast")
	c.claim("single", "fast", func(p *corev1.PersistentVolumeClaim) {
		p.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
	})
	c.provisioned("shared")
	c.provisioned("single")
	runs := func(p *corev1.Pod) error { return want("ready", isReady(p), true) }
	for _, name := range []string{"one", "two"} { // the node is the same
		c.createPod(newPod(name, uses("shared")))
		c.pod(name, runs)
	}
	c.createPod(newPod("first", uses("single")))
	c.pod("first", runs)
	c.createPod(newPod("second", uses("single")))
	c.pod("second", func(p *corev1.Pod) error {
		s := podCondition(p, corev1.PodScheduled)
		if !strings.Contains(s.Message, "ReadWriteOncePod") {
			return fmt.Errorf("%s: %s", s.Reason, s.Message)
		}
		return nil
	})
	must(c.SchedulingV1().PriorityClasses().Create(c.ctx, &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 1000}, metav1.CreateOptions{}))(c)
	c.createPod(newPod("important", uses("single", func(p *corev1.Pod) { p.Spec.PriorityClassName = "high" })))
	c.pod("important", runs)
	gone(c, c.CoreV1().Pods(ns), named("first"), func(l *corev1.PodList) int { return len(l.Items) })
	bad := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "both"}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod, corev1.ReadWriteOnce}, Resources: corev1.VolumeResourceRequirements{Requests: size("1Gi")},
	}}
	_, err := c.CoreV1().PersistentVolumeClaims(ns).Create(c.ctx, bad, metav1.CreateOptions{})
	c.refused(err, "may not use ReadWriteOncePod with other access modes")
}
