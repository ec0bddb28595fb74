package rbac

import (
	"strings"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/apis"
)

func bindingColumns(kind, role string) []metav1.TableColumnDefinition {
	return []metav1.TableColumnDefinition{
		apis.NameColumn,
		apis.Column("Role", "string", role),
		apis.AgeColumn,
		apis.Wide("Users", "string", "Users in the "+kind),
		apis.Wide("Groups", "string", "Groups in the "+kind),
		apis.Wide("ServiceAccounts", "string", "ServiceAccounts in the "+kind),
	}
}

func bindingRow(b apis.Object, ref rbacv1.RoleRef, subjects []rbacv1.Subject, now time.Time) []any {
	var users, groups, accounts []string
	for _, s := range subjects {
		switch s.Kind {
		case rbacv1.ServiceAccountKind:
			accounts = append(accounts, s.Namespace+"/"+s.Name)
		case rbacv1.UserKind:
			users = append(users, s.Name)
		case rbacv1.GroupKind:
			groups = append(groups, s.Name)
		}
	}
	return []any{
		b.GetName(), ref.Kind + "/" + ref.Name, apis.AgeOf(b, now),
		strings.Join(users, ", "), strings.Join(groups, ", "), strings.Join(accounts, ", "),
	}
}
