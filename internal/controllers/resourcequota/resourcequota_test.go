package resourcequota

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
)

func run(t *testing.T, test func(w *controllertest.World)) {
	t.Helper()
	controllertest.Run(t, func(w *controllertest.World) {
		defer w.Start(func(c controllers.Config) []controllertest.Runner {
			return []controllertest.Runner{New(c, w.Catalogue)}
		})()
		test(w)
	})
}

func quotaOf(w *controllertest.World, hard ...string) {
	list := corev1.ResourceList{}
	for _, h := range hard {
		name, value, _ := strings.Cut(h, "=")
		list[corev1.ResourceName(name)] = resource.MustParse(value)
	}
	w.Create(&corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: corev1.ResourceQuotaSpec{Hard: list}})
	w.Settle()
}

func want(w *controllertest.World, used string) {
	w.T.Helper()
	status := controllertest.Get[*corev1.ResourceQuota](w, "q").Status
	var out []string
	for _, name := range slices.Sorted(maps.Keys(status.Used)) {
		q := status.Used[name]
		out = append(out, fmt.Sprintf("%s=%s", name, q.String()))
	}
	if got := strings.Join(out, " "); got != used {
		w.T.Errorf("used %q, want %q", got, used)
	}
}

func pod(w *controllertest.World, name, cpu string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "c", Image: "i", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}},
	}}}}
	w.Create(p)
	return p
}

func TestUsageFollowsWhatIsThere(t *testing.T) {
	run(t, func(w *controllertest.World) {
		p := pod(w, "a", "100m")
		pod(w, "b", "200m")
		for _, name := range []string{"x", "y"} {
			w.Create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}})
		}
		quotaOf(w, "pods=10", "requests.cpu=1", "configmaps=5", "count/secrets=3", "count/widgets.example.com=2")
		want(w, "configmaps=2 count/secrets=0 pods=2 requests.cpu=300m")
		if hard := controllertest.Get[*corev1.ResourceQuota](w, "q").Status.Hard; len(hard) != 5 {
			t.Errorf("hard %v", hard)
		}
		w.Report(p, corev1.PodSucceeded, false)
		want(w, "configmaps=2 count/secrets=0 pods=1 requests.cpu=200m")
		controllertest.Delete[*corev1.ConfigMap](w, "x")
		want(w, "configmaps=1 count/secrets=0 pods=1 requests.cpu=200m")
		controllertest.Delete[*corev1.Pod](w, "b")
		want(w, "configmaps=1 count/secrets=0 pods=0 requests.cpu=0")
		w.Writes()
		controllertest.Delete[*corev1.Pod](w, "a")
		time.Sleep(time.Hour)
		w.Settle()
		if got := w.Writes(); len(got) != 0 {
			t.Errorf("wrote %v while nothing changed", got)
		}
	})
}

func TestAChangedQuotaAndAForeignStatusAreCorrected(t *testing.T) {
	run(t, func(w *controllertest.World) {
		pod(w, "a", "100m")
		quotaOf(w, "pods=10")
		controllertest.Change(w, "q", func(q *corev1.ResourceQuota) {
			q.Spec.Hard = corev1.ResourceList{corev1.ResourceServices: resource.MustParse("1")}
		})
		want(w, "services=0")
		controllertest.ChangeStatus(w, "q", func(q *corev1.ResourceQuota) {
			q.Status.Used = corev1.ResourceList{corev1.ResourceServices: resource.MustParse("7")}
		})
		want(w, "services=0")
	})
}

// Devices that a class serves as an extended resource are counted under its names, and
// once only when they are a pod's own.
func TestDevicesAreCountedAsWhatTheyServe(t *testing.T) {
	run(t, func(w *controllertest.World) {
		of := client.Of[*resourcev1.DeviceClass](w.API)
		class := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}, Spec: resourcev1.DeviceClassSpec{ExtendedResourceName: new("example.com/gpu")}}
		if _, err := of.Create(w.T.Context(), class); err != nil {
			t.Fatal(err)
		}
		asks := func(n int64) resourcev1.ResourceClaimSpec {
			return resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
				Name: "r", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: n},
			}}}}
		}
		w.Create(&resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: asks(2)})
		quotaOf(w, "requests.example.com/gpu=9", "requests.deviceclass.resource.kubernetes.io/gpu=9", "gpu.deviceclass.resource.k8s.io/devices=9",
			"requests.example.com/other=9", "count/resourceclaims.resource.k8s.io=9")
		const bare = "count/resourceclaims.resource.k8s.io=1 gpu.deviceclass.resource.k8s.io/devices=2 requests.deviceclass.resource.kubernetes.io/gpu=2 requests.example.com/gpu=2 requests.example.com/other=0"
		want(w, bare)

		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{TerminationGracePeriodSeconds: new(int64(30)), NodeName: "node", Containers: []corev1.Container{{
			Name: "c", Image: "i", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"example.com/gpu": resource.MustParse("3")}},
		}}}}
		w.Create(p)
		p = controllertest.Get[*corev1.Pod](w, "p")
		w.Create(&resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
			Name: "of-p", Annotations: map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", UID: p.UID, Controller: new(true)}},
		}, Spec: asks(3)})
		const both = "count/resourceclaims.resource.k8s.io=2 gpu.deviceclass.resource.k8s.io/devices=5 requests.deviceclass.resource.kubernetes.io/gpu=5 requests.example.com/gpu=5 requests.example.com/other=0"
		time.Sleep(10 * time.Minute)
		w.Settle()
		want(w, both)

		// A class that serves nothing any more.
		class, err := of.Get(w.T.Context(), "", "gpu")
		if err != nil {
			t.Fatal(err)
		}
		class = class.DeepCopy()
		class.Spec.ExtendedResourceName = nil
		if _, err := of.Update(w.T.Context(), class); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		w.Settle()
		want(w, "count/resourceclaims.resource.k8s.io=2 gpu.deviceclass.resource.k8s.io/devices=5 requests.deviceclass.resource.kubernetes.io/gpu=5 requests.example.com/gpu=3 requests.example.com/other=0")
	})
}

func TestAPodThatShouldBeGoneIsNotCounted(t *testing.T) {
	run(t, func(w *controllertest.World) {
		w.Create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "lost"}, Spec: corev1.PodSpec{
			NodeName: "lost", TerminationGracePeriodSeconds: new(int64(30)), Containers: []corev1.Container{{Name: "c", Image: "i"}},
		}})
		quotaOf(w, "pods=10", "count/pods=10")
		if _, err := client.Of[*corev1.Pod](w.API).Delete(w.T.Context(), controllertest.Namespace, "lost", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.Settle()
		want(w, "count/pods=1 pods=1")
		time.Sleep(10 * time.Minute)
		w.Settle()
		want(w, "count/pods=1 pods=0")
	})
}
