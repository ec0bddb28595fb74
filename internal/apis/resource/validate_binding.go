package resource

import (
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis/validate"
)

// validateBindingConditions: a device that has to be made ready before a pod is
// bound (KEP-5007) says both by what it is known to be ready and to have failed.
func validateBindingConditions(ready, failed []string, path *field.Path) errorList {
	readyAt, failedAt := path.Child("bindingConditions"), path.Child("bindingFailureConditions")
	errs := validateConditionTypes(ready, resourcev1.BindingConditionsMaxSize, readyAt)
	errs = append(errs, validateConditionTypes(failed, resourcev1.BindingFailureConditionsMaxSize, failedAt)...)
	errs = append(errs, duplicates(ready, readyAt)...)
	for i, name := range failed {
		if slices.Contains(failed[:i], name) {
			errs = append(errs, field.Duplicate(failedAt.Index(i), name))
		}
		if slices.Contains(ready, name) {
			errs = append(errs, field.Invalid(failedAt.Index(i), name, "bindingFailureConditions must not overlap with bindingConditions"))
		}
	}
	if len(ready) == 0 && len(failed) > 0 {
		errs = append(errs, field.Invalid(readyAt, ready, "bindingConditions are required to use bindingFailureConditions"))
	}
	if len(failed) == 0 && len(ready) > 0 {
		errs = append(errs, field.Invalid(failedAt, failed, "bindingFailureConditions are required to use bindingConditions"))
	}
	return errs
}

func validateConditionTypes(names []string, most int, path *field.Path) errorList {
	if n := len(names); n > most {
		return errorList{field.TooMany(path, n, most).WithOrigin("maxItems")}
	}
	var errs errorList
	for i, name := range names {
		errs = append(errs, validate.LabelName(path.Index(i), name)...)
	}
	return errs
}

func duplicates(names []string, path *field.Path) errorList {
	var errs errorList
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			errs = append(errs, field.Duplicate(path.Index(i), name))
		}
	}
	return errs
}
