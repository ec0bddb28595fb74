package marker

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis/marker/extract"
)

func TestTheTableIsThatOfTheModules(t *testing.T) {
	want, err := extract.Modules()
	if err != nil {
		t.Fatal(err)
	}
	if want != table {
		t.Error("markers.txt is not what the modules of go.mod say: run go generate ./internal/apis/marker")
	}
}

func TestEveryTagIsUnderstood(t *testing.T) {
	known := strings.Fields(`required optional forbidden immutable fixed update maxItems maxLength maxBytes minimum maximum
		format monotonic enum listType listMapKey unique customUnique unionMember opaqueType eachVal eachKey
		ifEnabled ifDisabled subfield item ifMode modeDiscriminator`)
	for name, m := range byType() {
		tags := slices.Clone(m.own)
		for _, f := range m.fields {
			tags = append(tags, f...)
		}
		for _, tag := range tags {
			if strings.HasPrefix(tag, "@") {
				continue
			}
			word := tag[:strings.IndexFunc(tag+"=", func(r rune) bool { return r == '=' || r == '(' })]
			if !slices.Contains(known, word) {
				t.Errorf("%s: nothing knows the tag %q", name, tag)
			}
			if _, format, ok := strings.Cut(tag, "format="); ok && formats[format] == nil {
				t.Errorf("%s: nothing knows the format %q", name, format)
			}
		}
	}
}

func TestValuesOfAnEnumeration(t *testing.T) {
	if d := cmp.Diff([]string{"Always", "IfNotPresent", "Never"}, Values(reflect.TypeFor[corev1.PullPolicy]())); d != "" {
		t.Error(d)
	}
	if v := Values(reflect.TypeFor[corev1.ResourceName]()); v != nil {
		t.Errorf("resource names are %v", v)
	}
}

// off are gates that are off; others are on.
type off []string

func (o off) Enabled(name string) bool { return !slices.Contains(o, name) }

func TestFieldsOfGatesThatAreOffAreCleared(t *testing.T) {
	with := func() *corev1.Pod {
		p := &corev1.Pod{}
		p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: new("g")}
		p.Spec.Containers = []corev1.Container{{Name: "c", VolumeMounts: []corev1.VolumeMount{{Name: "v"}}}}
		p.Spec.EvictionResponders = []corev1.EvictionResponder{{Name: "example.com/x"}}
		return p
	}
	tests := []struct {
		name       string
		gates      off
		old        *corev1.Pod
		group, evs bool
	}{
		{"all stay while their gates are on", nil, nil, true, true},
		{"one goes on create", off{"GenericWorkload"}, nil, false, true},
		{"it goes on update of an object without", off{"GenericWorkload"}, &corev1.Pod{}, false, true},
		{"it stays on update of an object with", off{"GenericWorkload"}, with(), true, true},
		{"each gate is looked at alone", off{"GenericWorkload", "EvictionRequestAPI"}, &corev1.Pod{Spec: corev1.PodSpec{SchedulingGroup: &corev1.PodSchedulingGroup{}}}, true, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := with()
			if tt.old == nil {
				New(tt.gates).Drop(p, nil)
			} else {
				New(tt.gates).Drop(p, tt.old)
			}
			if (p.Spec.SchedulingGroup != nil) != tt.group || (len(p.Spec.EvictionResponders) > 0) != tt.evs {
				t.Errorf("left with %v and %v", p.Spec.SchedulingGroup, p.Spec.EvictionResponders)
			}
		})
	}
}

func TestStopSignalsOfAGateThatIsOffAreCleared(t *testing.T) {
	with := func(l *corev1.Lifecycle) *corev1.PodTemplate {
		t := &corev1.PodTemplate{}
		t.Template.Spec.InitContainers = []corev1.Container{{Name: "i", Lifecycle: l.DeepCopy()}}
		t.Template.Spec.Containers = []corev1.Container{{Name: "c", Lifecycle: l.DeepCopy()}}
		t.Template.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "e", Lifecycle: l.DeepCopy()}}}
		return t
	}
	hook := &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 1}}
	alone := &corev1.Lifecycle{StopSignal: new(corev1.SIGTERM)}
	beside := &corev1.Lifecycle{StopSignal: new(corev1.SIGTERM), PreStop: hook}
	tests := []struct {
		name      string
		gates     off
		is        *corev1.Lifecycle
		old, want *corev1.Lifecycle
	}{
		{"it stays while the gate is on", nil, alone, nil, alone},
		{"a lifecycle of nothing else goes with it", off{"ContainerStopSignals"}, alone, nil, nil},
		{"hooks stay", off{"ContainerStopSignals"}, beside, nil, &corev1.Lifecycle{PreStop: hook}},
		{"a lifecycle that was empty stays", off{"ContainerStopSignals"}, &corev1.Lifecycle{}, nil, &corev1.Lifecycle{}},
		{"it stays in an object that had one", off{"ContainerStopSignals"}, alone, beside, alone},
		{"it goes from an object that had none", off{"ContainerStopSignals"}, alone, &corev1.Lifecycle{PreStop: hook}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := with(tt.is)
			New(tt.gates).Drop(got, with(tt.old))
			if d := cmp.Diff(with(tt.want), got); d != "" {
				t.Errorf("differs (-want +got):\n%s", d)
			}
		})
	}
}

func TestRules(t *testing.T) {
	group := func(change func(*schedulingv1beta1.PodGroup)) *schedulingv1beta1.PodGroup {
		g := &schedulingv1beta1.PodGroup{Spec: schedulingv1beta1.PodGroupSpec{
			SchedulingPolicy: schedulingv1beta1.PodGroupSchedulingPolicy{Gang: &schedulingv1beta1.GangSchedulingPolicy{MinCount: 1}},
		}}
		change(g)
		return g
	}
	keep := func(*schedulingv1beta1.PodGroup) {}
	tests := []struct {
		name     string
		gates    Gates
		obj, old any
		want     []string
	}{
		{"a good object", off{}, group(keep), nil, nil},
		{"too large a number", off{}, group(func(g *schedulingv1beta1.PodGroup) { g.Spec.Priority = new(int32(2_000_000_000)) }), nil,
			[]string{"spec.priority: Invalid value: 2000000000: must be less than or equal to 1000000000"}},
		{"too many items", off{}, group(func(g *schedulingv1beta1.PodGroup) {
			g.Spec.ResourceClaims = make([]schedulingv1beta1.PodGroupResourceClaim, 5)
		}), nil, []string{"spec.resourceClaims: Too many: 5: must have at most 4 items"}},
		{"the same key twice", off{}, group(func(g *schedulingv1beta1.PodGroup) {
			g.Spec.ResourceClaims = []schedulingv1beta1.PodGroupResourceClaim{{Name: "a", ResourceClaimName: new("x")}, {Name: "a", ResourceClaimName: new("y")}}
		}), nil, []string{`spec.resourceClaims[1]: Duplicate value: {"name":"a","resourceClaimName":"y"}`}},
		{"a field whose gate is off", off{"TopologyAwareWorkloadScheduling"}, group(func(g *schedulingv1beta1.PodGroup) {
			g.Spec.SchedulingConstraints = &schedulingv1beta1.PodGroupSchedulingConstraints{}
		}), nil, []string{"spec.schedulingConstraints: Forbidden"}},
		{"an item that was bad before is let be", off{},
			group(func(g *schedulingv1beta1.PodGroup) {
				g.Labels = map[string]string{"a": "b"}
				g.Spec.ResourceClaims = []schedulingv1beta1.PodGroupResourceClaim{{Name: "A"}}
			}),
			group(func(g *schedulingv1beta1.PodGroup) {
				g.Spec.ResourceClaims = []schedulingv1beta1.PodGroupResourceClaim{{Name: "A"}}
			}), nil},
		{"a change of what is immutable", off{},
			group(func(g *schedulingv1beta1.PodGroup) { g.Spec.PriorityClassName = "b" }),
			group(func(g *schedulingv1beta1.PodGroup) { g.Spec.PriorityClassName = "a" }),
			[]string{"spec.priorityClassName: Invalid value: null: field is immutable"}},
		{"keys of several fields", off{}, &resourcev1.ResourceClaim{Status: resourcev1.ResourceClaimStatus{
			ReservedFor: []resourcev1.ResourceClaimConsumerReference{{UID: "u", Name: "a", Resource: "pods"}, {UID: "u", Name: "b", Resource: "pods"}},
		}}, nil, []string{`status.reservedFor[1]: Duplicate value: {"resource":"pods","name":"b","uid":"u"}`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, e := range New(tt.gates).Validate(tt.obj, tt.old) {
				if e.Type != field.ErrorTypeRequired {
					got = append(got, e.Error())
				}
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("differs (-want +got):\n%s", d)
			}
		})
	}
}

func BenchmarkPod(b *testing.B) {
	p := &corev1.Pod{}
	for range 3 {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "c", Image: "i", Env: make([]corev1.EnvVar, 5), VolumeMounts: make([]corev1.VolumeMount, 4)})
	}
	p.Spec.Volumes = make([]corev1.Volume, 5)
	old := p.DeepCopy()
	rules := New(off{"GenericWorkload"})
	b.Run("validate", func(b *testing.B) {
		for b.Loop() {
			rules.Validate(p, nil)
		}
	})
	b.Run("validate update", func(b *testing.B) {
		for b.Loop() {
			rules.Validate(p, old)
		}
	})
	b.Run("drop", func(b *testing.B) {
		for b.Loop() {
			rules.Drop(p, nil)
		}
	})
}
