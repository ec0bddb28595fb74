package rbac

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"proa/internal/auth/authtest"
	"proa/internal/store"
)

// What a cluster of version 1.37 has from its first moment, with default gates.
const (
	upstreamRoles = `admin cluster-admin edit view
		system:aggregate-to-admin system:aggregate-to-edit system:aggregate-to-view system:auth-delegator system:basic-user
		system:certificates.k8s.io:certificatesigningrequests:nodeclient system:certificates.k8s.io:certificatesigningrequests:selfnodeclient
		system:certificates.k8s.io:kube-apiserver-client-approver system:certificates.k8s.io:kube-apiserver-client-kubelet-approver
		system:certificates.k8s.io:kubelet-serving-approver system:certificates.k8s.io:legacy-unknown-approver
		system:discovery system:heapster system:kube-aggregator system:kube-controller-manager system:kube-dns system:kube-scheduler
		system:kubelet-api-admin system:monitoring system:node system:node-bootstrapper system:node-problem-detector system:node-proxier
		system:persistent-volume-provisioner system:public-info-viewer system:service-account-issuer-discovery system:volume-scheduler`

	upstreamControllers = `attachdetach-controller certificate-controller clusterrole-aggregation-controller cronjob-controller
		daemon-set-controller deployment-controller device-taint-eviction-controller disruption-controller endpoint-controller
		endpointslice-controller endpointslicemirroring-controller ephemeral-volume-controller expand-controller generic-garbage-collector
		horizontal-pod-autoscaler job-controller legacy-service-account-token-cleaner namespace-controller node-controller
		persistent-volume-binder pod-garbage-collector pv-protection-controller pvc-protection-controller replicaset-controller
		replication-controller resource-claim-controller resourcequota-controller root-ca-cert-publisher route-controller
		selinux-warning-controller service-account-controller service-cidrs-controller service-controller statefulset-controller
		storage-version-migrator-controller ttl-after-finished-controller ttl-controller validatingadmissionpolicy-status-controller
		volumeattributesclass-protection-controller`

	// ownRoles have no counterpart upstream, or come with an add-on or a gate there.
	ownRoles = `system:aggregated-metrics-reader system:cluster-trust-bundle-discovery
		system:controller:volume-controller system:controller:podcertificaterequestcleaner
		system:controller:kube-apiserver-serving-clustertrustbundle-publisher`

	upstreamNamespaced = `kube-public/system:controller:bootstrap-signer kube-system/extension-apiserver-authentication-reader
		kube-system/system::leader-locking-kube-controller-manager kube-system/system::leader-locking-kube-scheduler
		kube-system/system:controller:bootstrap-signer kube-system/system:controller:cloud-provider kube-system/system:controller:token-cleaner`
)

func sorted(lists ...[]string) []string {
	all := slices.Concat(lists...)
	slices.Sort(all)
	return all
}

func TestAClusterStartsWithUpstreamsRoles(t *testing.T) {
	var controllersRoles []string
	for _, name := range strings.Fields(upstreamControllers) {
		controllersRoles = append(controllersRoles, controllerPrefix+name)
	}
	var got []string
	for _, r := range ClusterRoles() {
		got = append(got, r.Name)
	}
	if want := sorted(strings.Fields(upstreamRoles), controllersRoles, strings.Fields(ownRoles)); !slices.Equal(sorted(got), want) {
		t.Errorf("cluster roles\n got %q\nwant %q", sorted(got), want)
	}
	got = nil
	for _, r := range Roles() {
		got = append(got, r.Namespace+"/"+r.Name)
	}
	if want := strings.Fields(upstreamNamespaced); !slices.Equal(sorted(got), want) {
		t.Errorf("roles\n got %q\nwant %q", sorted(got), want)
	}
	for _, b := range ClusterRoleBindings() {
		if name, ok := strings.CutPrefix(b.Name, controllerPrefix); ok && (len(b.Subjects) != 1 || b.Subjects[0].Namespace != "kube-system" || b.Subjects[0].Name != name) {
			t.Errorf("%s is bound to %+v", b.Name, b.Subjects)
		}
	}
}

func TestWhatTheRolesOfAClusterAllow(t *testing.T) {
	var objs []store.Object
	for _, r := range ClusterRoles() {
		objs = append(objs, r)
	}
	for _, b := range ClusterRoleBindings() {
		objs = append(objs, b)
	}
	for _, r := range Roles() {
		objs = append(objs, r)
	}
	for _, b := range RoleBindings() {
		objs = append(objs, b)
	}
	for _, role := range []string{"admin", "edit", "view"} {
		objs = append(objs, bindIn("a", role, "ClusterRole", role, users(role)...))
	}
	objs = append(objs, bindAll("kubelets", "system:kubelet-api-admin", users("kubelets")...), bindAll("ext", "system:auth-delegator", sa("a", "ext")),
		bindIn("kube-system", "ext", "Role", "extension-apiserver-authentication-reader", sa("a", "ext")))
	a := New(authtest.Open(t, objs...))

	who := map[string]user.Info{
		"anonymous": &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}},
		"anybody":   &user.DefaultInfo{Name: "anybody", Groups: []string{user.AllAuthenticated}},
		"account":   &user.DefaultInfo{Name: "system:serviceaccount:a:x", Groups: []string{serviceaccount.AllServiceAccountsGroup, user.AllAuthenticated}},
		"ext":       &user.DefaultInfo{Name: "system:serviceaccount:a:ext"},
		"node":      &user.DefaultInfo{Name: "system:node:n", Groups: []string{user.NodesGroup}},
		"scheduler": &user.DefaultInfo{Name: user.KubeScheduler},
		"manager":   &user.DefaultInfo{Name: user.KubeControllerManager},
		"proxy":     &user.DefaultInfo{Name: user.KubeProxy},
		"monitor":   &user.DefaultInfo{Name: "m", Groups: []string{user.MonitoringGroup}},
		"kubelets":  &user.DefaultInfo{Name: "kubelets"},
		"view":      &user.DefaultInfo{Name: "view"}, "edit": &user.DefaultInfo{Name: "edit"}, "admin": &user.DefaultInfo{Name: "admin"},
	}
	for _, name := range strings.Fields(upstreamControllers) {
		who[name] = &user.DefaultInfo{Name: serviceaccount.MakeUsername("kube-system", name)}
	}
	facts := []struct{ who, may, mayNot string }{
		{"anonymous", "get /healthz, get /livez, get /readyz, get /version", "get /api, get /metrics, get /openid/v1/jwks, list pods a/"},
		{"anybody", "get /api, get /apis/apps/v1, get /openapi/v2, create authorization.k8s.io:selfsubjectaccessreviews, create authentication.k8s.io:selfsubjectreviews", "get /metrics, get namespaces a, create authentication.k8s.io:tokenreviews"},
		{"account", "get /.well-known/openid-configuration, get /openid/v1/jwks", "get configmaps a/kube-root-ca.crt"},
		{"ext", "create authentication.k8s.io:tokenreviews, create authorization.k8s.io:subjectaccessreviews, get configmaps kube-system/extension-apiserver-authentication, watch configmaps kube-system/extension-apiserver-authentication", "get configmaps kube-system/other, create authorization.k8s.io:localsubjectaccessreviews a/"},
		{"node", "", "get nodes n, update nodes/status n"},
		{"proxy", "list services a/, watch discovery.k8s.io:endpointslices a/, list networking.k8s.io:servicecidrs, get nodes n", "list pods a/, list secrets a/"},
		{"monitor", "get /metrics, get /metrics/slis, get /livez/ping, get /statusz, get /flagz", "get /debug/pprof"},
		{"scheduler", "create pods/binding a/x, patch pods/status a/x, delete pods a/x, update coordination.k8s.io:leases kube-system/kube-scheduler, update persistentvolumes x, list storage.k8s.io:csistoragecapacities a/, update resource.k8s.io:resourceclaims/status a/x", "create pods a/x, list secrets a/, update nodes x, update coordination.k8s.io:leases kube-system/other"},
		{"manager", "list example.com:foos, create serviceaccounts/token a/x, update secrets a/x, update coordination.k8s.io:leases kube-system/kube-controller-manager", "create pods a/x, delete nodes x, escalate rbac.authorization.k8s.io:clusterroles x"},
		{"kubelets", "get nodes n, watch nodes, proxy nodes n, get nodes/proxy n, create nodes/proxy n, get nodes/metrics n, get nodes/stats n, get nodes/log n, get nodes/pods n, get nodes/healthz n, get nodes/configz n", "update nodes n, get nodes/status n, list pods a/, create pods/exec a/x"},
		{"view", "get pods a/x, get pods/log a/x, list apps:deployments a/, watch discovery.k8s.io:endpointslices a/, get apps:deployments/scale a/x, get configmaps a/x, get policy:poddisruptionbudgets/status a/x, get resource.k8s.io:resourceclaims a/x", "get secrets a/x, create pods/exec a/x, get rbac.authorization.k8s.io:roles a/x, get pods b/x, create pods a/x, get serviceaccounts/token a/x"},
		{"edit", "get secrets a/x, create pods/exec a/x, create pods/eviction a/x, update apps:deployments/scale a/x, delete batch:jobs a/x, create serviceaccounts/token a/x, impersonate serviceaccounts a/x, deletecollection coordination.k8s.io:leases a/, create networking.k8s.io:ingresses a/x", "update endpoints a/x, update discovery.k8s.io:endpointslices a/x, create rbac.authorization.k8s.io:rolebindings a/x, update resourcequotas a/x, update pods/status a/x, update namespaces a"},
		{"admin", "create rbac.authorization.k8s.io:rolebindings a/x, create authorization.k8s.io:localsubjectaccessreviews a/, get secrets a/x", "update resourcequotas a/x, delete namespaces a, update endpoints a/x, bind rbac.authorization.k8s.io:roles a/x, escalate rbac.authorization.k8s.io:roles a/x"},
		{"clusterrole-aggregation-controller", "escalate rbac.authorization.k8s.io:clusterroles x, patch rbac.authorization.k8s.io:clusterroles x", "update rbac.authorization.k8s.io:roles a/x"},
		{"replicaset-controller", "create pods a/x, update apps:replicasets/status a/x", "create secrets a/x, update pods a/x"},
		{"namespace-controller", "deletecollection example.com:foos a/, update namespaces/finalize a", "create pods a/x, update namespaces a"},
		{"generic-garbage-collector", "delete example.com:foos a/x, patch apps:deployments a/x", "create pods a/x, deletecollection pods a/"},
		{"job-controller", "create pods a/x, update batch:jobs/status a/x", "delete batch:jobs a/x"},
		{"statefulset-controller", "create persistentvolumeclaims a/x, delete persistentvolumeclaims a/x, create apps:controllerrevisions a/x", "update apps:statefulsets a/x"},
		{"horizontal-pod-autoscaler", "update apps:deployments/scale a/x, update example.com:foos/scale a/x, list metrics.k8s.io:pods a/, get custom.metrics.k8s.io:anything a/x", "update apps:deployments a/x, delete pods a/x"},
		{"certificate-controller", "sign certificates.k8s.io:signers kubernetes.io/kubelet-serving, update certificates.k8s.io:certificatesigningrequests/approval x", "approve certificates.k8s.io:signers kubernetes.io/kubelet-serving, create certificates.k8s.io:certificatesigningrequests x"},
		{"endpointslice-controller", "create discovery.k8s.io:endpointslices a/x, update services/finalizers a/x", "update services a/x"},
		{"service-account-controller", "create serviceaccounts a/x", "delete serviceaccounts a/x"},
		{"root-ca-cert-publisher", "create configmaps a/x", "delete configmaps a/x, create secrets a/x"},
		{"node-controller", "delete pods a/x, patch nodes/status n", "create nodes n"},
		{"storage-version-migrator-controller", "patch example.com:foos a/x", "delete pods a/x"},
	}
	for _, f := range facts {
		t.Run(f.who, func(t *testing.T) {
			for questions, want := range map[string]bool{f.may: true, f.mayNot: false} {
				for _, q := range strings.Split(questions, ", ") {
					if q == "" {
						continue
					}
					decision, reason, _ := a.Authorize(t.Context(), question(who[f.who], q))
					if (decision == authorizer.DecisionAllow) != want {
						t.Errorf("%s: allowed %t (%s)", q, !want, reason)
					}
				}
			}
		})
	}
}

// question is ask for names that have a slash.
func question(u user.Info, text string) authorizer.AttributesRecord {
	q := ask(u, text)
	if q.Resource == "signers" {
		q.Namespace, q.Name = "", q.Namespace+"/"+q.Name
	}
	return q
}
