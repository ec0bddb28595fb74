package identity

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/utils/ptr"

	"proa/internal/egress/egresstest"
)

// A server in a network of its own reaches the cluster and the control plane's webhooks
// through the proxy of each: nothing here has an address that it could reach itself.
func TestServersAreReachedThroughTheProxyOfTheirNetwork(t *testing.T) {
	t.Parallel()
	address, ca, _ := remoteServer(t, "", func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Result: &metav1.Status{Message: "said the webhook"}}
		json.NewEncoder(w).Encode(review)
	})
	controlPlane := &egresstest.Proxy{Leads: map[string]string{"example.com:8443": strings.TrimPrefix(address, "https://")}}
	cluster := &egresstest.Proxy{Leads: map[string]string{}}
	s := start(t, "--egress-selector-config-file", file(t, "egress.yaml", fmt.Sprintf(`apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: controlplane
  connection: {proxyProtocol: HTTPConnect, transport: {uds: {udsName: %q}}}
- name: cluster
  connection: {proxyProtocol: HTTPConnect, transport: {uds: {udsName: %q}}}
`, controlPlane.Socket(t), cluster.Socket(t))))
	api := s.admin(t)
	s.inNamespace(t, "a", nil)

	_, err := api.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "hook"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "hook.example.com", AdmissionReviewVersions: []string{"v1"}, SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone),
			ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: ptr.To("https://example.com:8443/"), CABundle: ca},
			Rules: []admissionregistrationv1.RuleWithOperations{{Operations: []admissionregistrationv1.OperationType{"CREATE"},
				Rule: admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"secrets"}}}},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		_, err := api.CoreV1().Secrets("a").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{GenerateName: "s-"}}, metav1.CreateOptions{})
		if err == nil || !strings.Contains(err.Error(), "said the webhook") {
			return fmt.Errorf("a refused Secret: %v", err)
		}
		return nil
	})
	if got := cluster.Asked(); len(got) != 0 {
		t.Errorf("the cluster's proxy was asked for %q", got)
	}

	if _, err := api.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "far"},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.10"}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := api.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ // whose metrics the server reads by itself
		ObjectMeta: metav1.ObjectMeta{Name: "measured"},
		Status: corev1.NodeStatus{
			Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.30"}},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: 10260}},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := api.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/far/proxy/healthz").Do(t.Context()).Error(); err == nil {
		t.Error("an answer of a node that nobody leads to")
	}
	if _, err := api.CoreV1().Services("a").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "extension"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 443}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := api.DiscoveryV1().EndpointSlices("a").Create(t.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "extension", Labels: map[string]string{discoveryv1.LabelServiceName: "extension"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: ptr.To(""), Port: ptr.To[int32](8443)}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.20"}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	service := &apiregistrationv1.APIService{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apiregistration.k8s.io/v1", Kind: "APIService"},
		ObjectMeta: metav1.ObjectMeta{Name: "v1.far.example.com"},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: "far.example.com", Version: "v1", GroupPriorityMinimum: 100, VersionPriority: 10, InsecureSkipTLSVerify: true,
			Service: &apiregistrationv1.ServiceReference{Namespace: "a", Name: "extension"},
		},
	}
	body, err := json.Marshal(service)
	if err != nil {
		t.Fatal(err)
	}
	if err := api.CoreV1().RESTClient().Post().AbsPath("/apis/apiregistration.k8s.io/v1/apiservices").Body(body).SetHeader("Content-Type", "application/json").Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		got := cluster.Asked()
		for _, want := range []string{"192.0.2.10:10250", "192.0.2.20:8443", "192.0.2.30:10260"} {
			if !slices.Contains(got, want) {
				return fmt.Errorf("the cluster's proxy was asked for %q, not for %s", got, want)
			}
		}
		return nil
	})
	for _, series := range []string{
		`apiserver_egress_dialer_dial_start_total{protocol="http_connect",transport="uds"}`,
		`apiserver_egress_dialer_dial_duration_seconds_count{protocol="http_connect",transport="uds"}`,
		`apiserver_egress_dialer_dial_failure_count{protocol="http_connect",stage="proxy",transport="uds"}`,
	} {
		if s.metrics(t, series) == "" {
			t.Errorf("no metric %s", series)
		}
	}
	for _, asked := range controlPlane.Asked() {
		if asked != "example.com:8443" {
			t.Errorf("the control plane's proxy was asked for %s", asked)
		}
	}

	out := refused(t, "--egress-selector-config-file", file(t, "egress.yaml", "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\negressSelections:\n- {name: moon, connection: {proxyProtocol: Direct}}\n"))
	if !strings.Contains(out, `Unsupported value: "moon"`) {
		t.Errorf("an unknown selection: %s", out)
	}
}
