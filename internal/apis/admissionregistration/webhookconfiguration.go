// Package admissionregistration declares the kinds of the
// admissionregistration.k8s.io group, v1: who judges and completes the writes of
// others, as webhooks or as policies in CEL.
package admissionregistration

import (
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis"
)

// Resources returns every kind of the group.
func Resources() []*apis.Resource {
	return []*apis.Resource{
		&MutatingWebhookConfigurations, &ValidatingWebhookConfigurations,
		&ValidatingAdmissionPolicies, &ValidatingAdmissionPolicyBindings,
		&MutatingAdmissionPolicies, &MutatingAdmissionPolicyBindings,
	}
}

const (
	group   = admissionregistrationv1.GroupName
	version = "v1"
)

var apiMachinery = []string{"api-extensions"}

var webhookColumns = []metav1.TableColumnDefinition{
	apis.NameColumn,
	apis.Column("Webhooks", "integer", "Webhooks indicates the number of webhooks registered in this configuration"),
	apis.AgeColumn,
}

// MutatingWebhookConfigurations is the v1 mutatingwebhookconfigurations resource.
var MutatingWebhookConfigurations = apis.Resource{
	Group: group, Version: version, Kind: "MutatingWebhookConfiguration", Plural: "mutatingwebhookconfigurations", Scope: apis.Cluster,
	ChecksNameOnUpdate: true,
	AnyFinalizer:       true,
	Categories:         apiMachinery, ConditionalUpdate: true,
	New: apis.New[admissionregistrationv1.MutatingWebhookConfiguration], NewList: apis.NewList[admissionregistrationv1.MutatingWebhookConfigurationList],
	Default: apis.On(func(c *admissionregistrationv1.MutatingWebhookConfiguration) {
		for i := range c.Webhooks {
			w := &c.Webhooks[i]
			setDefault(&w.FailurePolicy, admissionregistrationv1.Fail)
			setDefault(&w.TimeoutSeconds, defaultTimeout)
			setDefault(&w.ReinvocationPolicy, admissionregistrationv1.NeverReinvocationPolicy)
			defaultMatching(&w.MatchPolicy, &w.NamespaceSelector, &w.ObjectSelector)
			defaultClient(&w.ClientConfig, w.Rules)
		}
	}),
	Validate: apis.Check(func(c *admissionregistrationv1.MutatingWebhookConfiguration) field.ErrorList {
		return validateWebhooks(c.Webhooks, nil)
	}),
	ValidateUpdate: apis.CheckUpdate(func(c, old *admissionregistrationv1.MutatingWebhookConfiguration) field.ErrorList {
		return validateWebhooks(c.Webhooks, old.Webhooks)
	}),
	Columns: webhookColumns,
	Row: apis.Cells(func(c *admissionregistrationv1.MutatingWebhookConfiguration, now time.Time) []any {
		return []any{c.Name, int64(len(c.Webhooks)), apis.AgeOf(c, now)}
	}),
}

// ValidatingWebhookConfigurations is the v1 validatingwebhookconfigurations resource.
var ValidatingWebhookConfigurations = apis.Resource{
	Group: group, Version: version, Kind: "ValidatingWebhookConfiguration", Plural: "validatingwebhookconfigurations", Scope: apis.Cluster,
	ChecksNameOnUpdate: true,
	AnyFinalizer:       true,
	Categories:         apiMachinery, ConditionalUpdate: true,
	New: apis.New[admissionregistrationv1.ValidatingWebhookConfiguration], NewList: apis.NewList[admissionregistrationv1.ValidatingWebhookConfigurationList],
	Default: apis.On(func(c *admissionregistrationv1.ValidatingWebhookConfiguration) {
		for i := range c.Webhooks {
			w := &c.Webhooks[i]
			setDefault(&w.FailurePolicy, admissionregistrationv1.Fail)
			setDefault(&w.TimeoutSeconds, defaultTimeout)
			defaultMatching(&w.MatchPolicy, &w.NamespaceSelector, &w.ObjectSelector)
			defaultClient(&w.ClientConfig, w.Rules)
		}
	}),
	Validate: apis.Check(func(c *admissionregistrationv1.ValidatingWebhookConfiguration) field.ErrorList {
		return validateWebhooks(CommonForm(c.Webhooks), nil)
	}),
	ValidateUpdate: apis.CheckUpdate(func(c, old *admissionregistrationv1.ValidatingWebhookConfiguration) field.ErrorList {
		return validateWebhooks(CommonForm(c.Webhooks), CommonForm(old.Webhooks))
	}),
	Columns: webhookColumns,
	Row: apis.Cells(func(c *admissionregistrationv1.ValidatingWebhookConfiguration, now time.Time) []any {
		return []any{c.Name, int64(len(c.Webhooks)), apis.AgeOf(c, now)}
	}),
}

const defaultTimeout int32 = 10 // seconds

// CommonForm returns validating webhooks as mutating ones that are never
// reinvoked: the two types have everything else in common. They share what they
// point to.
func CommonForm(webhooks []admissionregistrationv1.ValidatingWebhook) []admissionregistrationv1.MutatingWebhook {
	out := make([]admissionregistrationv1.MutatingWebhook, len(webhooks))
	for i := range webhooks {
		w := &webhooks[i]
		out[i] = admissionregistrationv1.MutatingWebhook{
			Name: w.Name, ClientConfig: w.ClientConfig, Rules: w.Rules, FailurePolicy: w.FailurePolicy, MatchPolicy: w.MatchPolicy,
			NamespaceSelector: w.NamespaceSelector, ObjectSelector: w.ObjectSelector, SideEffects: w.SideEffects,
			TimeoutSeconds: w.TimeoutSeconds, AdmissionReviewVersions: w.AdmissionReviewVersions, MatchConditions: w.MatchConditions,
		}
	}
	return out
}
