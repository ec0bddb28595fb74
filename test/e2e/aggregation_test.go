package e2e

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"proa/internal/auth/pki"
)

// TestSampleAPIServer runs Kubernetes' own example of an extension server as a pod
// and uses its kinds through the main server. It runs alone: a group whose server
// is down is everybody's trouble.
func TestSampleAPIServer(t *testing.T) {
	if out, err := shared.proa("image", "load", others(t, "build/images/sample-apiserver.tar")); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	ns := shared.namespace(t)
	startSampleServer(t, ns)
	const service = "apiservice/v1alpha1.wardle.example.com"
	shared.kubectl(t, "wait", "--for=condition=Available", service, "--timeout=90s")
	if out := shared.kubectl(t, "get", service, "--no-headers"); strings.Fields(out)[1] != ns+"/wardle" || strings.Fields(out)[2] != "True" {
		t.Errorf("apiservice: %s", out)
	}
	flunders(t, ns)
	describedByDiscovery(t)
	statusOfAnAPIService(t)

	t.Log("what its authorization says holds")
	out, stderr, err := shared.tryKubectl("", "get", "flunders.wardle.example.com", "-n", ns, "--as=nobody")
	if err == nil || !strings.Contains(stderr, `flunders.wardle.example.com is forbidden: User "nobody" cannot list resource "flunders"`) {
		t.Errorf("a stranger: %s%s", out, stderr)
	}

	t.Log("a namespace takes the objects of every server with it")
	flunder := "apiVersion: wardle.example.com/v1alpha1\nkind: Flunder\nmetadata: {name: doomed}\nspec: {reference: x}\n"
	shared.kubectl(t, "create", "namespace", ns+"-content")
	shared.apply(t, flunder, "-n", ns+"-content")
	shared.kubectl(t, "delete", "namespace", ns+"-content", "--timeout=60s")
	if got := shared.kubectl(t, "get", "flunders", "-A", "-o", "name"); got != "" {
		t.Errorf("left of a deleted namespace: %s", got)
	}

	t.Log("without its pod it is unavailable, and the rest of the API is not")
	shared.kubectl(t, "delete", "pod", "wardle", "-n", ns, "--now")
	shared.kubectl(t, "wait", "--for=condition=Available=False", service, "--timeout=60s")
	if got := shared.kubectl(t, "get", service, "-o", `jsonpath={.status.conditions[0].reason}`); got != "MissingEndpoints" && got != "EndpointsNotFound" {
		t.Errorf("reason: %s", got)
	}
	_, stderr, err = shared.tryKubectl("", "get", "--raw", "/apis/wardle.example.com/v1alpha1")
	if err == nil || !strings.Contains(stderr, "currently unable to handle the request") {
		t.Errorf("discovery of what is down: %v %s", err, stderr)
	}
	shared.kubectl(t, "get", "pods", "-n", ns)

	t.Log("until its server answers or goes, nobody knows what a namespace holds")
	shared.kubectl(t, "create", "namespace", ns+"-held")
	shared.kubectl(t, "delete", "namespace", ns+"-held", "--wait=false")
	shared.kubectl(t, "wait", `--for=jsonpath={.status.conditions[?(@.type=="NamespaceDeletionDiscoveryFailure")].reason}=DiscoveryFailed`, "namespace/"+ns+"-held", "--timeout=60s")
	shared.kubectl(t, "delete", service, "apiservice/v1beta1.wardle.example.com")
	shared.kubectl(t, "wait", "--for=delete", "namespace/"+ns+"-held", "--timeout=60s")
}

func flunders(t *testing.T, ns string) {
	t.Helper()
	manifest := "apiVersion: wardle.example.com/v1alpha1\nkind: Flunder\nmetadata: {name: %s, labels: {sample: 'true'}}\nspec: {reference: x}\n"
	shared.apply(t, fmt.Sprintf(manifest, "a"), "-n", ns)
	shared.apply(t, fmt.Sprintf(manifest, "b"), "-n", ns)
	if got := shared.kubectl(t, "get", "flunders", "-n", ns, "-o", "name"); got != "flunder.wardle.example.com/a\nflunder.wardle.example.com/b\n" {
		t.Errorf("list: %q", got)
	}
	shared.kubectl(t, "patch", "flunder", "a", "-n", ns, "--type=merge", "-p", `{"metadata":{"labels":{"patched":"yes"}}}`)
	if got := shared.kubectl(t, "get", "flunder", "-l", "patched=yes", "-n", ns, "-o", "jsonpath={.items[*].metadata.name}"); got != "a" {
		t.Errorf("selected: %q", got)
	}
	watched := shared.kubectl(t, "get", "flunders", "-n", ns, "--watch", "--request-timeout=2s", "-o", "name")
	if !strings.Contains(watched, "flunder.wardle.example.com/b") {
		t.Errorf("watch: %q", watched)
	}
	if got := shared.kubectl(t, "explain", "flunder.spec"); !strings.Contains(got, "reference") {
		t.Errorf("explain:\n%s", got)
	}
	shared.kubectl(t, "delete", "flunders", "--all", "-n", ns)
	if got := shared.kubectl(t, "get", "flunders", "-n", ns, "-o", "name"); got != "" {
		t.Errorf("after the deletion: %q", got)
	}
}

func describedByDiscovery(t *testing.T) {
	t.Helper()
	eventually(t, 30*time.Second, func() error {
		out, stderr, err := shared.tryKubectl("", "api-resources", "--api-group=wardle.example.com", "--cached=false", "--no-headers")
		if err != nil || !strings.Contains(out, "flunders") || !strings.Contains(out, "fischers") {
			return fmt.Errorf("%w: %s%s", err, out, stderr)
		}
		return nil
	})
	for _, path := range []string{"/openapi/v3/apis/wardle.example.com/v1alpha1", "/openapi/v2"} {
		if got := shared.kubectl(t, "get", "--raw", path); !strings.Contains(got, "wardle") {
			t.Errorf("%s does not describe it", path)
		}
	}
}

// statusOfAnAPIService reads, patches and replaces an APIService that leads nowhere.
func statusOfAnAPIService(t *testing.T) {
	t.Helper()
	shared.apply(t, `
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.nowhere.example.com, labels: {e2e: nowhere}}
spec: {group: nowhere.example.com, version: v1, groupPriorityMinimum: 100, versionPriority: 10, insecureSkipTLSVerify: true, service: {name: gone, namespace: default}}
`)
	const path = "/apis/apiregistration.k8s.io/v1/apiservices/v1.nowhere.example.com/status"
	shared.kubectl(t, "wait", "--for=jsonpath={.status.conditions[0].reason}=ServiceNotFound", "apiservice/v1.nowhere.example.com", "--timeout=30s")
	shared.kubectl(t, "patch", "apiservice", "v1.nowhere.example.com", "--subresource=status", "--type=merge",
		"-p", `{"status":{"conditions":[{"type":"Available","status":"False","reason":"ServiceNotFound","message":"m"},{"type":"StatusPatched","status":"True","reason":"E2E","message":"by hand"}]}}`)
	var obj map[string]any
	if err := json.Unmarshal([]byte(shared.kubectl(t, "get", "--raw", path)), &obj); err != nil {
		t.Fatal(err)
	}
	data, _ := json.Marshal(obj)
	if !strings.Contains(string(data), "StatusPatched") {
		t.Errorf("status: %s", data)
	}
	if out, stderr, err := shared.tryKubectl(strings.ReplaceAll(string(data), "by hand", "replaced"), "replace", "--raw", path, "-f", "-"); err != nil || !strings.Contains(out, "replaced") {
		t.Errorf("replace: %v %s%s", err, out, stderr)
	}
	shared.kubectl(t, "delete", "apiservices", "-l", "e2e=nowhere")
	if got := shared.kubectl(t, "get", "apiservices", "-l", "e2e=nowhere", "-o", "name"); got != "" {
		t.Errorf("left: %s", got)
	}
}

func startSampleServer(t *testing.T, ns string) {
	t.Helper()
	authority, err := pki.LoadOrCreate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := authority.Server([]string{"wardle." + ns + ".svc"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	encode := base64.StdEncoding.EncodeToString
	t.Cleanup(func() {
		shared.tryKubectl("", "delete", "apiservice/v1alpha1.wardle.example.com", "apiservice/v1beta1.wardle.example.com", "clusterrole/"+ns,
			"clusterrolebinding/"+ns, "clusterrolebinding/"+ns+"-delegator", "--ignore-not-found")
		shared.tryKubectl("", "delete", "rolebinding/"+ns, "-n", "kube-system", "--ignore-not-found")
	})
	shared.apply(t, strings.NewReplacer("NS", ns, "TLSCRT", encode(cert), "TLSKEY", encode(key), "CABUNDLE", encode(authority.CAPEM())).Replace(sampleServer))
}

// sampleServer is what such a server needs, in upstream's own words: an account
// that may ask who is who and what they may, and read what its admission reads.
const sampleServer = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: apiserver, namespace: NS}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: NS}
rules:
- {apiGroups: [""], resources: [namespaces], verbs: [get, watch, list]}
- {apiGroups: [admissionregistration.k8s.io], resources: ["*"], verbs: [get, watch, list]}
- {apiGroups: [flowcontrol.apiserver.k8s.io], resources: [prioritylevelconfigurations, flowschemas], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: NS}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: NS}
subjects: [{kind: ServiceAccount, name: apiserver, namespace: NS}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: NS-delegator}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:auth-delegator}
subjects: [{kind: ServiceAccount, name: apiserver, namespace: NS}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: NS, namespace: kube-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: extension-apiserver-authentication-reader}
subjects: [{kind: ServiceAccount, name: apiserver, namespace: NS}]
---
apiVersion: v1
kind: Secret
metadata: {name: tls, namespace: NS}
type: kubernetes.io/tls
data: {tls.crt: TLSCRT, tls.key: TLSKEY}
---
apiVersion: v1
kind: Pod
metadata: {name: wardle, namespace: NS, labels: {app: wardle}}
spec:
  serviceAccountName: apiserver
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: proa.dev/sample-apiserver:1
    args: [--tls-cert-file=/tls/tls.crt, --tls-private-key-file=/tls/tls.key]
    readinessProbe: {httpGet: {scheme: HTTPS, path: /readyz, port: 443}, periodSeconds: 1}
    volumeMounts: [{name: tls, mountPath: /tls}, {name: tmp, mountPath: /tmp}]
  volumes: [{name: tls, secret: {secretName: tls}}, {name: tmp, emptyDir: {}}]
---
apiVersion: v1
kind: Service
metadata: {name: wardle, namespace: NS}
spec: {selector: {app: wardle}, ports: [{port: 443, targetPort: 443}]}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1alpha1.wardle.example.com}
spec: {group: wardle.example.com, version: v1alpha1, groupPriorityMinimum: 1000, versionPriority: 15, caBundle: CABUNDLE, service: {name: wardle, namespace: NS}}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.wardle.example.com}
spec: {group: wardle.example.com, version: v1beta1, groupPriorityMinimum: 1000, versionPriority: 20, caBundle: CABUNDLE, service: {name: wardle, namespace: NS}}
`
