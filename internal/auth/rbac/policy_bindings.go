package rbac

import (
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
)

func users(names ...string) []rbacv1.Subject { return subjects(rbacv1.UserKind, names) }

func groups(names ...string) []rbacv1.Subject { return subjects(rbacv1.GroupKind, names) }

func subjects(kind string, names []string) []rbacv1.Subject {
	out := make([]rbacv1.Subject, len(names))
	for i, name := range names {
		out[i] = rbacv1.Subject{Kind: kind, APIGroup: rbacv1.GroupName, Name: name}
	}
	return out
}

func account(name string) []rbacv1.Subject {
	return []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceSystem, Name: name}}
}

func bindCluster(role string, to []rbacv1.Subject) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: bootstrapMeta(role),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   to,
	}
}

// ClusterRoleBindings returns the cluster-wide bindings every cluster has.
func ClusterRoleBindings() []*rbacv1.ClusterRoleBinding {
	out := []*rbacv1.ClusterRoleBinding{
		bindCluster("cluster-admin", groups(user.SystemPrivilegedGroup)),
		bindCluster("system:monitoring", groups(user.MonitoringGroup)),
		bindCluster("system:discovery", groups(user.AllAuthenticated)),
		bindCluster("system:basic-user", groups(user.AllAuthenticated)),
		bindCluster("system:public-info-viewer", groups(user.AllAuthenticated, user.AllUnauthenticated)),
		bindCluster("system:node-proxier", users(user.KubeProxy)),
		bindCluster("system:kube-controller-manager", users(user.KubeControllerManager)),
		bindCluster("system:kube-dns", account("kube-dns")),
		bindCluster("system:kube-scheduler", users(user.KubeScheduler)),
		bindCluster("system:volume-scheduler", users(user.KubeScheduler)),
		bindCluster("system:service-account-issuer-discovery", groups(serviceaccount.AllServiceAccountsGroup)),
		bindCluster("system:cluster-trust-bundle-discovery", groups(serviceaccount.AllServiceAccountsGroup)),
		bindCluster("system:node", nil), // nodes go through the Node authorizer
	}
	for _, p := range controllerPolicies() {
		out = append(out, bindCluster(controllerPrefix+p.name, account(p.name)))
	}
	return out
}

func namespacedMeta(namespace, name string) metav1.ObjectMeta {
	m := bootstrapMeta(name)
	m.Namespace = namespace
	return m
}

func leaderLock(name string) []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		on("watch", core, "configmaps"),
		on("get update", core, "configmaps", name),
	}
}

// Roles returns the namespaced roles every cluster has.
func Roles() []*rbacv1.Role {
	role := func(namespace, name string, rules ...rbacv1.PolicyRule) *rbacv1.Role {
		return &rbacv1.Role{ObjectMeta: namespacedMeta(namespace, name), Rules: rules}
	}
	return []*rbacv1.Role{
		role(metav1.NamespaceSystem, "extension-apiserver-authentication-reader",
			on(read, core, "configmaps", "extension-apiserver-authentication")),
		role(metav1.NamespaceSystem, controllerPrefix+"bootstrap-signer", on(read, core, "secrets")),
		role(metav1.NamespaceSystem, controllerPrefix+"cloud-provider", on("create get list watch", core, "configmaps")),
		role(metav1.NamespaceSystem, controllerPrefix+"token-cleaner", on("get list watch delete", core, "secrets"), events()),
		role(metav1.NamespaceSystem, "system::leader-locking-kube-controller-manager", leaderLock("kube-controller-manager")...),
		role(metav1.NamespaceSystem, "system::leader-locking-kube-scheduler", leaderLock("kube-scheduler")...),
		role(metav1.NamespacePublic, controllerPrefix+"bootstrap-signer",
			on(read, core, "configmaps"), on("update", core, "configmaps", "cluster-info"), events()),
	}
}

// RoleBindings returns the namespaced bindings every cluster has.
func RoleBindings() []*rbacv1.RoleBinding {
	bind := func(namespace, name, role string, to []rbacv1.Subject) *rbacv1.RoleBinding {
		return &rbacv1.RoleBinding{
			ObjectMeta: namespacedMeta(namespace, name),
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role},
			Subjects:   to,
		}
	}
	same := func(namespace, role string, to []rbacv1.Subject) *rbacv1.RoleBinding {
		return bind(namespace, role, role, to)
	}
	system := metav1.NamespaceSystem
	return []*rbacv1.RoleBinding{
		same(system, controllerPrefix+"bootstrap-signer", account("bootstrap-signer")),
		same(system, controllerPrefix+"cloud-provider", account("cloud-provider")),
		same(system, controllerPrefix+"token-cleaner", account("token-cleaner")),
		same(system, "system::leader-locking-kube-controller-manager", append(users(user.KubeControllerManager), account("kube-controller-manager")...)),
		same(system, "system::leader-locking-kube-scheduler", append(users(user.KubeScheduler), account("kube-scheduler")...)),
		bind(system, "system::extension-apiserver-authentication-reader", "extension-apiserver-authentication-reader",
			users(user.KubeControllerManager, user.KubeScheduler)),
		same(metav1.NamespacePublic, controllerPrefix+"bootstrap-signer", account("bootstrap-signer")),
	}
}
