package admission

import (
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"proa/internal/store"
)

func nodeObject(name string, change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "n1", Labels: map[string]string{"kubernetes.io/hostname": name}}}
	for _, f := range change {
		f(n)
	}
	return n
}

func mirrorPod(change ...func(*corev1.Pod)) *corev1.Pod {
	return pod(append([]func(*corev1.Pod){func(p *corev1.Pod) {
		p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
		p.Spec.NodeName = "n1"
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n1", UID: "n1", Controller: new(true)}}
	}}, change...)...)
}

func TestNodeRestriction(t *testing.T) {
	n1 := &user.DefaultInfo{Name: "system:node:n1", Groups: []string{"system:nodes"}}
	on := func(node, name string) *corev1.Pod {
		p := pod()
		p.Name, p.UID, p.Spec.NodeName, p.Spec.ServiceAccountName = name, "uid", node, "default"
		p.Spec.Volumes = []corev1.Volume{{Name: "t", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Audience: "vault"}}}}}}}
		return p
	}
	running := func(p *corev1.Pod) *corev1.Pod { p.Status.Phase = corev1.PodRunning; return p }
	labelled := func(key string) func(*corev1.Node) { return func(n *corev1.Node) { n.Labels[key] = "x" } }
	node := func(change ...func(*corev1.Node)) write {
		return write{obj: nodeObject("n1", change...), old: nodeObject("n1")}
	}
	token := func(name, uid string, audiences ...string) write {
		return write{sub: "token", obj: &authenticationv1.TokenRequest{ObjectMeta: meta("ns", "default"), Spec: authenticationv1.TokenRequestSpec{
			Audiences: audiences, BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: name, UID: "uid"}}}}
	}
	eviction := func(name string) write {
		return write{sub: "eviction", obj: &policyv1.Eviction{ObjectMeta: meta("ns", name)}}
	}
	lease := func(ns, name string) write { return write{obj: &coordinationv1.Lease{ObjectMeta: meta(ns, name)}} }
	slice := func(node string) write {
		return write{obj: &resourcev1.ResourceSlice{ObjectMeta: meta("", "s"), Spec: resourcev1.ResourceSliceSpec{NodeName: &node}}}
	}
	csr := func(cn string) write {
		return write{obj: &certificatesv1.CertificateSigningRequest{ObjectMeta: meta("", "r"), Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: certificatesv1.KubeletServingSignerName, Request: request(t, cn)}}}
	}
	tests := []struct {
		name string
		write
		want string
	}{
		{"register itself", write{obj: nodeObject("n1", labelled("topology.kubernetes.io/zone"), labelled("mine"))}, ""},
		{"register another", write{obj: nodeObject("n2")}, `nodes "n2" is forbidden: node "n1" is not allowed to modify node "n2"`},
		{"register with a protected label", write{obj: nodeObject("n1", labelled("node-restriction.kubernetes.io/a"), labelled("node-role.kubernetes.io/b"))},
			`nodes "n1" is forbidden: node "n1" is not allowed to set the following labels: node-restriction.kubernetes.io/a, node-role.kubernetes.io/b`},
		{"set a label of its own", node(labelled("node.kubernetes.io/x")), ""},
		{"set a protected label", node(labelled("a.node-restriction.kubernetes.io/x")), `nodes "n1" is forbidden: node "n1" is not allowed to modify labels: a.node-restriction.kubernetes.io/x`},
		{"remove a label of the cluster", write{obj: nodeObject("n1"), old: nodeObject("n1", labelled("node-role.kubernetes.io/b"))},
			`nodes "n1" is forbidden: node "n1" is not allowed to modify labels: node-role.kubernetes.io/b`},
		{"set taints", node(func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "k", Effect: "NoSchedule"}} }),
			`nodes "n1" is forbidden: node "n1" is not allowed to modify taints`},
		{"give itself an owner", node(func(n *corev1.Node) { n.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: "x", UID: "x"}} }),
			`nodes "n1" is forbidden: node "n1" is not allowed to modify ownerReferences`},
		{"give itself an owner through status", write{sub: "status", obj: nodeObject("n1", func(n *corev1.Node) {
			n.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: "x", UID: "x"}}
		}), old: nodeObject("n1")}, `nodes "n1" is forbidden: node "n1" is not allowed to modify ownerReferences`},
		{"take a pod network", node(func(n *corev1.Node) { n.Spec.PodCIDR = "10.0.0.0/8" }),
			`nodes "n1" is forbidden: node "n1" is not allowed to modify spec fields other than unschedulable and an unset providerID`},
		{"report its status", write{sub: "status", obj: nodeObject("n1", func(n *corev1.Node) { n.Status.Phase = "x" }), old: nodeObject("n1")}, ""},

		{"create a mirror pod", write{obj: mirrorPod()}, ""},
		{"create another pod", write{obj: pod()}, `pods "p" is forbidden: pod does not have "kubernetes.io/config.mirror" annotation, node "n1" can only create mirror pods`},
		{"create a mirror pod elsewhere", write{obj: mirrorPod(func(p *corev1.Pod) { p.Spec.NodeName = "n2" })},
			`pods "p" is forbidden: node "n1" can only create pods with spec.nodeName set to itself`},
		{"create a mirror pod without owner", write{obj: mirrorPod(func(p *corev1.Pod) { p.OwnerReferences = nil })},
			`pods "p" is forbidden: node "n1" can only create pods with an owner reference set to itself`},
		{"create a mirror pod of an old node", write{obj: mirrorPod(func(p *corev1.Pod) { p.OwnerReferences[0].UID = "old" })},
			`pods "p" is forbidden: node n1 UID mismatch: expected old got n1`},
		{"create a mirror pod with config maps", write{obj: mirrorPod(func(p *corev1.Pod) {
			p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
				EnvFrom: []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "m"}}}}}}}
		})}, `pods "p" is forbidden: node "n1" can not create pods that reference configmaps`},
		{"create a mirror pod with devices", write{obj: mirrorPod(func(p *corev1.Pod) { p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "r"}} })},
			`pods "p" is forbidden: node "n1" can not create pods that reference resourceclaims`},
		{"delete its pod", write{op: admissionv1.Delete, old: on("n1", "mine")}, ""},
		{"delete another's pod", write{op: admissionv1.Delete, old: on("n2", "theirs")}, `pods "theirs" is forbidden: node "n1" can only delete pods with spec.nodeName set to itself`},
		{"update a pod", write{obj: on("n1", "mine"), old: on("n1", "mine")}, `pods "mine" is forbidden: unexpected operation "UPDATE", node "n1" can only create and delete mirror pods`},
		{"report its pod's status", write{sub: "status", obj: running(on("n1", "mine")), old: on("n1", "mine")}, ""},
		{"report another's pod's status", write{sub: "status", obj: running(on("n2", "theirs")), old: on("n2", "theirs")},
			`pods "theirs" is forbidden: node "n1" can only update pod status for pods with spec.nodeName set to itself`},
		{"evict its pod", eviction("mine"), ""},
		{"evict another's pod", eviction("theirs"), `pods "theirs" is forbidden: node n1 can only evict pods with spec.nodeName set to itself`},

		{"a token its pod asks for", token("mine", "uid", "vault"), ""},
		{"a token for another audience", token("mine", "uid", "bank"), `serviceaccounts "default" is forbidden: audience "bank" not found in pod spec volume`},
		{"a token for another's pod", token("theirs", "uid", "vault"), `serviceaccounts "default" is forbidden: node requested token bound to a pod scheduled on a different node`},
		{"a token bound to nothing", write{sub: "token", obj: &authenticationv1.TokenRequest{ObjectMeta: meta("ns", "default")}},
			`serviceaccounts "default" is forbidden: node requested token not bound to a pod`},

		{"renew its lease", lease("kube-node-lease", "n1"), ""},
		{"take another's lease", lease("kube-node-lease", "n2"), `leases.coordination.k8s.io "n2" is forbidden: can only access node lease with the same name as the requesting node`},
		{"publish its devices", slice("n1"), ""},
		{"publish another's devices", slice("n2"), `resourceslices.resource.k8s.io "s" is forbidden: can only create ResourceSlice with the same NodeName as the requesting node`},
		{"ask for its certificate", csr("system:node:n1"), ""},
		{"ask for another's certificate", csr("system:node:n2"), `certificatesigningrequests.certificates.k8s.io "r" is forbidden: can only create a node CSR with CN=system:node:n1`},
		{"write anything else", write{obj: &corev1.ConfigMap{ObjectMeta: meta("ns", "m")}}, ""},
	}
	w := newWorld(t, nil, nodeObject("n1"), namespace("kube-node-lease"), on("n1", "mine"), on("n2", "theirs"))
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.user = n1
			checkError(t, w.run(t, tt.attributes(t), false), tt.want)
		})
	}
	// others are not held to these rules
	for _, obj := range []store.Object{nodeObject("n2", labelled("node-restriction.kubernetes.io/a")), pod()} {
		checkError(t, w.run(t, write{obj: obj}.attributes(t), false), "")
	}
}

func TestANewNodeIsTainted(t *testing.T) {
	w, n := newWorld(t, nil), nodeObject("n1")
	for range 2 {
		checkError(t, w.run(t, write{obj: n}.attributes(t), false), "")
	}
	if len(n.Spec.Taints) != 1 || n.Spec.Taints[0].Key != corev1.TaintNodeNotReady {
		t.Errorf("taints %v", n.Spec.Taints)
	}
}

func TestBindingsGetTheTopologyOfTheNode(t *testing.T) {
	w := newWorld(t, nil, nodeObject("n1", func(n *corev1.Node) {
		n.Labels = map[string]string{corev1.LabelTopologyZone: "z", "other": "x"}
	}))
	b := &corev1.Binding{ObjectMeta: meta("ns", "p"), Target: corev1.ObjectReference{Kind: "Node", Name: "n1"}}
	checkError(t, w.run(t, write{sub: "binding", obj: b}.attributes(t), false), "")
	if len(b.Labels) != 1 || b.Labels[corev1.LabelTopologyZone] != "z" {
		t.Errorf("labels %v", b.Labels)
	}
}
