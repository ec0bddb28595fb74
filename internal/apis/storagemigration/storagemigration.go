// Package storagemigration declares the kind of the storagemigration.k8s.io
// group (KEP-4192): rewrite every stored object of a resource.
package storagemigration

import (
	"strings"
	"time"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	storagemigrationv1beta1 "k8s.io/api/storagemigration/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis"
	"proa/internal/apis/validate"
)

// Resources returns every kind of the group.
func Resources() []*apis.Resource { return []*apis.Resource{&StorageVersionMigrations} }

// StorageVersionMigrations is the storagemigration.k8s.io/v1
// storageversionmigrations resource.
var StorageVersionMigrations = apis.Resource{
	Group: "storagemigration.k8s.io", Version: "v1", Kind: "StorageVersionMigration", Plural: "storageversionmigrations", Scope: apis.Cluster,
	ChecksNameOnUpdate: true,
	New:                apis.New[storagemigrationv1.StorageVersionMigration], NewList: apis.NewList[storagemigrationv1.StorageVersionMigrationList],
	NoGeneration: true,
	Also: []apis.Served{
		apis.ServedAs[storagemigrationv1.StorageVersionMigration, storagemigrationv1beta1.StorageVersionMigration, storagemigrationv1beta1.StorageVersionMigrationList]("storagemigration.k8s.io", "v1beta1", "StorageVersionMigration"),
	},
	Storage:           "v1beta1",
	ConditionalUpdate: true,
	Subresources: []apis.Subresource{
		apis.Status(func(m, old *storagemigrationv1.StorageVersionMigration) { m.Spec = old.Spec }, validateStatusUpdate),
	},
	PrepareCreate: apis.On(func(m *storagemigrationv1.StorageVersionMigration) {
		m.Status = storagemigrationv1.StorageVersionMigrationStatus{}
	}),
	PrepareUpdate: apis.OnUpdate(func(m, old *storagemigrationv1.StorageVersionMigration) { m.Status = old.Status }),
	Validate:      apis.Check(validateMigration),
	ValidateUpdate: apis.CheckUpdate(func(m, old *storagemigrationv1.StorageVersionMigration) field.ErrorList {
		return append(validateMigration(m), validate.Immutable(field.NewPath("spec"), m.Spec, old.Spec)...)
	}),
	Columns: []metav1.TableColumnDefinition{
		apis.Column("Name", "string", metav1.ObjectMeta{}.SwaggerDoc()["name"]),
		apis.Column("Resource", "string", "GroupResource to migrate"),
		apis.Column("Status", "string", "Status of the migration"),
	},
	Row: apis.Cells(func(m *storagemigrationv1.StorageVersionMigration, _ time.Time) []any {
		return []any{m.Name, m.Spec.Resource.String(), printStatus(m.Status.Conditions)}
	}),
}

// printStatus is the last of the conditions of a migration's progress that is true.
func printStatus(conditions []metav1.Condition) string {
	status := "Unknown"
	for _, c := range conditions {
		if c.Status != metav1.ConditionTrue {
			continue
		}
		switch storagemigrationv1.MigrationConditionType(c.Type) {
		case storagemigrationv1.MigrationRunning, storagemigrationv1.MigrationFailed, storagemigrationv1.MigrationSucceeded:
			status = c.Type
		}
	}
	return status
}

func validateMigration(m *storagemigrationv1.StorageVersionMigration) field.ErrorList {
	path := field.NewPath("spec", "resource")
	var errs field.ErrorList
	if m.Spec.Resource.Resource == "" {
		errs = append(errs, field.Required(path.Child("resource"), "resource is required to be set"))
	} else {
		errs = append(errs, joined(path.Child("resource"), m.Spec.Resource.Resource, validation.IsDNS1035Label)...)
	}
	if m.Spec.Resource.Group != "" {
		errs = append(errs, joined(path.Child("group"), m.Spec.Resource.Group, validation.IsDNS1123Subdomain)...)
	}
	return errs
}

// joined says all that is wrong with a name at once.
func joined(path *field.Path, name string, check func(string) []string) field.ErrorList {
	if texts := check(name); len(texts) > 0 {
		return field.ErrorList{field.Invalid(path, name, strings.Join(texts, ","))}
	}
	return nil
}

// isRevision: a number above 0, without leading zeros (KEP-5504).
func isRevision(version string) bool {
	return version[0] != '0' && strings.Trim(version, "0123456789") == ""
}

// validateStatusUpdate: a migration ends once, in one way, and its resource
// version stays.
func validateStatusUpdate(m, old *storagemigrationv1.StorageVersionMigration) field.ErrorList {
	path := field.NewPath("status")
	errs := metav1validation.ValidateConditions(m.Status.Conditions, path.Child("conditions"))
	if version := m.Status.ResourceVersion; version != "" && !isRevision(version) {
		errs = append(errs, field.Invalid(path.Child("resourceVersion"), version, "resource version is not well formed: "+version))
	}
	if was := old.Status.ResourceVersion; was != "" && m.Status.ResourceVersion != was {
		errs = append(errs, field.Invalid(path.Child("resourceVersion"), m.Status.ResourceVersion, "field is immutable"))
	}
	succeeded, failed := holds(m, storagemigrationv1.MigrationSucceeded), holds(m, storagemigrationv1.MigrationFailed)
	if succeeded && failed {
		errs = append(errs, field.Invalid(path.Child("conditions"), m.Status.Conditions, "Both success and failed conditions cannot be true at the same time"))
	}
	if succeeded && holds(m, storagemigrationv1.MigrationRunning) {
		errs = append(errs, field.Invalid(path.Child("conditions"), m.Status.Conditions, "Running condition cannot be true when success condition is true"))
	}
	if failed && holds(m, storagemigrationv1.MigrationRunning) {
		errs = append(errs, field.Invalid(path.Child("conditions"), m.Status.Conditions, "Running condition cannot be true when failed condition is true"))
	}
	if holds(old, storagemigrationv1.MigrationSucceeded) && !succeeded {
		errs = append(errs, field.Invalid(path.Child("conditions"), m.Status.Conditions, "Success condition cannot be set to false once it is true"))
	}
	if holds(old, storagemigrationv1.MigrationFailed) && !failed {
		errs = append(errs, field.Invalid(path.Child("conditions"), m.Status.Conditions, "Failed condition cannot be set to false once it is true"))
	}
	return errs
}

func holds(m *storagemigrationv1.StorageVersionMigration, t storagemigrationv1.MigrationConditionType) bool {
	for _, c := range m.Status.Conditions {
		if c.Type == string(t) {
			return c.Status == metav1.ConditionTrue
		}
	}
	return false
}
