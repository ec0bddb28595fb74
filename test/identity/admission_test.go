package identity

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/api/imagepolicy/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// remoteServer is a TLS server and the kubeconfig, with a token, that reaches it.
func remoteServer(t *testing.T, token string, h http.HandlerFunc) (address string, ca []byte, kubeconfig string) {
	t.Helper()
	s := httptest.NewTLSServer(h)
	t.Cleanup(s.Close)
	ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	return s.URL, ca, file(t, "kubeconfig", fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c,
clusters: [{name: c, cluster: {server: %q, certificate-authority-data: %s}}],
contexts: [{name: c, context: {cluster: c, user: %q}}],
users: [{name: %q, user: {token: %s}}]}`, s.URL, base64.StdEncoding.EncodeToString(ca), u.Host, u.Host, token))
}

func admissionConfiguration(plugins ...string) string {
	return "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n" + strings.Join(plugins, "")
}

func (s *server) inNamespace(t *testing.T, name string, annotations map[string]string) {
	t.Helper()
	_, err := s.admin(t).CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.withAccount(t, name)
}

// withAccount waits for what pods of a namespace need.
func (s *server) withAccount(t *testing.T, namespace string) {
	t.Helper()
	eventually(t, func() error {
		_, err := s.admin(t).CoreV1().ServiceAccounts(namespace).Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
}

func (s *server) try(t *testing.T, namespace, name string, change func(*corev1.Pod)) (*corev1.Pod, error) {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "registry.example.com/app:1", ImagePullPolicy: corev1.PullIfNotPresent}}},
	}
	if change != nil {
		change(pod)
	}
	return s.admin(t).CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
}

// mustRefuse is a try that has to fail with a text.
func (s *server) mustRefuse(t *testing.T, namespace string, want string, change func(*corev1.Pod)) {
	t.Helper()
	if _, err := s.try(t, namespace, "refused", change); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), want) {
		t.Errorf("want %q: %v", want, err)
	}
}

// The plugins that are off by default, switched on and configured by flags.
func TestAdmissionPluginsByFlag(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	reviews := 0
	_, _, images := remoteServer(t, "images", func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		reviews++
		mu.Unlock()
		var review v1alpha1.ImageReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Status = v1alpha1.ImageReviewStatus{Allowed: true}
		for _, c := range review.Spec.Containers {
			if strings.Contains(c.Image, "evil") {
				review.Status = v1alpha1.ImageReviewStatus{Reason: "known to be evil"}
			}
		}
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(review)
	})
	config := file(t, "admission.yaml", admissionConfiguration(
		"- name: PodNodeSelector\n  configuration: {podNodeSelectorPluginConfig: {clusterDefaultNodeSelector: 'pool=common', narrow: 'disk=ssd'}}\n",
		"- name: PodTolerationRestriction\n  configuration: {apiVersion: podtolerationrestriction.admission.k8s.io/v1alpha1, kind: Configuration, default: [{key: common, operator: Exists}]}\n",
		"- name: EventRateLimit\n  path: "+file(t, "events.yaml", "{apiVersion: eventratelimit.admission.k8s.io/v1alpha1, kind: Configuration, limits: [{type: Namespace, qps: 1, burst: 2}]}")+"\n",
		"- name: ImagePolicyWebhook\n  configuration: {imagePolicy: {kubeConfigFile: "+images+", allowTTL: 60}}\n",
		"- name: PodSecurity\n  configuration: {apiVersion: pod-security.admission.config.k8s.io/v1, kind: PodSecurityConfiguration, defaults: {enforce: baseline}, exemptions: {namespaces: [exempt]}}\n",
	))
	s := start(t, "--admission-control-config-file", config, "--enable-admission-plugins",
		"AlwaysAdmit,NamespaceAutoProvision,NamespaceExists,LimitPodHardAntiAffinityTopology,AlwaysPullImages,ImagePolicyWebhook,PodNodeSelector,PodTolerationRestriction,EventRateLimit,ExtendedResourceToleration")
	s.inNamespace(t, "exempt", map[string]string{"scheduler.alpha.kubernetes.io/node-selector": "pool=mine",
		"scheduler.alpha.kubernetes.io/defaultTolerations": "[]", "scheduler.alpha.kubernetes.io/tolerationsWhitelist": `[{"key":"node.kubernetes.io/not-ready","operator":"Exists"},{"key":"node.kubernetes.io/unreachable","operator":"Exists"}]`})
	s.inNamespace(t, "narrow", map[string]string{"scheduler.alpha.kubernetes.io/node-selector": ""})
	s.withAccount(t, "default")

	pod, err := s.try(t, "default", "pod", func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: "i", Image: "i", ImagePullPolicy: corev1.PullNever}}
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "data:1", PullPolicy: corev1.PullIfNotPresent}}}}
		gpu := corev1.ResourceList{"example.com/gpu": resource.MustParse("1")}
		p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: gpu, Limits: gpu}
	})
	if err != nil {
		t.Fatal(err)
	}
	if pod.Spec.Containers[0].ImagePullPolicy != corev1.PullAlways || pod.Spec.InitContainers[0].ImagePullPolicy != corev1.PullAlways || pod.Spec.Volumes[0].Image.PullPolicy != corev1.PullAlways {
		t.Errorf("images are not always pulled: %+v", pod.Spec)
	}
	if pod.Spec.NodeSelector["pool"] != "common" {
		t.Errorf("node selector: %v", pod.Spec.NodeSelector)
	}
	tolerated := map[string]bool{}
	for _, tol := range pod.Spec.Tolerations {
		tolerated[tol.Key] = true
	}
	if !tolerated["common"] || !tolerated["example.com/gpu"] {
		t.Errorf("tolerations: %v", pod.Spec.Tolerations)
	}

	if _, err := s.try(t, "default", "again", nil); err != nil {
		t.Error(err)
	}
	mu.Lock()
	if reviews != 2 { // of two sets of images
		t.Errorf("the image policy was asked %d times", reviews)
	}
	mu.Unlock()
	s.mustRefuse(t, "default", "image policy webhook backend denied one or more images: known to be evil", func(p *corev1.Pod) { p.Spec.Containers[0].Image = "evil" })
	s.mustRefuse(t, "default", "pod node label selector conflicts with its namespace node label selector", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"pool": "other"} })
	s.mustRefuse(t, "narrow", "pod node label selector labels conflict with its namespace whitelist", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "tape"} })
	s.mustRefuse(t, "exempt", "conflict with its namespace whitelist", func(p *corev1.Pod) {
		p.Spec.Tolerations = []corev1.Toleration{{Key: "x", Operator: corev1.TolerationOpExists}}
	})
	s.mustRefuse(t, "default", "affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey zone but only key kubernetes.io/hostname is allowed", func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			TopologyKey: "zone", LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}},
		}}}}
	})
	host := func(p *corev1.Pod) { p.Spec.HostNetwork = true }
	s.mustRefuse(t, "default", `violates PodSecurity "baseline:latest": host namespaces (hostNetwork=true)`, host)
	if _, err := s.try(t, "exempt", "host", host); err != nil {
		t.Errorf("in an exempt namespace: %v", err)
	}

	_, err = s.admin(t).CoreV1().ConfigMaps("made-on-the-way").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}}, metav1.CreateOptions{})
	if err != nil {
		t.Errorf("in a namespace that does not exist: %v", err)
	}
	if err := s.admin(t).CoreV1().ConfigMaps("nowhere").Delete(t.Context(), "c", metav1.DeleteOptions{}); !apierrors.IsNotFound(err) || statusOf(t, err).Details.Kind == "" {
		t.Errorf("a delete in a namespace that does not exist: %v", err)
	}
	var last error
	for i := range 4 {
		_, last = s.admin(t).CoreV1().Events("narrow").Create(t.Context(), &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("e%d", i)}, InvolvedObject: corev1.ObjectReference{Namespace: "narrow", Name: "x"},
		}, metav1.CreateOptions{})
		if last != nil {
			break
		}
	}
	if !apierrors.IsTooManyRequests(last) || !strings.Contains(last.Error(), "limit reached on type Namespace for key narrow") {
		t.Errorf("a flood of events: %v", last)
	}
	for _, metric := range []string{
		`pod_security_evaluations_total{decision="deny",mode="enforce",policy_level="baseline"`, `pod_security_exemptions_total{`,
		`apiserver_admission_controller_admission_duration_seconds_count{name="PodNodeSelector",operation="CREATE",rejected="true",type="admit"}`,
	} {
		if s.metrics(t, metric) == "" {
			t.Errorf("no metric %s", metric)
		}
	}
}

func TestAdmissionPluginsThatDoNotStart(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		flags []string
		want  string
	}{
		"an unknown one":           {[]string{"--enable-admission-plugins", "Nonsense"}, `"Nonsense" is unknown`},
		"on and off":               {[]string{"--enable-admission-plugins", "AlwaysDeny", "--disable-admission-plugins", "AlwaysDeny"}, "overlapped"},
		"images without a webhook": {[]string{"--enable-admission-plugins", "ImagePolicyWebhook"}, "no config specified"},
		"no rate": {[]string{"--enable-admission-plugins", "EventRateLimit", "--admission-control-config-file", file(t, "a.yaml", admissionConfiguration(
			"- name: EventRateLimit\n  configuration: {apiVersion: eventratelimit.admission.k8s.io/v1alpha1, kind: Configuration, limits: [{type: Server, burst: 1}]}\n"))}, "limits[0].qps: Invalid value: 0: must be positive"},
		"no level": {[]string{"--admission-control-config-file", file(t, "b.yaml", admissionConfiguration(
			"- name: PodSecurity\n  configuration: {apiVersion: pod-security.admission.config.k8s.io/v1, kind: PodSecurityConfiguration, defaults: {enforce: strict}}\n"))}, `must be one of privileged, baseline, restricted`},
		"credentials from nowhere": {[]string{"--admission-control-config-file", file(t, "c.yaml", admissionConfiguration(
			"- name: MutatingAdmissionWebhook\n  configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: WebhookAdmissionConfiguration, kubeConfigFile: here}\n"))}, "must be an absolute file path"},
		"another kind": {[]string{"--admission-control-config-file", file(t, "d.yaml", "apiVersion: v1\nkind: Pod\n")}, "no kind"},
	} {
		t.Run(name, func(t *testing.T) {
			if out := refused(t, c.flags...); !strings.Contains(out, c.want) {
				t.Errorf("it says %q, want %q", out, c.want)
			}
		})
	}
}

// Webhooks know the server by the credentials of a kubeconfig; what is asked of
// them and of policies is counted.
func TestWebhooksGetCredentials(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var credentials []string
	address, ca, kubeconfig := remoteServer(t, "secret-of-the-server", func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		credentials = append(credentials, r.Header.Get("Authorization"))
		mu.Unlock()
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		review.Request = nil
		json.NewEncoder(w).Encode(review)
	})
	config := file(t, "admission.yaml", admissionConfiguration(
		"- name: ValidatingAdmissionWebhook\n  configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: WebhookAdmissionConfiguration, kubeConfigFile: "+kubeconfig+"}\n"))
	s := start(t, "--admission-control-config-file", config)
	rules := []admissionregistrationv1.RuleWithOperations{{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
	}}
	api := s.admin(t).AdmissionregistrationV1()
	_, err := api.ValidatingWebhookConfigurations().Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "hook"}, Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "hook.example.com", Rules: rules, ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: ptr.To(address), CABundle: ca},
			SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
			MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "named", Expression: "object.metadata.name != 'unseen'"}},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = api.ValidatingAdmissionPolicies().Create(t.Context(), &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "policy"}, Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: rules[0]}}},
			Validations:      []admissionregistrationv1.Validation{{Expression: "object.metadata.name != 'bad'"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for name, actions := range map[string][]admissionregistrationv1.ValidationAction{
		"deny": {admissionregistrationv1.Deny}, "tell": {admissionregistrationv1.Warn, admissionregistrationv1.Audit},
	} {
		_, err = api.ValidatingAdmissionPolicyBindings().Create(t.Context(), &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: "policy", ValidationActions: actions},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, refused := range map[string]bool{"good": false, "unseen": false, "bad": true} {
		_, err := s.admin(t).CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if (err != nil) != refused {
			t.Errorf("%s: %v", name, err)
		}
	}
	mu.Lock()
	if len(credentials) == 0 || strings.Join(credentials, "") != strings.Repeat("Bearer secret-of-the-server", len(credentials)) {
		t.Errorf("the webhook got %q", credentials)
	}
	mu.Unlock()
	for _, metric := range []string{
		`apiserver_admission_webhook_request_total{code="200",name="hook.example.com",operation="CREATE",rejected="false",type="validating"}`,
		`apiserver_admission_webhook_admission_duration_seconds_count{name="hook.example.com"`,
		`apiserver_admission_match_condition_exclusions_total{kind="webhook",name="hook.example.com",operation="CREATE",type="validating"} 1`,
		`apiserver_admission_match_condition_evaluation_seconds_count{kind="webhook",name="hook.example.com"`,
		`apiserver_validating_admission_policy_check_total{enforcement_action="deny",error_type="no_error",policy="policy",policy_binding="deny"} 1`,
		`apiserver_validating_admission_policy_check_total{enforcement_action="audit",error_type="no_error",policy="policy",policy_binding="tell"} 1`,
		`apiserver_validating_admission_policy_check_total{enforcement_action="warn",error_type="no_error",policy="policy",policy_binding="tell"} 1`,
		`apiserver_validating_admission_policy_check_duration_seconds_count{`,
	} {
		if s.metrics(t, metric) == "" {
			t.Errorf("no metric %s\n%s", metric, s.metrics(t, metric[:strings.IndexByte(metric, '{')]))
		}
	}
}
