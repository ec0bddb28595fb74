package builtin

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis"
	"proa/internal/apis/emptied"
	"proa/internal/apis/marker"
	"proa/internal/apis/validate"
)

// mark makes a kind honour the markers of its types: fields of gates that are
// off are cleared, and declared rules checked beside the kind's own. Empty lists
// are absent once errors no longer show them.
func mark(r *apis.Resource, rules *marker.Rules) {
	prepare, prepareUpdate := r.PrepareCreate, r.PrepareUpdate
	bare := emptied.For(r.New())
	r.PrepareCreate = func(obj apis.Object) {
		rules.Drop(obj, nil)
		if prepare != nil {
			prepare(obj)
		}
	}
	r.PrepareUpdate = dropping(prepareUpdate, rules)
	settle := r.Settle
	r.Settle = func(obj apis.Object) {
		if settle != nil {
			settle(obj)
		}
		bare.Clear(obj)
	}
	check := r.Validate
	r.Validate = func(ctx context.Context, obj apis.Object) field.ErrorList {
		var own field.ErrorList
		if check != nil {
			own = check(ctx, obj)
		}
		return merge(validate.InHub(own), rules.Validate(obj, nil))
	}
	validateUpdate := r.ValidateUpdate
	if validateUpdate == nil && check != nil {
		validateUpdate = func(ctx context.Context, obj, _ apis.Object) field.ErrorList { return check(ctx, obj) }
	}
	r.ValidateUpdate = declaring(validateUpdate, rules)
	r.Subresources = slices.Clone(r.Subresources)
	for i := range r.Subresources {
		s := &r.Subresources[i]
		if s.PrepareUpdate != nil {
			s.PrepareUpdate = dropping(s.PrepareUpdate, rules)
			s.ValidateUpdate = declaring(s.ValidateUpdate, rules)
		}
	}
}

func dropping(prepare func(obj, old apis.Object), rules *marker.Rules) func(obj, old apis.Object) {
	return func(obj, old apis.Object) {
		rules.Drop(obj, old)
		if prepare != nil {
			prepare(obj, old)
		}
	}
}

func declaring(check func(ctx context.Context, obj, old apis.Object) field.ErrorList, rules *marker.Rules) func(ctx context.Context, obj, old apis.Object) field.ErrorList {
	return func(ctx context.Context, obj, old apis.Object) field.ErrorList {
		var own field.ErrorList
		if check != nil {
			own = check(ctx, obj, old)
		}
		return merge(validate.InHub(own), rules.Validate(obj, old))
	}
}

// isOther: that a field may not change is beside the point of what is wrong in it.
func isOther(declared, own *field.Error) bool {
	return declared.Origin == "immutable" && own.Detail != declared.Detail
}

// merge lets a declared error take the place of the kind's own about the same
// thing, as upstream's does since declarative validation is beta.
func merge(own, declared field.ErrorList) field.ErrorList {
	if len(declared) == 0 {
		return own
	}
	kept := own[:0:0]
	for _, e := range own {
		covered := slices.ContainsFunc(declared, func(d *field.Error) bool {
			return d.Type == e.Type && d.Field == e.Field && (d.Origin == e.Origin || e.Origin == "" && !isOther(d, e))
		})
		if !covered {
			kept = append(kept, e)
		}
	}
	return append(kept, declared...)
}
