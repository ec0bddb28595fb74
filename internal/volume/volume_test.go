package volume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/tools/record"
	storagehelpers "k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"proa/internal/apis/builtin"
	"proa/internal/apiserver/registry"
	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/store"
	"proa/internal/store/memory"
)

// world is a server in memory with the controllers running.
type world struct {
	t       *testing.T
	claims  *client.Informer[*corev1.PersistentVolumeClaim]
	volumes *client.Informer[*corev1.PersistentVolume]
	pods    *client.Informer[*corev1.Pod]
	nodes   *client.Informer[*corev1.Node]
	classes *client.Informer[*storagev1.StorageClass]
	events  *record.FakeRecorder

	mu      sync.Mutex // guards what follows
	changed chan struct{}
	removed []string
	failing bool
}

func start(t *testing.T) *world {
	t.Helper()
	catalogue := builtin.Catalogue()
	s, err := store.Open(t.Context(), store.Config{Engine: memory.New(), Codec: registry.NewCodec(catalogue)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	r, err := registry.New(registry.Config{Store: s, Catalogue: catalogue})
	if err != nil {
		t.Fatal(err)
	}
	cache := client.NewCache(r.As(&user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}}))
	w := &world{
		t: t, events: record.NewFakeRecorder(1000), changed: make(chan struct{}),
		claims:  client.Shared[*corev1.PersistentVolumeClaim](cache),
		volumes: client.Shared[*corev1.PersistentVolume](cache),
		pods:    client.Shared[*corev1.Pod](cache),
		nodes:   client.Shared[*corev1.Node](cache),
		classes: client.Shared[*storagev1.StorageClass](cache),
	}
	config := controllers.Config{
		Cache: cache, Clock: clock.RealClock{},
		Recorder: func(string) controllers.EventRecorder { return w.events },
	}
	all := []interface{ Run(context.Context) error }{
		New(Config{Controllers: config, LocalPath: LocalPath{Root: "/vol", Remove: w.remove}}),
		NewClaimProtection(config), NewVolumeProtection(config), NewEphemeralClaims(config),
	}
	w.claims.OnChange(func(_, _ *corev1.PersistentVolumeClaim) { w.wake() })
	w.volumes.OnChange(func(_, _ *corev1.PersistentVolume) { w.wake() })
	w.classes.OnChange(func(_, _ *storagev1.StorageClass) { w.wake() })
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { cache.Run(ctx) })
	if err := cache.WaitForSync(ctx); err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		wg.Go(func() {
			if err := c.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() { cancel(); wg.Wait() })
	return w
}

func (w *world) remove(_ context.Context, node, volume string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failing {
		w.failing = false
		return errors.New("in use")
	}
	w.removed = append(w.removed, node+"/"+volume)
	return nil
}

func (w *world) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.changed)
	w.changed = make(chan struct{})
}

// until waits for a state that changes of objects lead to.
func (w *world) until(what string, ok func() bool) {
	w.t.Helper()
	for {
		w.mu.Lock()
		changed := w.changed
		w.mu.Unlock()
		if ok() {
			return
		}
		select {
		case <-changed:
		case <-w.t.Context().Done():
			w.t.Fatal("never: " + what)
		}
	}
}

func (w *world) claim(name string, change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	w.t.Helper()
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			StorageClassName: ptr.To(""),
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
	for _, f := range change {
		f(c)
	}
	c, err := w.claims.Create(w.t.Context(), c)
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

func (w *world) volume(name, size string, change ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	w.t.Helper()
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes:            []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity:               corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)},
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/x"}},
		},
	}
	for _, f := range change {
		f(v)
	}
	v, err := w.volumes.Create(w.t.Context(), v)
	if err != nil {
		w.t.Fatal(err)
	}
	return v
}

func (w *world) claimPhase(name string, phase corev1.PersistentVolumeClaimPhase) *corev1.PersistentVolumeClaim {
	w.t.Helper()
	var got *corev1.PersistentVolumeClaim
	w.until(fmt.Sprintf("claim %s %s", name, phase), func() bool {
		c, ok := w.claims.Cached("default", name)
		got = c
		return ok && c.Status.Phase == phase
	})
	return got
}

func (w *world) volumePhase(name string, phase corev1.PersistentVolumePhase) *corev1.PersistentVolume {
	w.t.Helper()
	var got *corev1.PersistentVolume
	w.until(fmt.Sprintf("volume %s %s", name, phase), func() bool {
		v, ok := w.volumes.Cached("", name)
		got = v
		return ok && v.Status.Phase == phase
	})
	return got
}

// event waits for one whose text contains s.
func (w *world) event(s string) {
	w.t.Helper()
	for {
		select {
		case e := <-w.events.Events:
			if strings.Contains(e, s) {
				return
			}
		case <-w.t.Context().Done():
			w.t.Fatal("no event: " + s)
		}
	}
}

func TestClaimsTakeTheSmallestVolumeThatFits(t *testing.T) {
	w := start(t)
	w.volume("small", "500Mi")
	w.volume("large", "10Gi")
	w.volume("fit", "2Gi")
	w.volume("many", "1Gi", func(v *corev1.PersistentVolume) {
		v.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	})
	w.volume("classy", "1Gi", func(v *corev1.PersistentVolume) { v.Spec.StorageClassName = "other" })
	for _, name := range []string{"small", "large", "fit", "many", "classy"} {
		w.volumePhase(name, corev1.VolumeAvailable)
	}
	w.claim("c")
	c := w.claimPhase("c", corev1.ClaimBound)
	if c.Spec.VolumeName != "fit" {
		t.Fatalf("bound to %s", c.Spec.VolumeName)
	}
	if c.Annotations[storagehelpers.AnnBindCompleted] != "yes" || c.Annotations[storagehelpers.AnnBoundByController] != "yes" {
		t.Errorf("annotations %v", c.Annotations)
	}
	if got := c.Status.Capacity[corev1.ResourceStorage]; got.String() != "2Gi" || len(c.Status.AccessModes) != 1 {
		t.Errorf("status %v", c.Status)
	}
	v := w.volumePhase("fit", corev1.VolumeBound)
	if ref := v.Spec.ClaimRef; ref == nil || ref.UID != c.UID || ref.Kind != "PersistentVolumeClaim" || v.Annotations[storagehelpers.AnnBoundByController] != "yes" {
		t.Errorf("volume refers to %v", v.Spec.ClaimRef)
	}
}

func TestClaimsWaitForVolumesAndSelectByLabel(t *testing.T) {
	w := start(t)
	w.claim("c", func(c *corev1.PersistentVolumeClaim) {
		c.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"disk": "fast"}}
	})
	w.event("Normal FailedBinding no persistent volumes available for this claim and no storage class is set")
	w.volume("slow", "1Gi")
	w.volumePhase("slow", corev1.VolumeAvailable)
	w.volume("fast", "1Gi", func(v *corev1.PersistentVolume) { v.Labels = map[string]string{"disk": "fast"} })
	if c := w.claimPhase("c", corev1.ClaimBound); c.Spec.VolumeName != "fast" {
		t.Errorf("bound to %s", c.Spec.VolumeName)
	}
}

func TestPreboundObjects(t *testing.T) {
	w := start(t)
	w.volume("reserved", "1Gi", func(v *corev1.PersistentVolume) {
		v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: "mine"}
	})
	w.volumePhase("reserved", corev1.VolumeAvailable)
	w.claim("thief", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "reserved" })
	w.event(`Warning FailedBinding volume "reserved" already bound to a different claim.`)
	w.claim("mine")
	w.claimPhase("mine", corev1.ClaimBound)
	if v := w.volumePhase("reserved", corev1.VolumeBound); metav1.HasAnnotation(v.ObjectMeta, storagehelpers.AnnBoundByController) {
		t.Error("a binding by the user is marked as the controller's")
	}
	w.claim("demanding", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "tiny" })
	w.claimPhase("demanding", corev1.ClaimPending)
	w.volume("tiny", "1Mi")
	w.volumePhase("tiny", corev1.VolumeAvailable)
	w.volume("named", "1Gi")
	w.claim("naming", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "named" })
	if c := w.claimPhase("naming", corev1.ClaimBound); metav1.HasAnnotation(c.ObjectMeta, storagehelpers.AnnBoundByController) {
		t.Error("a binding by the user is marked as the controller's")
	}
}

func TestReleaseAndLoss(t *testing.T) {
	w := start(t)
	ctx := t.Context()
	w.volume("kept", "1Gi")
	w.volumePhase("kept", corev1.VolumeAvailable)
	w.claim("c")
	w.claimPhase("c", corev1.ClaimBound)
	w.until("protected", func() bool {
		c, _ := w.claims.Cached("default", "c")
		v, _ := w.volumes.Cached("", "kept")
		return len(c.Finalizers) == 1 && len(v.Finalizers) == 1
	})
	if _, err := w.claims.Delete(ctx, "default", "c", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	v := w.volumePhase("kept", corev1.VolumeReleased)
	if v.Spec.ClaimRef == nil {
		t.Error("a released volume forgot its claim")
	}
	w.claim("c")
	w.claimPhase("c", corev1.ClaimPending)
	if v, _ := w.volumes.Cached("", "kept"); v.Status.Phase != corev1.VolumeReleased {
		t.Errorf("a retained volume went to another claim of the same name: %s", v.Status.Phase)
	}
	if _, err := w.volumes.Delete(ctx, "", "kept", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.until("the volume is gone", func() bool { _, ok := w.volumes.Cached("", "kept"); return !ok })

	w.volume("lost", "1Gi")
	w.claimPhase("c", corev1.ClaimBound)
	w.until("protected again", func() bool { v, _ := w.volumes.Cached("", "lost"); return len(v.Finalizers) == 1 })
	lost, err := w.volumes.Delete(ctx, "", "lost", metav1.DeleteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if lost.DeletionTimestamp == nil {
		t.Fatal("a bound volume was not protected")
	}
	lost = lost.DeepCopy()
	lost.Finalizers = nil
	if _, err := w.volumes.Update(ctx, lost); err != nil {
		t.Fatal(err)
	}
	w.claimPhase("c", corev1.ClaimLost)
	w.event("Warning ClaimLost Bound claim has lost its PersistentVolume. Data on the volume is lost!")
}

func TestClaimsInUseAreKept(t *testing.T) {
	w := start(t)
	ctx := t.Context()
	w.claim("c")
	w.until("protected", func() bool { c, _ := w.claims.Cached("default", "c"); return len(c.Finalizers) == 1 })
	pod := w.pod("user", "n1", corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}})
	if _, err := w.claims.Delete(ctx, "default", "c", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c, ok := w.claims.Cached("default", "c")
	if !ok || c.DeletionTimestamp == nil {
		t.Fatalf("got %v", c)
	}
	if _, err := w.pods.Delete(ctx, "default", pod.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
		t.Fatal(err)
	}
	w.until("the claim is gone", func() bool { _, ok := w.claims.Cached("default", "c"); return !ok })
}

// Deleted in the foreground, a pod waits for the claims that it owns.
func TestAnEphemeralClaimGoesBeforeItsPod(t *testing.T) {
	w := start(t)
	ctx := t.Context()
	pod := w.pod("p", "n1", corev1.VolumeSource{Ephemeral: ephemeralVolume()})
	w.until("protected", func() bool { c, ok := w.claims.Cached("default", "p-v"); return ok && len(c.Finalizers) == 1 })
	if _, err := w.claims.Delete(ctx, "default", "p-v", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if c, ok := w.claims.Cached("default", "p-v"); !ok || c.DeletionTimestamp == nil {
		t.Fatalf("got %v", c)
	}
	options := metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0), PropagationPolicy: ptr.To(metav1.DeletePropagationForeground)}
	if _, err := w.pods.Delete(ctx, "default", pod.Name, options); err != nil {
		t.Fatal(err)
	}
	w.until("the claim is gone", func() bool { _, ok := w.claims.Cached("default", "p-v"); return !ok })
	if _, ok := w.pods.Cached("default", "p"); !ok {
		t.Error("the pod did not wait")
	}
}

func (w *world) pod(name, node string, source corev1.VolumeSource) *corev1.Pod {
	w.t.Helper()
	pod, err := w.pods.Create(w.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: corev1.PodSpec{
			NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}},
			Volumes: []corev1.Volume{{Name: "v", VolumeSource: source}},
		},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return pod
}

func (w *world) node(name string) {
	w.t.Helper()
	if _, err := w.nodes.Create(w.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{corev1.LabelHostname: name + "-host"},
		Annotations: map[string]string{LocalPathAnnotation: "/data/" + name},
	}}); err != nil {
		w.t.Fatal(err)
	}
}

func local(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = ptr.To(LocalPathClass) }

// sched does what the scheduler does for a claim that waits for a consumer.
func (w *world) selectNode(name, node string) {
	w.t.Helper()
	patch := map[string]any{"metadata": map[string]any{"annotations": map[string]string{storagehelpers.AnnSelectedNode: node}}}
	if _, err := w.claims.MergePatch(w.t.Context(), "default", name, patch); err != nil {
		w.t.Fatal(err)
	}
}

func TestLocalPathLifecycle(t *testing.T) {
	w := start(t)
	ctx := t.Context()
	w.node("n1")
	w.until("the class", func() bool {
		c, ok := w.classes.Cached("", LocalPathClass)
		return ok && c.Annotations[defaultClassAnnotation] == "true"
	})
	c := w.claim("c", local)
	w.event("Normal WaitForFirstConsumer waiting for first consumer to be created before binding")
	w.selectNode("c", "n1")
	w.claimPhase("c", corev1.ClaimBound)
	w.event("Normal ProvisioningSucceeded Successfully provisioned volume pvc-" + string(c.UID))
	v := w.volumePhase("pvc-"+string(c.UID), corev1.VolumeBound)
	if v.Spec.Local == nil || v.Spec.Local.Path != "/data/n1/"+v.Name {
		t.Errorf("source %v", v.Spec.PersistentVolumeSource)
	}
	if err := storagehelpers.CheckNodeAffinity(v, map[string]string{corev1.LabelHostname: "n1-host"}); err != nil {
		t.Error(err)
	}
	w.until("both finalizers", func() bool { v, _ := w.volumes.Cached("", v.Name); return len(v.Finalizers) == 2 })
	// Deleting the volume first must not lose the directory (KEP-2644).
	if _, err := w.volumes.Delete(ctx, "", v.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	w.failing = true // the first attempt is refused by the node
	w.mu.Unlock()
	if _, err := w.claims.Delete(ctx, "default", "c", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.until("the volume is gone", func() bool { _, ok := w.volumes.Cached("", v.Name); return !ok })
	w.event("Warning VolumeFailedDelete in use")
	w.mu.Lock()
	defer w.mu.Unlock()
	// A retry after a conflict may remove it again.
	if got := slices.Compact(w.removed); len(got) != 1 || got[0] != "n1/"+v.Name {
		t.Errorf("removed %v", w.removed)
	}
}

// A volume that is to be retained after all can be deleted like any other.
func TestTheFinalizerFollowsTheReclaimPolicy(t *testing.T) {
	w := start(t)
	w.node("n1")
	c := w.claim("c", local)
	w.selectNode("c", "n1")
	w.claimPhase("c", corev1.ClaimBound)
	name := "pvc-" + string(c.UID)
	policy := func(p corev1.PersistentVolumeReclaimPolicy) {
		t.Helper()
		patch := map[string]any{"spec": map[string]any{"persistentVolumeReclaimPolicy": p}}
		if _, err := w.volumes.MergePatch(t.Context(), "", name, patch); err != nil {
			t.Fatal(err)
		}
	}
	guarded := func(want bool) {
		t.Helper()
		w.until(fmt.Sprintf("guarded %v", want), func() bool {
			v, ok := w.volumes.Cached("", name)
			return ok && slices.Contains(v.Finalizers, "kubernetes.io/pv-controller") == want
		})
	}
	guarded(true)
	policy(corev1.PersistentVolumeReclaimRetain)
	guarded(false)
	policy(corev1.PersistentVolumeReclaimDelete)
	guarded(true)
}

func TestLocalPathRefusals(t *testing.T) {
	w := start(t)
	w.node("n1")
	w.claim("many", local, func(c *corev1.PersistentVolumeClaim) {
		c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	})
	w.selectNode("many", "n1")
	w.event("only access modes ReadWriteOnce and ReadWriteOncePod are supported")
	w.claim("c", local)
	w.selectNode("c", "gone")
	w.until("the scheduler may choose again", func() bool {
		c, _ := w.claims.Cached("default", "c")
		return c.Annotations[storagehelpers.AnnStorageProvisioner] != "" && c.Annotations[storagehelpers.AnnSelectedNode] == ""
	})
	w.claim("external", func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = ptr.To("none") })
	w.event(`Warning ProvisioningFailed storageclass.storage.k8s.io "none" not found`)
}

func TestAClaimWithoutAClassGetsTheDefaultLater(t *testing.T) {
	w := start(t)
	w.claim("c", func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = nil })
	w.until("the class is assigned", func() bool {
		c, _ := w.claims.Cached("default", "c")
		return ptr.Deref(c.Spec.StorageClassName, "") == LocalPathClass
	})
}

func ephemeralVolume() *corev1.EphemeralVolumeSource {
	return &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}}
}

func TestEphemeralVolumesGetClaims(t *testing.T) {
	w := start(t)
	w.claim("taken-v")
	source := corev1.VolumeSource{Ephemeral: ephemeralVolume()}
	pod := w.pod("p", "", source)
	var claim *corev1.PersistentVolumeClaim
	w.until("the claim", func() bool {
		c, ok := w.claims.Cached("default", "p-v")
		claim = c
		return ok
	})
	if owner := metav1.GetControllerOf(claim); owner == nil || owner.UID != pod.UID || claim.Labels["a"] != "b" {
		t.Errorf("got %v", claim.ObjectMeta)
	}
	w.pod("taken", "", source)
	w.event("was not created for pod")
}

func TestDefaultClassIsTheNewest(t *testing.T) {
	class := func(name string, age int64, isDefault string) *storagev1.StorageClass {
		return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: types.UID(name), CreationTimestamp: metav1.Unix(-age, 0), Annotations: map[string]string{defaultClassAnnotation: isDefault},
		}}
	}
	if got := defaultClass([]*storagev1.StorageClass{class("old", 9, "true"), class("new", 1, "true"), class("newest", 0, "false")}); got.Name != "new" {
		t.Errorf("got %s", got.Name)
	}
	if got := defaultClass(nil); got != nil {
		t.Errorf("got %v", got)
	}
}
