package apply

import (
	_ "embed"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/applyconfigurations"
	"sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"proa/internal/apis"
)

//go:embed schema.yaml
var furtherTypes typed.YAMLObject

// builtinConverter is the merge schema of the built-in kinds. Parsing it takes a while, so
// it is done once for the process.
var builtinConverter = sync.OnceValue(func() managedfields.TypeConverter {
	types, err := builtinTypes()
	if err != nil {
		panic(fmt.Sprintf("apply: %v", err)) // both halves are part of the program
	}
	return managedfields.NewSchemeTypeConverter(apis.Scheme(), &typed.Parser{Schema: schema.Schema{Types: types}})
})

// builtinTypes joins the types that client-go knows and those that it leaves out.
func builtinTypes() ([]schema.TypeDef, error) {
	known := applyconfigurations.NewTypeConverter(apis.Scheme())
	pod := &corev1.Pod{}
	pod.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	value, err := known.ObjectToTyped(pod)
	if err != nil {
		return nil, err
	}
	further, err := typed.NewParser(furtherTypes)
	if err != nil {
		return nil, err
	}
	return slices.Concat(value.Schema().Types, further.Schema.Types), nil
}
