package customresource

import (
	"bytes"
	"fmt"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/client-go/transport"
)

// taken are the names that the definitions of a group have.
type taken struct{ resources, kinds map[string]bool }

func (d *Controller) taken(group string) taken {
	t := taken{map[string]bool{}, map[string]bool{}}
	for _, crd := range d.definitions.Select("", labels.Everything()) {
		if crd.Spec.Group != group {
			continue
		}
		names := &crd.Status.AcceptedNames
		for _, name := range append([]string{names.Plural, names.Singular}, names.ShortNames...) {
			t.resources[name] = true
		}
		t.kinds[names.Kind], t.kinds[names.ListKind] = true, true
	}
	return t
}

// free returns an error when a name that a definition wants is another's.
func free(want, have string, taken map[string]bool) error {
	if want == have || !taken[want] {
		return nil
	}
	return fmt.Errorf("%q is already in use", want)
}

// name gives a definition the names it wants, as far as they are free. The last
// conflict is the one that is told.
func (d *Controller) name(crd *definition) {
	if equality.Semantic.DeepEqual(crd.Spec.Names, crd.Status.AcceptedNames) {
		return
	}
	all := d.taken(crd.Spec.Group)
	want, have := &crd.Spec.Names, crd.Status.AcceptedNames
	accepted := &crd.Status.AcceptedNames
	c := condition{
		Type: apiextensionsv1.NamesAccepted, Status: apiextensionsv1.ConditionTrue, Reason: "NoConflicts", Message: "no conflicts found",
	}
	take := func(err error, reason string, accept func()) {
		if err == nil {
			accept()
			return
		}
		c.Status, c.Reason, c.Message = apiextensionsv1.ConditionFalse, reason, err.Error()
	}
	take(free(want.Plural, have.Plural, all.resources), "PluralConflict", func() { accepted.Plural = want.Plural })
	take(free(want.Singular, have.Singular, all.resources), "SingularConflict", func() { accepted.Singular = want.Singular })
	take(freeShort(want.ShortNames, have.ShortNames, all.resources), "ShortNamesConflict", func() { accepted.ShortNames = want.ShortNames })
	take(free(want.Kind, have.Kind, all.kinds), "KindConflict", func() { accepted.Kind = want.Kind })
	take(free(want.ListKind, have.ListKind, all.kinds), "ListKindConflict", func() { accepted.ListKind = want.ListKind })
	accepted.Categories = want.Categories
	d.setCondition(crd, c)
}

func freeShort(want, have []string, taken map[string]bool) error {
	var errs []error
	for _, name := range want {
		if !slices.Contains(have, name) {
			if err := free(name, "", taken); err != nil {
				errs = append(errs, err)
			}
		}
	}
	return utilerrors.NewAggregate(errs)
}

// establish says whether a definition's kind is served. Once it is, it stays so.
func (d *Controller) establish(crd *definition) {
	c := condition{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionFalse}
	switch {
	case apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established):
		return
	case !apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.NamesAccepted):
		c.Reason, c.Message = "NotAccepted", "not all names are accepted"
	case !validBundle(crd.Spec.Conversion):
		c.Reason, c.Message = "InvalidCABundle", "The conversion webhook CABundle is invalid"
	default:
		c.Status, c.Reason, c.Message = apiextensionsv1.ConditionTrue, "InitialNamesAccepted", "the initial names have been accepted"
	}
	d.setCondition(crd, c)
}

func validBundle(c *apiextensionsv1.CustomResourceConversion) bool {
	if c == nil || c.Webhook == nil || c.Webhook.ClientConfig == nil || len(bytes.TrimSpace(c.Webhook.ClientConfig.CABundle)) == 0 {
		return true
	}
	_, err := transport.TLSConfigFor(&transport.Config{TLS: transport.TLSConfig{CAData: c.Webhook.ClientConfig.CABundle}})
	return err == nil
}
