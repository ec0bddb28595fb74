package webhook

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"proa/internal/apis"
	"proa/internal/auth/pki"
	"proa/internal/client"
	"proa/internal/store"
)

func TestValidatingWebhookRefuses(t *testing.T) {
	for _, tt := range []struct {
		name   string
		result *metav1.Status
		want   string
		code   int32
	}{
		{"with its message, code and reason", &metav1.Status{Message: "no", Code: 418, Reason: "Teapot"}, `admission webhook "v.example.com" denied the request: no`, 418},
		{"with its reason where it has no message", &metav1.Status{Reason: "Odd"}, `admission webhook "v.example.com" denied the request: Odd`, 400},
		{"without explanation", nil, `admission webhook "v.example.com" denied the request without explanation`, 400},
		{"even when it says success", &metav1.Status{Status: metav1.StatusSuccess, Code: 200}, `admission webhook "v.example.com" denied the request without explanation`, 400},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.serve("/v", func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
				return &admissionv1.AdmissionResponse{Result: tt.result}
			})
			w.validate("v", w.hook("v", "/v"))
			_, err := w.create(ref("configmaps"), configMap("a", nil))
			status, ok := err.(apierrors.APIStatus)
			if !ok || status.Status().Message != tt.want || status.Status().Code != tt.code || status.Status().Status != metav1.StatusFailure {
				t.Fatalf("error %v, status %+v", err, status)
			}
			if _, err := w.api.Get(w.ctx, ref("configmaps", "a"), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				t.Errorf("the refused object is there: %v", err)
			}
		})
	}
}

func TestReviewTellsTheWholeWrite(t *testing.T) {
	w := newWorld(t)
	got := w.serve("/v", allowed)
	w.validate("v", w.hook("v", "/v"))
	w.must(w.create(ref("configmaps"), configMap("a", map[string]string{"k": "1"})))
	cm := configMap("a", map[string]string{"k": "2"})
	if _, err := w.api.Update(w.ctx, ref("configmaps", "a"), cm, metav1.UpdateOptions{FieldManager: "m", DryRun: []string{"All"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.api.Delete(w.ctx, ref("configmaps", "a"), metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](7)}); err != nil {
		t.Fatal(err)
	}
	all := got.all()
	if len(all) != 3 {
		t.Fatalf("%d requests", len(all))
	}
	create, update, del := all[0], all[1], all[2]
	kind := metav1.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
	resource := metav1.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	for _, r := range all {
		if r.Kind != kind || *r.RequestKind != kind || r.Resource != resource || *r.RequestResource != resource ||
			r.Name != "a" || r.Namespace != "default" || r.UserInfo.Username != "ann" || r.UserInfo.UID != "u1" || r.UserInfo.Extra["k"][0] != "v" || r.UID == "" {
			t.Errorf("request %+v", r)
		}
	}
	shown := func(raw []byte) (cm corev1.ConfigMap) {
		if err := json.Unmarshal(raw, &cm); err != nil || cm.APIVersion != "v1" || cm.Kind != "ConfigMap" {
			t.Errorf("%s: %v", raw, err)
		}
		return cm
	}
	if create.Operation != "CREATE" || shown(create.Object.Raw).Data["k"] != "1" || create.OldObject.Raw != nil || *create.DryRun {
		t.Errorf("create %s %s %s", create.Operation, create.Object.Raw, create.OldObject.Raw)
	}
	if obj := shown(create.Object.Raw); obj.UID == "" || obj.CreationTimestamp.IsZero() || len(obj.ManagedFields) == 0 {
		t.Errorf("validating webhooks see the object before it is complete: %s", create.Object.Raw)
	}
	if update.Operation != "UPDATE" || shown(update.Object.Raw).Data["k"] != "2" || shown(update.OldObject.Raw).Data["k"] != "1" || !*update.DryRun ||
		string(update.Options.Raw) != `{"kind":"UpdateOptions","apiVersion":"meta.k8s.io/v1","dryRun":["All"],"fieldManager":"m"}` {
		t.Errorf("update %s %s %s %s", update.Operation, update.Object.Raw, update.OldObject.Raw, update.Options.Raw)
	}
	if del.Operation != "DELETE" || del.Object.Raw != nil || shown(del.OldObject.Raw).Data["k"] != "1" ||
		!strings.Contains(string(del.Options.Raw), `"kind":"DeleteOptions"`) || !strings.Contains(string(del.Options.Raw), `"gracePeriodSeconds":7`) {
		t.Errorf("delete %s %s %s", del.Operation, del.Object.Raw, del.Options.Raw)
	}
}

func TestRulesSayWhoIsAsked(t *testing.T) {
	all, cluster, namespaced := admissionregistrationv1.AllScopes, admissionregistrationv1.ClusterScope, admissionregistrationv1.NamespacedScope
	scoped := func(r admissionregistrationv1.RuleWithOperations, s admissionregistrationv1.ScopeType) admissionregistrationv1.RuleWithOperations {
		r.Scope = &s
		return r
	}
	selector := func(key, value string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
	}
	deployments := ruleFor("apps", "v1", "deployments", "CREATE")
	for _, tt := range []struct {
		name string
		set  hookOption
		want []string // operation resource/subresource, in order
	}{
		{"one operation", rules(ruleFor("", "v1", "configmaps", "UPDATE")), []string{"UPDATE configmaps"}},
		{"every operation", rules(ruleFor("", "v1", "configmaps", "*")), []string{"CREATE configmaps", "UPDATE configmaps", "DELETE configmaps"}},
		{"another version", rules(ruleFor("", "v2", "configmaps", "*")), nil},
		{"another group", rules(ruleFor("apps", "*", "*", "*")), []string{"CREATE deployments"}},
		{"all resources", rules(ruleFor("*", "*", "*", "CREATE")), []string{"CREATE configmaps", "CREATE deployments", "CREATE namespaces"}},
		{"all subresources", rules(ruleFor("*", "*", "*/*", "UPDATE")), []string{"UPDATE configmaps", "UPDATE deployments/scale", "UPDATE deployments/status"}},
		{"one subresource", rules(ruleFor("*", "*", "*/scale", "*")), []string{"UPDATE deployments/scale"}},
		{"a resource is not its subresources", rules(ruleFor("apps", "v1", "deployments", "UPDATE")), nil},
		{"cluster scope, which namespaces have", rules(scoped(ruleFor("*", "*", "*", "CREATE"), cluster)), []string{"CREATE namespaces"}},
		{"namespaced scope", rules(scoped(ruleFor("*", "*", "*", "CREATE"), namespaced)), []string{"CREATE configmaps", "CREATE deployments"}},
		{"any scope", rules(scoped(deployments, all)), []string{"CREATE deployments"}},
		{"no rules", rules(), nil},
		{"a namespace with the label", func(h *admissionregistrationv1.MutatingWebhook) { h.NamespaceSelector = selector("env", "test") }, []string{"CREATE configmaps", "UPDATE configmaps", "DELETE configmaps"}},
		{"no namespace with the label", func(h *admissionregistrationv1.MutatingWebhook) { h.NamespaceSelector = selector("env", "prod") }, nil},
		{"a namespace by the labels it will have", func(h *admissionregistrationv1.MutatingWebhook) {
			h.NamespaceSelector, h.Rules = selector("new", "yes"), []admissionregistrationv1.RuleWithOperations{ruleFor("", "v1", "namespaces", "CREATE")}
		}, []string{"CREATE namespaces"}},
		{"an object with the label, before or after", func(h *admissionregistrationv1.MutatingWebhook) { h.ObjectSelector = selector("step", "2") }, []string{"UPDATE configmaps", "DELETE configmaps"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			got := w.serve("/v", allowed)
			w.validate("v", w.hook("v", "/v", tt.set))
			w.exercise()
			var seen []string
			for _, r := range got.all() {
				seen = append(seen, strings.TrimSuffix(fmt.Sprintf("%s %s/%s", r.Operation, r.Resource.Resource, r.SubResource), "/"))
			}
			if !slices.Equal(seen, tt.want) {
				t.Errorf("asked about %q, want %q", seen, tt.want)
			}
		})
	}
}

// exercise makes one write of many sorts.
func (w *world) exercise() {
	w.t.Helper()
	cm := configMap("a", nil)
	w.must(w.create(ref("configmaps"), cm))
	cm = configMap("a", map[string]string{"k": "2"})
	cm.Labels = map[string]string{"step": "2"}
	w.must(w.api.Update(w.ctx, ref("configmaps", "a"), cm, metav1.UpdateOptions{}))
	if _, err := w.api.Delete(w.ctx, ref("configmaps", "a"), metav1.DeleteOptions{}); err != nil {
		w.t.Fatal(err)
	}
	d := client.Ref{Resource: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}, Namespace: "default"}
	labels := map[string]string{"app": "d"}
	made := w.must(w.create(d, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "d"}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "x"}}}},
	}}))
	d.Name, d.Subresource = "d", "scale"
	w.must(w.api.Patch(w.ctx, d, types.MergePatchType, []byte(`{"spec":{"replicas":3}}`), metav1.PatchOptions{}))
	d.Subresource = "status"
	w.must(w.api.Patch(w.ctx, d, types.MergePatchType, []byte(`{"status":{"replicas":3}}`), metav1.PatchOptions{}))
	_ = made
	w.must(w.create(ref("namespaces"), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "more", Labels: map[string]string{"new": "yes"}}}))
}

func TestScaleIsShownAsScale(t *testing.T) {
	w := newWorld(t)
	got := w.serve("/m", patches(`[{"op":"replace","path":"/spec/replicas","value":5}]`))
	w.mutate("m", w.hook("m", "/m", rules(ruleFor("apps", "v1", "deployments/scale", "UPDATE"))))
	w.exercise()
	r := got.all()[0]
	if r.Kind != (metav1.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"}) || r.SubResource != "scale" || r.RequestSubResource != "scale" {
		t.Errorf("kind %v, subresource %s", r.Kind, r.SubResource)
	}
	d := client.Ref{Resource: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}, Namespace: "default", Name: "d"}
	if n := *w.must(w.api.Get(w.ctx, d, metav1.GetOptions{})).(*appsv1.Deployment).Spec.Replicas; n != 5 {
		t.Errorf("%d replicas, want what the webhook made of them", n)
	}
}

// gadgets are served in two versions. In the second, data's key is called two.
func gadgets() *apis.Resource {
	move := func(from, to string) func(apis.Object) (apis.Object, error) {
		return func(obj apis.Object) (apis.Object, error) {
			out := obj.DeepCopyObject().(*policyv1.PodDisruptionBudget)
			if v, ok := out.Annotations[from]; ok {
				delete(out.Annotations, from)
				out.Annotations[to] = v
			}
			return out, nil
		}
	}
	r := *pdb()
	r.Also = []apis.Served{{Group: "policy", Version: "v2", Kind: "PodDisruptionBudget", New: r.New, NewList: r.NewList, FromHub: move("one", "two"), ToHub: move("two", "one")}}
	return &r
}

func pdb() *apis.Resource {
	return &apis.Resource{
		Group: "policy", Version: "v1", Kind: "PodDisruptionBudget", Plural: "poddisruptionbudgets",
		New: apis.New[policyv1.PodDisruptionBudget], NewList: apis.NewList[policyv1.PodDisruptionBudgetList],
	}
}

func TestMatchPolicyEquivalentConverts(t *testing.T) {
	for _, tt := range []struct {
		policy admissionregistrationv1.MatchPolicyType
		asked  int
	}{{admissionregistrationv1.Equivalent, 1}, {admissionregistrationv1.Exact, 0}} {
		t.Run(string(tt.policy), func(t *testing.T) {
			w := newWorld(t)
			if err := w.catalogue.Add(gadgets()); err != nil {
				t.Fatal(err)
			}
			got := w.serve("/m", patches(`[{"op":"add","path":"/metadata/annotations/two","value":"changed"}]`))
			w.mutate("m", w.hook("m", "/m", rules(ruleFor("policy", "v2", "poddisruptionbudgets", "CREATE")),
				func(h *admissionregistrationv1.MutatingWebhook) { h.MatchPolicy = &tt.policy }))
			r := client.Ref{Resource: schema.GroupVersionResource{Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"}, Namespace: "default"}
			made := w.must(w.create(r, &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "g", Annotations: map[string]string{"one": "sent"}}}))
			all := got.all()
			if len(all) != tt.asked {
				t.Fatalf("asked %d times", len(all))
			}
			if tt.asked == 0 {
				return
			}
			if a := all[0]; a.Kind.Version != "v2" || a.Resource.Version != "v2" || a.RequestKind.Version != "v1" || a.RequestResource.Version != "v1" ||
				!strings.Contains(string(a.Object.Raw), `"two":"sent"`) || !strings.Contains(string(a.Object.Raw), `"apiVersion":"policy/v2"`) {
				t.Errorf("request %+v %s", a, a.Object.Raw)
			}
			if got := made.GetAnnotations()["one"]; got != "changed" {
				t.Errorf("annotations %v", made.GetAnnotations())
			}
		})
	}
}

func TestMutatingWebhooksRunInTheOrderOfTheirNames(t *testing.T) {
	w := newWorld(t)
	// served in another order than named; the second acts on what the first did
	w.serve("/second", func(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		if !strings.Contains(string(r.Object.Raw), `"first":"yes"`) {
			return allowed(r)
		}
		return patches(`[{"op":"add","path":"/data/second","value":"yes"}]`)(r)
	})
	w.serve("/first", patches(`[{"op":"add","path":"/data/first","value":"yes"}]`))
	w.mutate("b", w.hook("second", "/second"))
	w.mutate("a", w.hook("first", "/first"))
	cm := w.must(w.create(ref("configmaps"), configMap("a", map[string]string{"k": "v"}))).(*corev1.ConfigMap)
	if cm.Data["first"] != "yes" || cm.Data["second"] != "yes" {
		t.Errorf("data %v", cm.Data)
	}
	if stored := w.must(w.api.Get(w.ctx, ref("configmaps", "a"), metav1.GetOptions{})).(*corev1.ConfigMap); stored.Data["second"] != "yes" || stored.Kind != "" {
		t.Errorf("stored %v", stored)
	}
}

func TestReinvocation(t *testing.T) {
	for _, tt := range []struct {
		name   string
		policy admissionregistrationv1.ReinvocationPolicyType
		want   int // times the first webhook is asked
	}{{"a webhook that wants to sees later changes", admissionregistrationv1.IfNeededReinvocationPolicy, 2}, {"others do not", admissionregistrationv1.NeverReinvocationPolicy, 1}} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			first := w.serve("/first", allowed)
			second := w.serve("/second", patches(`[{"op":"add","path":"/data/second","value":"yes"}]`))
			w.mutate("a", w.hook("first", "/first", func(h *admissionregistrationv1.MutatingWebhook) { h.ReinvocationPolicy = &tt.policy }))
			w.mutate("b", w.hook("second", "/second", func(h *admissionregistrationv1.MutatingWebhook) {
				h.ReinvocationPolicy = ptr.To(admissionregistrationv1.IfNeededReinvocationPolicy)
			}))
			w.must(w.create(ref("configmaps"), configMap("a", map[string]string{"k": "v"})))
			if n := len(first.all()); n != tt.want {
				t.Errorf("the first was asked %d times, want %d", n, tt.want)
			}
			if n := len(second.all()); n != 1 {
				t.Errorf("the second, after which nothing changed, was asked %d times", n)
			}
		})
	}
}

func TestPluginsSeeWhatAWebhookAdded(t *testing.T) {
	w := newWorld(t)
	w.must(w.create(ref("serviceaccounts"), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}))
	w.serve("/m", patches(`[{"op":"add","path":"/spec/initContainers","value":[{"name":"init","image":"x"}]}]`))
	w.mutate("m", w.hook("m", "/m", rules(ruleFor("", "v1", "pods", "CREATE"))))
	pod := w.must(w.create(ref("pods"), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "x"}}}})).(*corev1.Pod)
	added := pod.Spec.InitContainers[0]
	if added.TerminationMessagePolicy != corev1.TerminationMessageReadFile || added.ImagePullPolicy != corev1.PullAlways {
		t.Errorf("no defaults in %+v", added)
	}
	if len(added.VolumeMounts) != 1 || added.VolumeMounts[0].MountPath != "/var/run/secrets/kubernetes.io/serviceaccount" {
		t.Errorf("the service account plugin did not see the container: %v", added.VolumeMounts)
	}
}

func TestFailurePolicy(t *testing.T) {
	for _, tt := range []struct {
		name, path string
		change     hookOption
		want       string // with Fail
	}{
		{"no answer in time", "/slow", func(h *admissionregistrationv1.MutatingWebhook) { h.TimeoutSeconds = ptr.To[int32](1) }, "?timeout=1s\": context deadline exceeded"},
		{"nobody there", "", func(h *admissionregistrationv1.MutatingWebhook) { h.ClientConfig.URL = ptr.To("https://127.0.0.1:1/") }, "connect: connection refused"},
		{"a certificate of nobody known", "/ok", func(h *admissionregistrationv1.MutatingWebhook) { h.ClientConfig.CABundle = nil }, "certificate signed by unknown authority"},
		{"an error of its own", "/broken", nil, "an error on the server (\"broken\") has prevented the request from succeeding"},
		{"an answer to another question", "/other", nil, `received invalid webhook response: expected response.uid=`},
		{"no answer in the review", "/empty", nil, "received invalid webhook response: webhook response was absent"},
		{"a redirect", "/away", nil, "webhooks must not redirect"},
		{"a patch of a validating webhook", "/patch", nil, "received invalid webhook response: validating webhook may not return response.patch"},
		{"a service that does not exist", "", func(h *admissionregistrationv1.MutatingWebhook) {
			h.ClientConfig = admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Namespace: "default", Name: "gone"}}
		}, `service "gone" not found`},
	} {
		for _, policy := range []admissionregistrationv1.FailurePolicyType{admissionregistrationv1.Fail, admissionregistrationv1.Ignore} {
			t.Run(fmt.Sprintf("%s, %s", tt.name, policy), func(t *testing.T) {
				t.Parallel() // some wait for a second
				w := newWorld(t)
				w.serve("/ok", allowed)
				w.serve("/other", func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
					return &admissionv1.AdmissionResponse{UID: "other", Allowed: true}
				})
				w.serve("/patch", patches(`[]`))
				w.mux.HandleFunc("/slow", func(_ http.ResponseWriter, r *http.Request) {
					_, _ = io.Copy(io.Discard, r.Body) // only then the server notices that the client left
					<-r.Context().Done()
				})
				w.mux.HandleFunc("/broken", func(rw http.ResponseWriter, _ *http.Request) { http.Error(rw, "broken", 500) })
				w.mux.HandleFunc("/empty", func(rw http.ResponseWriter, _ *http.Request) {
					rw.Header().Set("Content-Type", "application/json")
					fmt.Fprint(rw, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`)
				})
				w.mux.HandleFunc("/away", func(rw http.ResponseWriter, r *http.Request) {
					http.Redirect(rw, r, "/ok", http.StatusTemporaryRedirect)
				})
				options := []hookOption{failing(policy)}
				if tt.change != nil {
					options = append(options, tt.change)
				}
				w.validate("v", w.hook("v", tt.path, options...))
				_, err := w.create(ref("configmaps"), configMap("a", nil))
				if policy == admissionregistrationv1.Ignore || tt.want == "" {
					wantError(t, err, "")
					return
				}
				wantError(t, err, `Internal error occurred: failed calling webhook "v.example.com": `)
				wantError(t, err, tt.want)
				if !apierrors.IsInternalError(err) {
					t.Errorf("not an internal error: %v", err)
				}
			})
		}
	}
}

func TestV1beta1Review(t *testing.T) {
	w := newWorld(t)
	w.mux.HandleFunc("/old", func(rw http.ResponseWriter, r *http.Request) {
		var review map[string]any
		_ = json.NewDecoder(r.Body).Decode(&review)
		if review["apiVersion"] != "admission.k8s.io/v1beta1" {
			http.Error(rw, "wrong version", 400)
			return
		}
		rw.Header().Set("Content-Type", "application/json")
		fmt.Fprint(rw, `{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview","response":{"allowed":true,"patch":"W3sib3AiOiJhZGQiLCJwYXRoIjoiL2RhdGEiLCJ2YWx1ZSI6eyJvbGQiOiJ5ZXMifX1d"}}`)
	})
	w.mutate("m", w.hook("m", "/old", func(h *admissionregistrationv1.MutatingWebhook) {
		h.AdmissionReviewVersions = []string{"v9", "v1beta1", "v1"}
	}))
	cm := w.must(w.create(ref("configmaps"), configMap("a", nil))).(*corev1.ConfigMap)
	if cm.Data["old"] != "yes" {
		t.Errorf("data %v", cm.Data)
	}
}

func TestMatchConditions(t *testing.T) {
	condition := func(expressions ...string) hookOption {
		return func(h *admissionregistrationv1.MutatingWebhook) {
			for i, e := range expressions {
				h.MatchConditions = append(h.MatchConditions, admissionregistrationv1.MatchCondition{Name: fmt.Sprintf("c%d", i), Expression: e})
			}
		}
	}
	const boom = "object.nothing.there == 'x'"
	for _, tt := range []struct {
		name   string
		set    hookOption
		policy admissionregistrationv1.FailurePolicyType
		asked  int
		err    string
	}{
		{"all true asks", condition("object.metadata.name == 'a'", "request.operation == 'CREATE'", "request.userInfo.username == 'ann'", "oldObject == null"), "Fail", 1, ""},
		{"one false skips", condition("true", "object.metadata.name != 'a'"), "Fail", 0, ""},
		{"an error with one false skips", condition(boom, "false"), "Fail", 0, ""},
		{"an error refuses with Fail", condition("true", boom), "Fail", 0, `configmaps "a" is forbidden: expression 'object.nothing.there == 'x'' resulted in error: no such key: nothing`},
		{"an error skips with Ignore", condition("true", boom), "Ignore", 0, ""},
		{"the authorizer is asked as the user", condition("authorizer.group('').resource('configmaps').namespace('default').check('get').allowed()"), "Fail", 1, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			got := w.serve("/v", allowed)
			w.validate("v", w.hook("v", "/v", tt.set, failing(tt.policy)))
			_, err := w.create(ref("configmaps"), configMap("a", nil))
			wantError(t, err, tt.err)
			if n := len(got.all()); n != tt.asked {
				t.Errorf("asked %d times, want %d", n, tt.asked)
			}
		})
	}
}

func TestDryRunReachesOnlyWebhooksWithoutSideEffects(t *testing.T) {
	for _, tt := range []struct {
		effects admissionregistrationv1.SideEffectClass
		want    string
	}{
		{admissionregistrationv1.SideEffectClassNone, ""},
		{admissionregistrationv1.SideEffectClassNoneOnDryRun, ""},
	} {
		w := newWorld(t)
		got := w.serve("/v", allowed)
		w.validate("v", w.hook("v", "/v", func(h *admissionregistrationv1.MutatingWebhook) { h.SideEffects = &tt.effects }))
		_, err := w.api.Create(w.ctx, ref("configmaps"), configMap("a", nil), metav1.CreateOptions{DryRun: []string{"All"}})
		wantError(t, err, tt.want)
		if all := got.all(); len(all) != 1 || !*all[0].DryRun {
			t.Errorf("asked %v", all)
		}
	}
	some := &hook{MutatingWebhook: &admissionregistrationv1.MutatingWebhook{SideEffects: ptr.To(admissionregistrationv1.SideEffectClassSome)}}
	if !some.sideEffectsOnDryRun() {
		t.Error("a stored webhook with side effects must not be called in a dry run")
	}
}

func TestConfigurationsAreExempt(t *testing.T) {
	w := newWorld(t)
	w.serve("/v", denies("no"))
	w.serve("/m", patches(`[{"op":"add","path":"/metadata/labels","value":{"changed":"yes"}}]`))
	every := rules(ruleFor("*", "*", "*", admissionregistrationv1.OperationAll))
	w.mutate("m", w.hook("m", "/m", every))
	w.validate("v", w.hook("v", "/v", every))
	w.validate("w", w.hook("w", "/v", every))
	r := ref("validatingwebhookconfigurations")
	r.Name = "w"
	if made := w.must(w.api.Get(w.ctx, r, metav1.GetOptions{})); len(made.GetLabels()) > 0 {
		t.Errorf("a webhook changed a webhook configuration: %v", made.GetLabels())
	}
	if _, err := w.api.Delete(w.ctx, r, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

func TestConfigurationsTakeEffectAtOnce(t *testing.T) {
	w := newWorld(t)
	w.serve("/v", denies("no"))
	w.serve("/m", patches(`[{"op":"add","path":"/data","value":{"k":"changed"}}]`))
	secrets := rules(ruleFor("", "v1", "secrets", "CREATE"))
	w.validate("hooks", w.hook("v", "/v", secrets))
	w.mutate("hooks", w.hook("m", "/m", rules(ruleFor("", "v1", "configmaps", "CREATE"))))
	probe := func(name string) (changed, refused bool) {
		cm, err := w.create(ref("configmaps"), configMap(name, nil))
		w.must(cm, err)
		_, err = w.create(ref("secrets"), secret(name))
		return dataOf(cm)["k"] == "changed", err != nil
	}
	operations := func(op string) {
		for _, resource := range []string{"mutatingwebhookconfigurations", "validatingwebhookconfigurations"} {
			r := ref(resource)
			r.Name = "hooks"
			w.must(w.api.Patch(w.ctx, r, types.JSONPatchType, []byte(`[{"op":"replace","path":"/webhooks/0/rules/0/operations","value":["`+op+`"]}]`), metav1.PatchOptions{}))
		}
	}
	for i, step := range []struct {
		change func()
		active bool
	}{
		{func() {}, true},
		{func() { operations("UPDATE") }, false},
		{func() { operations("CREATE") }, true},
		{func() {
			for _, resource := range []string{"mutatingwebhookconfigurations", "validatingwebhookconfigurations"} {
				r := ref(resource)
				r.Name = "hooks"
				if _, err := w.api.Delete(w.ctx, r, metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
			}
		}, false},
	} {
		step.change()
		if changed, refused := probe(fmt.Sprint("a", i)); changed != step.active || refused != step.active {
			t.Errorf("step %d: changed %v, refused %v, want %v", i, changed, refused, step.active)
		}
	}
}

func TestWarningsAndAuditAnnotations(t *testing.T) {
	w := newWorld(t)
	w.serve("/v", func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		return &admissionv1.AdmissionResponse{Allowed: true, Warnings: []string{"mind the gap"}, AuditAnnotations: map[string]string{"why": "because"}}
	})
	w.serve("/m", patches(`[{"op":"add","path":"/data","value":{"k":"v"}}]`))
	w.validate("v", w.hook("v", "/v"), w.hook("gone", "", failing(admissionregistrationv1.Ignore), func(h *admissionregistrationv1.MutatingWebhook) {
		h.ClientConfig.URL = ptr.To("https://127.0.0.1:1/")
	}))
	w.mutate("m", w.hook("m", "/m"))
	a := w.attributes(configMap("a", nil))
	if err := w.chain.Admit(w.ctx, a); err != nil {
		t.Fatal(err)
	}
	if err := w.chain.Validate(w.ctx, a); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(w.warnings, []string{"mind the gap"}) {
		t.Errorf("warnings %q", w.warnings)
	}
	for key, want := range map[string]string{
		"v.example.com/why": "because",
		"failed-open.validating.webhook.admission.k8s.io/round_0_index_1": "gone.example.com",
		"mutation.webhook.admission.k8s.io/round_0_index_0":               `{"configuration":"m","webhook":"m.example.com","mutated":true}`,
		"patch.webhook.admission.k8s.io/round_0_index_0":                  `{"configuration":"m","webhook":"m.example.com","patch":[{"op":"add","path":"/data","value":{"k":"v"}}],"patchType":"JSONPatch"}`,
	} {
		if got := a.AuditAnnotations()[key]; got != want {
			t.Errorf("%s = %s, want %s", key, got, want)
		}
	}
}

func TestServiceReference(t *testing.T) {
	for _, tt := range []struct {
		name   string
		names  []string // in the certificate
		leaf   bool     // the bundle is the certificate itself
		ready  bool
		denied string
	}{
		{"its authority is known", []string{"hook.default.svc"}, false, true, "denied the request: asked"},
		{"its own certificate is known", []string{"hook.default.svc"}, true, true, "denied the request: asked"},
		{"the certificate is for another", []string{"other.default.svc"}, false, true, "certificate is valid for other.default.svc, not hook.default.svc"},
		{"it is not ready", []string{"hook.default.svc"}, false, false, `failed calling webhook "v.example.com": failed to call webhook: Post "https://hook.default.svc:443/v?timeout=10s": no endpoints available for service "hook"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.serve("/v", denies("asked"))
			port, authority, certificate := w.serveAs(tt.names)
			w.endpoint(port, tt.ready)
			w.validate("v", w.hook("v", "", func(h *admissionregistrationv1.MutatingWebhook) {
				h.ClientConfig = admissionregistrationv1.WebhookClientConfig{CABundle: authority, Service: &admissionregistrationv1.ServiceReference{
					Namespace: "default", Name: "hook", Path: ptr.To("/v"),
				}}
				if tt.leaf {
					h.ClientConfig.CABundle = certificate
				}
			}))
			_, err := w.create(ref("configmaps"), configMap("a", nil))
			wantError(t, err, tt.denied)
		})
	}
}

// serveAs serves the webhooks under a certificate for the given names.
func (w *world) serveAs(names []string) (port int32, authority, certificate []byte) {
	w.t.Helper()
	ca, err := pki.LoadOrCreate(w.t.TempDir())
	if err != nil {
		w.t.Fatal(err)
	}
	certificate, key, err := ca.Server(names, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		w.t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(w.mux)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	w.t.Cleanup(server.Close)
	return int32(server.Listener.Addr().(*net.TCPAddr).Port), ca.CAPEM(), certificate
}

// endpoint makes a service that leads to a port of this machine, which the API
// would not let anybody do.
func (w *world) endpoint(port int32, ready bool) {
	w.t.Helper()
	w.must(w.create(ref("services"), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "hook"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "https", Port: 443}}}}))
	_, err := w.store.Update(w.ctx, func(tx *store.Tx) error {
		_, err := tx.Create(store.Key{Resource: discoveryv1.SchemeGroupVersion.WithResource("endpointslices").GroupResource(), Namespace: "default", Name: "hook-1"}, &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Name: "hook-1", Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: "hook"}}, AddressType: discoveryv1.AddressTypeIPv4,
			Ports:     []discoveryv1.EndpointPort{{Name: ptr.To("https"), Port: &port}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"127.0.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
		})
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// A webhook that takes its time holds up its own request and no other.
func TestASlowWebhookDelaysNobodyElse(t *testing.T) {
	w := newWorld(t)
	started, answer := make(chan struct{}), make(chan struct{})
	calls := w.serve("/slow", func(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		if r.Name == "slow" {
			close(started)
			<-answer
		}
		return allowed(r)
	})
	w.validate("v", w.hook("v", "/slow"))
	w.must(w.create(ref("resourcequotas"), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: corev1.ResourceQuotaSpec{
		Hard: corev1.ResourceList{"count/configmaps": quantity("10")},
	}}))
	done := make(chan error, 1)
	go func() {
		_, err := w.create(ref("configmaps"), configMap("slow", nil))
		done <- err
	}()
	<-started
	for i := range 3 { // each changes the quota that the slow one has to be charged to
		w.must(w.create(ref("configmaps"), configMap(fmt.Sprintf("fast%d", i), nil)))
	}
	close(answer)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if n := len(calls.all()); n != 4 {
		t.Errorf("webhook called %d times for 4 objects", n)
	}
	q := ref("resourcequotas", "q")
	used := w.must(w.api.Get(w.ctx, q, metav1.GetOptions{})).(*corev1.ResourceQuota).Status.Used["count/configmaps"]
	if used.Value() != 4 {
		t.Errorf("quota counts %v", used.Value())
	}
}

// What a webhook judged is what is stored: a change in between has it judge again.
func TestAnUpdateIsJudgedOnTheStateItReplaces(t *testing.T) {
	w := newWorld(t)
	w.must(w.create(ref("configmaps"), configMap("a", map[string]string{"k": "1"})))
	first := true
	started, answer := make(chan struct{}), make(chan struct{})
	calls := w.serve("/v", func(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		if first && strings.Contains(string(r.Object.Raw), "patched") {
			first = false
			close(started)
			<-answer
		}
		return allowed(r)
	})
	w.validate("v", w.hook("v", "/v", rules(ruleFor("", "v1", "configmaps", "UPDATE"))))
	done := make(chan error, 1)
	go func() {
		_, err := w.api.Patch(w.ctx, ref("configmaps", "a"), types.MergePatchType, []byte(`{"data":{"p":"patched"}}`), metav1.PatchOptions{})
		done <- err
	}()
	<-started
	w.must(w.api.Patch(w.ctx, ref("configmaps", "a"), types.MergePatchType, []byte(`{"data":{"k":"2"}}`), metav1.PatchOptions{}))
	close(answer)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	all := calls.all()
	if last := all[len(all)-1]; len(all) != 3 || !strings.Contains(string(last.OldObject.Raw), `"k":"2"`) || !strings.Contains(string(last.Object.Raw), `"k":"2"`) {
		t.Errorf("%d calls, the last about %s", len(all), all[len(all)-1].Object.Raw)
	}
}
