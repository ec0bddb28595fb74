package client

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"proa/internal/apis"
)

// codecs reads and writes the kinds of the program's scheme; what it does not
// know, a custom resource, it reads as unstructured.
type codecs struct{ runtime.NegotiatedSerializer }

func newCodecs() codecs { return codecs{serializer.NewCodecFactory(apis.Scheme()).WithoutConversion()} }

func (c codecs) DecoderToVersion(d runtime.Decoder, gv runtime.GroupVersioner) runtime.Decoder {
	return decoder{c.NegotiatedSerializer.DecoderToVersion(d, gv)}
}

type decoder struct{ runtime.Decoder }

func (d decoder) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	obj, gvk, err := d.Decoder.Decode(data, defaults, into)
	if !runtime.IsNotRegisteredError(err) {
		return obj, gvk, err
	}
	return unstructured.UnstructuredJSONScheme.Decode(data, defaults, nil)
}
