package main

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage/names"
)

// pods is the storage of pods, and their list of names for kubectl.
type pods struct{ *genericregistry.Store }

func (pods) ShortNames() []string { return []string{"po"} }

// install serves pods under /api/v1.
func install(server *genericapiserver.GenericAPIServer, storage generic.RESTOptionsGetter) error {
	resource := schema.GroupResource{Resource: "pods"}
	s := &genericregistry.Store{
		NewFunc:                   func() runtime.Object { return &corev1.Pod{} },
		NewListFunc:               func() runtime.Object { return &corev1.PodList{} },
		DefaultQualifiedResource:  resource,
		SingularQualifiedResource: schema.GroupResource{Resource: "pod"},
		CreateStrategy:            strategy{scheme, names.SimpleNameGenerator},
		UpdateStrategy:            strategy{scheme, names.SimpleNameGenerator},
		DeleteStrategy:            strategy{scheme, names.SimpleNameGenerator},
		TableConvertor:            rest.NewDefaultTableConvertor(resource),
	}
	if err := s.CompleteWithOptions(&generic.StoreOptions{RESTOptions: storage}); err != nil {
		return err
	}
	group := genericapiserver.NewDefaultAPIGroupInfo("", scheme, metav1.ParameterCodec, codecs)
	group.VersionedResourcesStorageMap["v1"] = map[string]rest.Storage{"pods": pods{s}}
	return server.InstallLegacyAPIGroup("/api", &group)
}

// strategy changes nothing and allows everything.
type strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
}

func (strategy) NamespaceScoped() bool                                     { return true }
func (strategy) PrepareForCreate(context.Context, runtime.Object)          {}
func (strategy) PrepareForUpdate(_ context.Context, _, _ runtime.Object)   {}
func (strategy) Canonicalize(runtime.Object)                               {}
func (strategy) AllowCreateOnUpdate(context.Context) bool                  { return false }
func (strategy) AllowUnconditionalUpdate(context.Context) bool             { return true }
func (strategy) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }

func (strategy) Validate(context.Context, runtime.Object) field.ErrorList { return nil }

func (strategy) ValidateUpdate(_ context.Context, _, _ runtime.Object) field.ErrorList { return nil }

func (strategy) WarningsOnUpdate(_ context.Context, _, _ runtime.Object) []string { return nil }
