package apiserver

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"proa/internal/apis/builtin"
	"proa/internal/apiserver/registry"
	"proa/internal/store"
	"proa/internal/store/memory"
)

// serving is a server with these flags.
func serving(t *testing.T, options builtin.Options) *world {
	t.Helper()
	gates, runtime, err := options.Parse()
	if err != nil {
		t.Fatal(err)
	}
	catalogue := builtin.Serving(gates, runtime)
	st, err := store.Open(t.Context(), store.Config{Engine: memory.New(), Codec: registry.NewCodec(catalogue)})
	if err != nil {
		t.Fatal(err)
	}
	r, err := registry.New(registry.Config{Store: st, Catalogue: catalogue})
	if err != nil {
		t.Fatal(err)
	}
	return newWorld(t, func(c *Config) {
		c.Store.Close()
		c.Registry, c.Store, c.Features = r, st, gates
	})
}

func (w *world) status(path string) int {
	w.t.Helper()
	resp, _ := w.do(http.MethodGet, path, "")
	return resp.StatusCode
}

func TestAPIsThatWereRemovedAreNotServed(t *testing.T) {
	w := serving(t, builtin.Options{RuntimeConfig: "api/all=true", FeatureGates: "AllAlpha=true,AllBeta=true"})
	for _, path := range strings.Fields(`
		/apis/storage.k8s.io/v1beta1/csistoragecapacities /apis/storage.k8s.io/v1beta1 /apis/storage.k8s.io/v1alpha1
		/apis/flowcontrol.apiserver.k8s.io/v1beta1 /apis/flowcontrol.apiserver.k8s.io/v1beta2 /apis/flowcontrol.apiserver.k8s.io/v1beta3
		/apis/flowcontrol.apiserver.k8s.io/v1beta3/flowschemas
		/apis/policy/v1beta1 /apis/policy/v1beta1/podsecuritypolicies /apis/policy/v1/podsecuritypolicies
		/apis/resource.k8s.io/v1alpha1 /apis/resource.k8s.io/v1alpha2 /apis/resource.k8s.io/v1alpha2/resourceclasses
		/apis/resource.k8s.io/v1alpha3/podschedulingcontexts /apis/resource.k8s.io/v1/podschedulingcontexts /apis/resource.k8s.io/v1alpha3/resourceclaims
		/apis/extensions/v1beta1 /apis/apps/v1beta1 /apis/apps/v1beta2 /apis/batch/v1beta1 /apis/autoscaling/v2beta1 /apis/autoscaling/v2beta2
		/apis/networking.k8s.io/v1beta1 /apis/networking.k8s.io/v1beta1/ingresses /apis/discovery.k8s.io/v1beta1 /apis/events.k8s.io/v1beta1
		/apis/rbac.authorization.k8s.io/v1beta1 /apis/scheduling.k8s.io/v1beta1/priorityclasses /apis/scheduling.k8s.io/v1alpha1
		/apis/node.k8s.io/v1beta1 /apis/coordination.k8s.io/v1beta1/leases /apis/certificates.k8s.io/v1beta1/certificatesigningrequests
		/apis/authentication.k8s.io/v1beta1 /apis/authorization.k8s.io/v1beta1 /apis/admissionregistration.k8s.io/v1beta1/validatingwebhookconfigurations`) {
		if code := w.status(path); code != http.StatusNotFound {
			t.Errorf("%s is answered with %d", path, code)
		}
	}
	for path, body := range map[string]string{
		"/apis/flowcontrol.apiserver.k8s.io/v1beta3/flowschemas":       `{"apiVersion":"flowcontrol.apiserver.k8s.io/v1beta3","kind":"FlowSchema","metadata":{"name":"x"}}`,
		"/apis/resource.k8s.io/v1alpha2/namespaces/d/resourceclaims":   `{"apiVersion":"resource.k8s.io/v1alpha2","kind":"ResourceClaim","metadata":{"name":"x"}}`,
		"/apis/policy/v1beta1/podsecuritypolicies":                     `{"apiVersion":"policy/v1beta1","kind":"PodSecurityPolicy","metadata":{"name":"x"}}`,
		"/apis/networking.k8s.io/v1beta1/namespaces/default/ingresses": `{"apiVersion":"networking.k8s.io/v1beta1","kind":"Ingress","metadata":{"name":"x"}}`,
	} {
		if resp, answer := w.do(http.MethodPost, path, body, "Content-Type", "application/json"); resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s is answered with %d: %s", path, resp.StatusCode, answer)
		}
	}
}

func TestFieldsThatWereRemovedAreUnknown(t *testing.T) {
	w := newWorld(t)
	w.namespace("default")
	tests := map[string]struct{ path, body, field string }{
		"topologyKeys of a Service": {"/api/v1/namespaces/default/services", `{"metadata":{"name":"x"},"spec":{"ports":[{"port":1}],"topologyKeys":["*"]}}`, "spec.topologyKeys"},
		"allocationMode of a claim": {"/apis/resource.k8s.io/v1/namespaces/default/resourceclaims", `{"metadata":{"name":"x"},"spec":{"allocationMode":"Immediate","devices":{}}}`, "spec.allocationMode"},
		"controller of a claim":     {"/apis/resource.k8s.io/v1/namespaces/default/resourceclaims", `{"metadata":{"name":"x"},"spec":{"controller":"c","devices":{}}}`, "spec.controller"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			resp, answer := w.do(http.MethodPost, tt.path+"?fieldValidation=Strict", tt.body, "Content-Type", "application/json")
			if resp.StatusCode != http.StatusBadRequest || !strings.Contains(answer, `unknown field \"`+tt.field+`\"`) {
				t.Errorf("answered with %d: %s", resp.StatusCode, answer)
			}
		})
	}
}

func TestBetaAPIsAreServedWhenSwitchedOn(t *testing.T) {
	groups := func(w *world) []string {
		list, err := w.client().Discovery().ServerGroups()
		if err != nil {
			t.Fatal(err)
		}
		var versions []string
		for _, g := range list.Groups {
			for _, v := range g.Versions {
				versions = append(versions, v.GroupVersion)
			}
		}
		return versions
	}
	t.Run("none by default", func(t *testing.T) {
		w := serving(t, builtin.Options{})
		for _, gv := range groups(w) {
			if strings.Contains(gv, "alpha") || strings.Contains(gv, "beta") {
				t.Errorf("%s is served", gv)
			}
		}
		if code := w.status("/apis/resource.k8s.io/v1beta1"); code != http.StatusNotFound {
			t.Errorf("a beta version is answered with %d", code)
		}
	})
	t.Run("a version", func(t *testing.T) {
		w := serving(t, builtin.Options{RuntimeConfig: "resource.k8s.io/v1beta1=true"})
		list, err := w.client().Discovery().ServerResourcesForGroupVersion("resource.k8s.io/v1beta1")
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, r := range list.APIResources {
			names = append(names, r.Name)
		}
		if want := []string{"deviceclasses", "resourceclaims", "resourceclaims/status", "resourceclaimtemplates", "resourceslices"}; !slices.Equal(names, want) {
			t.Errorf("it has %v", names)
		}
		if slices.Contains(groups(w), "resource.k8s.io/v1beta2") {
			t.Error("another version is served, too")
		}
	})
	t.Run("a resource of a version", func(t *testing.T) {
		w := serving(t, builtin.Options{RuntimeConfig: "resource.k8s.io/v1beta1/deviceclasses=true"})
		if code := w.status("/apis/resource.k8s.io/v1beta1/deviceclasses"); code != http.StatusOK {
			t.Errorf("it is answered with %d", code)
		}
		if code := w.status("/apis/resource.k8s.io/v1beta1/resourceslices"); code != http.StatusNotFound {
			t.Errorf("another is answered with %d", code)
		}
	})
	t.Run("a version whose gate is off", func(t *testing.T) {
		w := serving(t, builtin.Options{RuntimeConfig: "api/all=true"})
		if code := w.status("/apis/scheduling.k8s.io/v1beta1/workloads"); code != http.StatusNotFound {
			t.Errorf("it is answered with %d", code)
		}
		w = serving(t, builtin.Options{RuntimeConfig: "api/all=true", FeatureGates: "GenericWorkload=true"})
		if code := w.status("/apis/scheduling.k8s.io/v1beta1/workloads"); code != http.StatusOK {
			t.Errorf("with the gate it is answered with %d", code)
		}
	})
	t.Run("not the version that is stored", func(t *testing.T) {
		w := serving(t, builtin.Options{RuntimeConfig: "resource.k8s.io/v1=false,resource.k8s.io/v1beta2=true"})
		if code := w.status("/apis/resource.k8s.io/v1/deviceclasses"); code != http.StatusNotFound {
			t.Errorf("v1 is answered with %d", code)
		}
		if code := w.status("/apis/resource.k8s.io/v1beta2/deviceclasses"); code != http.StatusOK {
			t.Errorf("v1beta2 is answered with %d", code)
		}
		if slices.Contains(groups(w), "resource.k8s.io/v1") {
			t.Error("v1 is discovered")
		}
	})
}

func TestVersionsShareTheirObjects(t *testing.T) {
	w := serving(t, builtin.Options{RuntimeConfig: "api/all=true"})
	w.namespace("default")
	ctx, client := t.Context(), w.client()
	slice, err := client.ResourceV1().ResourceSlices().Create(ctx, &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "s"},
		Spec: resourcev1.ResourceSliceSpec{
			Driver: "d.example.com", Pool: resourcev1.ResourcePool{Name: "p", ResourceSliceCount: 1}, NodeName: new("n"),
			Devices: []resourcev1.Device{{Name: "gpu", Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"model": {StringValue: new("x")}}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	old, err := client.ResourceV1beta1().ResourceSlices().Get(ctx, "s", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if old.Spec.NodeName != "n" || old.Spec.Devices[0].Basic == nil || *old.Spec.Devices[0].Basic.Attributes["model"].StringValue != "x" {
		t.Errorf("v1beta1 reads %v", old.Spec)
	}
	old.Spec.Devices[0].Basic.Attributes["model"] = old.Spec.Devices[0].Basic.Attributes["model"]
	old.Labels = map[string]string{"a": "b"}
	if _, err := client.ResourceV1beta1().ResourceSlices().Update(ctx, old, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	again, err := client.ResourceV1().ResourceSlices().Get(ctx, "s", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if again.Labels["a"] != "b" || again.Generation != slice.Generation {
		t.Errorf("v1 reads labels %v, generation %d", again.Labels, again.Generation)
	}
}

func TestAutoscalersInBothVersions(t *testing.T) {
	w := newWorld(t)
	w.namespace("default")
	ctx, client := t.Context(), w.client()
	if _, err := client.AutoscalingV1().HorizontalPodAutoscalers("default").Create(ctx, &autoscalingv1.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: autoscalingv1.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv1.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}, MaxReplicas: 3,
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	v2, err := client.AutoscalingV2().HorizontalPodAutoscalers("default").Get(ctx, "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(v2.Spec.Metrics) != 1 || *v2.Spec.Metrics[0].Resource.Target.AverageUtilization != 80 || *v2.Spec.MinReplicas != 1 {
		t.Errorf("v2 reads %v", v2.Spec)
	}
	patch := []byte(`{"spec":{"targetCPUUtilizationPercentage":50}}`)
	if _, err := client.AutoscalingV1().HorizontalPodAutoscalers("default").Patch(ctx, "web", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if v2, err = client.AutoscalingV2().HorizontalPodAutoscalers("default").Get(ctx, "web", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	if *v2.Spec.Metrics[0].Resource.Target.AverageUtilization != 50 {
		t.Errorf("after a patch in v1, v2 reads %v", v2.Spec.Metrics)
	}
	list, err := client.Discovery().ServerGroups()
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range list.Groups {
		if g.Name == "autoscaling" && g.PreferredVersion.Version != "v2" {
			t.Errorf("clients are told to use %s", g.PreferredVersion.Version)
		}
	}
}

func TestFieldsOfGatesThatAreOffAreNotStored(t *testing.T) {
	pod := func() *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "p"},
			Spec: corev1.PodSpec{
				Containers:         []corev1.Container{{Name: "c", Image: "i"}},
				EvictionResponders: []corev1.EvictionResponder{{Name: "example.com/x", Priority: new(int32(5))}},
			},
		}
	}
	for options, want := range map[builtin.Options]int{{}: 0, {FeatureGates: "EvictionRequestAPI=true"}: 1} {
		w := serving(t, options)
		w.namespace("default")
		made, err := w.client().CoreV1().Pods("default").Create(t.Context(), pod(), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if n := len(made.Spec.EvictionResponders); n != want {
			t.Errorf("with %q the pod has %d responders, want %d", options.FeatureGates, n, want)
		}
	}
}

func TestMetricsShowFeatureGates(t *testing.T) {
	w := serving(t, builtin.Options{FeatureGates: "EvictionRequestAPI=true,WatchList=false"})
	_, text := w.do(http.MethodGet, "/metrics", "")
	for _, line := range []string{
		`kubernetes_feature_enabled{name="EvictionRequestAPI",stage="ALPHA"} 1`,
		`kubernetes_feature_enabled{name="CrossNamespaceVolumeDataSource",stage="ALPHA"} 0`,
		`kubernetes_feature_enabled{name="WatchList",stage="BETA"} 0`,
		`kubernetes_feature_enabled{name="ImageVolume",stage=""} 1`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
}
