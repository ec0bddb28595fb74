package manifest

import (
	"context"
	"fmt"
	"reflect"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	admissionregistrationv1alpha1 "k8s.io/api/admissionregistration/v1alpha1"
	admissionregistrationv1beta1 "k8s.io/api/admissionregistration/v1beta1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	policyloader "k8s.io/apiserver/pkg/admission/plugin/policy/manifest/loader"
	webhookloader "k8s.io/apiserver/pkg/admission/plugin/webhook/manifest/loader"

	"proa/internal/apis"
	"proa/internal/apis/admissionregistration"
)

// decoder is strict. It knows the older versions of the kinds, so that they are
// refused for what they are.
var decoder = func() runtime.Decoder {
	scheme := runtime.NewScheme()
	utilruntime.Must(admissionregistrationv1.AddToScheme(scheme))
	utilruntime.Must(admissionregistrationv1beta1.AddToScheme(scheme))
	utilruntime.Must(admissionregistrationv1alpha1.AddToScheme(scheme))
	scheme.AddUnversionedTypes(metav1.SchemeGroupVersion, &metav1.List{}, &metav1.Status{})
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
}()

// ReadMutatingWebhooks reads a directory of MutatingWebhookConfigurations.
func ReadMutatingWebhooks(dir string) ([]*admissionregistrationv1.MutatingWebhookConfiguration, string, error) {
	return webhookloader.LoadManifests(dir, decoder, only[*admissionregistrationv1.MutatingWebhookConfiguration](&admissionregistration.MutatingWebhookConfigurations))
}

// ReadValidatingWebhooks reads a directory of ValidatingWebhookConfigurations.
func ReadValidatingWebhooks(dir string) ([]*admissionregistrationv1.ValidatingWebhookConfiguration, string, error) {
	return webhookloader.LoadManifests(dir, decoder, only[*admissionregistrationv1.ValidatingWebhookConfiguration](&admissionregistration.ValidatingWebhookConfigurations))
}

// ReadMutatingPolicies reads a directory of MutatingAdmissionPolicies and their bindings.
func ReadMutatingPolicies(dir string) ([]*admissionregistrationv1.MutatingAdmissionPolicy, []*admissionregistrationv1.MutatingAdmissionPolicyBinding, string, error) {
	return policyloader.LoadPolicyManifests(dir, decoder,
		either[*admissionregistrationv1.MutatingAdmissionPolicy](&admissionregistration.MutatingAdmissionPolicies),
		either[*admissionregistrationv1.MutatingAdmissionPolicyBinding](&admissionregistration.MutatingAdmissionPolicyBindings),
		func(b *admissionregistrationv1.MutatingAdmissionPolicyBinding) string { return b.Spec.PolicyName })
}

// ReadValidatingPolicies reads a directory of ValidatingAdmissionPolicies and their bindings.
func ReadValidatingPolicies(dir string) ([]*admissionregistrationv1.ValidatingAdmissionPolicy, []*admissionregistrationv1.ValidatingAdmissionPolicyBinding, string, error) {
	return policyloader.LoadPolicyManifests(dir, decoder,
		either[*admissionregistrationv1.ValidatingAdmissionPolicy](&admissionregistration.ValidatingAdmissionPolicies),
		either[*admissionregistrationv1.ValidatingAdmissionPolicyBinding](&admissionregistration.ValidatingAdmissionPolicyBindings),
		func(b *admissionregistrationv1.ValidatingAdmissionPolicyBinding) string { return b.Spec.PolicyName })
}

// only takes the objects of a kind out of a document, which may hold no others.
func only[T apis.Object](r *apis.Resource) func(runtime.Object) ([]T, error) {
	return func(document runtime.Object) ([]T, error) {
		found, ok, err := objectsOf[T](r, document)
		if !ok {
			return nil, fmt.Errorf("unsupported resource type %T", document)
		}
		return found, err
	}
}

// either takes the objects of one of two kinds out of a document.
func either[T apis.Object](r *apis.Resource) func(runtime.Object) ([]T, error) {
	return func(document runtime.Object) ([]T, error) {
		found, ok, err := objectsOf[T](r, document)
		if !ok {
			return nil, policyloader.ErrUnrecognizedType
		}
		return found, err
	}
}

// objectsOf returns the object of a kind, or those of its list, completed as the
// API completes new ones. Ok is false for other documents.
func objectsOf[T apis.Object](r *apis.Resource, document runtime.Object) (found []T, ok bool, err error) {
	if obj, is := document.(T); is {
		found = []T{obj}
	} else {
		if reflect.TypeOf(document) != reflect.TypeOf(r.NewList()) {
			return nil, false, nil
		}
		items, err := meta.ExtractList(document)
		if err != nil {
			return nil, true, err
		}
		for _, item := range items {
			found = append(found, item.(T))
		}
	}
	for _, obj := range found {
		if err := complete(r, obj); err != nil {
			return nil, true, err
		}
	}
	return found, true, nil
}

// complete fills in the defaults of an object and judges it.
func complete(r *apis.Resource, obj apis.Object) error {
	r.Default(obj)
	errs := validation.ValidateObjectMetaAccessor(obj, false, validation.NameIsDNSSubdomain, field.NewPath("metadata"))
	errs = append(errs, r.Validate(context.Background(), obj)...)
	if len(errs) > 0 {
		return fmt.Errorf("%s %q: %w", r.Kind, obj.GetName(), errs.ToAggregate())
	}
	return nil
}
