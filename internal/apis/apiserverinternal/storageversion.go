// Package apiserverinternal declares the kind of the internal.apiserver.k8s.io
// group (KEP-2339): which versions API servers write and can read.
package apiserverinternal

import (
	"fmt"
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
	Group: "internal.apiserver.k8s.io", Version: "v1alpha1", Kind: "StorageVersion", Plural: "storageversions", Scope: apis.Cluster, Gate: "StorageVersionAPI",
	New: apis.New[apiserverinternalv1alpha1.StorageVersion], NewList: apis.NewList[apiserverinternalv1alpha1.StorageVersionList],
	NoGeneration: true,
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
	ValidateName:  validateName,
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

func validateName(name string, prefix bool) []string {
	var messages []string
	i := strings.LastIndex(name, ".")
	if i < 0 {
		return []string{"name must be in the form of <group>.<resource>"}
	}
	if m := validation.IsDNS1035Label(name[i+1:]); len(m) > 0 {
		messages = append(messages, "the resource segment "+strings.Join(m, ","))
	}
	if m := apivalidation.NameIsDNSSubdomain(name[:i], prefix); len(m) > 0 {
		messages = append(messages, "the group segment "+strings.Join(m, ","))
	}
	return messages
}

func validateVersion(v *apiserverinternalv1alpha1.StorageVersion) field.ErrorList {
	path := field.NewPath("status")
	var errs field.ErrorList
	common := ""
	for i, s := range v.Status.StorageVersions {
		at := path.Child("storageVersions").Index(i)
		errs = append(errs, validate.Invalid(at.Child("apiServerID"), s.APIServerID, apivalidation.NameIsDNSSubdomain(s.APIServerID, false))...)
		found := false
		for _, d := range s.DecodableVersions {
			found = found || d == s.EncodingVersion
		}
		if !found {
			errs = append(errs, field.Invalid(at.Child("decodableVersions"), s.DecodableVersions, fmt.Sprintf("decodableVersions must include encodingVersion %s", s.EncodingVersion)))
		}
		if i == 0 {
			common = s.EncodingVersion
		} else if common != s.EncodingVersion {
			common = ""
		}
	}
	said := v.Status.CommonEncodingVersion
	switch {
	case said == nil && common != "":
		errs = append(errs, field.Invalid(path.Child("commonEncodingVersion"), said, "the common encoding version is "+common))
	case said != nil && common == "" && len(v.Status.StorageVersions) > 0:
		errs = append(errs, field.Invalid(path.Child("commonEncodingVersion"), *said, "should be nil if servers do not agree on the same encoding version, or if there is no server reporting the supported versions yet"))
	case said != nil && *said != common:
		errs = append(errs, field.Invalid(path.Child("commonEncodingVersion"), *said, "the actual common encoding version is "+common))
	}
	return errs
}
