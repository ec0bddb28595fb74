package apiextensions

import (
	"slices"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/apis"
)

var columns = []metav1.TableColumnDefinition{
	apis.NameColumn,
	apis.Column("Scope", "string", "Cluster/Namespaced"),
	apis.Column("Versions", "string", "Served versions"),
	apis.Column("Created At", "date", metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"]),
	apis.Wide("Group", "string", "API group"),
	apis.Wide("Kind", "string", "CustomResource kind"),
	apis.Wide("ShortNames", "string", "Short names"),
	apis.Wide("Established", "boolean", "Established status"),
}

func row(d *apiextensionsv1.CustomResourceDefinition, _ time.Time) []any {
	var versions []string
	for _, v := range d.Spec.Versions {
		switch {
		case v.Served && v.Storage:
			versions = append(versions, v.Name+"(storage)")
		case v.Served:
			versions = append(versions, v.Name)
		}
	}
	slices.Sort(versions)
	established := slices.ContainsFunc(d.Status.Conditions, func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
		return c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue
	})
	return []any{
		d.Name, string(d.Spec.Scope), strings.Join(versions, ","), d.CreationTimestamp.UTC().Format(time.RFC3339),
		d.Spec.Group, d.Spec.Names.Kind, strings.Join(d.Spec.Names.ShortNames, ","), established,
	}
}
