package simulate

import (
	"fmt"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
	"proa/internal/simulate/kwok"
)

// run simulates a fleet on virtual time, with stages if text has any.
func run(t *testing.T, fleet int, text string, test func(w *controllertest.World, s *Simulator)) {
	t.Helper()
	docs, err := kwok.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	controllertest.Run(t, func(w *controllertest.World) {
		w.Create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: corev1.NamespaceNodeLease}})
		var s *Simulator
		stop := w.Start(func(c controllers.Config) []controllertest.Runner {
			s, err = New(Config{
				Cache: c.Cache, Stages: docs.Stages, Fleet: Fleet{Nodes: fleet}, NodeIP: "192.0.2.1", Port: 10247,
				Recorder: c.Events("simulator"),
				As:       func(user string) (client.API, error) { return w.As(user, "system:masters"), nil },
			})
			if err != nil {
				t.Fatal(err)
			}
			return []controllertest.Runner{s}
		})
		defer stop()
		w.Settle()
		test(w, s)
	})
}

func pod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: controllertest.Namespace},
		Spec: corev1.PodSpec{NodeName: "sim-0", Containers: []corev1.Container{{
			Name: "c", Image: "nginx", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}},
		}}},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func phases(w *controllertest.World) string {
	out := ""
	for _, p := range controllertest.List[*corev1.Pod](w) {
		out += fmt.Sprintf("%s=%s ", p.Name, p.Status.Phase)
	}
	return out
}

func TestAFleetIsReadyAndItsPodsRun(t *testing.T) {
	run(t, 3, "", func(w *controllertest.World, s *Simulator) {
		nodes := controllertest.List[*corev1.Node](w)
		if len(nodes) != 3 || nodes[2].Spec.PodCIDR != "100.64.1.0/25" || nodes[1].Status.DaemonEndpoints.KubeletEndpoint.Port != 10247 ||
			conditionOf(nodes[0].Status.Conditions, corev1.NodeReady) != corev1.ConditionTrue {
			t.Fatalf("%d nodes, the last: %+v", len(nodes), nodes[len(nodes)-1])
		}
		w.Create(pod("a", func(p *corev1.Pod) { p.Finalizers = []string{"example.com/hold"} }))
		w.Create(pod("b"))
		w.Create(pod("elsewhere", func(p *corev1.Pod) { p.Spec.NodeName = "real" }))
		w.Create(pod("of-a-job", func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "j", UID: "u", Controller: ptr.To(true)}}
			p.Spec.RestartPolicy = corev1.RestartPolicyNever
		}))
		w.Settle()
		if got, want := phases(w), "a=Running b=Running elsewhere=Pending of-a-job=Succeeded "; got != want {
			t.Fatalf("%s, want %s", got, want)
		}
		a, b := controllertest.Get[*corev1.Pod](w, "a"), controllertest.Get[*corev1.Pod](w, "b")
		if a.Status.PodIP == b.Status.PodIP || b.Status.HostIP != "192.0.2.1" || !ready(a) || a.Status.ContainerStatuses[0].State.Running == nil {
			t.Errorf("%+v", a.Status)
		}
		controllertest.Delete[*corev1.Pod](w, "b")
		controllertest.Delete[*corev1.Pod](w, "a")
		w.Settle()
		if got, want := phases(w), "a=Failed elsewhere=Pending of-a-job=Succeeded "; got != want {
			t.Fatalf("after deletion %s, want %s", got, want)
		}
	})
}

func TestAPodThatWasMarkedNotReadyIsReadyAgain(t *testing.T) {
	run(t, 1, "", func(w *controllertest.World, s *Simulator) {
		w.Create(pod("a"))
		w.Settle()
		controllertest.ChangeStatus(w, "a", func(p *corev1.Pod) {
			for i := range p.Status.Conditions {
				p.Status.Conditions[i].Status = corev1.ConditionFalse
			}
		})
		w.Settle()
		if a := controllertest.Get[*corev1.Pod](w, "a"); !ready(a) {
			t.Errorf("%+v", a.Status.Conditions)
		}
	})
}

func TestLeasesAreRenewedFourTimesInTheirDuration(t *testing.T) {
	run(t, 5, "", func(w *controllertest.World, s *Simulator) {
		time.Sleep(10 * time.Second) // all have been renewed once, at a time of their own
		w.Settle()
		first := controllertest.List[*coordinationv1.Lease](w)
		if len(first) != 5 || first[0].OwnerReferences[0].Name != "sim-0" {
			t.Fatalf("%d leases", len(first))
		}
		time.Sleep(10 * time.Second)
		w.Settle()
		for i, l := range controllertest.List[*coordinationv1.Lease](w) {
			if passed := l.Spec.RenewTime.Sub(first[i].Spec.RenewTime.Time); passed != 10*time.Second {
				t.Errorf("lease %s was renewed after %s", l.Name, passed)
			}
		}
		controllertest.Delete[*corev1.Node](w, "sim-3")
		w.Settle()
		if err := client.Of[*coordinationv1.Lease](w.API).DeleteCollection(w.T.Context(), corev1.NamespaceNodeLease, metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "metadata.name=sim-3"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		w.Settle()
		if left := controllertest.List[*coordinationv1.Lease](w); len(left) != 4 {
			t.Errorf("%d leases of 4 nodes", len(left))
		}
	})
}

const delayed = `
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: start}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
    - {key: .metadata.deletionTimestamp, operator: DoesNotExist}
    - {key: .status.phase, operator: In, values: [Pending]}
  weight: 1
  delay:
    durationMilliseconds: 1000
    durationFrom: {expressionFrom: '.metadata.annotations["delay"]'}
  next:
    event: {type: Normal, reason: Began, message: it begins}
    statusTemplate: |
      phase: Running
      startTime: {{ Now | Quote }}
      podIP: {{ PodIPWith .spec.nodeName false .metadata.uid .metadata.name .metadata.namespace | Quote }}
      containerStatuses:
      {{ range .spec.containers }}
      - {name: {{ .name | Quote }}, image: {{ .image | upper | Quote }}, imageID: "", ready: true, restartCount: 0}
      {{ end }}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: fail}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchLabels: {fails: "true"}
    matchExpressions:
    - cel: {expression: 'self.status.phase == "Running" && !("spared" in self.metadata.annotations)'}
  delay: {durationMilliseconds: 5000}
  steps:
  - finalizers: {add: [{value: example.com/autopsy}]}
  - patch: {subresource: status, root: status, type: merge, template: 'phase: Failed'}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: claims}
spec:
  resourceRef: {kind: PersistentVolumeClaim}
  selector:
    matchExpressions: [{jq: {key: .status.phase, operator: NotIn, values: [Bound]}}]
  next:
    patches:
    - {subresource: status, root: status, template: 'phase: Bound'}
`

func TestStagesTakeTheirTime(t *testing.T) {
	run(t, 1, delayed, func(w *controllertest.World, s *Simulator) {
		w.Create(pod("plain"))
		w.Create(pod("slow", func(p *corev1.Pod) { p.Annotations = map[string]string{"delay": "10s"} }))
		w.Create(pod("bad", func(p *corev1.Pod) { p.Labels = map[string]string{"fails": "true"} }))
		w.Create(pod("spared", func(p *corev1.Pod) {
			p.Labels, p.Annotations = map[string]string{"fails": "true"}, map[string]string{"spared": ""}
		}))
		w.Create(&corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "claim", Namespace: controllertest.Namespace},
			Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}},
		})
		for _, step := range []struct {
			after time.Duration
			want  string
		}{
			{0, "bad=Pending plain=Pending slow=Pending spared=Pending "},
			{999 * time.Millisecond, "bad=Pending plain=Pending slow=Pending spared=Pending "},
			{time.Second, "bad=Running plain=Running slow=Pending spared=Running "},
			{5 * time.Second, "bad=Failed plain=Running slow=Pending spared=Running "},
			{5 * time.Second, "bad=Failed plain=Running slow=Running spared=Running "},
		} {
			time.Sleep(step.after)
			w.Settle()
			if got := phases(w); got != step.want {
				t.Fatalf("after %s: %s, want %s", step.after, got, step.want)
			}
		}
		p := controllertest.Get[*corev1.Pod](w, "plain")
		if p.Status.PodIP == "" || p.Status.ContainerStatuses[0].Image != "NGINX" {
			t.Errorf("%+v", p.Status)
		}
		if bad := controllertest.Get[*corev1.Pod](w, "bad"); len(bad.Finalizers) != 1 {
			t.Errorf("finalizers %v", bad.Finalizers)
		}
		if c := controllertest.Get[*corev1.PersistentVolumeClaim](w, "claim"); c.Status.Phase != corev1.ClaimBound {
			t.Errorf("claim is %s", c.Status.Phase)
		}
		if events := w.Events(); len(events) != 4 {
			t.Errorf("events %v", events)
		}
	})
}

func TestAPodThatChangesWhileItWaitsIsNotDelayedAnew(t *testing.T) {
	run(t, 1, delayed, func(w *controllertest.World, s *Simulator) {
		w.Create(pod("a"))
		w.Settle()
		time.Sleep(900 * time.Millisecond)
		controllertest.Change(w, "a", func(p *corev1.Pod) { p.Labels = map[string]string{"new": "label"} })
		time.Sleep(100 * time.Millisecond)
		w.Settle()
		if got := phases(w); got != "a=Running " {
			t.Error(got)
		}
	})
}

func TestAFleetShrinksAndANodeOfTheUserIsServed(t *testing.T) {
	run(t, 2, "", func(w *controllertest.World, s *Simulator) {
		w.Create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "kwok-node", Annotations: map[string]string{Marked: Fake}}})
		w.Create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "real"}})
		w.Settle()
		got := ""
		for _, n := range controllertest.List[*corev1.Node](w) {
			got += fmt.Sprintf("%s=%s ", n.Name, conditionOf(n.Status.Conditions, corev1.NodeReady))
		}
		if want := "kwok-node=True real= sim-0=True sim-1=True "; got != want {
			t.Errorf("%s, want %s", got, want)
		}
		s.config.Fleet.Nodes = 1
		if err := s.makeFleet(w.T.Context()); err != nil {
			t.Fatal(err)
		}
		if nodes := controllertest.List[*corev1.Node](w); len(nodes) != 3 {
			t.Errorf("%d nodes", len(nodes))
		}
	})
}

func TestDocumentsThatCannotWorkAreRefused(t *testing.T) {
	const head = "apiVersion: kwok.x-k8s.io/v1alpha1\nkind: Stage\nmetadata: {name: s}\nspec: {resourceRef: {kind: Pod}, selector: {matchLabels: {a: b}}, "
	for name, text := range map[string]string{
		"an expression that does not parse": head + `weightFrom: {jq: {expression: "..["}}}`,
		"an unknown operator":               "apiVersion: kwok.x-k8s.io/v1alpha1\nkind: Stage\nmetadata: {name: s}\nspec: {resourceRef: {kind: Pod}, selector: {matchExpressions: [{key: .a, operator: Like}]}}",
		"a template that does not parse":    head + `next: {statusTemplate: "{{ .a "}}`,
		"cel of another object":             head + `delay: {durationFrom: {cel: {expression: "other.a"}}}}`,
		"an unknown patch":                  head + `steps: [{patch: {type: magic}}]}`,
	} {
		docs, err := kwok.Parse(text)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err := New(Config{Cache: client.NewCache(nil), Stages: docs.Stages}); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	for name, text := range map[string]string{
		"an unknown kind":     "apiVersion: kwok.x-k8s.io/v1alpha1\nkind: Stages\nmetadata: {name: a}",
		"an unknown field":    head + "delays: {}}",
		"another group":       "apiVersion: v1\nkind: Pod\nmetadata: {name: a}",
		"a document unnamed":  "apiVersion: kwok.x-k8s.io/v1alpha1\nkind: Stage\nspec: {}",
		"text that is no map": "- a\n- b",
	} {
		if _, err := kwok.Parse(text); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}
