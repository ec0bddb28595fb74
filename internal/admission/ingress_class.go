package admission

import (
	"context"
	"slices"

	admissionv1 "k8s.io/api/admission/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/store"
)

// DefaultIngressClass gives ingresses that name no class the default one.
type DefaultIngressClass struct{ Store *store.Store }

func (DefaultIngressClass) Name() string { return "DefaultIngressClass" }

var (
	ingresses      = schema.GroupResource{Group: networkingv1.GroupName, Resource: "ingresses"}
	ingressClasses = schema.GroupResource{Group: networkingv1.GroupName, Resource: "ingressclasses"}
)

func (p DefaultIngressClass) Admit(_ context.Context, a *Attributes) error {
	if !a.is(admissionv1.Create, ingresses) {
		return nil
	}
	ingress, ok := a.Object.(*networkingv1.Ingress)
	if !ok || ingress.Spec.IngressClassName != nil {
		return nil
	}
	if _, old := ingress.Annotations["kubernetes.io/ingress.class"]; old {
		return nil
	}
	defaults := slices.DeleteFunc(all[*networkingv1.IngressClass](p.Store.Snapshot(), ingressClasses, ""), func(c *networkingv1.IngressClass) bool {
		return c.Annotations[networkingv1.AnnotationIsDefaultIngressClass] != "true"
	})
	if class, ok := newest(defaults); ok {
		name := class.Name
		ingress.Spec.IngressClassName = &name
	}
	return nil
}
