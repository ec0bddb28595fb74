package resourceclaim

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
)

var spec = resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
	Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu"},
}}}}

func run(t *testing.T, test func(w *controllertest.World)) {
	t.Helper()
	controllertest.Run(t, func(w *controllertest.World) {
		defer w.Start(func(c controllers.Config) []controllertest.Runner {
			c.Metrics = w.Registry()
			return []controllertest.Runner{New(c)}
		})()
		test(w)
	})
}

func template(w *controllertest.World) {
	w.Create(&resourcev1.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: "template"},
		Spec: resourcev1.ResourceClaimTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"l": "1"}, Annotations: map[string]string{"a": "2"}}, Spec: spec,
		},
	})
}

// pod uses claims by their names, and makes those whose names end with a star.
func pod(w *controllertest.World, name string, claims ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "c", Image: "i"}}, TerminationGracePeriodSeconds: new(int64(0)),
	}}
	for _, claim := range claims {
		use := corev1.PodResourceClaim{Name: strings.TrimSuffix(claim, "*")}
		if use.Name == claim {
			use.ResourceClaimName = &claim
		} else {
			use.ResourceClaimTemplateName = new("template")
		}
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, use)
	}
	w.Create(p)
	w.Settle()
	return controllertest.Get[*corev1.Pod](w, name)
}

// allocate does to a claim what the scheduler does for pods.
func allocate(w *controllertest.World, claim string, pods ...*corev1.Pod) {
	controllertest.Change(w, claim, func(c *resourcev1.ResourceClaim) { c.Finalizers = append(c.Finalizers, resourcev1.Finalizer) })
	controllertest.ChangeStatus(w, claim, func(c *resourcev1.ResourceClaim) {
		c.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{{
			Request: "gpu", Driver: "gpu.example.com", Pool: "node", Device: "gpu-0",
		}}}}
		c.Status.Devices = []resourcev1.AllocatedDeviceStatus{{Driver: "gpu.example.com", Pool: "node", Device: "gpu-0"}}
		for _, p := range pods {
			c.Status.ReservedFor = append(c.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: p.Name, UID: p.UID})
		}
	})
}

func claims(w *controllertest.World) []*resourcev1.ResourceClaim {
	return controllertest.List[*resourcev1.ResourceClaim](w)
}

// only is the one claim there is.
func only(w *controllertest.World) *resourcev1.ResourceClaim {
	w.T.Helper()
	all := claims(w)
	if len(all) != 1 {
		w.T.Fatalf("%d claims", len(all))
	}
	return all[0]
}

func TestAPodGetsAClaimFromItsTemplate(t *testing.T) {
	run(t, func(w *controllertest.World) {
		p := pod(w, "web", "gpu*")
		if len(claims(w)) != 0 || len(p.Status.ResourceClaimStatuses) != 0 {
			t.Fatal("a claim without its template")
		}
		if all := w.Events(); len(all) == 0 || all[0] != `Warning FailedResourceClaimCreation PodResourceClaim gpu: resource claim template "template": resourceclaimtemplate.resource.k8s.io "template" not found` {
			t.Errorf("events %v", all)
		}
		template(w)
		w.Settle()
		claim := only(w)
		if !strings.HasPrefix(claim.Name, "web-gpu-") || len(claim.Name) != len("web-gpu-")+5 {
			t.Errorf("name %q", claim.Name)
		}
		if want := map[string]string{"a": "2", "resource.kubernetes.io/pod-claim-name": "gpu"}; !maps.Equal(claim.Annotations, want) {
			t.Errorf("annotations %v", claim.Annotations)
		}
		if claim.Labels["l"] != "1" || !metav1.IsControlledBy(claim, p) || claim.OwnerReferences[0].BlockOwnerDeletion != nil {
			t.Errorf("metadata %+v", claim.ObjectMeta)
		}
		if claim.Spec.Devices.Requests[0].Exactly.DeviceClassName != "gpu" {
			t.Errorf("spec %+v", claim.Spec)
		}
		s := controllertest.Get[*corev1.Pod](w, "web").Status.ResourceClaimStatuses
		if len(s) != 1 || s[0].Name != "gpu" || *s[0].ResourceClaimName != claim.Name {
			t.Errorf("pod status %+v", s)
		}
	})
}

func TestAPodsClaimsAreMadeWithOneWriteEach(t *testing.T) {
	run(t, func(w *controllertest.World) {
		template(w)
		w.Writes()
		pod(w, "web", "a*", "b*", "c*")
		want := map[string]int{"create resourceclaims": 3, "update pods/status": 1}
		if got := w.Writes(); !maps.Equal(got, want) {
			t.Errorf("wrote %v, want %v", got, want)
		}
		pod(w, "own", "its-own")
		if got := w.Writes(); len(got) != 0 {
			t.Errorf("wrote %v", got)
		}
	})
}

func TestAClaimIsMadeOnceWhicheverWriteFails(t *testing.T) {
	for n := range 2 {
		for _, carriedOut := range []bool{false, true} {
			controllertest.Run(t, func(w *controllertest.World) {
				start := func() func() {
					return w.Start(func(c controllers.Config) []controllertest.Runner { return []controllertest.Runner{New(c)} })
				}
				template(w)
				w.FailWrites(controllertest.DieAt(n, carriedOut))
				stop := start()
				pod(w, "web", "gpu*")
				stop()
				w.FailWrites(nil)
				defer start()()
				if s := controllertest.Get[*corev1.Pod](w, "web").Status.ResourceClaimStatuses; *s[0].ResourceClaimName != only(w).Name {
					t.Errorf("pod status %+v", s)
				}
			})
		}
	}
}

func TestALostClaimIsMadeAgain(t *testing.T) {
	run(t, func(w *controllertest.World) {
		template(w)
		pod(w, "web", "gpu*")
		first := only(w)
		controllertest.Delete[*resourcev1.ResourceClaim](w, first.Name)
		if s := controllertest.Get[*corev1.Pod](w, "web").Status.ResourceClaimStatuses; only(w).UID == first.UID || *s[0].ResourceClaimName != only(w).Name {
			t.Errorf("pod status %+v", s)
		}
	})
}

func TestLongNamesAreCutInProportion(t *testing.T) {
	for _, test := range []struct{ pod, use, want string }{
		{"web", "gpu", "web-gpu-"},
		{strings.Repeat("p", 60), strings.Repeat("u", 20), strings.Repeat("p", 41) + "-" + strings.Repeat("u", 13)},
		{strings.Repeat("p", 52), "use", strings.Repeat("p", 52) + "-use-"},
	} {
		if got := baseName(test.pod, test.use); got != test.want {
			t.Errorf("%s, %s: %s", test.pod, test.use, got)
		}
	}
}

func TestAClaimIsFreeAfterItsLastPod(t *testing.T) {
	run(t, func(w *controllertest.World) {
		w.Create(&resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "shared"}, Spec: spec})
		a, b := pod(w, "a", "shared"), pod(w, "b", "shared")
		allocate(w, "shared", a, b)
		w.Place(a, "node")
		w.Report(a, corev1.PodSucceeded, false)
		claim := only(w)
		if len(claim.Status.ReservedFor) != 1 || claim.Status.ReservedFor[0].UID != b.UID || claim.Status.Allocation == nil {
			t.Fatalf("with one pod left: %+v", claim.Status)
		}
		controllertest.Delete[*corev1.Pod](w, "b")
		claim = only(w)
		if claim.Status.Allocation != nil || len(claim.Status.ReservedFor) != 0 || len(claim.Status.Devices) != 0 || len(claim.Finalizers) != 0 {
			t.Errorf("with no pod left: %+v", claim)
		}
	})
}

func TestAReplacedPodHoldsNothing(t *testing.T) {
	run(t, func(w *controllertest.World) {
		w.Create(&resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: spec})
		p := pod(w, "a", "c")
		stranger := p.DeepCopy()
		stranger.UID = types.UID("another")
		allocate(w, "c", stranger)
		if claim := only(w); claim.Status.Allocation != nil || len(claim.Status.ReservedFor) != 0 {
			t.Errorf("%+v", claim.Status)
		}
	})
}

func TestOtherConsumersAreKept(t *testing.T) {
	run(t, func(w *controllertest.World) {
		w.Create(&resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: spec})
		allocate(w, "c", pod(w, "a", "c"))
		controllertest.ChangeStatus(w, "c", func(c *resourcev1.ResourceClaim) {
			c.Status.ReservedFor = append(c.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{APIGroup: "example.com", Resource: "things", Name: "x", UID: "1"})
		})
		controllertest.Delete[*corev1.Pod](w, "a")
		if s := only(w).Status; len(s.ReservedFor) != 1 || s.ReservedFor[0].Resource != "things" || s.Allocation == nil {
			t.Errorf("%+v", s)
		}
	})
}

func TestADeletedClaimGoesWhenNobodyUsesIt(t *testing.T) {
	run(t, func(w *controllertest.World) {
		w.Create(&resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: spec})
		allocate(w, "c", pod(w, "a", "c"))
		controllertest.Delete[*resourcev1.ResourceClaim](w, "c")
		if claim := only(w); claim.DeletionTimestamp == nil || claim.Status.Allocation == nil {
			t.Fatalf("in use: %+v", claim)
		}
		controllertest.Delete[*corev1.Pod](w, "a")
		if left := claims(w); len(left) != 0 {
			t.Errorf("left %+v", left[0])
		}
		w.Create(&resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "unused"}, Spec: spec})
		allocate(w, "unused")
		controllertest.Delete[*resourcev1.ResourceClaim](w, "unused")
		if left := claims(w); len(left) != 0 {
			t.Errorf("left %+v", left[0])
		}
	})
}

func TestAGeneratedClaimGoesWhenItsPodHasEnded(t *testing.T) {
	run(t, func(w *controllertest.World) {
		template(w)
		p := pod(w, "web", "gpu*")
		allocate(w, only(w).Name, p)
		w.Place(p, "node")
		w.Report(p, corev1.PodFailed, false)
		if left := claims(w); len(left) != 0 {
			t.Errorf("left %+v", left[0])
		}
		time.Sleep(time.Hour)
		w.Settle()
		if left := claims(w); len(left) != 0 {
			t.Errorf("came back: %+v", left[0])
		}
	})
}

func TestAPodThatWasBoundByHandReservesItsClaim(t *testing.T) {
	run(t, func(w *controllertest.World) {
		w.Create(&resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: spec})
		first := pod(w, "first", "c")
		allocate(w, "c", first)
		second := pod(w, "second", "c")
		if s := only(w).Status; len(s.ReservedFor) != 1 {
			t.Errorf("reserved for a pod without a node: %+v", s.ReservedFor)
		}
		w.Place(second, "node")
		w.Settle()
		if s := only(w).Status; !slices.ContainsFunc(s.ReservedFor, func(r resourcev1.ResourceClaimConsumerReference) bool { return r.UID == second.UID }) {
			t.Errorf("reserved for %+v", s.ReservedFor)
		}
	})
}

func TestExtendedResourcesAreGivenBack(t *testing.T) {
	run(t, func(w *controllertest.World) {
		one := corev1.ResourceList{"example.com/gpu": resource.MustParse("1")}
		w.Create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.PodSpec{
			Containers:                    []corev1.Container{{Name: "c", Image: "i", Resources: corev1.ResourceRequirements{Requests: one, Limits: one}}},
			TerminationGracePeriodSeconds: new(int64(0)),
		}})
		p := controllertest.Get[*corev1.Pod](w, "web")
		w.Create(&resourcev1.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "web-extended", OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID, Controller: new(true)}}},
			Spec:       spec,
		})
		allocate(w, "web-extended", p)
		controllertest.ChangeStatus(w, "web", func(p *corev1.Pod) {
			p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{
				ResourceClaimName: "web-extended",
				RequestMappings:   []corev1.ContainerExtendedResourceRequest{{ContainerName: "c", ResourceName: "example.com/gpu", RequestName: "gpu"}},
			}
		})
		if len(claims(w)) != 1 {
			t.Fatal("taken from a pod that may run")
		}
		w.Place(p, "node")
		w.Report(p, corev1.PodSucceeded, false)
		if left := claims(w); len(left) != 0 {
			t.Errorf("left %+v", left[0])
		}
	})
}

func TestClaimsAreMeasured(t *testing.T) {
	run(t, func(w *controllertest.World) {
		template(w)
		p := pod(w, "web", "gpu*")
		allocate(w, only(w).Name, p)
		w.Create(&resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "own"}, Spec: spec})
		extended := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "extended"}, Spec: spec}
		extended.Annotations = map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"}
		w.Create(extended)
		w.FailWrites(func(int) (before, after error) { return errors.New("not now"), nil })
		pod(w, "unlucky", "gpu*")
		w.FailWrites(nil)
		w.Measured(
			`dynamic_resource_allocation_resource_claims{admin_access="false",allocated="true",source="resource_claim_template"} 1`,
			`dynamic_resource_allocation_resource_claims{admin_access="false",allocated="false",source=""} 1`,
			`dynamic_resource_allocation_resource_claims{admin_access="false",allocated="false",source="extended_resource"} 1`,
			`dynamic_resource_allocation_resourceclaim_creates_total{admin_access="false",owner_api_group="",owner_api_kind="Pod",status="success"} 1`,
			`dynamic_resource_allocation_resourceclaim_creates_total{admin_access="false",owner_api_group="",owner_api_kind="Pod",status="failure"} 1`,
		)
	})
}
