package admissionregistration

import (
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"

	"proa/internal/apis/validate"
)

type webhook = admissionregistrationv1.MutatingWebhook

// reviewVersions are the versions of AdmissionReview that this server speaks.
var reviewVersions = []string{"v1", "v1beta1"}

// leniency says which faults of the stored configuration an update may keep.
type leniency struct {
	conditions, sideEffects, versions, names, selectors bool
	stored                                              stored
}

// forgive finds the faults of a stored configuration.
func forgive(webhooks, old []webhook) leniency {
	l := leniency{
		conditions: len(webhooks) == len(old),
		names:      len(old) != sets.New(names(old)...).Len(),
		stored:     stored{},
	}
	for i := range old {
		w := &old[i]
		if l.conditions && !equality.Semantic.DeepEqual(webhooks[i].MatchConditions, w.MatchConditions) {
			l.conditions = false
		}
		if w.SideEffects == nil || !harmless(*w.SideEffects) {
			l.sideEffects = true
		}
		if len(w.AdmissionReviewVersions) > 0 && !speaks(w.AdmissionReviewVersions) {
			l.versions = true
		}
		if len(validate.Selector(nil, w.NamespaceSelector))+len(validate.Selector(nil, w.ObjectSelector)) > 0 {
			l.selectors = true
		}
		l.stored.addConditions(w.MatchConditions)
	}
	return l
}

func names(webhooks []webhook) []string {
	out := make([]string, len(webhooks))
	for i := range webhooks {
		out[i] = webhooks[i].Name
	}
	return out
}

func harmless(s admissionregistrationv1.SideEffectClass) bool {
	return s == admissionregistrationv1.SideEffectClassNone || s == admissionregistrationv1.SideEffectClassNoneOnDryRun
}

func speaks(versions []string) bool {
	return slices.ContainsFunc(versions, func(v string) bool { return slices.Contains(reviewVersions, v) })
}

// validateWebhooks checks the webhooks of one configuration; old is nil on create.
func validateWebhooks(webhooks, old []webhook) field.ErrorList {
	var l leniency
	if old != nil {
		l = forgive(webhooks, old)
	}
	var errs field.ErrorList
	seen := sets.New[string]()
	for i := range webhooks {
		w, at := &webhooks[i], field.NewPath("webhooks").Index(i)
		errs = append(errs, validateWebhook(at, w, l)...)
		errs = append(errs, validateReviewVersions(at.Child("admissionReviewVersions"), w.AdmissionReviewVersions, l)...)
		if !l.names && w.Name != "" && seen.Has(w.Name) {
			errs = append(errs, field.Duplicate(at.Child("name"), w.Name))
		}
		seen.Insert(w.Name)
	}
	return errs
}

func validateWebhook(at *field.Path, w *webhook, l leniency) field.ErrorList {
	errs := validation.IsFullyQualifiedName(at.Child("name"), w.Name)
	for i := range w.Rules {
		errs = append(errs, validateRule(at.Child("rules").Index(i), &w.Rules[i])...)
	}
	errs = append(errs, optionalOneOf(at.Child("failurePolicy"), w.FailurePolicy, admissionregistrationv1.Ignore, admissionregistrationv1.Fail)...)
	errs = append(errs, optionalOneOf(at.Child("matchPolicy"), w.MatchPolicy, admissionregistrationv1.Exact, admissionregistrationv1.Equivalent)...)
	errs = append(errs, validateSideEffects(at.Child("sideEffects"), w.SideEffects, l)...)
	if t := w.TimeoutSeconds; t != nil && (*t > 30 || *t < 1) {
		errs = append(errs, field.Invalid(at.Child("timeoutSeconds"), *t, "the timeout value must be between 1 and 30 seconds"))
	}
	errs = append(errs, validateSelector(at.Child("namespaceSelector"), w.NamespaceSelector, l)...)
	errs = append(errs, validateSelector(at.Child("objectSelector"), w.ObjectSelector, l)...)
	errs = append(errs, optionalOneOf(at.Child("reinvocationPolicy"), w.ReinvocationPolicy,
		admissionregistrationv1.NeverReinvocationPolicy, admissionregistrationv1.IfNeededReinvocationPolicy)...)
	errs = append(errs, validateClient(at.Child("clientConfig"), &w.ClientConfig)...)
	if !l.conditions {
		errs = append(errs, validateConditions(at.Child("matchConditions"), w.MatchConditions, false, l.stored)...)
	}
	return errs
}

func validateSideEffects(at *field.Path, s *admissionregistrationv1.SideEffectClass, l leniency) field.ErrorList {
	allowed := []admissionregistrationv1.SideEffectClass{admissionregistrationv1.SideEffectClassNone, admissionregistrationv1.SideEffectClassNoneOnDryRun}
	if l.sideEffects {
		allowed = append(allowed, admissionregistrationv1.SideEffectClassSome, admissionregistrationv1.SideEffectClassUnknown)
	}
	if s == nil {
		texts := make([]string, len(allowed))
		for i := range allowed {
			texts[i] = string(allowed[i])
		}
		return field.ErrorList{field.Required(at, "must specify one of "+strings.Join(texts, ", "))}
	}
	return validate.OneOf(at, *s, allowed...)
}

func validateSelector(at *field.Path, s *metav1.LabelSelector, l leniency) field.ErrorList {
	if s == nil {
		return nil
	}
	return metavalidation.ValidateLabelSelector(s, metavalidation.LabelSelectorValidationOptions{AllowInvalidLabelValueInSelector: l.selectors}, at)
}

func validateClient(at *field.Path, c *admissionregistrationv1.WebhookClientConfig) field.ErrorList {
	switch s := c.Service; {
	case (c.URL == nil) == (s == nil):
		return field.ErrorList{field.Required(at, "exactly one of url or service is required")}
	case c.URL != nil:
		return webhookutil.ValidateWebhookURL(at.Child("url"), *c.URL, true)
	default:
		var port int32
		if s.Port != nil {
			port = *s.Port
		}
		// upstream passes the two names in this order
		return webhookutil.ValidateWebhookService(at.Child("service"), s.Name, s.Namespace, s.Path, port)
	}
}

func validateReviewVersions(at *field.Path, versions []string, l leniency) field.ErrorList {
	known := strings.Join(reviewVersions, ", ")
	if len(versions) == 0 {
		return field.ErrorList{field.Required(at, "must specify one of "+known)}
	}
	var errs field.ErrorList
	seen := sets.New[string]()
	for i, v := range versions {
		if seen.Has(v) {
			errs = append(errs, field.Invalid(at.Index(i), v, "duplicate version"))
			continue
		}
		seen.Insert(v)
		errs = append(errs, validate.Invalid(at.Index(i), v, validation.IsDNS1035Label(v))...)
	}
	if !l.versions && !speaks(versions) {
		errs = append(errs, field.Invalid(at, versions, "must include at least one of "+known))
	}
	return errs
}
