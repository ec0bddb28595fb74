package policy

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/warning"
	"sigs.k8s.io/yaml"

	"proa/internal/admission"
	"proa/internal/apis"
	"proa/internal/apis/builtin"
	"proa/internal/apiserver/apply"
	"proa/internal/apiserver/registry"
	"proa/internal/client"
	"proa/internal/store"
	"proa/internal/store/memory"
)

// world is the API of the built-in kinds over a store in memory, with policies.
// Only ann may do what is called "special".
type world struct {
	t         *testing.T
	ctx       context.Context
	registry  *registry.Registry
	api       client.API // as ann
	chain     *admission.Chain
	catalogue *apis.Catalogue
	warnings  []string

	mutating   *Mutating
	validating *Validating
}

func newWorld(t *testing.T) *world {
	t.Helper()
	catalogue := builtin.Catalogue()
	s, err := store.Open(t.Context(), store.Config{Engine: memory.New(), Codec: registry.NewCodec(catalogue), Indexes: registry.Indexes(catalogue)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	allow := authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if a.GetVerb() == "special" && a.GetUser().GetName() != "ann" {
			return authorizer.DecisionNoOpinion, "not for you", nil
		}
		return authorizer.DecisionAllow, "", nil
	})
	mutating, validating, err := New(Config{Store: s, Catalogue: catalogue, Authorizer: allow, Types: apply.Types})
	if err != nil {
		t.Fatal(err)
	}
	chain, err := admission.New(admission.Config{Store: s, Catalogue: catalogue, Authorizer: allow, Policies: []any{mutating, validating}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := registry.New(registry.Config{Store: s, Catalogue: catalogue, Admission: chain})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, registry: r, chain: chain, catalogue: catalogue, mutating: mutating, validating: validating, api: r.As(&user.DefaultInfo{Name: "ann", Groups: []string{user.SystemPrivilegedGroup}})}
	w.ctx = warning.WithWarningRecorder(t.Context(), w)
	w.apply(`{apiVersion: v1, kind: Namespace, metadata: {name: default, labels: {env: test}}}`)
	w.apply(`{apiVersion: v1, kind: Namespace, metadata: {name: prod, labels: {env: prod}}}`)
	return w
}

func (w *world) AddWarning(_, text string) { w.warnings = append(w.warnings, text) }

// try creates what the manifests say, in the namespace default, and returns the first error.
func (w *world) try(manifests string) error { return w.tryAs(w.api, manifests) }

func (w *world) tryAs(api client.API, manifests string) error {
	w.t.Helper()
	for _, manifest := range strings.Split(manifests, "\n---\n") {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(manifest), &kind); err != nil {
			w.t.Fatalf("%v in\n%s", err, manifest)
		}
		view, ok := w.catalogue.Kind(kind.GroupVersionKind())
		if !ok {
			w.t.Fatalf("no kind %v", kind)
		}
		obj := view.New()
		if err := yaml.UnmarshalStrict([]byte(manifest), obj); err != nil {
			w.t.Fatalf("%v in\n%s", err, manifest)
		}
		ref := client.Ref{Resource: view.GroupVersionResource(), Namespace: obj.GetNamespace()}
		if ref.Namespace == "" && view.Scope == apis.Namespaced {
			ref.Namespace = "default"
		}
		if _, err := api.Create(w.ctx, ref, obj, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) apply(manifests string) {
	w.t.Helper()
	if err := w.try(manifests); err != nil {
		w.t.Fatal(err)
	}
}

// get returns an object of the namespace default.
func (w *world) get(gvr schema.GroupVersionResource, name string) client.Object {
	w.t.Helper()
	obj, err := w.api.Get(w.ctx, client.Ref{Resource: gvr, Namespace: "default", Name: name}, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return obj
}

var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

// validating is a policy p for creates and updates of ConfigMaps, with its
// binding b; spec and binding are added to theirs.
func validating(spec, binding string) string {
	if !strings.Contains(binding, "validationActions") {
		binding += "\n  validationActions: [Deny]"
	}
	return fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: p}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [configmaps]}]}
  %s
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: b}
spec:
  policyName: p
  %s`, strings.TrimSpace(spec), strings.TrimSpace(binding))
}

var (
	good = `{apiVersion: v1, kind: ConfigMap, metadata: {name: good, labels: {k: v}}, data: {x: "1"}}`
	bad  = `{apiVersion: v1, kind: ConfigMap, metadata: {name: bad}, data: {x: "2", long: ` + long + `}}`
)

// long makes expressions expensive.
var long = strings.Repeat("a", 200_000)

func TestValidatingPolicy(t *testing.T) {
	const denied = "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: "
	for _, tt := range []struct {
		name, spec, binding string
		want                string // of the status of bad
		code                int32
	}{
		{"refuses what is not true", `validations: [{expression: "object.data.x == '1'"}]`, "", `configmaps "bad" is forbidden: ` + denied + "failed expression: object.data.x == '1'", 422},
		{"says why", `validations: [{expression: "object.data.x == '1'", message: "must be one", reason: Forbidden}]`, "", `configmaps "bad" is forbidden: ` + denied + "must be one", 403},
		{"says why in an expression", `validations: [{expression: "object.data.x == '1'", message: m, messageExpression: "'not ' + object.data.x", reason: RequestEntityTooLarge}]`, "", denied + "not 2", 413},
		{"prefers the message to a bad message expression", `validations: [{expression: "false", message: m, messageExpression: "string(object.nothing)"}]`, "", denied + "m", 422},
		{"knows variables, which build on each other", `
  variables: [{name: x, expression: object.data.x}, {name: z, expression: "variables.x + '!'"}]
  validations: [{expression: "variables.z == '1!'", messageExpression: "'z is ' + variables.z"}]`, "", denied + "z is 2!", 422},
		{"knows the request", `validations: [{expression: "request.operation == 'CREATE' && request.userInfo.username == 'ann' && request.resource.resource == 'configmaps' && request.name == 'good'"}]`, "", denied, 422},
		{"knows the namespace", `validations: [{expression: "namespaceObject.metadata.labels.env == 'prod'", message: here}]`, "", denied + "here", 422},
		{"knows that there is no old object", `validations: [{expression: "oldObject != null", message: new}]`, "", denied + "new", 422},
		{"asks the authorizer", `validations: [{expression: "!authorizer.requestResource.check('special').allowed()", message: may}]`, "", denied + "may", 422},
		{"asks the authorizer about paths and others", `validations: [{expression: "!authorizer.path('/healthz').check('get').allowed() || authorizer.serviceAccount('default', 'bob').group('').resource('configmaps').subresource('x').name('y').check('special').reason() != 'not for you'", message: told}]`, "", denied + "told", 422},
		{"knows who asks in its match conditions", `
  matchConditions: [{name: c, expression: "request.userInfo.username != 'ann'"}]
  validations: [{expression: "false"}]`, "", "", 0},
		{"refuses when an expression fails", `validations: [{expression: "object.nothing == 1"}]`, "", denied + "expression 'object.nothing == 1' resulted in error: no such key: nothing", 422},
		{"lets pass when an expression fails and it may", "failurePolicy: Ignore\n  validations: [{expression: 'object.nothing == 1'}]", "", "", 0},
		{"lets pass when a match condition is false", `
  matchConditions: [{name: c, expression: "object.metadata.name == 'good'"}]
  validations: [{expression: "false"}]`, "", "", 0},
		{"refuses when a match condition fails", `
  matchConditions: [{name: c, expression: "object.nothing == 1"}]
  validations: [{expression: "true"}]`, "", denied + "expression 'object.nothing == 1' resulted in error: no such key: nothing", 422},
		{"is narrowed by its binding", `validations: [{expression: "false"}]`, "matchResources: {namespaceSelector: {matchLabels: {env: prod}}}", "", 0},
		{"is narrowed by the object's labels", `validations: [{expression: "false"}]`, "matchResources: {objectSelector: {matchLabels: {k: v}}}", "", 0},
		{"passes over excluded names", `validations: [{expression: "false"}]`, "matchResources: {excludeResourceRules: [{apiGroups: ['*'], apiVersions: ['*'], operations: ['*'], resources: ['*'], resourceNames: [bad]}]}", "", 0},
		{"of which another is bound", `validations: [{expression: "false"}]`, "validationActions: [Deny]\n  matchResources: {resourceRules: [{apiGroups: [apps], apiVersions: ['*'], operations: ['*'], resources: ['*']}]}", "", 0},
		{"stops what costs too much", `validations: [{expression: "[1,2,3,4,5,6,7,8,9].all(a, [1,2,3,4,5,6,7,8,9].all(b, !object.data.long.contains('zzzzzzzzzzzzzzzzzzzz')))"}]`, "",
			"resulted in error: operation cancelled: actual cost limit exceeded", 422},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.apply(validating(tt.spec, tt.binding))
			err := w.try(bad)
			if tt.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			status, ok := err.(apierrors.APIStatus)
			if !ok || !strings.Contains(status.Status().Message, tt.want) || status.Status().Code != tt.code {
				t.Fatalf("error %v (%+v), want %d %s", err, status, tt.code, tt.want)
			}
			if causes := status.Status().Details.Causes; len(causes) != 1 || !strings.Contains(causes[0].Message, denied) {
				t.Errorf("causes %v", causes)
			}
		})
	}
}

func TestPolicyLetsTheRestPass(t *testing.T) {
	w := newWorld(t)
	w.apply(validating(`validations: [{expression: "object.data.x == '1'"}]`, ""))
	w.apply(good)
	w.apply(`{apiVersion: v1, kind: Secret, metadata: {name: s}}`)
	_, err := w.api.Patch(w.ctx, client.Ref{Resource: configMaps, Namespace: "default", Name: "good"}, types.MergePatchType, []byte(`{"data":{"x":"2"}}`), metav1.PatchOptions{})
	if err == nil || !strings.Contains(err.Error(), "denied request") {
		t.Errorf("an update to a bad state: %v", err)
	}
	if _, err := w.api.Delete(w.ctx, client.Ref{Resource: configMaps, Namespace: "default", Name: "good"}, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

func TestPolicyWithoutBindingDoesNothing(t *testing.T) {
	w := newWorld(t)
	policy, _, _ := strings.Cut(validating(`validations: [{expression: "false"}]`, ""), "\n---\n")
	w.apply(policy)
	w.apply(bad)
}

func TestClusterScopedObjectsAreInNoNamespace(t *testing.T) {
	w := newWorld(t)
	w.apply(strings.Replace(strings.Replace(validating(`validations: [{expression: "namespaceObject == null", message: in one}]`, ""),
		`apiGroups: [""]`, "apiGroups: [scheduling.k8s.io]", 1), "resources: [configmaps]", "resources: [priorityclasses]", 1))
	w.apply(`{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: p}, value: 1}`)
}

func TestTheAuthorizerAnswersForTheUser(t *testing.T) {
	w := newWorld(t)
	w.apply(validating(`validations: [{expression: "authorizer.group('').resource('configmaps').namespace('default').check('special').allowed()", message: special}]`, ""))
	w.apply(bad)
	bob := w.registry.As(&user.DefaultInfo{Name: "bob"})
	if err := w.tryAs(bob, good); err == nil || !strings.Contains(err.Error(), "denied request: special") {
		t.Errorf("bob: %v", err)
	}
}

func TestValidationActions(t *testing.T) {
	w := newWorld(t)
	w.apply(validating(`
  validations: [{expression: "true"}, {expression: "object.data.x == '1'", message: must be one}]
  auditAnnotations: [{key: x, valueExpression: "'x is ' + object.data.x"}, {key: none, valueExpression: "null"}]`, "validationActions: [Warn, Audit]"))
	w.apply(bad)
	if want := []string{"Validation failed for ValidatingAdmissionPolicy 'p' with binding 'b': must be one"}; !slices.Equal(w.warnings, want) {
		t.Errorf("warnings %q", w.warnings)
	}
	resource, _ := w.catalogue.Stored(configMaps.GroupResource())
	a := &admission.Attributes{Operation: admissionv1.Create, Resource: resource, Namespace: "default", Name: "a", Options: &metav1.CreateOptions{},
		Object: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Data: map[string]string{"x": "2"}}, User: &user.DefaultInfo{Name: "ann"}}
	if err := w.chain.Validate(w.ctx, a); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"p/x": "x is 2",
		"validation.policy.admission.k8s.io/validation_failure": `[{"message":"must be one","policy":"p","binding":"b","expressionIndex":1,"validationActions":["Warn","Audit"]}]`,
	}
	if got := a.AuditAnnotations(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("annotations %v, want %v", got, want)
	}
}

func TestParams(t *testing.T) {
	const (
		policy = `
  paramKind: {apiVersion: v1, kind: ConfigMap}
  matchConditions: [{name: objects, expression: "!object.metadata.name.startsWith('param')"}]
  validations: [{expression: "object.data.x == params.data.want", messageExpression: "'want ' + params.data.want + ' of ' + params.kind"}]`
		param = `
apiVersion: v1
kind: ConfigMap
metadata: {name: param%[1]s, namespace: %[2]s, labels: {of: p}}
data: {want: "%[1]s"}
`
	)
	for _, tt := range []struct {
		name, ref string
		params    []string
		want      string // of the status of bad, whose x is 2
	}{
		{"by name", "{name: param1, namespace: prod, parameterNotFoundAction: Deny}", []string{"1 prod"}, "with binding 'b' denied request: want 1 of ConfigMap"},
		{"by name in the object's namespace", "{name: param1, parameterNotFoundAction: Deny}", []string{"1 default"}, "want 1 of ConfigMap"},
		{"satisfied", "{name: param2, parameterNotFoundAction: Deny}", []string{"2 default"}, ""},
		{"each that is selected", "{selector: {matchLabels: {of: p}}, parameterNotFoundAction: Deny}", []string{"2 default", "3 default"}, "want 3 of ConfigMap"},
		{"missing, which denies", "{name: param1, parameterNotFoundAction: Deny}", nil, "denied request: failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction"},
		{"missing, which allows", "{name: param1, parameterNotFoundAction: Allow}", nil, ""},
		{"none selected, which denies", "{selector: {matchLabels: {of: q}}, parameterNotFoundAction: Deny}", []string{"1 default"}, "no params found"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			for _, p := range tt.params {
				n, namespace, _ := strings.Cut(p, " ")
				w.apply(fmt.Sprintf(param, n, namespace))
			}
			w.apply(validating(policy, "paramRef: "+tt.ref))
			err := w.try(bad)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}

func TestUnknownParamKind(t *testing.T) {
	w := newWorld(t)
	w.apply(validating("paramKind: {apiVersion: example.com/v1, kind: Nothing}\n  validations: [{expression: 'true'}]", "paramRef: {name: x, parameterNotFoundAction: Allow}"))
	want := "ValidatingAdmissionPolicy 'p' denied request: failed to configure policy: failed to find resource referenced by paramKind: 'example.com/v1, Kind=Nothing'"
	if err := w.try(bad); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v", err)
	}
}

// A policy that forbids everything can be taken back.
func TestPoliciesAreExempt(t *testing.T) {
	w := newWorld(t)
	everything := strings.Replace(validating(`validations: [{expression: "false"}]`, ""),
		`[{apiGroups: [""], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [configmaps]}]`, `[{apiGroups: ["*"], apiVersions: ["*"], operations: ["*"], resources: ["*/*"]}, {apiGroups: ["*"], apiVersions: ["*"], operations: ["*"], resources: ["*"]}]`, 1)
	w.apply(everything)
	if err := w.try(good); err == nil {
		t.Fatal("the policy does nothing")
	}
	for _, resource := range []string{"validatingadmissionpolicybindings/b", "validatingadmissionpolicies/p"} {
		plural, name, _ := strings.Cut(resource, "/")
		ref := client.Ref{Resource: schema.GroupVersionResource{Group: admissionregistrationv1.GroupName, Version: "v1", Resource: plural}, Name: name}
		if _, err := w.api.Delete(w.ctx, ref, metav1.DeleteOptions{}); err != nil {
			t.Errorf("delete %s: %v", resource, err)
		}
	}
	w.apply(good)
}
