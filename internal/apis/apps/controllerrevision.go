package apps

import (
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis"
)

// ControllerRevisions is the apps/v1 controllerrevisions resource.
var ControllerRevisions = apis.Resource{
	Group: "apps", Version: "v1", Kind: "ControllerRevision", Plural: "controllerrevisions",
	ChecksNameOnUpdate: true,
	New:                apis.New[appsv1.ControllerRevision], NewList: apis.NewList[appsv1.ControllerRevisionList],
	NoGeneration: true,
	Validate:     apis.Check(validateControllerRevision),
	ValidateUpdate: apis.CheckUpdate(func(r, old *appsv1.ControllerRevision) field.ErrorList {
		errs := apivalidation.ValidateNonnegativeField(r.Revision, field.NewPath("revision"))
		if !apiequality.Semantic.DeepEqual(r.Data, old.Data) {
			errs = append(errs, field.Invalid(field.NewPath("data"), r.Data, apivalidation.FieldImmutableErrorMsg))
		}
		return errs
	}),
	Columns: []metav1.TableColumnDefinition{
		apis.NameColumn,
		apis.Column("Controller", "string", "Controller of the object"),
		apis.Column("Revision", "string", appsv1.ControllerRevision{}.SwaggerDoc()["revision"]),
		apis.AgeColumn,
	},
	Row: apis.Cells(func(r *appsv1.ControllerRevision, now time.Time) []any {
		return []any{r.Name, ControllerName(r), r.Revision, apis.AgeOf(r, now)}
	}),
}

// ControllerName prints who controls an object: "deployment.apps/web".
func ControllerName(obj metav1.Object) string {
	owner := metav1.GetControllerOf(obj)
	if owner == nil {
		return "<none>"
	}
	gv, err := schema.ParseGroupVersion(owner.APIVersion)
	if err != nil {
		return "<none>"
	}
	return formatResource(gv.Group, owner.Kind, owner.Name)
}

func validateControllerRevision(r *appsv1.ControllerRevision) field.ErrorList {
	var errs field.ErrorList
	if r.Data.Raw == nil && r.Data.Object == nil {
		errs = append(errs, field.Required(field.NewPath("data"), "data is mandatory"))
	}
	return append(errs, apivalidation.ValidateNonnegativeField(r.Revision, field.NewPath("revision"))...)
}
