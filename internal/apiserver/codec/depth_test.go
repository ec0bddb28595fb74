package codec

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"google.golang.org/protobuf/encoding/protowire"

	"proa/internal/apiserver/negotiate"
)

// definition is a body whose schema holds the messages that the fields lead to, each
// in the one before it.
func definition(fields []protowire.Number) []byte {
	gvk := apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition")
	// Written from its end to its start, so that it takes no time that grows with the square.
	var reversed []byte
	for _, number := range slices.Backward(slices.Concat([]protowire.Number{2, 7, 4, 1}, fields)) {
		head := protowire.AppendTag(nil, number, protowire.BytesType)
		head = protowire.AppendVarint(head, uint64(len(reversed)))
		slices.Reverse(head)
		reversed = append(reversed, head...)
	}
	slices.Reverse(reversed)
	return protowire.AppendBytes(protowire.AppendTag(newEnvelope(gvk), 2, protowire.BytesType), reversed)
}

func TestMessagesAreNestedOnlySoDeep(t *testing.T) {
	ways := map[string][]protowire.Number{
		"not": {28}, "allOf": {25}, "properties": {29, 2}, "items": {24, 1}, "additionalProperties": {30, 2}, "dependencies": {32, 2, 1},
	}
	gvk := apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition")
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			for times, deep := range map[int]bool{1000: false, 400_000: true} {
				_, _, err := Decode(definition(slices.Repeat(way, times)), negotiate.Protobuf, gvk, &apiextensionsv1.CustomResourceDefinition{}, metav1.FieldValidationStrict)
				if tooDeep := err != nil && strings.Contains(err.Error(), "exceeded max depth"); tooDeep != deep {
					t.Errorf("%d levels: %v", times, err)
				}
			}
		})
	}
}

func TestWhatGeneratedDecodersTakeHidesNoDepth(t *testing.T) {
	gvk := apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition")
	deep := definition(slices.Repeat([]protowire.Number{28}, 400_000))
	overlong := append([]byte{0x78}, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x03"...) // field 15 of the envelope: more than 64 bits
	body := slices.Concat(deep[:len(magic)], overlong, deep[len(magic):])
	if _, _, err := Decode(body, negotiate.Protobuf, gvk, &apiextensionsv1.CustomResourceDefinition{}, metav1.FieldValidationStrict); err == nil {
		t.Error("it was taken")
	}
}

func TestMostTypesHaveTheirDepth(t *testing.T) {
	for _, obj := range []runtime.Object{&corev1.Pod{}, &corev1.ConfigMap{}, &corev1.PodTemplate{}} {
		if n := nestingOf(reflect.TypeOf(obj).Elem()); n != nil {
			t.Errorf("%T is looked through: %v", obj, n)
		}
	}
}
