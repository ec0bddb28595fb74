package e2e

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	cryptorand "crypto/rand"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/keyutil"
)

// config is how a Go client reaches the cluster as its administrator.
func (c *cluster) config(t *testing.T) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	return config
}

// ask is one HTTP request as a client may not send it through a library.
type ask struct {
	method, path, body string
	contentType        string // default application/json
	header             map[string]string
	config             *rest.Config // default: the administrator
}

// answer is what came back. Status is filled in when the body is one.
type answer struct {
	code   int
	status metav1.Status
	body   string
}

func (c *cluster) ask(t *testing.T, q ask) answer {
	t.Helper()
	config := q.config
	if config == nil {
		config = c.config(t)
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequest(q.method, config.Host+q.path, strings.NewReader(q.body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "application/json")
	if q.body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if q.contentType != "" {
		req.Header.Set("Content-Type", q.contentType)
	}
	for k, v := range q.header {
		req.Header.Set(k, v)
	}
	resp, err := (&http.Client{Transport: transport, Timeout: time.Minute}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	a := answer{code: resp.StatusCode, body: string(data)}
	_ = json.Unmarshal(data, &a.status) // what is no status stays empty
	return a
}

const keptObjects = `
apiVersion: v1
kind: ConfigMap
metadata: {name: kept}
data: {k: v}
---
apiVersion: v1
kind: Secret
metadata: {name: kept}
type: Opaque
---
apiVersion: v1
kind: Service
metadata: {name: kept}
spec: {ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: kept}
spec:
  replicas: 0
  selector: {matchLabels: {app: kept}}
  template:
    metadata: {labels: {app: kept}}
    spec: {containers: [{name: c, image: "busybox:1.35"}]}
`

// Whatever is wrong with a request: the API server of Kubernetes has a code, a
// reason and a sentence for it, and nothing changes.
func TestBadRequests(t *testing.T) {
	ns := shared.namespace(t)
	shared.apply(t, keptObjects, "-n", ns)
	shared.kubectl(t, "rollout", "status", "-n", ns, "deployment/kept")
	state := func() string {
		return shared.kubectl(t, "get", "configmaps,secrets,services,deployments", "-n", ns, "-o",
			`jsonpath={range .items[*]}{.kind}/{.metadata.name} {.metadata.resourceVersion}{"\n"}{end}`)
	}
	before := state()
	core, apps := "/api/v1/namespaces/"+ns+"/", "/apis/apps/v1/namespaces/"+ns+"/"
	configMaps, one := core+"configmaps", core+"configmaps/kept"
	cm := func(rest string) string {
		return `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}` + rest + `}`
	}
	tests := []struct {
		name string
		ask
		code    int
		reason  metav1.StatusReason
		message string // all of it, or with ... at an end, the rest
		causes  string // fields of the causes
	}{
		{"an unknown field", ask{method: "POST", path: configMaps + "?fieldValidation=Strict", body: cm(`,"dta":{}`)},
			400, "BadRequest", `ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: unknown field "dta"`, ""},
		{"an unknown field in metadata", ask{method: "POST", path: configMaps + "?fieldValidation=Strict", body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","nme":"b"}}`},
			400, "BadRequest", `ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: unknown field "metadata.nme"`, ""},
		{"a key twice", ask{method: "POST", path: configMaps + "?fieldValidation=Strict", body: cm(`,"data":{},"data":{}`)},
			400, "BadRequest", `ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: duplicate field "data"`, ""},
		{"a key twice in YAML", ask{method: "POST", path: configMaps + "?fieldValidation=Strict", contentType: "application/yaml", body: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {k: v}\ndata: {k: v}"},
			400, "BadRequest", `...strict decoding error: yaml: unmarshal errors:
  line 5: key "data" already set in map...`, ""},
		{"a number for a string", ask{method: "POST", path: configMaps, body: cm(`,"data":{"k":1}`)},
			400, "BadRequest", `ConfigMap in version "v1" cannot be handled as a ConfigMap: json: cannot unmarshal number into Go struct field ConfigMap.data of type string`, ""},
		{"a number too large", ask{method: "PATCH", path: apps + "deployments/kept", contentType: "application/merge-patch+json", body: `{"spec":{"replicas":1e100}}`},
			422, "Invalid", `...json: cannot unmarshal number 1e100 into Go struct field DeploymentSpec.spec.replicas of type int32`, "patch"},
		{"half a JSON object", ask{method: "POST", path: configMaps, body: `{"apiVersion":`},
			400, "BadRequest", `the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: unexpected end of JSON input ({"apiVersion":)`, ""},
		{"no body", ask{method: "POST", path: configMaps},
			400, "BadRequest", `...`, ""},
		{"broken YAML", ask{method: "POST", path: configMaps, contentType: "application/yaml", body: "a: ["},
			400, "BadRequest", `the object provided is unrecognized (must be of type ConfigMap): ...`, ""},
		{"YAML that grows without end", ask{method: "POST", path: configMaps, contentType: "application/yaml", body: yamlBomb},
			400, "BadRequest", `the object provided is unrecognized (must be of type ConfigMap): ...`, ""},
		{"what is not protobuf", ask{method: "POST", path: configMaps, contentType: "application/vnd.kubernetes.protobuf", body: "xyz"},
			400, "BadRequest", `the object provided is unrecognized (must be of type ConfigMap): provided data does not appear to be a protobuf message, expected prefix [107 56 115 0] (78797a)`, ""},
		{"broken protobuf", ask{method: "POST", path: configMaps, contentType: "application/vnd.kubernetes.protobuf", body: "k8s\x00\xff\xff"},
			400, "BadRequest", `the object provided is unrecognized (must be of type ConfigMap): ...`, ""},
		{"a hundred thousand brackets", ask{method: "POST", path: configMaps, body: cm(`,"data":` + strings.Repeat("[", 100_000))},
			400, "BadRequest", `...exceeded max depth...`, ""},
		{"another kind", ask{method: "POST", path: configMaps, body: `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a"}}`},
			400, "BadRequest", `...Secret in version "v1" cannot be handled as a ConfigMap...`, ""},
		{"no kind", ask{method: "POST", path: configMaps, body: `{"metadata":{}}`},
			422, "Invalid", `ConfigMap "" is invalid: metadata.name: Required value: name or generateName is required`, "metadata.name"},
		{"a media type that is none", ask{method: "POST", path: configMaps, contentType: "text/plain", body: "hi"},
			415, "UnsupportedMediaType", `the body of the request was in an unknown format - accepted media types include: application/json, application/yaml, application/vnd.kubernetes.protobuf`, ""},
		{"an answer that there is not", ask{method: "GET", path: one, header: map[string]string{"Accept": "text/html"}},
			406, "NotAcceptable", "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml, application/vnd.kubernetes.protobuf", ""},
		{"a table of a review", ask{method: "POST", path: "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", header: map[string]string{"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"},
			body: `{"spec":{"resourceAttributes":{"verb":"get","resource":"pods"}}}`},
			406, "NotAcceptable", `only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf`, ""},
		{"a label selector", ask{method: "GET", path: configMaps + "?labelSelector=a+in"},
			400, "BadRequest", `unable to parse requirement: found '' expected: '('`, ""},
		{"a field selector", ask{method: "GET", path: configMaps + "?fieldSelector=metadata.name"},
			400, "BadRequest", `invalid selector: 'metadata.name'; can't understand 'metadata.name'`, ""},
		{"an unknown field to select by", ask{method: "GET", path: configMaps + "?fieldSelector=data.k%3Dv"},
			400, "BadRequest", `"data.k" is not a known field selector: only "metadata.name", "metadata.namespace"`, ""},
		{"an unknown field of pods to select by", ask{method: "GET", path: core + "pods?fieldSelector=spec.hostname%3Dv"},
			400, "BadRequest", `field label not supported: spec.hostname`, ""},
		{"a continue token", ask{method: "GET", path: configMaps + "?limit=1&continue=zzz"},
			400, "BadRequest", `invalid continue token: ...`, ""},
		{"a limit", ask{method: "GET", path: configMaps + "?limit=many"},
			400, "BadRequest", `...strconv.ParseInt: parsing "many": invalid syntax`, ""},
		{"a revision to come", ask{method: "GET", path: configMaps + "?resourceVersion=999999999999"},
			504, "Timeout", `Timeout: Too large resource version: 999999999999, current: ...`, ""},
		{"an unknown match", ask{method: "GET", path: configMaps + "?resourceVersion=1&resourceVersionMatch=Foo"},
			422, "Invalid", `ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Unsupported value: "Foo": supported values: "Exact", "NotOlderThan", ""`, "resourceVersionMatch"},
		{"a match without a version", ask{method: "GET", path: configMaps + "?resourceVersionMatch=Exact"},
			422, "Invalid", `ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided`, "resourceVersionMatch"},
		{"initial events without a match", ask{method: "GET", path: configMaps + "?watch=1&sendInitialEvents=true"},
			422, "Invalid", `ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan`, "resourceVersionMatch"},
		{"a name that exists", ask{method: "POST", path: configMaps, body: `{"metadata":{"name":"kept"}}`},
			409, "AlreadyExists", `configmaps "kept" already exists`, ""},
		{"a name too long", ask{method: "POST", path: configMaps, body: `{"metadata":{"name":"` + strings.Repeat("a", 254) + `"}}`},
			422, "Invalid", `...must be no more than 253 ...`, "metadata.name"},
		{"a name that is not UTF-8", ask{method: "POST", path: configMaps, body: "{\"metadata\":{\"name\":\"a\xff\"}}"},
			422, "Invalid", `...a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', ...`, "metadata.name"},
		{"a namespace that does not exist", ask{method: "POST", path: "/api/v1/namespaces/nowhere/configmaps", body: cm("")},
			404, "NotFound", `namespaces "nowhere" not found`, ""},
		{"another namespace in the body", ask{method: "POST", path: configMaps, body: `{"metadata":{"name":"a","namespace":"default"}}`},
			400, "BadRequest", `the namespace of the provided object does not match the namespace sent on the request`, ""},
		{"another name in the body", ask{method: "PUT", path: one, body: cm("")},
			400, "BadRequest", `the name of the object (a) does not match the name on the URL (kept)`, ""},
		{"a PUT into another namespace", ask{method: "PUT", path: one, body: `{"metadata":{"name":"kept","namespace":"default"}}`},
			400, "BadRequest", `the namespace of the provided object does not match the namespace sent on the request`, ""},
		{"a PUT of what is not there", ask{method: "PUT", path: core + "configmaps/none", body: `{"metadata":{"name":"none"}}`},
			404, "NotFound", `configmaps "none" not found`, ""},
		{"an old version", ask{method: "PUT", path: one, body: `{"metadata":{"name":"kept","resourceVersion":"1"}}`},
			409, "Conflict", `Operation cannot be fulfilled on configmaps "kept": the object has been modified; please apply your changes to the latest version and try again`, ""},
		{"an old version in a patch", ask{method: "PATCH", path: one, contentType: "application/merge-patch+json", body: `{"metadata":{"resourceVersion":"1"},"data":{"k":"w"}}`},
			409, "Conflict", `Operation cannot be fulfilled on configmaps "kept": the object has been modified; please apply your changes to the latest version and try again`, ""},
		{"another uid in a patch", ask{method: "PATCH", path: one, contentType: "application/merge-patch+json", body: `{"metadata":{"uid":"1"}}`},
			422, "Invalid", `ConfigMap "kept" is invalid: metadata.uid: Invalid value: "1": field is immutable`, "metadata.uid"},
		{"another uid", ask{method: "PUT", path: one, body: `{"metadata":{"name":"kept","uid":"1"}}`},
			409, "Conflict", `Operation cannot be fulfilled on configmaps "kept": StorageError: invalid object, Code: 4, Key: /configmaps/testbadrequests/kept, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: 1, UID in object meta: ...`, ""},
		{"a patch type that is none", ask{method: "PATCH", path: one, body: `{}`},
			415, "UnsupportedMediaType", "415: Unsupported Media Type", ""},
		{"a JSON patch that is none", ask{method: "PATCH", path: one, contentType: "application/json-patch+json", body: `{"op":"add"}`},
			400, "BadRequest", `error decoding patch: ...`, ""},
		{"a JSON patch whose test fails", ask{method: "PATCH", path: one, contentType: "application/json-patch+json", body: `[{"op":"test","path":"/data/k","value":"x"},{"op":"remove","path":"/data/k"}]`},
			422, "Invalid", `the server rejected our request due to an error in our request`, ""},
		{"a merge patch that is none", ask{method: "PATCH", path: one, contentType: "application/merge-patch+json", body: `[1]`},
			400, "BadRequest", `...`, ""},
		{"an apply without a manager", ask{method: "PATCH", path: one, contentType: "application/apply-patch+yaml", body: cm("")},
			422, "Invalid", `PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch`, "fieldManager"},
		{"an apply of another name", ask{method: "PATCH", path: one + "?fieldManager=m", contentType: "application/apply-patch+yaml", body: cm("")},
			400, "BadRequest", `the name of the object (a) does not match the name on the URL (kept)`, ""},
		{"an apply with managed fields", ask{method: "PATCH", path: one + "?fieldManager=m", contentType: "application/apply-patch+yaml", body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"kept","managedFields":[{}]}}`},
			400, "BadRequest", `metadata.managedFields must be nil`, ""},
		{"a dry run that is none", ask{method: "POST", path: configMaps + "?dryRun=Some", body: cm("")},
			422, "Invalid", `CreateOptions.meta.k8s.io "" is invalid: dryRun: Unsupported value: ["Some"]: supported values: "All"`, "dryRun"},
		{"a validation that is none", ask{method: "POST", path: configMaps + "?fieldValidation=Some", body: cm("")},
			422, "Invalid", `CreateOptions.meta.k8s.io "" is invalid: fieldValidation: Unsupported value: "Some": supported values: "", "Ignore", "Strict", "Warn"`, "fieldValidation"},
		{"another uid to delete", ask{method: "DELETE", path: one, body: `{"preconditions":{"uid":"1"}}`},
			409, "Conflict", `Operation cannot be fulfilled on ConfigMap "kept": the UID in the precondition (1) does not match the UID in record (...`, ""},
		{"another version to delete", ask{method: "DELETE", path: one, body: `{"preconditions":{"resourceVersion":"1"}}`},
			409, "Conflict", `Operation cannot be fulfilled on ConfigMap "kept": the ResourceVersion in the precondition (1) does not match the ResourceVersion in record (...`, ""},
		{"a propagation that is none", ask{method: "DELETE", path: one, body: `{"propagationPolicy":"Up"}`},
			422, "Invalid", `DeleteOptions.meta.k8s.io "" is invalid: propagationPolicy: Unsupported value: "Up": supported values: "Foreground", "Background", "Orphan", "nil"`, "propagationPolicy"},
		{"two propagations", ask{method: "DELETE", path: one, body: `{"propagationPolicy":"Orphan","orphanDependents":true}`},
			422, "Invalid", `DeleteOptions.meta.k8s.io "" is invalid: propagationPolicy: Invalid value: "Orphan": orphanDependents and deletionPropagation cannot be both set`, "propagationPolicy"},
		{"an immutable selector", ask{method: "PATCH", path: apps + "deployments/kept", contentType: "application/merge-patch+json", body: `{"spec":{"selector":{"matchLabels":{"app":"x"}},"template":{"metadata":{"labels":{"app":"x"}}}}}`},
			422, "Invalid", `Deployment.apps "kept" is invalid: spec.selector: Invalid value: {"matchLabels":{"app":"x"}}: field is immutable`, "spec.selector"},
		{"an immutable Secret type", ask{method: "PATCH", path: core + "secrets/kept", contentType: "application/merge-patch+json", body: `{"type":"x"}`},
			422, "Invalid", `Secret "kept" is invalid: type: Invalid value: "x": field is immutable`, "type"},
		{"a cluster IP that changes", ask{method: "PATCH", path: core + "services/kept", contentType: "application/merge-patch+json", body: `{"spec":{"clusterIP":"10.96.255.254","clusterIPs":["10.96.255.254"]}}`},
			422, "Invalid", `Service "kept" is invalid: spec.clusterIPs[0]: Invalid value: ["10.96.255.254"]: may not change once set`, "spec.clusterIPs[0]"},
		{"a method that HTTP does not know", ask{method: "FROB", path: one},
			405, "MethodNotAllowed", `the server does not allow this method on the requested resource`, ""},
		{"a PUT of a list", ask{method: "PUT", path: configMaps, body: cm("")},
			405, "MethodNotAllowed", `the server does not allow this method on the requested resource`, ""},
		{"a POST to an object", ask{method: "POST", path: one, body: cm("")},
			405, "MethodNotAllowed", `the server does not allow this method on the requested resource`, ""},
		{"an unknown subresource", ask{method: "GET", path: one + "/status2"}, 404, "NotFound", "the server could not find the requested resource", ""},
		{"an unknown resource", ask{method: "GET", path: core + "configmap"}, 404, "NotFound", "the server could not find the requested resource", ""},
		{"a path that climbs", ask{method: "GET", path: configMaps + "/..%2f..%2f..%2fsecrets"}, 404, "NotFound", "the server could not find the requested resource", ""},
		{"a path that climbs in the open", ask{method: "GET", path: "/api/v1/namespaces/" + ns + "/configmaps/../../../nodes"}, 404, "NotFound", "the server could not find the requested resource", ""},
		{"an empty name", ask{method: "GET", path: configMaps + "//x"}, 404, "NotFound", "the server could not find the requested resource", ""},
		{"more than a server takes", ask{method: "POST", path: configMaps, body: cm(`,"data":{"k":"` + strings.Repeat("x", 3<<20) + `"}`)},
			413, "RequestEntityTooLarge", `Request entity too large: limit is 3145728`, ""},
		{"a ConfigMap of more than a mebibyte", ask{method: "POST", path: configMaps, body: cm(`,"data":{"k":"` + strings.Repeat("x", 1<<20+1) + `"}`)},
			422, "Invalid", `ConfigMap "a" is invalid: []: Too long: may not be more than 1048576 bytes`, "[]"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a := shared.ask(t, tt.ask)
			if a.code != tt.code || a.status.Reason != tt.reason {
				t.Fatalf("%d %s: %.500s, want %d %s", a.code, a.status.Reason, a.body, tt.code, tt.reason)
			}
			if tt.reason == "" {
				return
			}
			if int(a.status.Code) != tt.code || a.status.Kind != "Status" || a.status.Status != metav1.StatusFailure {
				t.Errorf("a status that is none: %.500s", a.body)
			}
			if !says(a.status.Message, tt.message) {
				t.Errorf("it says\n%.500s\nwant\n%s", a.status.Message, tt.message)
			}
			var fields []string
			if a.status.Details != nil {
				for _, c := range a.status.Details.Causes {
					if c.Field != "" {
						fields = append(fields, c.Field)
					}
				}
			}
			if got := strings.Join(fields, " "); got != tt.causes {
				t.Errorf("causes %q, want %q", got, tt.causes)
			}
		})
	}
	t.Cleanup(func() {
		if after := state(); after != before {
			t.Errorf("refused requests changed\n%s\ninto\n%s", before, after)
		}
	})
}

// says compares a message with one that may begin or end with "...".
func says(got, want string) bool {
	head, start := strings.CutSuffix(want, "...")
	middle, end := strings.CutPrefix(head, "...")
	switch {
	case start && end:
		return strings.Contains(got, middle)
	case start:
		return strings.HasPrefix(got, head)
	case end:
		return strings.HasSuffix(got, middle)
	}
	return got == want
}

// yamlBomb is a kilobyte of aliases that stand for gigabytes.
var yamlBomb = func() string {
	var b bytes.Buffer
	b.WriteString("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n")
	for i := '1'; i <= '9'; i++ {
		prev := "*a" + string(i-1)
		b.WriteString("a" + string(i) + ": &a" + string(i) + " [" + strings.TrimSuffix(strings.Repeat(prev+",", 10), ",") + "]\n")
	}
	return b.String()
}()

// A namespace that is going takes nothing new, and says why.
func TestATerminatingNamespaceIsClosed(t *testing.T) {
	t.Parallel()
	const name = "closing"
	shared.kubectl(t, "create", "namespace", name)
	shared.apply(t, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: holds, finalizers: [example.com/hold]}", "-n", name)
	t.Cleanup(func() {
		shared.kubectl(t, "patch", "configmap", "holds", "-n", name, "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
		shared.kubectl(t, "wait", "--for=delete", "namespace/"+name, "--timeout=30s")
	})
	shared.kubectl(t, "delete", "namespace", name, "--wait=false")
	a := shared.ask(t, ask{method: "POST", path: "/api/v1/namespaces/" + name + "/configmaps", body: `{"metadata":{"name":"a"}}`})
	if a.code != 403 || a.status.Reason != metav1.StatusReasonForbidden ||
		a.status.Message != `configmaps "a" is forbidden: unable to create new content in namespace closing because it is being terminated` {
		t.Fatalf("%d %s", a.code, a.body)
	}
	want := metav1.StatusCause{Type: "NamespaceTerminating", Message: "namespace closing is being terminated", Field: "metadata.namespace"}
	if c := a.status.Details.Causes; len(c) != 1 || c[0] != want {
		t.Errorf("causes %+v", c)
	}
}

// A token of a ServiceAccount that exists is worth nothing after its time, nor
// before it, nor when another key signed it, nor when its owner is gone.
func TestTokensThatAreNotGood(t *testing.T) {
	t.Parallel()
	ns := shared.namespace(t)
	shared.kubectl(t, "create", "serviceaccount", "robot", "-n", ns)
	good := strings.TrimSpace(shared.kubectl(t, "create", "token", "robot", "-n", ns))
	key, err := keyutil.PrivateKeyFromFile(filepath.Join(shared.dir, "pki", "sa.key"))
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := ecdsa.GenerateKey(elliptic.P256(), cryptorand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	who := func(token string) answer {
		config := rest.AnonymousClientConfig(shared.config(t))
		config.BearerToken = token
		return shared.ask(t, ask{method: "POST", path: "/apis/authentication.k8s.io/v1/selfsubjectreviews", body: "{}", config: config})
	}
	refused := func(t *testing.T, token string) {
		t.Helper()
		a := who(token)
		if a.code != 401 || a.status.Reason != metav1.StatusReasonUnauthorized || a.status.Message != "Unauthorized" {
			t.Errorf("%d %s", a.code, a.body)
		}
	}
	if a := who(good); a.code != 201 {
		t.Fatalf("the token itself: %d %s", a.code, a.body)
	}
	now := time.Now()
	t.Run("signed again it is as good", func(t *testing.T) {
		if a := who(signedAgain(t, good, key, now.Add(-time.Hour), now.Add(time.Hour))); a.code != 201 {
			t.Errorf("%d %s", a.code, a.body)
		}
	})
	t.Run("expired", func(t *testing.T) {
		refused(t, signedAgain(t, good, key, now.Add(-2*time.Hour), now.Add(-time.Hour)))
	})
	t.Run("from tomorrow", func(t *testing.T) {
		refused(t, signedAgain(t, good, key, now.Add(24*time.Hour), now.Add(25*time.Hour)))
	})
	t.Run("of another key", func(t *testing.T) {
		refused(t, signedAgain(t, good, stranger, now.Add(-time.Hour), now.Add(time.Hour)))
	})
	t.Run("without a signature", func(t *testing.T) {
		refused(t, good[:strings.LastIndex(good, ".")+1])
	})
	t.Run("of one who is gone", func(t *testing.T) {
		shared.kubectl(t, "delete", "serviceaccount", "robot", "-n", ns)
		refused(t, good)
	})
}

// signedAgain is a token with the same claims but another time to live, signed
// by a key of choice.
func signedAgain(t *testing.T, token string, key any, from, until time.Time) string {
	t.Helper()
	parts := strings.Split(token, ".")
	claims := map[string]any{}
	var header struct {
		KeyID string `json:"kid"`
	}
	for i, into := range []any{&header, &claims} {
		data, err := base64.RawURLEncoding.DecodeString(parts[i])
		if err == nil {
			err = json.Unmarshal(data, into)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	claims["nbf"], claims["iat"], claims["exp"] = from.Unix(), from.Unix(), until.Unix()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: header.KeyID}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return signed
}
