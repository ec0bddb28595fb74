package security

import (
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"proa/pkg/proatest"
)

func TestANodeChangesOnlyWhatIsItsOwn(t *testing.T) {
	t.Parallel()
	s := newServer(t, proatest.Options{})
	s.make(t, core+"/nodes", `{"metadata": {"name": "n1"}}`, `{"metadata": {"name": "n2"}}`)
	s.make(t, pods, pod("p1", "n1", ""), pod("p2", "n2", ""))
	const me = node + "n1"
	own, other := core+"/nodes/n1", core+"/nodes/n2"
	owner := `{"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "u"}]}}`
	s.play(t,
		step{as: me, method: patch, path: own, body: owner, code: forbidden, says: "ownerReferences"},
		step{as: me, method: patch, path: own + "/status", body: owner, code: forbidden, says: "not allowed to modify ownerReferences"},
		step{as: me, method: patch, path: own, body: `{"metadata": {"labels": {"node-restriction.kubernetes.io/a": "b"}}}`, code: forbidden, says: "not allowed to modify labels"},
		step{as: me, method: patch, path: own, body: `{"metadata": {"labels": {"kubernetes.io/a": "b"}}}`, code: forbidden, says: "not allowed to modify labels"},
		step{as: me, method: patch, path: own, body: `{"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}`, code: forbidden, says: "not allowed to modify taints"},
		step{as: me, method: patch, path: own, body: `{"spec": {"configSource": {"configMap": {"name": "a", "namespace": "b", "kubeletConfigKey": "c"}}}}`, code: forbidden, says: "configSource"},
		step{as: me, method: remove, path: own, code: forbidden},
		step{as: me, method: remove, path: core + "/nodes", code: forbidden},
		step{as: me, method: patch, path: other, body: `{"metadata": {"labels": {"a": "b"}}}`, code: forbidden, says: "is not allowed to modify node"},
		step{as: me, method: patch, path: other + "/status", body: `{"status": {"phase": "Running"}}`, code: forbidden},
		step{as: me, method: post, path: core + "/nodes", body: `{"metadata": {"name": "n3"}}`, code: forbidden, says: "not allowed to modify node"},
		step{as: me, method: remove, path: pods + "/p2", code: forbidden, says: "can only delete pods with spec.nodeName set to itself"},
		step{as: me, method: patch, path: pods + "/p2/status", body: `{"status": {"phase": "Failed"}}`, code: forbidden},
		step{as: me, method: patch, path: pods + "/p1/status", body: `{"metadata": {"labels": {"a": "b"}}}`, code: forbidden, says: "labels"},
		step{as: me, method: patch, path: pods + "/p1", body: `{"metadata": {"labels": {"a": "b"}}}`, code: forbidden},
		step{as: me, method: post, path: pods + "/p2/eviction", body: `{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p2"}}`, code: forbidden},
		step{as: me, method: put, path: "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n2",
			body: `{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "n2"}}`, code: forbidden},
		step{as: node + "", method: get, path: own, code: forbidden},
		step{as: "system:node:", method: patch, path: own, body: `{}`, code: forbidden},
		step{as: me, method: patch, path: own, body: `{"metadata": {"labels": {"mine": "b"}}}`, code: 200},
		step{as: me, method: patch, path: pods + "/p1/status", body: `{"status": {"phase": "Running"}}`, code: 200},
		step{as: me, method: remove, path: pods + "/p1?gracePeriodSeconds=0", code: 200},
	)
}

func TestWhatANodeMayNotCreate(t *testing.T) {
	t.Parallel()
	s := newServer(t, proatest.Options{})
	s.make(t, core+"/nodes", `{"metadata": {"name": "n1"}}`)
	_, text := s.do(t, step{method: get, path: core + "/nodes/n1"})
	var n corev1.Node
	if err := json.Unmarshal([]byte(text), &n); err != nil {
		t.Fatal(err)
	}
	const me = node + "n1"
	create := func(body string, code int, says string) {
		t.Helper()
		s.play(t, step{as: me, method: post, path: pods, body: strings.ReplaceAll(body, "UID", string(n.UID)), code: code, says: says})
	}
	create(pod("plain", "n1", ""), forbidden, "can only create mirror pods")
	create(mirror("elsewhere", "n2", ""), forbidden, "spec.nodeName set to itself")
	create(mirror("owner", "n1", ""), 201, "")
	create(strings.ReplaceAll(mirror("of", "n1", ""), "UID", "another"), forbidden, "UID mismatch")
	create(strings.Replace(mirror("controlled", "n1", ""), `, "controller": true`, "", 1), forbidden, "controller")
	create(mirror("claims", "n1", `, "resourceClaims": [{"name": "a", "resourceClaimName": "b"}]`), forbidden, "")
	create(mirror("account", "n1", `, "serviceAccountName": "default"`), forbidden, "service account")
	create(mirror("secret", "n1", `, "volumes": [{"name": "a", "secret": {"secretName": "b"}}]`), forbidden, "secret")
	create(mirror("map", "n1", `, "volumes": [{"name": "a", "configMap": {"name": "b"}}]`), forbidden, "configmap")
	create(mirror("projected", "n1", `, "volumes": [{"name": "a", "projected": {"sources": [{"secret": {"name": "b"}}]}}]`), forbidden, "secret")
	create(mirror("token", "n1", `, "volumes": [{"name": "a", "projected": {"sources": [{"serviceAccountToken": {"path": "b"}}]}}]`), forbidden, "")
	create(mirror("claim", "n1", `, "volumes": [{"name": "a", "persistentVolumeClaim": {"claimName": "b"}}]`), forbidden, "persistentvolumeclaim")
	create(mirror("pull", "n1", `, "imagePullSecrets": [{"name": "b"}]`), forbidden, "secret")
	create(strings.Replace(mirror("env", "n1", ""), `"image": "i"`, `"image": "i", "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "b", "key": "c"}}}]`, 1), forbidden, "secret")
	create(strings.Replace(mirror("from", "n1", ""), `"image": "i"`, `"image": "i", "envFrom": [{"secretRef": {"name": "b"}}]`, 1), forbidden, "secret")
	create(mirror("init", "n1", `, "initContainers": [{"name": "i", "image": "i", "envFrom": [{"configMapRef": {"name": "b"}}]}]`), forbidden, "configmap")
}

func TestANodeReadsOnlyWhatItsPodsUse(t *testing.T) {
	t.Parallel()
	s := newServer(t, proatest.Options{})
	s.make(t, core+"/nodes", `{"metadata": {"name": "n1"}}`, `{"metadata": {"name": "n2"}}`)
	s.make(t, secrets, `{"metadata": {"name": "used"}}`, `{"metadata": {"name": "others"}}`)
	s.make(t, pods, pod("p1", "n1", `, "volumes": [{"name": "a", "secret": {"secretName": "used"}}]`), pod("p2", "n2", `, "volumes": [{"name": "a", "secret": {"secretName": "others"}}]`))
	s.make(t, core+"/namespaces/default/serviceaccounts", `{"metadata": {"name": "builder"}}`)
	const me = node + "n1"
	request := `{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": ["a"], "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p2"}}}`
	s.play(t,
		step{as: me, method: get, path: secrets + "/used", code: 200},
		step{as: me, method: get, path: secrets + "/others", code: forbidden, says: "no relationship found between node 'n1' and this object"},
		step{as: me, method: get, path: secrets, code: forbidden},
		step{as: me, method: get, path: core + "/secrets", code: forbidden},
		step{as: me, method: get, path: secrets + "?fieldSelector=metadata.name%3Dothers", code: forbidden},
		step{as: me, method: get, path: secrets + "?watch=1&fieldSelector=metadata.name%3Dothers&timeoutSeconds=1", code: forbidden},
		step{as: me, method: put, path: secrets + "/used", body: `{"metadata": {"name": "used"}}`, code: forbidden},
		step{as: me, method: remove, path: secrets + "/used", code: forbidden},
		step{as: me, method: get, path: pods + "/p2/log", code: forbidden},
		step{as: me, method: get, path: pods + "/p1/log", code: forbidden},
		step{as: me, method: post, path: pods + "/p2/exec?command=id", code: forbidden},
		step{as: me, method: get, path: core + "/nodes/n2/proxy/logs/", code: forbidden},
		step{as: me, method: post, path: core + "/namespaces/default/serviceaccounts/builder/token", body: request, code: forbidden},
	)
}
