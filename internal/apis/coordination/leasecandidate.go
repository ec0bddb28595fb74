package coordination

import (
	"strings"
	"time"

	"github.com/blang/semver/v4"
	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1alpha2 "k8s.io/api/coordination/v1alpha2"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis"
	"proa/internal/apis/validate"
)

// LeaseCandidates is the coordination.k8s.io/v1beta1 leasecandidates resource
// (KEP-4355), also served as v1alpha2.
var LeaseCandidates = apis.Resource{
	Group: "coordination.k8s.io", Version: "v1beta1", Kind: "LeaseCandidate", Plural: "leasecandidates",
	AnyFinalizer: true,
	New:          apis.New[coordinationv1beta1.LeaseCandidate], NewList: apis.NewList[coordinationv1beta1.LeaseCandidateList],
	Also: []apis.Served{
		apis.ServedAs[coordinationv1beta1.LeaseCandidate, coordinationv1alpha2.LeaseCandidate, coordinationv1alpha2.LeaseCandidateList]("coordination.k8s.io", "v1alpha2", "LeaseCandidate"),
	},
	NoGeneration:        true,
	AllowCreateOnUpdate: true,
	ValidateName:        func(name string, _ bool) []string { return validation.IsConfigMapKey(name) },
	Validate:            apis.Check(validateCandidate),
	ValidateUpdate: apis.CheckUpdate(func(c, old *coordinationv1beta1.LeaseCandidate) field.ErrorList {
		return append(validateCandidate(c), validate.Immutable(field.NewPath("spec", "leaseName"), c.Spec.LeaseName, old.Spec.LeaseName)...)
	}),
	Fields: apis.Selectable(map[string]func(*coordinationv1beta1.LeaseCandidate) string{
		"spec.leaseName": func(c *coordinationv1beta1.LeaseCandidate) string { return c.Spec.LeaseName },
	}),
	Columns: []metav1.TableColumnDefinition{
		apis.NameColumn,
		apis.Column("LeaseName", "string", coordinationv1beta1.LeaseCandidateSpec{}.SwaggerDoc()["leaseName"]),
		apis.Column("BinaryVersion", "string", coordinationv1beta1.LeaseCandidateSpec{}.SwaggerDoc()["binaryVersion"]),
		apis.Column("EmulationVersion", "string", coordinationv1beta1.LeaseCandidateSpec{}.SwaggerDoc()["emulationVersion"]),
		apis.Column("Strategy", "string", coordinationv1beta1.LeaseCandidateSpec{}.SwaggerDoc()["strategy"]),
		apis.AgeColumn,
	},
	Row: apis.Cells(func(c *coordinationv1beta1.LeaseCandidate, now time.Time) []any {
		return []any{c.Name, c.Spec.LeaseName, c.Spec.BinaryVersion, c.Spec.EmulationVersion, string(c.Spec.Strategy), apis.AgeOf(c, now)}
	}),
}

func validateCandidate(c *coordinationv1beta1.LeaseCandidate) field.ErrorList {
	path, s := field.NewPath("spec"), &c.Spec
	var errs field.ErrorList
	if s.LeaseName == "" {
		errs = append(errs, field.Required(path.Child("leaseName"), ""))
	}
	version := func(child, text string) semver.Version {
		v, err := semver.Parse(text)
		if err != nil {
			errs = append(errs, field.Invalid(path.Child(child), text, "must be a valid semantic version"))
		}
		return v
	}
	var emulation, binary semver.Version
	if s.EmulationVersion != "" {
		emulation = version("emulationVersion", s.EmulationVersion)
	}
	if s.BinaryVersion == "" {
		errs = append(errs, field.Required(path.Child("binaryVersion"), ""))
	} else {
		binary = version("binaryVersion", s.BinaryVersion)
	}
	if s.BinaryVersion != "" && s.EmulationVersion != "" && binary.LT(emulation) {
		errs = append(errs, field.Invalid(path.Child("binaryVersion"), s.BinaryVersion, "must be greater than or equal to `emulationVersion`"))
	}
	if s.Strategy == "" {
		return append(errs, field.Required(path.Child("strategy"), ""))
	}
	if s.Strategy == coordinationv1.OldestEmulationVersion && emulation.EQ(semver.Version{}) {
		errs = append(errs, field.Required(path.Child("emulationVersion"), "must be specified when `strategy` is 'OldestEmulationVersion'"))
	}
	return append(errs, validateStrategy(s.Strategy, path.Child("strategy", "strategy"))...)
}

// validateStrategy takes the names that are known, and others with a domain.
func validateStrategy(s coordinationv1.CoordinatedLeaseStrategy, path *field.Path) field.ErrorList {
	if strings.Contains(string(s), "/") {
		return validate.QualifiedName(path, string(s))
	}
	return validate.OneOf(path, s, coordinationv1.OldestEmulationVersion)
}
