package admission

import (
	"context"
	"slices"
	"sync"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/component-base/metrics/legacyregistry"
	podsecurity "k8s.io/pod-security-admission/admission"
	admissionapi "k8s.io/pod-security-admission/admission/api"
	"k8s.io/pod-security-admission/admission/api/load"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/metrics"
	"k8s.io/pod-security-admission/policy"

	"proa/internal/store"
)

// PodSecurity holds pods to the Pod Security Standards that the labels of their
// namespace name, and warns about templates that would make pods in breach.
type PodSecurity struct{ admission *podsecurity.Admission }

// NewPodSecurity returns the plugin. Its configuration is the document, or else c;
// without both it is upstream's default: privileged where a namespace has no labels.
func NewPodSecurity(s *store.Store, c *admissionapi.PodSecurityConfiguration, document []byte) (*PodSecurity, error) {
	if document != nil {
		var err error
		if c, err = load.LoadFromData(document); err != nil {
			return nil, err
		}
	}
	if c == nil {
		c = &admissionapi.PodSecurityConfiguration{Defaults: admissionapi.PodSecurityDefaults{
			Enforce: "privileged", EnforceVersion: "latest",
			Audit: "privileged", AuditVersion: "latest",
			Warn: "privileged", WarnVersion: "latest",
		}}
	}
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		return nil, err
	}
	lookup := podSecurityLookup{s}
	p := &PodSecurity{&podsecurity.Admission{
		Configuration: c, Evaluator: evaluator, Metrics: recorder(),
		PodSpecExtractor: podsecurity.DefaultPodSpecExtractor{}, NamespaceGetter: lookup, PodLister: lookup,
	}}
	if err := p.admission.CompleteConfiguration(); err != nil {
		return nil, err
	}
	return p, p.admission.ValidateConfiguration()
}

func (*PodSecurity) Name() string { return "PodSecurity" }

func (p *PodSecurity) Validate(ctx context.Context, a *Attributes) error {
	if a.Operation != admissionv1.Create && a.Operation != admissionv1.Update {
		return nil
	}
	gr := a.Resource.GroupResource()
	if !a.of(namespaces) && !p.admission.PodSpecExtractor.HasPodSpec(gr) {
		return nil
	}
	r := &api.AttributesRecord{
		Name: a.Name, Namespace: a.Namespace, Kind: a.Resource.GroupVersionKind(), Resource: a.Resource.GroupVersionResource(),
		Subresource: a.Subresource, Operation: a.Operation, Username: a.User.GetName(),
	}
	if a.Object != nil {
		r.Object = a.Object
	}
	if a.OldObject != nil {
		r.OldObject = a.OldObject
	}
	answer := p.admission.Validate(ctx, r)
	for _, text := range answer.Warnings {
		warning.AddWarning(ctx, "", text)
	}
	for key, value := range answer.AuditAnnotations {
		a.AddAuditAnnotation(api.AuditAnnotationPrefix+key, value)
	}
	if answer.Allowed {
		return nil
	}
	if answer.Result == nil {
		return a.forbidden(errNotAllowed)
	}
	return &apierrors.StatusError{ErrStatus: *answer.Result}
}

// podSecurityLookup reads namespaces and pods from the newest state.
type podSecurityLookup struct{ store *store.Store }

func (l podSecurityLookup) GetNamespace(_ context.Context, name string) (*corev1.Namespace, error) {
	return find[*corev1.Namespace](l.store.Snapshot(), namespaces, "", name)
}

func (l podSecurityLookup) ListPods(_ context.Context, namespace string) ([]*corev1.Pod, error) {
	return slices.Clip(all[*corev1.Pod](l.store.Snapshot(), pods, namespace)), nil
}

// recorder counts evaluations, exemptions and errors, as pod_security_*.
var recorder = sync.OnceValue(func() *metrics.PrometheusRecorder {
	r := metrics.NewPrometheusRecorder(api.GetAPIVersion())
	r.MustRegister(legacyregistry.MustRegister)
	return r
})
