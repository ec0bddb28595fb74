package builtin

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis"
	"proa/internal/apis/feature"
)

// staticSuffix ends the names of webhooks and policies that are read from files
// (KEP-5793), and of no others.
const staticSuffix = ".static.k8s.io"

// reserve keeps names of files from objects that say who judges writes. Objects
// that have one from before can be changed and deleted.
func reserve(r *apis.Resource, gates feature.Gates) {
	if r.Group != "admissionregistration.k8s.io" {
		return
	}
	reserved := gates.Enabled("ManifestBasedAdmissionControlConfig")
	text := fmt.Sprintf("names ending with %q are reserved for static manifest-based configurations and cannot be managed via the API", staticSuffix)
	check, warnings := r.Validate, r.Warnings
	r.Validate = func(ctx context.Context, obj apis.Object) field.ErrorList {
		errs := check(ctx, obj)
		if reserved && strings.HasSuffix(obj.GetName(), staticSuffix) {
			errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), obj.GetName(), text))
		}
		return errs
	}
	r.Warnings = func(obj, old apis.Object) []string {
		var list []string
		if warnings != nil {
			list = warnings(obj, old)
		}
		if strings.HasSuffix(obj.GetName(), staticSuffix) {
			list = append(list, "metadata.name: "+text)
		}
		return list
	}
}
