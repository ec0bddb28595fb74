package codec

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"proa/internal/apis"
	"proa/internal/apiserver/negotiate"
)

// withText is a pod that has a text in an annotation and, of the same length, in
// front of and behind it.
func withText(text string) *corev1.Pod {
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{"a": "1", "b": text, "c": "2"}},
		Spec:       corev1.PodSpec{NodeName: "9", Hostname: text, Subdomain: "9"},
	}
}

// bodies are the forms in which a client can send a pod.
func bodies(t testing.TB, p *corev1.Pod) map[negotiate.Media][]byte {
	t.Helper()
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	var tree any
	if err := json.Unmarshal(text, &tree); err != nil {
		t.Fatal(err)
	}
	asYAML, err := yaml.Marshal(p)
	if err != nil {
		asYAML = text // what YAML has no characters for
	}
	asCBOR, err := direct.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	var asProtobuf bytes.Buffer
	if err := protobuf.NewSerializer(apis.Scheme(), apis.Scheme()).Encode(p, &asProtobuf); err != nil {
		t.Fatal(err)
	}
	return map[negotiate.Media][]byte{negotiate.JSON: text, negotiate.YAML: asYAML, negotiate.CBOR: asCBOR, negotiate.Protobuf: asProtobuf.Bytes()}
}

func TestQuantitiesThatTakeForEverAreRefused(t *testing.T) {
	tests := []struct {
		text    string
		refused bool
	}{
		{"1e-999999999", true},
		{"-1e-2147483647", true},
		{"0.0001E-99999", true},
		{strings.Repeat("0", 150) + "1e-9999", true},
		{strings.Repeat("1", 2500), true},
		{"1." + strings.Repeat("0", 2500) + "1Ei", true},
		{"1e-999", false},
		{"100m", false},
		{"1.5e6", false},
		{"5f3c91e2-1234-4c11-8e1e-99991e-99999", false}, // a name, not a number
		{"a1e-99999", false},
		{"1e-99999x", false},
		{strings.Repeat("abcdef0123456789", 200), false},
	}
	for _, tt := range tests {
		for m, body := range bodies(t, withText(tt.text)) {
			err := CheckQuantities(body, m, &corev1.Pod{})
			if (err != nil) != tt.refused {
				t.Errorf("%.40q in %s: %v", tt.text, m, err)
			}
			if err := CheckQuantities(body, m, &corev1.ConfigMap{}); err != nil {
				t.Errorf("%.40q in an object without quantities: %v", tt.text, err)
			}
		}
	}
}

func TestQuantitiesAreFoundHoweverTheyAreSpelled(t *testing.T) {
	for _, tt := range []struct {
		media negotiate.Media
		body  string
	}{
		{negotiate.JSON, `{"spec":{"overhead":{"cpu":"1\u0065-999999999"}}}`},
		{negotiate.JSON, `{"spec":{"overhead":{"cpu":"1e\u002D9\u00399999999"}}}`},
		{negotiate.JSON, `{"spec":{"overhead":{"cpu": 1e-999999999 }}}`},
		{negotiate.YAML, "spec: {overhead: {cpu: '1e-999999999'}}"},
		{negotiate.YAML, `spec: {overhead: {cpu: "1\x65-999999999"}}`},
		{negotiate.YAML, "spec: {overhead: {cpu: \"1e-\\\n  999999999\"}}"},
		{negotiate.YAML, "spec: {overhead: {cpu: !!binary MWUtOTk5OTk5OTk5}}"},
	} {
		if CheckQuantities([]byte(tt.body), tt.media, &corev1.Pod{}) == nil {
			t.Errorf("%s passes", tt.body)
		}
	}
}

// A text with a large positive exponent may be anything but a quantity.
func TestQuantitiesWithLargeExponentsAreRefused(t *testing.T) {
	tests := []struct {
		quantity string
		refused  bool
	}{
		{"1e999999999", true},
		{"1E+9999", true},
		{"-0.5e99999", true},
		{"1e999", false},
		{"1E", false},
		{"12345678", false},
	}
	for _, tt := range tests {
		cpu := corev1.ResourceList{"cpu": resource.MustParse(tt.quantity)}
		p := withText("5e12345")
		p.Spec.Containers = []corev1.Container{{Name: "a", Resources: corev1.ResourceRequirements{Limits: cpu}}}
		for m, body := range bodies(t, p) {
			if err := CheckQuantities(body, m, &corev1.Pod{}); err != nil {
				t.Errorf("%s in %s: %v", tt.quantity, m, err)
			}
			read, _, err := Decode(body, m, corev1.SchemeGroupVersion.WithKind("Pod"), &corev1.Pod{}, "Ignore")
			if err != nil {
				t.Fatal(err)
			}
			if err := CheckExponents(read, body, m); apierrors.IsBadRequest(err) != tt.refused {
				t.Errorf("%s in %s: %v", tt.quantity, m, err)
			}
			if m == negotiate.JSON || m == negotiate.YAML {
				if err := CheckPatch(body, m, &corev1.Pod{}); apierrors.IsBadRequest(err) != tt.refused {
					t.Errorf("%s in a patch in %s: %v", tt.quantity, m, err)
				}
			}
		}
	}
	for m, body := range bodies(t, withText(strings.Repeat("1", 20)+"e99999")) {
		if CheckQuantities(body, m, &corev1.Pod{}) == nil {
			t.Errorf("a long number with an exponent passes in %s", m)
		}
	}
}

// FuzzQuantity: what the check lets through is read in no time, in whatever form it
// came. The work is counted by the digits that the reader has to compute with.
func FuzzQuantity(f *testing.F) {
	for _, seed := range []string{"1", "100m", "1e-999999999", "1E+99999", ".5Gi", "-0e-1111", "+.1e-00000", "1e-\n9999", "0.000001e-999"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		text = strings.ToValidUTF8(text, "?")
		for m, body := range bodies(t, withText(text)) {
			if CheckQuantities(body, m, &corev1.Pod{}) != nil {
				continue
			}
			if exponent := strings.LastIndexAny(text, "eE"); len(text) > 2*mostDigits || exponent >= 0 && negativeExponent(text[exponent+1:]) > mostExponent {
				if strings.ContainsAny(text[:max(exponent, 0)], "0123456789.") && strings.Trim(text[:max(exponent, 0)], "0123456789.+-") == "" && strings.Trim(text, "0123456789.+-eE") == "" && strings.LastIndexAny(text[:max(exponent, 0)], "+-") <= 0 {
					t.Fatalf("%q passes in %s", text, m)
				}
				return
			}
			resource.ParseQuantity(text)
		}
	})
}

// negativeExponent is how many digits a negative exponent has, 0 of any other.
func negativeExponent(text string) int {
	digits, ok := strings.CutPrefix(text, "-")
	if !ok || strings.Trim(digits, "0123456789") != "" {
		return 0
	}
	return len(digits)
}

func TestProtobufCannotSayWhatJSONCannot(t *testing.T) {
	p := withText("a")
	p.Spec.Containers = []corev1.Container{{Name: "c", LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.IntOrString{Type: 7}}}}}}
	raw := &appsv1.ControllerRevision{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "ControllerRevision"}, Data: runtime.RawExtension{Raw: []byte("{7")}}
	for _, obj := range []apis.Object{p, raw} {
		var body bytes.Buffer
		if err := protobuf.NewSerializer(apis.Scheme(), apis.Scheme()).Encode(obj, &body); err != nil {
			t.Fatal(err)
		}
		into := reflect.New(reflect.TypeOf(obj).Elem()).Interface().(apis.Object)
		_, _, err := Decode(body.Bytes(), negotiate.Protobuf, obj.GetObjectKind().GroupVersionKind(), into, "")
		if !apierrors.IsBadRequest(err) {
			t.Errorf("%T: %v", obj, err)
		}
	}
}
