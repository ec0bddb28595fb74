package policy

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	cached "k8s.io/apiserver/pkg/admission/plugin/authorizer"
	celmetrics "k8s.io/apiserver/pkg/admission/plugin/policy/validating/metrics"
	"k8s.io/apiserver/pkg/warning"

	"proa/internal/admission"
	"proa/internal/admission/review"
)

// Validating judges objects by validating policies.
type Validating struct {
	config Config
	hooks  hooks[*validatingPolicy]
}

func (*Validating) Name() string { return "ValidatingAdmissionPolicy" }

// Run follows the policies of files until ctx ends.
func (p *Validating) Run(ctx context.Context) error { return p.hooks.static.Run(ctx) }

const (
	failureAnnotation = "validation.policy.admission.k8s.io/validation_failure"
	maxFailures       = 50        // in the annotation
	maxAnnotation     = 10 * 1024 // bytes
)

// failure is a validation that failed, as the audit event shows it.
type failure struct {
	Message           string                                     `json:"message"`
	Policy            string                                     `json:"policy"`
	Binding           string                                     `json:"binding"`
	ExpressionIndex   int                                        `json:"expressionIndex"`
	ValidationActions []admissionregistrationv1.ValidationAction `json:"validationActions"`
}

// denial is a reason to refuse the write.
type denial struct {
	policy  *policy
	binding *binding // nil: the policy itself is broken
	message string
	reason  metav1.StatusReason
}

// outcome collects what the policies say about one write.
type outcome struct {
	denials  []denial
	failures []failure
	notes    []note
}

// note is an audit annotation. Different values of one key are listed together.
type note struct {
	policy, key string
	values      []string
}

// Validate runs every policy through every binding that matches. All are run;
// the first that denies decides what the client is told.
func (p *Validating) Validate(ctx context.Context, a *admission.Attributes) error {
	if p.hooks.idle(p.config.Store, a.Resource) {
		return nil
	}
	sn := p.config.Store.Snapshot()
	all := p.hooks.of(sn, a.Resource)
	if len(all) == 0 {
		return nil
	}
	r, out := review.New(a, sn, p.config.Catalogue), &outcome{}
	authorizer := cached.NewCachingAuthorizer(p.config.Authorizer)
	failed := func(p *policy, b *binding, err error) {
		if !p.failsOpen() {
			out.denials = append(out.denials, denial{policy: p, binding: b, message: notConfigured(b, err).Error()})
		}
	}
	err := runs(&p.config, r, all, failed, func(v *validatingPolicy, b *binding, version review.Version, params []runtime.Object) error {
		shown, err := r.Show(version)
		if err != nil {
			failed(&v.policy, b, fmt.Errorf("failed to convert object version: %w", err))
			return nil
		}
		namespace, err := r.NamespaceObject()
		if err != nil {
			return err
		}
		for _, param := range params {
			out.add(ctx, v, b, v.evaluate(ctx, version, shown, param, namespace, authorizer))
		}
		return nil
	})
	if err != nil {
		return err
	}
	out.annotate(a)
	return out.status(a)
}

// add acts on one evaluation as the binding says.
func (o *outcome) add(ctx context.Context, p *validatingPolicy, b *binding, e evaluation) {
	for i, d := range e.decisions {
		kind := celmetrics.ErrorType(d.err)
		if !d.denied {
			if d.err != nil {
				celmetrics.Metrics.ObserveAdmission(ctx, d.took, p.name, b.name, kind)
			}
			continue
		}
		for _, action := range b.actions {
			switch action {
			case admissionregistrationv1.Deny:
				o.denials = append(o.denials, denial{&p.policy, b, d.message, d.reason})
				celmetrics.Metrics.ObserveRejection(ctx, d.took, p.name, b.name, kind)
			case admissionregistrationv1.Audit:
				o.failures = append(o.failures, failure{d.message, p.name, b.name, i, b.actions})
				celmetrics.Metrics.ObserveAudit(ctx, d.took, p.name, b.name, kind)
			case admissionregistrationv1.Warn:
				warning.AddWarning(ctx, "", fmt.Sprintf("Validation failed for ValidatingAdmissionPolicy '%s' with binding '%s': %s", p.name, b.name, d.message))
				celmetrics.Metrics.ObserveWarn(ctx, d.took, p.name, b.name, kind)
			}
		}
	}
	for _, n := range e.annotations {
		if n.err != "" {
			o.denials = append(o.denials, denial{policy: &p.policy, binding: b, message: n.err})
			continue
		}
		o.note(p.name, n.key, n.value[:min(len(n.value), maxAnnotation)])
	}
}

func (o *outcome) note(policy, key, value string) {
	for i := range o.notes {
		if n := &o.notes[i]; n.policy == policy && n.key == key {
			if !slices.Contains(n.values, value) {
				n.values = append(n.values, value)
			}
			return
		}
	}
	o.notes = append(o.notes, note{policy, key, []string{value}})
}

func (o *outcome) annotate(a *admission.Attributes) {
	for _, n := range o.notes {
		a.AddAuditAnnotation(n.policy+"/"+n.key, strings.Join(n.values, ", "))
	}
	if len(o.failures) == 0 {
		return
	}
	if data, err := json.Marshal(o.failures[:min(len(o.failures), maxFailures)]); err == nil {
		a.AddAuditAnnotation(failureAnnotation, string(data))
	}
}

// status is the error of the first denial, nil when there is none.
func (o *outcome) status(a *admission.Attributes) error {
	if len(o.denials) == 0 {
		return nil
	}
	d := o.denials[0]
	message := fmt.Sprintf("ValidatingAdmissionPolicy '%s' denied request: %s", d.policy.name, d.message)
	if d.binding != nil {
		message = fmt.Sprintf("ValidatingAdmissionPolicy '%s' with binding '%s' denied request: %s", d.policy.name, d.binding.name, d.message)
	}
	refused := a.Forbidden(fmt.Errorf("%s", message))
	refused.ErrStatus.Reason = d.reason
	if d.reason == "" {
		refused.ErrStatus.Reason = metav1.StatusReasonInvalid
	}
	refused.ErrStatus.Code = codeOf(refused.ErrStatus.Reason)
	refused.ErrStatus.Details.Causes = append(refused.ErrStatus.Details.Causes, metav1.StatusCause{Message: message})
	return refused
}

func codeOf(r metav1.StatusReason) int32 {
	switch r {
	case metav1.StatusReasonForbidden:
		return http.StatusForbidden
	case metav1.StatusReasonUnauthorized:
		return http.StatusUnauthorized
	case metav1.StatusReasonRequestEntityTooLarge:
		return http.StatusRequestEntityTooLarge
	}
	return http.StatusUnprocessableEntity
}
