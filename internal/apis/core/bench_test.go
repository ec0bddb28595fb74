package core

import (
	"testing"

	"sigs.k8s.io/yaml"

	"proa/internal/apis"
)

// BenchmarkPodCreate is what one create costs below the codec: defaulting,
// preparation, validation and warnings.
func BenchmarkPodCreate(b *testing.B) {
	source := Pods.New()
	if err := yaml.UnmarshalStrict([]byte(goodPod), source); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		obj := source.DeepCopyObject().(apis.Object)
		Pods.Default(obj)
		Pods.PrepareCreate(obj)
		if errs := Pods.Validate(b.Context(), obj); len(errs) > 0 {
			b.Fatal(errs)
		}
		Pods.Warnings(obj, nil)
	}
}
