package e2e

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"time"

	"proa/internal/auth/pki"
)

// webhooks are admission webhooks that run as a pod behind a Service.
type webhooks struct {
	t        *testing.T
	ns       string
	caBundle string
}

// startWebhooks runs the test server's webhooks in a namespace, under a certificate of their own.
func startWebhooks(t *testing.T, ns string) *webhooks {
	t.Helper()
	authority, err := pki.LoadOrCreate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := authority.Server([]string{"hooks." + ns + ".svc"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	encode := base64.StdEncoding.EncodeToString
	shared.apply(t, fmt.Sprintf(`
apiVersion: v1
kind: Secret
metadata: {name: hooks}
type: kubernetes.io/tls
data: {tls.crt: %s, tls.key: %s}
---
apiVersion: v1
kind: Service
metadata: {name: hooks}
spec: {selector: {app: hooks}, ports: [{port: 443, targetPort: 8443}]}
---
apiVersion: v1
kind: Pod
metadata: {name: hooks, labels: {app: hooks}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: proa.dev/testserver:1
    args: [webhook, -cert=/tls/tls.crt, -key=/tls/tls.key]
    readinessProbe: {tcpSocket: {port: 8443}, periodSeconds: 1}
    volumeMounts: [{name: tls, mountPath: /tls}]
  volumes: [{name: tls, secret: {secretName: hooks}}]
`, encode(cert), encode(key)), "-n", ns)
	shared.kubectl(t, "wait", "--for=condition=Ready", "pod/hooks", "-n", ns, "--timeout=60s")
	return &webhooks{t, ns, encode(authority.CAPEM())}
}

// configure registers a webhook for writes in the namespace. Settings are more of its fields.
func (w *webhooks) configure(kind, name, path, rule, settings string) {
	w.t.Helper()
	w.t.Cleanup(func() { shared.tryKubectl("", "delete", kind, w.ns+"-"+name, "--ignore-not-found") })
	shared.apply(w.t, fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: %[1]s
metadata: {name: %[2]s-%[3]s}
webhooks:
- name: %[3]s.example.com
  clientConfig: {service: {namespace: %[2]s, name: hooks, path: %[4]s}, caBundle: %[5]s}
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %[2]s}}
  rules: [%[6]s]
  sideEffects: None
  admissionReviewVersions: [v1]
  %[7]s
`, kind, w.ns, name, path, w.caBundle, rule, settings))
}

const (
	mutatingKind   = "MutatingWebhookConfiguration"
	validatingKind = "ValidatingWebhookConfiguration"
	configMapRule  = `{apiGroups: [""], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [configmaps]}`
)

// refused runs kubectl, which must fail and say why.
func refused(t *testing.T, stdin, want string, args ...string) {
	t.Helper()
	out, stderr, err := shared.tryKubectl(stdin, args...)
	if err == nil || !strings.Contains(stderr, want) {
		t.Errorf("kubectl %s: %v\n%s%s\nwant a refusal with %q", strings.Join(args, " "), err, out, stderr, want)
	}
}

func TestAdmissionWebhooks(t *testing.T) {
	t.Parallel()
	ns := shared.namespace(t)
	w := startWebhooks(t, ns)
	w.configure(mutatingKind, "mark", "/mark", configMapRule, "matchConditions: [{name: not-me, expression: \"object.metadata.name != 'skip-me'\"}]")
	w.configure(validatingKind, "judge", "/judge", configMapRule, "failurePolicy: Fail")

	_, stderr, err := shared.tryKubectl("", "create", "configmap", "good", "-n", ns, "--from-literal=a=b")
	if err != nil || !strings.Contains(stderr, "Warning: the webhook has looked at it") {
		t.Fatalf("%v: %s", err, stderr)
	}
	shared.kubectl(t, "create", "configmap", "skip-me", "-n", ns)
	for name, want := range map[string]string{"good": "yes", "skip-me": ""} {
		if marked := shared.kubectl(t, "get", "configmap", name, "-n", ns, "-o", "jsonpath={.metadata.labels.marked}"); marked != want {
			t.Errorf("%s is marked %q, want %q", name, marked, want)
		}
	}
	denied := "admission webhook \"judge.example.com\" denied the request: the data is bad: "
	refused(t, "", denied+"really", "create", "configmap", "bad", "-n", ns, "--from-literal=bad=really")
	refused(t, "", denied+"now", "patch", "configmap", "good", "-n", ns, "--type=merge", "-p", `{"data":{"bad":"now"}}`)

	w.configure(validatingKind, "connect", "/deny", `{apiGroups: [""], apiVersions: [v1], operations: [CONNECT], resources: [pods/attach, pods/exec]}`, "")
	refused(t, "", `admission webhook "connect.example.com" denied the request: the webhook says no`, "attach", "hooks", "-n", ns)
	refused(t, "", `denied the request: the webhook says no`, "exec", "hooks", "-n", ns, "--", "/testserver", "uid")

	t.Run("that are slow", func(t *testing.T) { slowWebhooks(t, w) })
	t.Run("that are gone", func(t *testing.T) { goneWebhooks(t, w) })
}

func slowWebhooks(t *testing.T, w *webhooks) {
	rule := strings.Replace(configMapRule, "configmaps", "secrets", 1)
	w.configure(validatingKind, "slow", "/slow", rule, "timeoutSeconds: 1")
	refused(t, "", `failed calling webhook "slow.example.com": failed to call webhook: Post "https://hooks.`+w.ns+`.svc:443/slow?timeout=1s": context deadline exceeded`,
		"create", "secret", "generic", "s1", "-n", w.ns)
	w.configure(validatingKind, "slow", "/slow", rule, "timeoutSeconds: 1\n  failurePolicy: Ignore")
	shared.kubectl(t, "create", "secret", "generic", "s2", "-n", w.ns)
	w.configure(validatingKind, "slow", "/slow", rule, "timeoutSeconds: 10")
	shared.kubectl(t, "create", "secret", "generic", "s3", "-n", w.ns)
}

// goneWebhooks goes on without the pod.
func goneWebhooks(t *testing.T, w *webhooks) {
	shared.kubectl(t, "delete", "pod", "hooks", "-n", w.ns)
	eventually(t, 20*time.Second, func() error {
		_, stderr, err := shared.tryKubectl("", "create", "configmap", "late", "-n", w.ns)
		if err == nil {
			shared.tryKubectl("", "delete", "configmap", "late", "-n", w.ns)
			return fmt.Errorf("accepted")
		}
		if !strings.Contains(stderr, `failed calling webhook "mark.example.com"`) {
			return fmt.Errorf("%s", stderr)
		}
		return nil
	})
	refused(t, "", `no endpoints available for service "hooks"`, "create", "configmap", "late", "-n", w.ns)
	w.configure(mutatingKind, "mark", "/mark", configMapRule, "failurePolicy: Ignore")
	refused(t, "", `failed calling webhook "judge.example.com"`, "create", "configmap", "late", "-n", w.ns)
	w.configure(validatingKind, "judge", "/judge", configMapRule, "failurePolicy: Ignore")
	shared.kubectl(t, "create", "configmap", "late", "-n", w.ns)
	shared.kubectl(t, "delete", validatingKind, w.ns+"-judge")
}

func TestAdmissionPolicies(t *testing.T) {
	t.Parallel()
	ns := shared.namespace(t)
	t.Cleanup(func() {
		for _, kind := range []string{"validatingadmissionpolicy", "validatingadmissionpolicybinding", "mutatingadmissionpolicy", "mutatingadmissionpolicybinding"} {
			shared.tryKubectl("", "delete", kind, ns, "--ignore-not-found")
		}
	})
	shared.apply(t, fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: %[1]s}
spec:
  failurePolicy: Fail
  paramKind: {apiVersion: v1, kind: ConfigMap}
  matchConstraints: {resourceRules: [{apiGroups: [apps], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [deployments]}]}
  variables: [{name: limit, expression: int(params.data.limit)}]
  validations:
  - expression: object.spec.replicas <= variables.limit
    messageExpression: "'no more than ' + string(variables.limit) + ' replicas'"
    reason: Forbidden
  - expression: object.spec.replicaz == 1 || true
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: %[1]s}
spec:
  policyName: %[1]s
  validationActions: [Deny]
  paramRef: {name: limits, parameterNotFoundAction: Deny}
  matchResources: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %[1]s}}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: %[1]s}
spec:
  reinvocationPolicy: Never
  matchConstraints: {resourceRules: [{apiGroups: [apps], apiVersions: [v1], operations: [CREATE], resources: [deployments]}]}
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration:
      expression: >-
        Object{spec: Object.spec{template: Object.spec.template{spec: Object.spec.template.spec{
          containers: [Object.spec.template.spec.containers{name: "sidecar", image: "proa.dev/testserver:1"}]}}}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: %[1]s}
spec:
  policyName: %[1]s
  matchResources: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %[1]s}}}
`, ns))
	refused(t, "", "failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction", "create", "deployment", "d", "-n", ns, "--image=busybox:1.35")
	shared.kubectl(t, "create", "configmap", "limits", "-n", ns, "--from-literal=limit=2")
	refused(t, "", "ValidatingAdmissionPolicy '"+ns+"' with binding '"+ns+"' denied request: no more than 2 replicas", "create", "deployment", "d", "-n", ns, "--image=busybox:1.35", "--replicas=3")
	shared.kubectl(t, "create", "deployment", "d", "-n", ns, "--image=busybox:1.35", "--replicas=0")
	if names := shared.kubectl(t, "get", "deployment", "d", "-n", ns, "-o", "jsonpath={.spec.template.spec.containers[*].name}"); names != "busybox sidecar" {
		t.Errorf("containers %s", names)
	}
	eventually(t, 10*time.Second, func() error {
		warning := shared.kubectl(t, "get", "validatingadmissionpolicy", ns, "-o", "jsonpath={.status.typeChecking.expressionWarnings[*].warning}")
		if !strings.Contains(warning, "apps/v1, Kind=Deployment: ERROR: <input>:1:12: undefined field 'replicaz'") {
			return fmt.Errorf("type checking says %q", warning)
		}
		return nil
	})
}
