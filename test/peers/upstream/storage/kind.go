package main

import (
	"fmt"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	crdv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdv1beta1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	servicev1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	servicev1beta1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1beta1"
	aggregator "k8s.io/kube-aggregator/pkg/apiserver/scheme"
)

// kind is how upstream keeps the objects of one.
type kind struct {
	resource  schema.GroupResource
	prefix    string // of keys, below the common one
	ttl       uint64
	codec     runtime.Codec
	newObject func() runtime.Object
	decode    func(*unstructured.Unstructured) (runtime.Object, error)
	show      func(runtime.Object) ([]byte, error)
}

// prefixes are those that kube-apiserver has for names of the past.
var prefixes = map[schema.GroupResource]string{
	{Resource: "replicationcontrollers"}:                "controllers",
	{Resource: "endpoints"}:                             "services/endpoints",
	{Resource: "nodes"}:                                 "minions",
	{Resource: "services"}:                              "services/specs",
	{Group: "networking.k8s.io", Resource: "ingresses"}: "ingress",
}

// kindOf finds out how objects of u's kind are kept.
func kindOf(u *unstructured.Unstructured) (*kind, error) {
	gvk := u.GroupVersionKind()
	plural, _ := meta.UnsafeGuessKindToResource(gvk)
	resource := plural.GroupResource()
	if resource.Resource == "endpointses" {
		resource.Resource = "endpoints"
	}
	k := &kind{resource: resource, prefix: resource.Group + "/" + resource.Resource}
	switch {
	case gvk.Group == crdv1.GroupName:
		s := runtime.NewScheme()
		install.Install(s)
		k.legacy(s, serializer.NewCodecFactory(s).LegacyCodec(crdv1beta1.SchemeGroupVersion, crdv1.SchemeGroupVersion), gvk)
	case gvk.Group == servicev1.GroupName:
		k.legacy(aggregator.Scheme, aggregator.Codecs.LegacyCodec(servicev1.SchemeGroupVersion, servicev1beta1.SchemeGroupVersion), gvk)
	case clientscheme.Scheme.Recognizes(gvk):
		return k, k.builtin(gvk)
	case strings.Contains(gvk.Group, "."):
		k.custom()
	default:
		return nil, fmt.Errorf("unknown kind %s", gvk)
	}
	return k, nil
}

// builtin keeps a kind as protobuf. The types of the version are those in memory, too.
func (k *kind) builtin(gvk schema.GroupVersionKind) error {
	k.prefix = k.resource.Resource
	if special, ok := prefixes[k.resource]; ok {
		k.prefix = special
	}
	if k.resource.Resource == "events" {
		k.ttl = eventTTL
	}
	codecs := clientscheme.Codecs
	info, ok := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	if !ok {
		return fmt.Errorf("no protobuf for %s", gvk)
	}
	gv := gvk.GroupVersion()
	k.codec = codecs.CodecForVersions(info.Serializer, codecs.UniversalDeserializer(), gv, gv)
	k.newObject = func() runtime.Object { return newOf(clientscheme.Scheme, gvk) }
	k.decode = func(u *unstructured.Unstructured) (runtime.Object, error) {
		obj := k.newObject()
		return obj, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, obj)
	}
	k.show = func(obj runtime.Object) ([]byte, error) { return runtime.Encode(codecs.LegacyCodec(gv), obj) }
	return nil
}

// legacy keeps a kind as JSON. In memory it is of the internal version.
func (k *kind) legacy(s *runtime.Scheme, codec runtime.Codec, gvk schema.GroupVersionKind) {
	k.codec = codec
	k.newObject = func() runtime.Object {
		return newOf(s, schema.GroupKind{Group: gvk.Group, Kind: gvk.Kind}.WithVersion(runtime.APIVersionInternal))
	}
	k.decode = func(u *unstructured.Unstructured) (runtime.Object, error) {
		data, err := u.MarshalJSON()
		if err != nil {
			return nil, err
		}
		return runtime.Decode(codec, data)
	}
	shown := serializer.NewCodecFactory(s).LegacyCodec(gvk.GroupVersion())
	k.show = func(obj runtime.Object) ([]byte, error) { return runtime.Encode(shown, obj) }
}

// custom keeps objects as they are.
func (k *kind) custom() {
	k.codec = unstructured.UnstructuredJSONScheme
	k.newObject = func() runtime.Object { return &unstructured.Unstructured{} }
	k.decode = func(u *unstructured.Unstructured) (runtime.Object, error) { return u, nil }
	k.show = func(obj runtime.Object) ([]byte, error) {
		return runtime.Encode(unstructured.UnstructuredJSONScheme, obj)
	}
}

// newOf returns a zero object of a kind that the scheme knows.
func newOf(s *runtime.Scheme, gvk schema.GroupVersionKind) runtime.Object {
	obj, err := s.New(gvk)
	if err != nil {
		panic(err)
	}
	return obj
}
