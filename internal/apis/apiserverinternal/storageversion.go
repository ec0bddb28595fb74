// Package apiserverinternal declares the kind of the internal.apiserver.k8s.io
// group (KEP-2339): which versions API servers write and can read.
package apiserverinternal

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis"
	"proa/internal/apis/validate"
)

// Resources returns every kind of the group.
func Resources() []*apis.Resource { return []*apis.Resource{&StorageVersions} }

// StorageVersions is the internal.apiserver.k8s.io/v1alpha1 storageversions
// resource. An object is named <group>.<resource>, core.pods for the core group.
var StorageVersions = apis.Resource{
	Group: "internal.apiserver.k8s.io", Version: "v1alpha1", Kind: "StorageVersion", Plural: "storageversions", Scope: apis.Cluster,
	New: apis.New[apiserverinternalv1alpha1.StorageVersion], NewList: apis.NewList[apiserverinternalv1alpha1.StorageVersionList],
	NoGeneration:      true,
	ConditionalUpdate: true,
	Subresources: []apis.Subresource{
		apis.Status(func(v, old *apiserverinternalv1alpha1.StorageVersion) { v.Spec = old.Spec }, func(v, _ *apiserverinternalv1alpha1.StorageVersion) field.ErrorList {
			return validateVersion(v)
		}),
	},
	PrepareCreate: apis.On(func(v *apiserverinternalv1alpha1.StorageVersion) {
		v.Status = apiserverinternalv1alpha1.StorageVersionStatus{}
	}),
	PrepareUpdate: apis.OnUpdate(func(v, old *apiserverinternalv1alpha1.StorageVersion) { v.Status = old.Status }),
	Validate:      apis.Check(validateVersion),
	ValidateUpdate: func(context.Context, apis.Object, apis.Object) field.ErrorList {
		return nil // there is nothing in its spec
	},
	ValidateName: validateName,
	Columns: []metav1.TableColumnDefinition{
		apis.NameColumn,
		apis.Column("CommonEncodingVersion", "string", apiserverinternalv1alpha1.StorageVersionStatus{}.SwaggerDoc()["commonEncodingVersion"]),
		apis.Column("StorageVersions", "string", apiserverinternalv1alpha1.StorageVersionStatus{}.SwaggerDoc()["storageVersions"]),
		apis.AgeColumn,
	},
	Row: apis.Cells(func(v *apiserverinternalv1alpha1.StorageVersion, now time.Time) []any {
		common := "<unset>"
		if c := v.Status.CommonEncodingVersion; c != nil {
			common = *c
		}
		return []any{v.Name, common, printVersions(v.Status.StorageVersions), apis.AgeOf(v, now)}
	}),
}

const shownVersions = 3

func printVersions(list []apiserverinternalv1alpha1.ServerStorageVersion) string {
	if len(list) == 0 {
		return "<unset>"
	}
	var shown []string
	for _, v := range list[:min(len(list), shownVersions)] {
		shown = append(shown, v.APIServerID+"="+v.EncodingVersion)
	}
	text := strings.Join(shown, ",")
	if more := len(list) - shownVersions; more > 0 {
		text += fmt.Sprintf(" + %d more...", more)
	}
	return text
}

func validateName(name string, _ bool) []string {
	i := strings.LastIndex(name, ".")
	if i < 0 {
		return []string{"name must be in the form of <group>.<resource>"}
	}
	messages := prefixed("the group segment ", validation.IsDNS1123Subdomain(name[:i]))
	return append(messages, prefixed("the resource segment ", validation.IsDNS1035Label(name[i+1:]))...)
}

func prefixed(prefix string, messages []string) []string {
	out := make([]string, len(messages))
	for i, m := range messages {
		out[i] = prefix + m
	}
	return out
}

func validateVersion(v *apiserverinternalv1alpha1.StorageVersion) field.ErrorList {
	path := field.NewPath("status")
	var errs field.ErrorList
	servers := map[string]bool{}
	for i := range v.Status.StorageVersions {
		s, at := &v.Status.StorageVersions[i], path.Child("storageVersions").Index(i)
		if servers[s.APIServerID] {
			errs = append(errs, field.Duplicate(at.Child("apiServerID"), s.APIServerID))
		}
		servers[s.APIServerID] = true
		errs = append(errs, validateServerVersions(s, at)...)
	}
	errs = append(errs, validateCommonVersion(&v.Status, path.Child("commonEncodingVersion"))...)
	return append(errs, validateConditions(v.Status.Conditions, path)...)
}

// validateServerVersions: a server can decode what it encodes and what it serves.
func validateServerVersions(s *apiserverinternalv1alpha1.ServerStorageVersion, at *field.Path) field.ErrorList {
	errs := validate.Invalid(at.Child("apiServerID"), s.APIServerID, apivalidation.NameIsDNSSubdomain(s.APIServerID, false))
	version := func(path *field.Path, version string) {
		if wrong := apiVersionErrors(version); len(wrong) > 0 {
			errs = append(errs, field.Invalid(path, version, strings.Join(wrong, ",")))
		}
	}
	version(at.Child("encodingVersion"), s.EncodingVersion)
	for i, d := range s.DecodableVersions {
		version(at.Child("decodableVersions").Index(i), d)
	}
	if !slices.Contains(s.DecodableVersions, s.EncodingVersion) {
		errs = append(errs, field.Invalid(at.Child("decodableVersions"), s.DecodableVersions, fmt.Sprintf("decodableVersions must include encodingVersion %s", s.EncodingVersion)))
	}
	for i, served := range s.ServedVersions {
		path := at.Child("servedVersions").Index(i)
		version(path, served)
		if !slices.Contains(s.DecodableVersions, served) {
			errs = append(errs, field.Invalid(path, served, fmt.Sprintf("individual served version : %s must be included in decodableVersions : %s", served, s.DecodableVersions)))
		}
	}
	return errs
}

// apiVersionErrors says what is wrong with a version that may have a group before it.
func apiVersionErrors(text string) []string {
	group, version, grouped := strings.Cut(text, "/")
	var wrong []string
	switch {
	case strings.Contains(version, "/"):
		return []string{"an apiVersion is " + validation.RegexError("a DNS-1035 label, which must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character",
			"[a-z]([-a-z0-9]*[a-z0-9])?", "my-name", "abc-123") + " with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyVersion')"}
	case !grouped:
		version = group
	case group == "":
		wrong = append(wrong, "group part: "+validation.EmptyError())
	default:
		wrong = append(wrong, prefixed("group part: ", validation.IsDNS1123Subdomain(group))...)
	}
	if version == "" {
		return append(wrong, "version part: "+validation.EmptyError())
	}
	return append(wrong, prefixed("version part: ", validation.IsDNS1035Label(version))...)
}

// validateCommonVersion: what all servers encode in is told, if there is such a version.
func validateCommonVersion(s *apiserverinternalv1alpha1.StorageVersionStatus, path *field.Path) field.ErrorList {
	var common *string
	for i := range s.StorageVersions {
		encoding := &s.StorageVersions[i].EncodingVersion
		if i > 0 && (common == nil || *common != *encoding) {
			common = nil
			break
		}
		common = encoding
	}
	said := s.CommonEncodingVersion
	switch {
	case said == nil && common != nil:
		return field.ErrorList{field.Invalid(path, said, "the common encoding version is "+*common)}
	case said != nil && common == nil:
		return field.ErrorList{field.Invalid(path, *said, "should be nil if servers do not agree on the same encoding version, or if there is no server reporting the supported versions yet")}
	case said != nil && *said != *common:
		return field.ErrorList{field.Invalid(path, *said, "the actual common encoding version is "+*common)}
	}
	return nil
}

// validateConditions names them as upstream does: by their index in the status.
func validateConditions(conditions []apiserverinternalv1alpha1.StorageVersionCondition, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[apiserverinternalv1alpha1.StorageVersionConditionType]int{}
	for i, c := range conditions {
		at := path.Index(i)
		if first, again := seen[c.Type]; again {
			errs = append(errs, field.Invalid(at.Child("type"), string(c.Type), fmt.Sprintf("the type of the condition is not unique, it also appears in conditions[%d]", first)))
		}
		seen[c.Type] = i
		errs = append(errs, validate.QualifiedName(at.Child("type"), string(c.Type))...)
		errs = append(errs, validate.QualifiedName(at.Child("status"), string(c.Status))...)
		if c.Reason == "" {
			errs = append(errs, field.Required(at.Child("reason"), ""))
		}
		if c.Message == "" {
			errs = append(errs, field.Required(at.Child("message"), ""))
		}
	}
	return errs
}
