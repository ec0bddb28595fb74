package jsonplan

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"

	"proa/internal/apis"
)

// agree decodes a document both ways: what the plan reads, the strict reader
// reads to the same, without a complaint.
func agree(t *testing.T, typ reflect.Type, doc []byte) bool {
	t.Helper()
	got, want := reflect.New(typ).Interface(), reflect.New(typ).Interface()
	if !Decode(doc, got) {
		return false
	}
	complaints, err := kjson.UnmarshalStrict(doc, want)
	if err != nil || len(complaints) > 0 {
		t.Fatalf("%s: the plan reads what the strict reader refuses: %v, %v\n%s", typ, err, complaints, doc)
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%s: got\n%#v, want\n%#v\n%s", typ, got, want, doc)
	}
	return true
}

func TestWhatIsWrittenIsReadAsTheStrictReaderDoes(t *testing.T) {
	read, total := 0, 0
	for i, typ := range apiTypes() {
		for seed := range int64(2) {
			v := reflect.New(typ).Interface()
			filler(seed + int64(i)*7).Fill(v)
			doc, err := json.Marshal(v)
			if err != nil {
				continue
			}
			total++
			if agree(t, typ, doc) {
				read++
			}
		}
	}
	if read < total*9/10 {
		t.Errorf("only %d of %d documents were read", read, total)
	}
}

func TestDecodeLeavesTheUnusualToOthers(t *testing.T) {
	pod := reflect.TypeFor[corev1.Pod]()
	tests := []struct {
		name, doc string
		read      bool
	}{
		{"an object with space around it", " {\n\t\"kind\" : \"Pod\" , \"spec\": {\"containers\": [ ] } } \n", true},
		{"escapes and other scripts", `{"metadata":{"name":"a\u00e9\n\ud83d\ude00","labels":{"ä":"ö\\"}}}`, true},
		{"null everywhere", `{"metadata":{"creationTimestamp":null,"labels":null,"finalizers":[null],"annotations":{"a":null}},"spec":{"containers":null,"hostNetwork":null,"priority":null,"securityContext":null}}`, true},
		{"quantities in all their forms", `{"spec":{"containers":[{"name":"c","resources":{"limits":{"cpu":1,"memory":"1Gi"},"requests":{"cpu":0.5}}}]}}`, true},
		{"an int or a string", `{"spec":{"containers":[{"name":"c","livenessProbe":{"httpGet":{"port":80}}},{"name":"d","livenessProbe":{"httpGet":{"port":"http"}}}]}}`, true},
		{"an unknown field", `{"spec":{"nodename":"x"}}`, false},
		{"a field of the wrong case", `{"Kind":"Pod"}`, false},
		{"a field that comes twice", `{"kind":"Pod","kind":"Pod"}`, false},
		{"a label that comes twice", `{"metadata":{"labels":{"a":"1","a":"1"}}}`, false},
		{"a resource that comes twice", `{"spec":{"overhead":{"cpu":"1","cpu":"1"}}}`, false},
		{"a number that is too large", `{"spec":{"priority":2147483648}}`, false},
		{"a number with a fraction", `{"spec":{"priority":1.0}}`, false},
		{"a number with a zero in front", `{"spec":{"priority":01}}`, false},
		{"a string for a number", `{"spec":{"priority":"1"}}`, false},
		{"a comma too many", `{"kind":"Pod",}`, false},
		{"a bracket too few", `{"spec":{"containers":[{"name":"c"}]}`, false},
		{"something behind it", `{} {}`, false},
		{"a control character", "{\"kind\":\"a\x01\"}", false},
		{"nothing", ``, false},
		{"a list", `[]`, false},
		{"a quantity that is none", `{"spec":{"overhead":{"cpu":"much"}}}`, false},
		{"a word that is none", `{"spec":{"hostNetwork":truely}}`, false},
		{"nesting without end", strings.Repeat(`{"spec":`, 300), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := agree(t, pod, []byte(tt.doc)); got != tt.read {
				t.Errorf("read is %v, want %v", got, tt.read)
			}
		})
	}
}

func TestMembersOfWhatWasWrittenArePassedOnAsTheyStand(t *testing.T) {
	p := &corev1.Pod{}
	filler(1).Fill(p)
	doc, err := Append(nil, p)
	if err != nil {
		t.Fatal(err)
	}
	var want map[string]json.RawMessage
	if err := json.Unmarshal(doc, &want); err != nil {
		t.Fatal(err)
	}
	members, ok := Members(doc)
	if !ok || len(members) != len(want) {
		t.Fatalf("%v: %d members, want %d", ok, len(members), len(want))
	}
	for _, m := range members {
		if string(m.Value) != string(want[m.Name]) {
			t.Errorf("%s is %s, want %s", m.Name, m.Value, want[m.Name])
		}
	}
	for _, doc := range []string{``, `[]`, `{`, `{"a"}`, `{"a":}`, `{"a":1`, `{"a":1}}`, `{"a":[}`, `{"a":"}`} {
		if members, ok := Members([]byte(doc)); ok {
			t.Errorf("%s has members %v", doc, members)
		}
	}
}

func FuzzDecodePod(f *testing.F) {
	for seed := range int64(8) {
		p := &corev1.Pod{}
		filler(seed).Fill(p)
		doc, err := json.Marshal(p)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(doc)
	}
	f.Add([]byte(`{"spec":{"containers":[{"name":"c","resources":{"limits":{"cpu":1e3}},"env":[{"value":"\ud800"}]}]}}`))
	f.Fuzz(func(t *testing.T, doc []byte) { agree(t, reflect.TypeFor[corev1.Pod](), doc) })
}

func BenchmarkDecodePod(b *testing.B) {
	doc, err := json.Marshal(usualPod())
	if err != nil {
		b.Fatal(err)
	}
	b.Run("plan", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(doc)))
		for b.Loop() {
			if !Decode(doc, new(corev1.Pod)) {
				b.Fatal("not read")
			}
		}
	})
	b.Run("strict", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(doc)))
		for b.Loop() {
			if _, err := kjson.UnmarshalStrict(doc, new(corev1.Pod)); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// apiTypes are all types of the API, in a fixed order.
func apiTypes() []reflect.Type {
	var types []reflect.Type
	seen := map[reflect.Type]bool{}
	for _, typ := range apis.Scheme().AllKnownTypes() {
		if !seen[typ] {
			seen[typ] = true
			types = append(types, typ)
		}
	}
	slices.SortFunc(types, func(a, b reflect.Type) int { return strings.Compare(a.String(), b.String()) })
	return types
}

func usualPod() *corev1.Pod {
	p := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}}
	p.Name, p.Namespace = "web-5d8f9c7b6d-x2x4z", "default"
	p.Labels = map[string]string{"app": "web", "tier": "backend", "pod-template-hash": "5d8f9c7b6d"}
	quantities := corev1.ResourceList{"cpu": resource.MustParse("100m"), "memory": resource.MustParse("128Mi")}
	c := corev1.Container{
		Name: "server", Image: "registry.example/team/server:v1.2.3", Command: []string{"/bin/server", "--listen=:8080"},
		Ports:        []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}, {Name: "metrics", ContainerPort: 9090}},
		Resources:    corev1.ResourceRequirements{Requests: quantities, Limits: quantities},
		VolumeMounts: []corev1.VolumeMount{{Name: "config", MountPath: "/etc/config"}, {Name: "data", MountPath: "/data"}},
	}
	for i := range 20 {
		c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("SETTING_%02d", i), Value: "a value of a usual length"})
	}
	p.Spec.Containers = []corev1.Container{c}
	return p
}
