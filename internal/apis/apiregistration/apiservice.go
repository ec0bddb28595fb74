// Package apiregistration declares the kind of the apiregistration.k8s.io group,
// v1, and what every server says of its own group versions in objects of it.
package apiregistration

import (
	"fmt"
	"strings"
	"time"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"

	"proa/internal/apis"
)

// Resources returns every kind of the group.
func Resources() []*apis.Resource { return []*apis.Resource{&APIServices} }

// APIServices is the apiregistration.k8s.io/v1 apiservices resource: who serves a
// group version, this server (no spec.service) or another.
var APIServices = apis.Resource{
	Group: apiregistrationv1.GroupName, Version: "v1", Kind: "APIService", Plural: "apiservices",
	AnyFinalizer: true,
	ChecksMeta:   true,
	Categories:   []string{"api-extensions"}, Scope: apis.Cluster,
	New: apis.New[apiregistrationv1.APIService], NewList: apis.NewList[apiregistrationv1.APIServiceList],
	ConditionalUpdate: true,
	NoGeneration:      true,
	Default: apis.On(func(s *apiregistrationv1.APIService) {
		if s.Spec.Service != nil && s.Spec.Service.Port == nil {
			s.Spec.Service.Port = new(int32(443))
		}
	}),
	PrepareCreate: apis.On(func(s *apiregistrationv1.APIService) {
		s.Status = apiregistrationv1.APIServiceStatus{}
	}),
	PrepareUpdate: apis.OnUpdate(func(s, old *apiregistrationv1.APIService) { s.Status = *old.Status.DeepCopy() }),
	Stamp: apis.Stamped(func(s, old *apiregistrationv1.APIService, now metav1.Time) {
		if old == nil && s.Spec.Service == nil {
			helper.SetAPIServiceCondition(s, LocalCondition(now))
		}
	}),
	Validate: apis.Check(validate),
	ValidateUpdate: apis.CheckUpdate(func(s, old *apiregistrationv1.APIService) field.ErrorList {
		errs := apivalidation.ValidateObjectMetaUpdate(&s.ObjectMeta, &old.ObjectMeta, field.NewPath("metadata"))
		return append(errs, validate(s)...)
	}),
	Subresources: []apis.Subresource{apis.Status(
		func(s, old *apiregistrationv1.APIService) { s.Spec = old.Spec },
		func(s, _ *apiregistrationv1.APIService) field.ErrorList { return validateStatus(&s.Status) },
	)},
	Columns: []metav1.TableColumnDefinition{
		apis.NameColumn,
		apis.Column("Service", "string", "The reference to the service that hosts this API endpoint."),
		apis.Column("Available", "string", "Whether this service is available."),
		apis.AgeColumn,
	},
	Row: apis.Cells(func(s *apiregistrationv1.APIService, now time.Time) []any {
		service := "Local"
		if ref := s.Spec.Service; ref != nil {
			service = ref.Namespace + "/" + ref.Name
		}
		return []any{s.Name, service, printAvailable(s), apis.AgeOf(s, now)}
	}),
}

// LocalCondition is what the Available condition of a local APIService says.
func LocalCondition(now metav1.Time) apiregistrationv1.APIServiceCondition {
	return apiregistrationv1.APIServiceCondition{
		Type: apiregistrationv1.Available, Status: apiregistrationv1.ConditionTrue, LastTransitionTime: now,
		Reason: "Local", Message: "Local APIServices are always available",
	}
}

// Name is the name of the APIService of a group version.
func Name(gv schema.GroupVersion) string { return gv.Version + "." + gv.Group }

func printAvailable(s *apiregistrationv1.APIService) string {
	c := helper.GetAPIServiceConditionByType(s, apiregistrationv1.Available)
	switch {
	case c == nil:
		return string(apiregistrationv1.ConditionUnknown)
	case c.Status != apiregistrationv1.ConditionTrue && c.Reason != "":
		return fmt.Sprintf("%s (%s)", c.Status, c.Reason)
	}
	return string(c.Status)
}

func validate(s *apiregistrationv1.APIService) field.ErrorList {
	errs := validateMeta(s)
	spec, at := &s.Spec, field.NewPath("spec")
	if spec.Group == "" && spec.Version != "v1" {
		errs = append(errs, field.Required(at.Child("group"), "only v1 may have an empty group and it better be legacy kube"))
	}
	if spec.Group != "" {
		for _, text := range validation.IsDNS1123Subdomain(spec.Group) {
			errs = append(errs, field.Invalid(at.Child("group"), spec.Group, text))
		}
	}
	for _, text := range validation.IsDNS1035Label(spec.Version) {
		errs = append(errs, field.Invalid(at.Child("version"), spec.Version, text))
	}
	if p := spec.GroupPriorityMinimum; p <= 0 || p > 20000 {
		errs = append(errs, field.Invalid(at.Child("groupPriorityMinimum"), p, "must be positive and less than 20000"))
	}
	if p := spec.VersionPriority; p <= 0 || p > 1000 {
		errs = append(errs, field.Invalid(at.Child("versionPriority"), p, "must be positive and less than 1000"))
	}
	if spec.Service == nil {
		return append(errs, validateLocal(spec, at)...)
	}
	return append(errs, validateRemote(spec, at)...)
}

// validateMeta: a group version has one name.
func validateMeta(s *apiregistrationv1.APIService) field.ErrorList {
	want := s.Spec.Version + "." + s.Spec.Group
	return apivalidation.ValidateObjectMeta(&s.ObjectMeta, false, func(name string, _ bool) []string {
		if texts := path.IsValidPathSegmentName(name); len(texts) > 0 {
			return texts
		}
		if name != want {
			return []string{fmt.Sprintf("must be `spec.version+\".\"+spec.group`: %q", want)}
		}
		return nil
	}, field.NewPath("metadata"))
}

func validateLocal(spec *apiregistrationv1.APIServiceSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if n := len(spec.CABundle); n != 0 {
		errs = append(errs, field.Invalid(at.Child("caBundle"), fmt.Sprintf("%d bytes", n), "local APIServices may not have a caBundle"))
	}
	if spec.InsecureSkipTLSVerify {
		errs = append(errs, field.Invalid(at.Child("insecureSkipTLSVerify"), true, "local APIServices may not have insecureSkipTLSVerify"))
	}
	return errs
}

func validateRemote(spec *apiregistrationv1.APIServiceSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	service := at.Child("service")
	if spec.Service.Namespace == "" {
		errs = append(errs, field.Required(service.Child("namespace"), ""))
	}
	if spec.Service.Name == "" {
		errs = append(errs, field.Required(service.Child("name"), ""))
	}
	if port := spec.Service.Port; port != nil {
		if texts := validation.IsValidPortNum(int(*port)); texts != nil {
			errs = append(errs, field.Invalid(service.Child("port"), *port, "port is not valid: "+strings.Join(texts, ", ")))
		}
	}
	if spec.InsecureSkipTLSVerify && len(spec.CABundle) > 0 {
		errs = append(errs, field.Invalid(at.Child("insecureSkipTLSVerify"), true, "may not be true if caBundle is present"))
	}
	return errs
}

func validateStatus(status *apiregistrationv1.APIServiceStatus) field.ErrorList {
	var errs field.ErrorList
	known := []apiregistrationv1.ConditionStatus{apiregistrationv1.ConditionTrue, apiregistrationv1.ConditionFalse, apiregistrationv1.ConditionUnknown}
	for i, c := range status.Conditions {
		switch c.Status {
		case apiregistrationv1.ConditionTrue, apiregistrationv1.ConditionFalse, apiregistrationv1.ConditionUnknown:
		default:
			errs = append(errs, field.NotSupported(field.NewPath("status", "conditions").Index(i).Child("status"), c.Status, known))
		}
	}
	return errs
}
