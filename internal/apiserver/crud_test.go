package apiserver

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"
)

// kindSuite is what a conformance suite does with one kind.
type kindSuite struct {
	gvr        schema.GroupVersionResource
	kind       string
	namespaced bool
	spec       string // in YAML, the object without metadata
	status     string // a merge patch of the status subresource; empty: none
}

var kindSuites = []kindSuite{
	{gvr: schema.GroupVersionResource{Group: "flowcontrol.apiserver.k8s.io", Version: "v1", Resource: "flowschemas"}, kind: "FlowSchema",
		spec: "spec: {matchingPrecedence: 9999, priorityLevelConfiguration: {name: p}}", status: `{"status":{"conditions":[{"type":"Dangling","status":"False","reason":"r","message":"m"}]}}`},
	{gvr: schema.GroupVersionResource{Group: "flowcontrol.apiserver.k8s.io", Version: "v1", Resource: "prioritylevelconfigurations"}, kind: "PriorityLevelConfiguration",
		spec: "spec: {type: Limited, limited: {nominalConcurrencyShares: 2, limitResponse: {type: Reject}}}", status: `{"status":{"conditions":[{"type":"X","status":"False"}]}}`},
	{gvr: schema.GroupVersionResource{Group: "resource.k8s.io", Version: "v1", Resource: "deviceclasses"}, kind: "DeviceClass",
		spec: "spec: {selectors: [{cel: {expression: 'device.driver == \"d.example.com\"'}}]}"},
	{gvr: schema.GroupVersionResource{Group: "resource.k8s.io", Version: "v1", Resource: "devicetaintrules"}, kind: "DeviceTaintRule",
		spec: "spec: {taint: {key: example.com/k, effect: None}}", status: `{"status":{"conditions":[{"type":"X","status":"False","reason":"r","message":"m","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`},
	{gvr: schema.GroupVersionResource{Group: "resource.k8s.io", Version: "v1", Resource: "resourceclaims"}, kind: "ResourceClaim", namespaced: true,
		spec:   "spec: {devices: {requests: [{name: r, exactly: {deviceClassName: c}}]}}",
		status: `{"status":{"allocation":{"devices":{"results":[{"request":"r","driver":"d.example.com","pool":"p","device":"x"}]}}}}`},
	{gvr: schema.GroupVersionResource{Group: "resource.k8s.io", Version: "v1", Resource: "resourceclaimtemplates"}, kind: "ResourceClaimTemplate", namespaced: true,
		spec: "spec: {spec: {devices: {requests: [{name: r, exactly: {deviceClassName: c}}]}}}"},
	{gvr: schema.GroupVersionResource{Group: "resource.k8s.io", Version: "v1", Resource: "resourceslices"}, kind: "ResourceSlice",
		spec: "spec: {driver: d.example.com, nodeName: node-1, pool: {name: p, resourceSliceCount: 1}, devices: [{name: x}]}"},
	{gvr: schema.GroupVersionResource{Group: "storagemigration.k8s.io", Version: "v1", Resource: "storageversionmigrations"}, kind: "StorageVersionMigration",
		spec: "spec: {resource: {group: apps, resource: deployments}}", status: `{"status":{"conditions":[{"type":"Running","status":"True","reason":"r","message":"m","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`},
	{gvr: schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1", Resource: "volumeattributesclasses"}, kind: "VolumeAttributesClass",
		spec: "driverName: d.example.com\nparameters: {a: b}"},
	{gvr: schema.GroupVersionResource{Group: "autoscaling", Version: "v2", Resource: "horizontalpodautoscalers"}, kind: "HorizontalPodAutoscaler", namespaced: true,
		spec: "spec: {maxReplicas: 3, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: d}}", status: `{"status":{"currentReplicas":2,"desiredReplicas":3,"currentMetrics":[]}}`},
	{gvr: schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"}, kind: "NetworkPolicy", namespaced: true,
		spec: "spec: {podSelector: {}, egress: [{ports: [{port: 32000, endPort: 32768}]}]}"},
}

// TestEveryVerbOfAKind takes kinds through what conformance suites ask of them:
// discovery, create, get, list, watch, patch, update, their status, delete and
// delete of a collection.
func TestEveryVerbOfAKind(t *testing.T) {
	w := newWorld(t)
	w.namespace("default")
	client, err := dynamic.NewForConfig(w.config)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range kindSuites {
		t.Run(s.kind, func(t *testing.T) {
			discovered(t, w, s)
			var of dynamic.ResourceInterface = client.Resource(s.gvr)
			if s.namespaced {
				of = client.Resource(s.gvr).Namespace("default")
			}
			s.run(t, of)
			if s.namespaced {
				s.everywhere(t, client)
			}
		})
	}
}

// everywhere lists a kind of all namespaces.
func (s kindSuite) everywhere(t *testing.T, client dynamic.Interface) {
	t.Helper()
	of := client.Resource(s.gvr)
	if _, err := of.Namespace("default").Create(t.Context(), s.object(t, "c"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	list, err := of.List(t.Context(), metav1.ListOptions{LabelSelector: inSuite})
	if err != nil || len(list.Items) != 1 {
		t.Errorf("all namespaces list %v: %v", list, err)
	}
}

func discovered(t *testing.T, w *world, s kindSuite) {
	t.Helper()
	list, err := w.client().Discovery().ServerResourcesForGroupVersion(s.gvr.GroupVersion().String())
	if err != nil {
		t.Fatal(err)
	}
	want := []string{s.gvr.Resource}
	if s.status != "" {
		want = append(want, s.gvr.Resource+"/status")
	}
	for _, name := range want {
		if !slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == name && r.Kind == s.kind }) {
			t.Errorf("%s is not discovered", name)
		}
	}
}

func (s kindSuite) object(t *testing.T, name string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(s.spec), &u.Object); err != nil {
		t.Fatal(err)
	}
	u.SetAPIVersion(s.gvr.GroupVersion().String())
	u.SetKind(s.kind)
	u.SetName(name)
	u.SetLabels(map[string]string{"suite": "crud"})
	return u
}

const inSuite = "suite=crud"

func (s kindSuite) run(t *testing.T, of dynamic.ResourceInterface) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, name := range []string{"a", "b"} {
		if _, err := of.Create(ctx, s.object(t, name), metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}); err != nil {
			t.Fatal(err)
		}
	}
	list, err := of.List(ctx, metav1.ListOptions{LabelSelector: inSuite})
	if err != nil || len(list.Items) != 2 {
		t.Fatalf("listed %v: %v", list, err)
	}
	events, err := of.Watch(ctx, metav1.ListOptions{LabelSelector: inSuite, ResourceVersion: list.GetResourceVersion()})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	patched := s.patched(ctx, t, of)
	patched.SetAnnotations(map[string]string{"updated": "yes"})
	updated, err := of.Update(ctx, patched, metav1.UpdateOptions{})
	if err != nil || updated.GetAnnotations()["updated"] != "yes" {
		t.Fatalf("updated to %v: %v", updated, err)
	}
	if s.status != "" {
		s.statusOf(ctx, t, of)
	}
	if err := of.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := of.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: inSuite}); err != nil {
		t.Fatal(err)
	}
	if list, err = of.List(ctx, metav1.ListOptions{LabelSelector: inSuite}); err != nil || len(list.Items) != 0 {
		t.Fatalf("left are %v: %v", list, err)
	}
	modified, deleted := 0, 0
	for deleted < 6 { // four by the patches, then one and the rest of the collection
		e, open := <-events.ResultChan()
		if !open {
			t.Fatal("the watch ended")
		}
		switch e.Type {
		case watch.Modified:
			modified++
		case watch.Deleted:
			deleted++
		}
	}
	if modified < 2 {
		t.Errorf("%d changes were watched", modified)
	}
}

// patched changes a new object by every kind of patch.
func (s kindSuite) patched(ctx context.Context, t *testing.T, of dynamic.ResourceInterface) (last *unstructured.Unstructured) {
	t.Helper()
	of.Delete(ctx, "a", metav1.DeleteOptions{})
	for _, p := range []struct {
		kind types.PatchType
		data string
	}{
		{types.MergePatchType, `{"metadata":{"annotations":{"patched":"yes"}}}`},
		{types.StrategicMergePatchType, `{"metadata":{"annotations":{"patched":"yes"}}}`},
		{types.JSONPatchType, `[{"op":"add","path":"/metadata/annotations","value":{"patched":"yes"}}]`},
		{types.ApplyPatchType, `{"apiVersion":"` + s.gvr.GroupVersion().String() + `","kind":"` + s.kind + `","metadata":{"name":"a","annotations":{"patched":"yes"}}}`},
	} {
		if _, err := of.Create(ctx, s.object(t, "a"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		options := metav1.PatchOptions{}
		if p.kind == types.ApplyPatchType {
			options.FieldManager = "suite"
		}
		var err error
		last, err = of.Patch(ctx, "a", p.kind, []byte(p.data), options)
		if err != nil || last.GetAnnotations()["patched"] != "yes" {
			t.Fatalf("patched with %s to %v: %v", p.kind, last, err)
		}
		if p.kind != types.ApplyPatchType {
			if err := of.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			if _, err := of.Get(ctx, "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				t.Fatalf("deleted, it reads %v", err)
			}
		}
	}
	return last
}

// statusOf changes the status through its subresource, which leaves the rest alone.
func (s kindSuite) statusOf(ctx context.Context, t *testing.T, of dynamic.ResourceInterface) {
	t.Helper()
	before, err := of.Get(ctx, "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	after, err := of.Patch(ctx, "a", types.MergePatchType, []byte(s.status), metav1.PatchOptions{}, "status")
	if err != nil {
		t.Fatal(err)
	}
	status, _, _ := unstructured.NestedMap(after.Object, "status")
	if len(status) == 0 {
		t.Errorf("no status after a patch with %s", s.status)
	}
	if before.GetGeneration() != after.GetGeneration() {
		t.Errorf("generation went from %d to %d", before.GetGeneration(), after.GetGeneration())
	}
	if _, err := of.UpdateStatus(ctx, after, metav1.UpdateOptions{}); err != nil {
		t.Error(err)
	}
	read, err := of.Get(ctx, "a", metav1.GetOptions{}, "status")
	if err != nil || read.GetName() != "a" {
		t.Errorf("status reads %v: %v", read, err)
	}
}

// TestEveryVerbOfCertificates is TestEveryVerbOfAKind for kinds that hold keys.
func TestEveryVerbOfCertificates(t *testing.T) {
	w := newWorld(t)
	w.namespace("default")
	client, err := dynamic.NewForConfig(w.config)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, NotBefore: time.Unix(1_800_000_000, 0), NotAfter: time.Unix(1_800_086_400, 0)}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	chain := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	asJSON := func(v any) string {
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	at := func(seconds int64) string { return time.Unix(seconds, 0).UTC().Format(time.RFC3339) }
	issued := map[string]any{"status": map[string]any{
		"certificateChain": chain, "notBefore": at(1_800_000_000), "beginRefreshAt": at(1_800_040_000), "notAfter": at(1_800_086_400),
		"conditions": []any{map[string]any{"type": "Issued", "status": "True", "reason": "r", "message": "m", "lastTransitionTime": at(1_800_000_000)}},
	}}
	certificates := schema.GroupVersion{Group: "certificates.k8s.io", Version: "v1"}
	for _, s := range []kindSuite{
		{gvr: certificates.WithResource("clustertrustbundles"), kind: "ClusterTrustBundle", spec: asJSON(map[string]any{"spec": map[string]any{"trustBundle": chain}})},
		{gvr: certificates.WithResource("podcertificaterequests"), kind: "PodCertificateRequest", namespaced: true, status: asJSON(issued), spec: asJSON(map[string]any{"spec": map[string]any{
			"signerName": "example.com/s", "podName": "p", "podUID": "u", "serviceAccountName": "default", "serviceAccountUID": "u",
			"nodeName": "node-1", "nodeUID": "u", "stubPKCS10Request": base64.StdEncoding.EncodeToString(request),
		}})},
	} {
		t.Run(s.kind, func(t *testing.T) {
			discovered(t, w, s)
			var of dynamic.ResourceInterface = client.Resource(s.gvr)
			if s.namespaced {
				of = client.Resource(s.gvr).Namespace("default")
			}
			s.run(t, of)
		})
	}
}

func TestNodesSayNothingOfWhatIsGone(t *testing.T) {
	w := newWorld(t)
	nodes := w.client().CoreV1().Nodes()
	n, err := nodes.Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n"},
		Spec:       corev1.NodeSpec{ConfigSource: &corev1.NodeConfigSource{ConfigMap: &corev1.ConfigMapNodeConfigSource{Name: "c", Namespace: "d", KubeletConfigKey: "k"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n.Status.NodeInfo.KubeletVersion = "v1.37.2"
	n.Status.Config = &corev1.NodeConfigStatus{Error: "e"}
	if n, err = nodes.UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if n.Status.NodeInfo.KubeletVersion == "" {
		t.Error("the status was not written")
	}
	if n.Spec.ConfigSource != nil || n.Status.Config != nil {
		t.Errorf("kept %v and %v", n.Spec.ConfigSource, n.Status.Config)
	}
	patch := []byte(`{"spec":{"configSource":{"configMap":{"name":"c","namespace":"d","kubeletConfigKey":"k"}}}}`)
	if n, err = nodes.Patch(t.Context(), "n", types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil || n.Spec.ConfigSource != nil {
		t.Errorf("after a patch there is %v: %v", n.Spec.ConfigSource, err)
	}
}

func TestEvictionsAreAcceptedInTwoVersions(t *testing.T) {
	w := newWorld(t)
	w.do("POST", "/api/v1/namespaces", `{"metadata":{"name":"a"}}`)
	w.do("POST", "/api/v1/namespaces/a/pods", `{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}]}}`)
	for version, want := range map[string]int{"policy/v1": 201, "policy/v1beta1": 201, "policy/v1beta2": 400} {
		for _, unknown := range []string{"", `,"unknown":1`} {
			body := `{"apiVersion":"` + version + `","kind":"Eviction","metadata":{"name":"p"}` + unknown + `}`
			if resp, answer := w.do("POST", "/api/v1/namespaces/a/pods/p/eviction?dryRun=All", body); resp.StatusCode != want {
				t.Errorf("%s: %d, want %d: %s", body, resp.StatusCode, want, answer)
			}
		}
	}
}
