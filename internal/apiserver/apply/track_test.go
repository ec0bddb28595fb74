package apply

import (
	"encoding/json"
	"math/rand/v2"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	clocktesting "k8s.io/utils/clock/testing"

	"proa/internal/apis"
)

// random fills a pod spec with a choice of everything that merges differently:
// maps, keyed lists, sets, atomic values, quantities, empty structs.
func random(rng *rand.Rand, obj metav1.Object, spec *corev1.PodSpec) {
	word := func() string { return string(rune('a' + rng.IntN(4))) }
	maybe := func(f func()) {
		if rng.IntN(2) == 0 {
			f()
		}
	}
	texts := func() map[string]string {
		m := map[string]string{}
		for range rng.IntN(4) {
			m[word()] = word()
		}
		return m
	}
	maybe(func() { obj.SetLabels(texts()) })
	maybe(func() { obj.SetAnnotations(texts()) })
	maybe(func() { obj.SetFinalizers([]string{"example.com/" + word()}) })
	maybe(func() { spec.NodeSelector = texts() })
	maybe(func() { spec.SecurityContext = &corev1.PodSecurityContext{} })
	maybe(func() { spec.Tolerations = []corev1.Toleration{{Key: word(), Operator: corev1.TolerationOpExists}} })
	maybe(func() { spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: word()}} })
	maybe(func() {
		spec.Volumes = []corev1.Volume{{Name: word(), VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	})
	for _, name := range []string{"x", "y"} {
		maybe(func() {
			c := corev1.Container{Name: name, Image: word()}
			maybe(func() { c.Command = []string{word(), word()} })
			maybe(func() { c.Env = []corev1.EnvVar{{Name: word(), Value: word()}} })
			maybe(func() { c.Ports = []corev1.ContainerPort{{ContainerPort: int32(1 + rng.IntN(3))}} })
			maybe(func() {
				c.Ports = append(c.Ports, corev1.ContainerPort{ContainerPort: 9, Protocol: "UDP", Name: word()})
			})
			maybe(func() { c.Resources.Limits = corev1.ResourceList{"cpu": resource.MustParse("1")} })
			maybe(func() { c.Resources.Requests = corev1.ResourceList{"memory": resource.MustParse(word2(rng))} })
			maybe(func() {
				c.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt(rng.IntN(3))}}}
			})
			spec.Containers = append(spec.Containers, c)
		})
	}
}

func word2(rng *rand.Rand) string { return []string{"1Gi", "2Gi", "100M"}[rng.IntN(3)] }

func randomPod(rng *rand.Rand) apis.Object {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u"}}
	random(rng, p, &p.Spec)
	if rng.IntN(2) == 0 {
		p.Status.Conditions = []corev1.PodCondition{{Type: "Ready", Status: "True", LastTransitionTime: metav1.NewTime(time.Unix(int64(rng.IntN(3)), 0))}}
	}
	return p
}

func randomDeployment(rng *rand.Rand) apis.Object {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "d", UID: "u"}}
	random(rng, d, &d.Spec.Template.Spec)
	if n := int32(rng.IntN(3)); n > 0 {
		d.Spec.Replicas = &n
		d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: &intstr.IntOrString{IntVal: n}}
		d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
	}
	d.Status.Replicas = int32(rng.IntN(2))
	return d
}

func TestTrackingIsWhatStructuredMergeDiffDoes(t *testing.T) {
	kinds := []struct {
		name string
		res  *apis.Resource
		make func(*rand.Rand) apis.Object
	}{
		{"pods", &apis.Resource{Version: "v1", Kind: "Pod", Plural: "pods", New: apis.New[corev1.Pod],
			Subresources: []apis.Subresource{{Name: "status"}}}, randomPod},
		{"deployments", &apis.Resource{Group: "apps", Version: "v1", Kind: "Deployment", Plural: "deployments",
			New: apis.New[appsv1.Deployment], Subresources: []apis.Subresource{{Name: "status"}}}, randomDeployment},
	}
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			clock := clocktesting.NewFakePassiveClock(time.Unix(1e9, 0))
			managers := New(clock)
			rng := rand.New(rand.NewPCG(1, 2))
			for range 40 {
				old := managers.mustFor(t, k.res, "").empty()
				for range 4 {
					m := managers.mustFor(t, k.res, []string{"", "status"}[rng.IntN(2)])
					fast := k.make(rng)
					slow := fast.DeepCopyObject().(apis.Object)
					who := []string{"one", "two"}[rng.IntN(2)]
					if !m.track(fast, old, who) {
						t.Fatal("not covered")
					}
					m.updated(slow, old, who)
					got, _ := json.Marshal(fast.GetManagedFields())
					want, _ := json.Marshal(slow.GetManagedFields())
					if string(got) != string(want) {
						t.Fatalf("got  %s\nwant %s", got, want)
					}
					old = fast
					clock.SetTime(clock.Now().Add(time.Minute))
				}
			}
		})
	}
}

func TestCreationIsRecordedAsStructuredMergeDiffDoes(t *testing.T) {
	kinds := map[*apis.Resource]func(*rand.Rand) apis.Object{
		{Version: "v1", Kind: "Pod", Plural: "pods", New: apis.New[corev1.Pod], Subresources: []apis.Subresource{{Name: "status"}}}: randomPod,
		{Group: "apps", Version: "v1", Kind: "Deployment", Plural: "deployments", New: apis.New[appsv1.Deployment]}:                 randomDeployment,
	}
	for res, random := range kinds {
		t.Run(res.Plural, func(t *testing.T) {
			managers := New(clocktesting.NewFakePassiveClock(time.Unix(1e9, 0)))
			m := managers.mustFor(t, res, "")
			rng := rand.New(rand.NewPCG(3, 4))
			for range 400 { // many of a shape that was seen
				fast := random(rng)
				slow := fast.DeepCopyObject().(apis.Object)
				if !m.created(fast, "one") {
					t.Fatal("not covered")
				}
				m.updated(slow, m.empty(), "one")
				got, _ := json.Marshal(fast.GetManagedFields())
				want, _ := json.Marshal(slow.GetManagedFields())
				if string(got) != string(want) {
					t.Fatalf("got  %s\nwant %s", got, want)
				}
			}
			if n := len(m.shapes.records); n == 0 || n > 400 {
				t.Errorf("%d shapes", n)
			}
		})
	}
}

func TestACreatedListWithRepeatedKeysIsLeftToTheGeneralWay(t *testing.T) {
	managers := New(clocktesting.NewFakePassiveClock(time.Unix(1e9, 0)))
	m := managers.mustFor(t, &apis.Resource{Version: "v1", Kind: "Pod", Plural: "pods", New: apis.New[corev1.Pod]}, "")
	p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Ports: []corev1.ContainerPort{
		{ContainerPort: 80}, {ContainerPort: 80, Protocol: corev1.ProtocolTCP}}}}}} // TCP is the default
	if m.created(p, "one") {
		t.Error("covered")
	}
}

func (m *Managers) mustFor(t *testing.T, r *apis.Resource, subresource string) *Manager {
	t.Helper()
	made, err := m.For(apis.View{Resource: r}, subresource)
	if err != nil {
		t.Fatal(err)
	}
	return made
}
