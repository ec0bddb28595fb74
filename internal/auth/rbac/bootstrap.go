package rbac

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/auth/rbac/validation"
	"k8s.io/utils/clock"

	"proa/internal/store"
)

// Bootstrap brings the roles and bindings that every cluster has into the store
// and restores what they lost: missing objects, rules and subjects come back,
// additions stay. An object annotated
// rbac.authorization.kubernetes.io/autoupdate: "false" is left alone. Nothing is
// written when nothing is missing.
func Bootstrap(ctx context.Context, s *store.Store, c clock.PassiveClock) error {
	for from, total := 0, len(everything()); from < total; from += store.MaxTxnKeys {
		_, err := s.Update(ctx, func(tx *store.Tx) error {
			b := bootstrap{tx: tx, now: c.Now()}
			for _, w := range everything()[from:min(from+store.MaxTxnKeys, total)] {
				b.ensure(w.resource, w.object)
			}
			return b.err
		})
		if err != nil {
			return fmt.Errorf("bootstrap roles: %w", err)
		}
	}
	return nil
}

// wanted is an object that every cluster has.
type wanted struct {
	resource schema.GroupResource
	object   store.Object
}

// everything returns new objects: a transaction owns what it writes.
func everything() []wanted {
	return slices.Concat(
		want(clusterRoles, ClusterRoles()), want(clusterRoleBindings, ClusterRoleBindings()),
		want(roles, Roles()), want(roleBindings, RoleBindings()),
	)
}

func want[T store.Object](gr schema.GroupResource, objects []T) []wanted {
	list := make([]wanted, len(objects))
	for i, obj := range objects {
		list[i] = wanted{gr, obj}
	}
	return list
}

type bootstrap struct {
	tx  *store.Tx
	now time.Time
	err error // the first one
}

func (b *bootstrap) ensure(gr schema.GroupResource, want store.Object) {
	if b.err != nil {
		return
	}
	key := store.Key{Resource: gr, Namespace: want.GetNamespace(), Name: want.GetName()}
	item, err := b.tx.Get(key)
	switch {
	case errors.Is(err, store.ErrNotFound):
		want.SetUID(types.UID(uuid.NewString()))
		want.SetCreationTimestamp(metav1.NewTime(b.now.UTC().Truncate(time.Second)))
		_, b.err = b.tx.Create(key, want)
	case err != nil:
		b.err = err
	case item.Object.GetAnnotations()[rbacv1.AutoUpdateAnnotationKey] == "false":
	default:
		merged := item.Object.DeepCopyObject().(store.Object)
		if replace := merge(merged, want); replace {
			b.replace(key, want)
		} else if !equality.Semantic.DeepEqual(merged, item.Object) {
			_, b.err = b.tx.Put(key, merged)
		}
	}
}

// replace puts want in the place of a binding to another role: a roleRef cannot
// be changed.
func (b *bootstrap) replace(key store.Key, want store.Object) {
	if b.err = b.tx.Delete(key); b.err != nil {
		return
	}
	want.SetUID(types.UID(uuid.NewString()))
	want.SetCreationTimestamp(metav1.NewTime(b.now.UTC().Truncate(time.Second)))
	_, b.err = b.tx.Create(key, want)
}

// merge adds to have what want has more. It reports whether have refers to
// another role and cannot be mended.
func merge(have, want store.Object) (replace bool) {
	have.SetLabels(union(have.GetLabels(), want.GetLabels()))
	have.SetAnnotations(union(have.GetAnnotations(), want.GetAnnotations()))
	switch w := want.(type) {
	case *rbacv1.ClusterRole:
		h := have.(*rbacv1.ClusterRole)
		if w.AggregationRule != nil {
			h.AggregationRule = mergeAggregation(h.AggregationRule, w.AggregationRule)
		}
		h.Rules = mergeRules(h.Rules, w.Rules)
	case *rbacv1.Role:
		h := have.(*rbacv1.Role)
		h.Rules = mergeRules(h.Rules, w.Rules)
	case *rbacv1.ClusterRoleBinding:
		h := have.(*rbacv1.ClusterRoleBinding)
		h.Subjects = mergeSubjects(h.Subjects, w.Subjects)
		return h.RoleRef != w.RoleRef
	case *rbacv1.RoleBinding:
		h := have.(*rbacv1.RoleBinding)
		h.Subjects = mergeSubjects(h.Subjects, w.Subjects)
		return h.RoleRef != w.RoleRef
	}
	return false
}

// union is have with what only want has; values that are there stay.
func union(have, want map[string]string) map[string]string {
	for k, v := range want {
		if _, there := have[k]; !there {
			if have == nil {
				have = map[string]string{}
			}
			have[k] = v
		}
	}
	return have
}

func mergeRules(have, want []rbacv1.PolicyRule) []rbacv1.PolicyRule {
	_, missing := validation.Covers(have, want)
	if len(missing) == 0 {
		return have
	}
	return append(slices.Clip(have), compact(missing)...)
}

func mergeSubjects(have, want []rbacv1.Subject) []rbacv1.Subject {
	have = slices.Clip(have)
	for _, s := range want {
		if !slices.Contains(have, s) {
			have = append(have, s)
		}
	}
	return have
}

func mergeAggregation(have, want *rbacv1.AggregationRule) *rbacv1.AggregationRule {
	if have == nil {
		return want
	}
	for _, selector := range want.ClusterRoleSelectors {
		if !slices.ContainsFunc(have.ClusterRoleSelectors, func(s metav1.LabelSelector) bool { return equality.Semantic.DeepEqual(s, selector) }) {
			have.ClusterRoleSelectors = append(have.ClusterRoleSelectors, selector)
		}
	}
	return have
}
