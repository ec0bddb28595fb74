package registry

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestTheServerStampsTheTimesOfChanges(t *testing.T) {
	w := newWorld(t)
	volumes := schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumes"}
	pv := read[corev1.PersistentVolume](t, `{"metadata":{"name":"v"},"spec":{"capacity":{"storage":"1Gi"},"accessModes":["ReadWriteOnce"],"hostPath":{"path":"/v"}}}`)
	made := w.create(volumes, pv).(*corev1.PersistentVolume)
	now := func() metav1.Time { return metav1.NewTime(w.clock.Now()).Rfc3339Copy() }
	if at := made.Status.LastPhaseTransitionTime; at == nil || !at.Time.Equal(now().Time) {
		t.Fatalf("transition time %v after create, want %v", at, now())
	}
	w.clock.Step(time.Hour)
	next := made.DeepCopy()
	next.Status.Phase = corev1.VolumeAvailable
	obj, err := w.admin.Update(w.ctx, in(volumes, "v", "status"), next, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if at := obj.(*corev1.PersistentVolume).Status.LastPhaseTransitionTime; at == nil || !at.Time.Equal(now().Time) {
		t.Errorf("transition time %v after the phase changed, want %v", at, now())
	}
	requests := schema.GroupVersionResource{Group: "certificates.k8s.io", Version: "v1", Resource: "certificatesigningrequests"}
	res, ok := w.catalogue.Lookup(requests)
	if !ok || res.Stamp == nil {
		t.Fatal("certificate signing requests are not stamped")
	}
}

func TestAConditionalKindIsNotPutWithoutAResourceVersion(t *testing.T) {
	w := newWorld(t)
	leases := schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}
	lease := w.create(leases, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "l"}}).(*coordinationv1.Lease).DeepCopy()
	lease.Spec.HolderIdentity = new("me")
	lease.ResourceVersion = ""
	_, err := w.admin.Update(w.ctx, in(leases, "l"), lease.DeepCopy(), metav1.UpdateOptions{})
	wantError(t, err, `metadata.resourceVersion: Invalid value: 0: must be specified for an update`)
	w.create(configMaps, configMap("c", nil))
	_, err = w.admin.Update(w.ctx, in(configMaps, "c"), configMap("c", map[string]string{"k": "v"}), metav1.UpdateOptions{})
	wantError(t, err, "")
}

func TestGenerationCountsChangesOfKindsWithoutSpec(t *testing.T) {
	w := newWorld(t)
	slices := schema.GroupVersionResource{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"}
	slice := w.create(slices, &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"}, AddressType: discoveryv1.AddressTypeIPv4}).(*discoveryv1.EndpointSlice)
	generation := func(change func(*discoveryv1.EndpointSlice)) int64 {
		t.Helper()
		next := slice.DeepCopy()
		change(next)
		obj, err := w.admin.Update(w.ctx, in(slices, "s"), next, metav1.UpdateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		slice = obj.(*discoveryv1.EndpointSlice)
		return slice.Generation
	}
	if g := generation(func(s *discoveryv1.EndpointSlice) { s.Labels = map[string]string{"a": "b"} }); g != 2 {
		t.Errorf("generation %d after labels changed, want 2", g)
	}
	if g := generation(func(s *discoveryv1.EndpointSlice) {
		s.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}}
	}); g != 3 {
		t.Errorf("generation %d after endpoints changed, want 3", g)
	}
	templates := schema.GroupVersionResource{Version: "v1", Resource: "podtemplates"}
	template := w.create(templates, &corev1.PodTemplate{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Template: corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}}, Spec: pod("").Spec}}).(*corev1.PodTemplate).DeepCopy()
	template.Template.Spec.Containers[0].Image = "other"
	obj, err := w.admin.Update(w.ctx, in(templates, "p"), template, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if g := obj.GetGeneration(); g != 2 {
		t.Errorf("generation %d of a pod template whose template changed, want 2", g)
	}
}
