package rbac

import (
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Space-separated verb lists of the tables below.
const (
	read       = "get list watch"
	write      = "create update patch delete deletecollection"
	readWrite  = read + " " + write
	readUpdate = read + " update patch"

	core  = "core" // written for the API group with the empty name
	adm   = "admissionregistration.k8s.io"
	authn = "authentication.k8s.io"
	authz = "authorization.k8s.io"
	certs = "certificates.k8s.io"
	coord = "coordination.k8s.io"
	disc  = "discovery.k8s.io"
	ext   = "extensions"
	nets  = "networking.k8s.io"
	rbacg = rbacv1.GroupName
	res   = "resource.k8s.io"
	sched = "scheduling.k8s.io"
	stor  = "storage.k8s.io"
)

// policy is a bootstrap ClusterRole in brief.
type policy struct {
	name      string
	rules     []rbacv1.PolicyRule
	aggregate string // rules come from roles labelled aggregate-to-<this>
	into      string // labels aggregate-to-<each of these>
}

// on is a rule for resources: verbs, groups and resources are space-separated.
func on(verbs, groups, resources string, names ...string) rbacv1.PolicyRule {
	r := rbacv1.PolicyRule{
		Verbs: inOrder(verbs), APIGroups: strings.Fields(groups), Resources: inOrder(resources),
		ResourceNames: names,
	}
	for i, g := range r.APIGroups {
		if g == core {
			r.APIGroups[i] = ""
		}
	}
	slices.Sort(r.APIGroups)
	return r
}

// inOrder are words in the order that upstream's roles have them.
func inOrder(words string) []string { return slices.Sorted(strings.FieldsSeq(words)) }

// get is a rule for paths that are no resource.
func get(paths string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: []string{"get"}, NonResourceURLs: inOrder(paths)}
}

func events() rbacv1.PolicyRule { return on("create update patch", core+" events.k8s.io", "events") }

const aggregateLabel = "rbac.authorization.k8s.io/aggregate-to-"

func (p policy) role() *rbacv1.ClusterRole {
	role := &rbacv1.ClusterRole{ObjectMeta: bootstrapMeta(p.name), Rules: p.rules}
	for _, into := range strings.Fields(p.into) {
		role.Labels[aggregateLabel+into] = "true"
	}
	if p.aggregate != "" {
		role.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{
			{MatchLabels: map[string]string{aggregateLabel + p.aggregate: "true"}},
		}}
	}
	return role
}

func bootstrapMeta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name:        name,
		Labels:      map[string]string{"kubernetes.io/bootstrapping": "rbac-defaults"},
		Annotations: map[string]string{rbacv1.AutoUpdateAnnotationKey: "true"},
	}
}

// ClusterRoles returns the roles every cluster has, aggregated ones with the
// rules that the others give them.
func ClusterRoles() []*rbacv1.ClusterRole {
	var out []*rbacv1.ClusterRole
	for _, p := range userPolicies() {
		out = append(out, p.role())
	}
	for _, p := range componentPolicies() {
		out = append(out, p.role())
	}
	for _, p := range controllerPolicies() {
		p.name = controllerPrefix + p.name
		out = append(out, p.role())
	}
	aggregateAll(out)
	return out
}

// aggregateAll fills aggregated roles until nothing changes: admin takes from
// edit, which takes from view.
func aggregateAll(all []*rbacv1.ClusterRole) {
	for changed := true; changed; {
		changed = false
		for _, role := range all {
			rules, err := Aggregate(role, all)
			if err != nil {
				panic(err) // the selectors are part of the program
			}
			if len(rules) != len(role.Rules) {
				role.Rules, changed = rules, true
			}
		}
	}
}

// userPolicies are the roles that people and workloads are given.
func userPolicies() []policy {
	return []policy{
		{name: "cluster-admin", rules: FullAuthority()},
		{name: "admin", aggregate: "admin"},
		{name: "edit", aggregate: "edit", into: "admin"},
		{name: "view", aggregate: "view", into: "edit"},
		{name: "system:aggregate-to-admin", into: "admin", rules: []rbacv1.PolicyRule{
			on("create", authz, "localsubjectaccessreviews"),
			on(readWrite, rbacg, "roles rolebindings"),
		}},
		{name: "system:aggregate-to-edit", into: "edit", rules: []rbacv1.PolicyRule{
			on(read, core, "pods/attach pods/proxy pods/exec pods/portforward secrets services/proxy"),
			on("impersonate", core, "serviceaccounts"),
			on(write, core, "pods pods/attach pods/proxy pods/exec pods/portforward"),
			on("create", core, "pods/eviction"),
			on(write, core, "replicationcontrollers replicationcontrollers/scale serviceaccounts services services/proxy persistentvolumeclaims configmaps secrets events"),
			on("create", core, "serviceaccounts/token"),
			on(write, "apps", "statefulsets statefulsets/scale daemonsets deployments deployments/scale deployments/rollback replicasets replicasets/scale"),
			on(write, "autoscaling", "horizontalpodautoscalers"),
			on(write, "batch", "jobs cronjobs"),
			on(write, ext, "daemonsets deployments deployments/scale deployments/rollback ingresses replicasets replicasets/scale replicationcontrollers/scale networkpolicies"),
			on(write, "policy", "poddisruptionbudgets"),
			on(write, nets, "networkpolicies ingresses"),
			on(readWrite, coord, "leases"),
			on(write, res, "resourceclaims resourceclaimtemplates"),
		}},
		{name: "system:aggregate-to-view", into: "view", rules: []rbacv1.PolicyRule{
			on(read, core, "pods replicationcontrollers replicationcontrollers/scale serviceaccounts services services/status endpoints persistentvolumeclaims persistentvolumeclaims/status configmaps"),
			on(read, core, "limitranges resourcequotas bindings events pods/status resourcequotas/status namespaces/status replicationcontrollers/status pods/log"),
			on(read, core, "namespaces"),
			on(read, disc, "endpointslices"),
			on(read, "apps", "controllerrevisions statefulsets statefulsets/status statefulsets/scale daemonsets daemonsets/status deployments deployments/status deployments/scale replicasets replicasets/status replicasets/scale"),
			on(read, "autoscaling", "horizontalpodautoscalers horizontalpodautoscalers/status"),
			on(read, "batch", "jobs cronjobs cronjobs/status jobs/status"),
			on(read, ext, "daemonsets daemonsets/status deployments deployments/scale deployments/status ingresses ingresses/status replicasets replicasets/scale replicasets/status replicationcontrollers/scale networkpolicies"),
			on(read, "policy", "poddisruptionbudgets poddisruptionbudgets/status"),
			on(read, nets, "networkpolicies ingresses ingresses/status"),
			on(read, res, "resourceclaims resourceclaims/status resourceclaimtemplates"),
		}},
		{name: "system:aggregated-metrics-reader", into: "admin edit view", rules: []rbacv1.PolicyRule{
			on(read, "metrics.k8s.io", "nodes pods"),
		}},
		{name: "system:discovery", rules: []rbacv1.PolicyRule{
			get("/livez /readyz /healthz /version /version/ /openapi /openapi/* /api /api/* /apis /apis/*"),
		}},
		{name: "system:monitoring", rules: []rbacv1.PolicyRule{
			get("/metrics /metrics/slis /livez /readyz /healthz /livez/* /readyz/* /healthz/* /statusz /flagz"),
		}},
		{name: "system:basic-user", rules: []rbacv1.PolicyRule{
			on("create", authz, "selfsubjectaccessreviews selfsubjectrulesreviews"),
			on("create", authn, "selfsubjectreviews"),
		}},
		{name: "system:public-info-viewer", rules: []rbacv1.PolicyRule{get("/livez /readyz /healthz /version /version/")}},
		{name: "system:service-account-issuer-discovery", rules: []rbacv1.PolicyRule{
			get("/.well-known/openid-configuration /.well-known/openid-configuration/ /openid/v1/jwks /openid/v1/jwks/"),
		}},
	}
}

// componentPolicies are the roles of the parts of a cluster.
func componentPolicies() []policy {
	return []policy{
		{name: "system:heapster", rules: []rbacv1.PolicyRule{
			on(read, core, "events pods nodes namespaces"),
			on(read, ext, "deployments"),
		}},
		{name: "system:node", rules: NodeRules()},
		{name: "system:node-problem-detector", rules: []rbacv1.PolicyRule{
			on("get", core, "nodes"), on("patch", core, "nodes/status"), events(),
		}},
		{name: "system:kubelet-api-admin", rules: []rbacv1.PolicyRule{
			on(read, core, "nodes"),
			on("proxy", core, "nodes"),
			on("*", core, "nodes/proxy nodes/metrics nodes/stats nodes/log nodes/pods nodes/healthz nodes/configz"),
		}},
		{name: "system:node-bootstrapper", rules: []rbacv1.PolicyRule{on("create get list watch", certs, "certificatesigningrequests")}},
		{name: "system:auth-delegator", rules: []rbacv1.PolicyRule{
			on("create", authn, "tokenreviews"), on("create", authz, "subjectaccessreviews"),
		}},
		{name: "system:kube-aggregator", rules: []rbacv1.PolicyRule{on(read, core, "services endpoints")}},
		{name: "system:kube-controller-manager", rules: []rbacv1.PolicyRule{
			events(),
			on("create", coord, "leases"),
			on("get update", coord, "leases", "kube-controller-manager"),
			on("create", core, "secrets serviceaccounts"),
			on("delete", core, "secrets"),
			on("get", core, "namespaces secrets serviceaccounts configmaps"),
			on("update", core, "secrets serviceaccounts"),
			on("create", authn, "tokenreviews"),
			on("create", authz, "subjectaccessreviews"),
			on("list watch", "*", "*"),
			on("create", core, "serviceaccounts/token"),
		}},
		{name: "system:kube-dns", rules: []rbacv1.PolicyRule{on("list watch", core, "endpoints services")}},
		{name: "system:kube-scheduler", rules: schedulerRules()},
		{name: "system:node-proxier", rules: []rbacv1.PolicyRule{
			on("list watch", core, "services endpoints"),
			on(read, core, "nodes"),
			events(),
			on("list watch", disc, "endpointslices"),
			on("list watch", nets, "servicecidrs"),
		}},
		{name: "system:persistent-volume-provisioner", rules: []rbacv1.PolicyRule{
			on("get list watch create delete", core, "persistentvolumes"),
			on("get list watch update", core, "persistentvolumeclaims"),
			on(read, stor, "storageclasses"),
			on("watch", core, "events"),
			events(),
		}},
		{name: "system:volume-scheduler", rules: []rbacv1.PolicyRule{
			on(readUpdate, core, "persistentvolumes"),
			on(read, stor, "storageclasses"),
			on(readUpdate, core, "persistentvolumeclaims"),
		}},
		{name: "system:certificates.k8s.io:certificatesigningrequests:nodeclient", rules: []rbacv1.PolicyRule{on("create", certs, "certificatesigningrequests/nodeclient")}},
		{name: "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient", rules: []rbacv1.PolicyRule{on("create", certs, "certificatesigningrequests/selfnodeclient")}},
		{name: "system:certificates.k8s.io:legacy-unknown-approver", rules: []rbacv1.PolicyRule{on("approve", certs, "signers", "kubernetes.io/legacy-unknown")}},
		{name: "system:certificates.k8s.io:kubelet-serving-approver", rules: []rbacv1.PolicyRule{on("approve", certs, "signers", "kubernetes.io/kubelet-serving")}},
		{name: "system:certificates.k8s.io:kube-apiserver-client-approver", rules: []rbacv1.PolicyRule{on("approve", certs, "signers", "kubernetes.io/kube-apiserver-client")}},
		{name: "system:certificates.k8s.io:kube-apiserver-client-kubelet-approver", rules: []rbacv1.PolicyRule{on("approve", certs, "signers", "kubernetes.io/kube-apiserver-client-kubelet")}},
		{name: "system:cluster-trust-bundle-discovery", rules: []rbacv1.PolicyRule{on(read, certs, "clustertrustbundles")}},
	}
}

func schedulerRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		events(),
		on("create", coord, "leases"),
		on("get list watch update", coord, "leases", "kube-scheduler"),
		on("create", coord, "leasecandidates"),
		on("get list watch update patch", coord, "leasecandidates"),
		on(read, core, "nodes"),
		on("get list watch delete", core, "pods"),
		on("create", core, "pods/binding bindings"),
		on("patch update", core, "pods/status"),
		on(read, core, "services replicationcontrollers"),
		on(read, "apps "+ext, "replicasets"),
		on(read, "apps", "statefulsets"),
		on(read, "policy", "poddisruptionbudgets"),
		on(read, core, "persistentvolumeclaims persistentvolumes namespaces"),
		on("create", authn, "tokenreviews"),
		on("create", authz, "subjectaccessreviews"),
		on(read, stor, "csinodes csidrivers csistoragecapacities volumeattachments"),
		on(read, res, "deviceclasses resourceslices"),
		on("get list watch update create delete", res, "resourceclaims"),
		on("get list watch update patch", res, "resourceclaims/status"),
		on("update patch", res, "resourceclaims/binding"),
		on("update", core, "pods/finalizers"),
		on(read, res, "devicetaintrules"),
		on(read, sched, "workloads podgroups"),
		on("update patch", sched, "podgroups/status"),
	}
}

// NodeRules are what the Node authorizer grants a node besides the objects that
// its pods use, and the rules of ClusterRole system:node.
func NodeRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		on("create", authn, "tokenreviews"),
		on("create", authz, "subjectaccessreviews localsubjectaccessreviews"),
		on(read, core, "services"),
		on("create get list watch", core, "nodes"),
		on("update patch", core, "nodes/status"),
		on("update patch", core, "nodes"),
		on("create update patch", core+" events.k8s.io", "events"),
		on(read, core, "pods"),
		on("create delete", core, "pods"),
		on("update patch", core, "pods/status"),
		on("create", core, "pods/eviction"),
		on(read, core, "secrets configmaps"),
		on("get", core, "persistentvolumeclaims persistentvolumes"),
		on("get", core, "endpoints"),
		on("create get list watch", certs, "certificatesigningrequests"),
		on("get create update patch delete", coord, "leases"),
		on("get", stor, "volumeattachments"),
		on("get update patch", core, "persistentvolumeclaims/status"),
		on("create", core, "serviceaccounts/token"),
		on(read, stor, "csidrivers"),
		on("get create update patch delete", stor, "csinodes"),
		on(read, "node.k8s.io", "runtimeclasses"),
		on("get", res, "resourceclaims"),
		on("deletecollection", res, "resourceslices"),
		on("get list watch create update patch delete", res, "resourceslices"),
		on(read, certs, "clustertrustbundles"),
		on("create get list watch", certs, "podcertificaterequests"),
	}
}
