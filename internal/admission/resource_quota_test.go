package admission

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"proa/internal/auth/authtest"
	"proa/internal/store"
)

func quotaOf(hard corev1.ResourceList, change ...func(*corev1.ResourceQuota)) *corev1.ResourceQuota {
	q := &corev1.ResourceQuota{ObjectMeta: meta("ns", "q"), Spec: corev1.ResourceQuotaSpec{Hard: hard}}
	for _, f := range change {
		f(q)
	}
	return q
}

func TestResourceQuota(t *testing.T) {
	scoped := func(s corev1.ResourceQuotaScope) func(*corev1.ResourceQuota) {
		return func(q *corev1.ResourceQuota) { q.Spec.Scopes = []corev1.ResourceQuotaScope{s} }
	}
	class := func(name string) func(*corev1.ResourceQuota) {
		return func(q *corev1.ResourceQuota) {
			q.Spec.ScopeSelector = &corev1.ScopeSelector{MatchExpressions: []corev1.ScopedResourceSelectorRequirement{
				{ScopeName: corev1.ResourceQuotaScopePriorityClass, Operator: corev1.ScopeSelectorOpIn, Values: []string{name}}}}
		}
	}
	used := func(l corev1.ResourceList) func(*corev1.ResourceQuota) {
		return func(q *corev1.ResourceQuota) {
			q.Status = corev1.ResourceQuotaStatus{Hard: q.Spec.Hard, Used: l}
		}
	}
	existing := pod(resources(list("cpu", "1"), nil))
	existing.Name = "there"
	ended := existing.DeepCopy()
	ended.Name, ended.Status.Phase = "ended", corev1.PodSucceeded
	service := &corev1.Service{ObjectMeta: meta("ns", "s"), Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: make([]corev1.ServicePort, 2)}}
	plain := service.DeepCopy()
	plain.Spec.Type = corev1.ServiceTypeClusterIP
	tests := []struct {
		name  string
		quota *corev1.ResourceQuota
		write
		want string
	}{
		{"within", quotaOf(list("pods", "2")), write{obj: pod()}, ""},
		{"a pod too many, counted", quotaOf(list("pods", "1")), write{obj: pod()},
			`pods "p" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1`},
		{"a pod too many, as reported", quotaOf(list("pods", "5"), used(list("pods", "5"))), write{obj: pod()},
			`pods "p" is forbidden: exceeded quota: q, requested: pods=1, used: pods=5, limited: pods=5`},
		{"objects count to their deletion", quotaOf(list("count/pods", "2")), write{obj: pod()},
			`pods "p" is forbidden: exceeded quota: q, requested: count/pods=1, used: count/pods=2, limited: count/pods=2`},
		{"two resources", quotaOf(list("requests.cpu", "2", "limits.memory", "1Gi")), write{obj: pod(resources(list("cpu", "1500m"), list("memory", "2Gi")))},
			`pods "p" is forbidden: exceeded quota: q, requested: limits.memory=2Gi,requests.cpu=1500m, used: limits.memory=0,requests.cpu=1, limited: limits.memory=1Gi,requests.cpu=2`},
		{"a resource that is not stated", quotaOf(list("cpu", "2", "limits.memory", "1Gi")), write{obj: pod()},
			`pods "p" is forbidden: failed quota: q: must specify cpu for: c; limits.memory for: c`},
		{"a pod as a whole need not state it of its containers", quotaOf(list("requests.cpu", "2", "limits.memory", "1Gi")), write{obj: pod(whole(list("cpu", "1"), list("cpu", "1")))}, ""},
		{"a pod as a whole that asks for too much", quotaOf(list("requests.cpu", "2", "limits.cpu", "9")),
			write{obj: pod(resources(list("cpu", "1m"), list("cpu", "1m")), whole(list("cpu", "1500m"), list("cpu", "3")))},
			`pods "p" is forbidden: exceeded quota: q, requested: requests.cpu=1500m, used: requests.cpu=1, limited: requests.cpu=2`},
		{"local storage", quotaOf(list("requests.ephemeral-storage", "1Gi", "limits.ephemeral-storage", "9Gi")),
			write{obj: pod(resources(list("ephemeral-storage", "2Gi"), list("ephemeral-storage", "3Gi")))},
			`pods "p" is forbidden: exceeded quota: q, requested: requests.ephemeral-storage=2Gi, used: requests.ephemeral-storage=0, limited: requests.ephemeral-storage=1Gi`},
		{"best effort pods only", quotaOf(list("pods", "0"), scoped(corev1.ResourceQuotaScopeBestEffort)), write{obj: pod()},
			`pods "p" is forbidden: exceeded quota: q, requested: pods=1, used: pods=0, limited: pods=0`},
		{"not best effort pods only", quotaOf(list("pods", "0"), scoped(corev1.ResourceQuotaScopeNotBestEffort)), write{obj: pod()}, ""},
		{"pods of another priority", quotaOf(list("pods", "0"), class("high")), write{obj: pod()}, ""},
		{"config maps", quotaOf(list("configmaps", "0")), write{obj: &corev1.ConfigMap{ObjectMeta: meta("ns", "m")}},
			`configmaps "m" is forbidden: exceeded quota: q, requested: configmaps=1, used: configmaps=0, limited: configmaps=0`},
		{"storage of a class", quotaOf(list("fast.storageclass.storage.k8s.io/requests.storage", "1Gi")),
			write{obj: claim("2Gi", func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = new("fast") })},
			`persistentvolumeclaims "c" is forbidden: exceeded quota: q, requested: fast.storageclass.storage.k8s.io/requests.storage=2Gi, used: fast.storageclass.storage.k8s.io/requests.storage=0, limited: fast.storageclass.storage.k8s.io/requests.storage=1Gi`},
		{"an update counts what grows", quotaOf(list("services", "1", "services.nodeports", "1"), used(list("services", "1", "services.nodeports", "0"))), write{obj: service, old: plain},
			`services "s" is forbidden: exceeded quota: q, requested: services.nodeports=2, used: services.nodeports=0, limited: services.nodeports=1`},
		{"an update that shrinks", quotaOf(list("services", "0", "services.nodeports", "0"), used(list("services", "1", "services.nodeports", "2"))), write{obj: plain, old: service}, ""},
		{"a pod that gets a deadline", quotaOf(list("pods", "0"), scoped(corev1.ResourceQuotaScopeTerminating), used(list("pods", "0"))),
			write{obj: pod(func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = new(int64(9)) }), old: pod()},
			`pods "p" is forbidden: exceeded quota: q, requested: pods=1, used: pods=0, limited: pods=0`},
		{"another kind", quotaOf(list("pods", "0")), write{obj: &corev1.ConfigMap{ObjectMeta: meta("ns", "m")}}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			checkError(t, newWorld(t, nil, existing, ended, tt.quota).run(t, tt.attributes(t), false), tt.want)
		})
	}
}

// Devices count as the extended resources that their class serves, and once with the
// pod that they are for.
func TestDevicesInQuotas(t *testing.T) {
	class := &resourcev1.DeviceClass{ObjectMeta: meta("", "gpu"), Spec: resourcev1.DeviceClassSpec{ExtendedResourceName: new("example.com/gpu")}}
	consumer := pod(resources(list("example.com/gpu", "2"), list("example.com/gpu", "2")))
	consumer.Name, consumer.UID, consumer.Status.Phase = "consumer", "uid-of-consumer", corev1.PodPending
	devices := func(n int64, of ...*corev1.Pod) *resourcev1.ResourceClaim {
		c := &resourcev1.ResourceClaim{ObjectMeta: meta("ns", "r"), Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
			Name: "r", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: n},
		}}}}}
		for _, p := range of {
			c.Annotations = map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"}
			c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID, Controller: new(true)}}
		}
		return c
	}
	tests := []struct {
		name  string
		quota *corev1.ResourceQuota
		write
		want string
	}{
		{"devices of a class as what they serve", quotaOf(list("requests.example.com/gpu", "3")), write{obj: devices(2)},
			`resourceclaims.resource.k8s.io "r" is forbidden: exceeded quota: q, requested: requests.example.com/gpu=2, used: requests.example.com/gpu=2, limited: requests.example.com/gpu=3`},
		{"devices of a class by its name", quotaOf(list("requests.deviceclass.resource.kubernetes.io/gpu", "1")), write{obj: devices(2)},
			`resourceclaims.resource.k8s.io "r" is forbidden: exceeded quota: q, requested: requests.deviceclass.resource.kubernetes.io/gpu=2, used: requests.deviceclass.resource.kubernetes.io/gpu=0, limited: requests.deviceclass.resource.kubernetes.io/gpu=1`},
		{"devices that were counted with their pod", quotaOf(list("requests.example.com/gpu", "2")), write{obj: devices(2, consumer)}, ""},
		{"pods that ask for devices of a class", quotaOf(list("requests.deviceclass.resource.kubernetes.io/gpu", "1")),
			write{obj: pod(resources(list("deviceclass.resource.kubernetes.io/gpu", "2"), list("deviceclass.resource.kubernetes.io/gpu", "2")))},
			`pods "p" is forbidden: exceeded quota: q, requested: requests.deviceclass.resource.kubernetes.io/gpu=2, used: requests.deviceclass.resource.kubernetes.io/gpu=0, limited: requests.deviceclass.resource.kubernetes.io/gpu=1`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			checkError(t, newWorld(t, nil, class, consumer, tt.quota).run(t, tt.attributes(t), false), tt.want)
		})
	}
}

func TestOverheadCountsInQuotas(t *testing.T) {
	class := &nodev1.RuntimeClass{ObjectMeta: meta("", "vm"), Handler: "vm", Overhead: &nodev1.Overhead{PodFixed: list("cpu", "100m", "memory", "1Gi")}}
	w := newWorld(t, nil, quotaOf(list("requests.cpu", "150m", "limits.memory", "2Gi")), class)
	p := pod(resources(list("cpu", "100m"), list("memory", "1Gi")), func(p *corev1.Pod) { p.Spec.RuntimeClassName = new("vm") })
	checkError(t, w.run(t, write{obj: p}.attributes(t), false),
		`pods "p" is forbidden: exceeded quota: q, requested: requests.cpu=200m, used: requests.cpu=0, limited: requests.cpu=150m`)
}

// Upstream's limitedResources: what they name needs a quota that covers it.
func TestWhatIsLimitedNeedsAQuota(t *testing.T) {
	const configuration = `{apiVersion: apiserver.config.k8s.io/v1, kind: ResourceQuotaConfiguration, limitedResources: [
		{resource: pods, matchContains: [nvidia.com/], matchScopes: [{scopeName: PriorityClass, operator: In, values: [cluster-services]}]},
		{resource: persistentvolumeclaims, matchContains: [.storageclass.storage.k8s.io/requests.storage, persistentvolumeclaims]},
		{apiGroup: apps, resource: deployments, matchContains: [count/deployments]}]}`
	gpu := resources(list("nvidia.com/gpu", "1", "nvidia.com/mig", "1"), list("nvidia.com/gpu", "1", "nvidia.com/mig", "1"))
	none := resources(list("nvidia.com/gpu", "0"), nil)
	important := func(p *corev1.Pod) { p.Spec.PriorityClassName = "cluster-services" }
	ofClass := func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = new("fast") }
	scope := func(q *corev1.ResourceQuota) {
		q.Spec.ScopeSelector = &corev1.ScopeSelector{MatchExpressions: []corev1.ScopedResourceSelectorRequirement{
			{ScopeName: corev1.ResourceQuotaScopePriorityClass, Operator: corev1.ScopeSelectorOpExists}}}
	}
	deadline := func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = new(int64(9)) }
	terminating := func(q *corev1.ResourceQuota) {
		q.Spec.Scopes = []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeTerminating}
	}
	const uncovered = "insufficient quota to match these scopes: [{PriorityClass In [cluster-services]}]"
	tests := []struct {
		name  string
		quota *corev1.ResourceQuota
		write
		want string
	}{
		{"of what is not limited", nil, write{obj: pod(none)}, ""},
		{"of what is, without a quota", nil, write{obj: pod(gpu)},
			`pods "p" is forbidden: insufficient quota to consume: requests.nvidia.com/gpu,requests.nvidia.com/mig`},
		{"with a quota of half of it", quotaOf(list("requests.nvidia.com/gpu", "1")), write{obj: pod(gpu)},
			`pods "p" is forbidden: insufficient quota to consume: requests.nvidia.com/mig`},
		{"with quotas of all", quotaOf(list("requests.nvidia.com/gpu", "1", "requests.nvidia.com/mig", "1")), write{obj: pod(gpu)}, ""},
		{"with a quota of other pods", quotaOf(list("requests.nvidia.com/gpu", "1", "requests.nvidia.com/mig", "1"), terminating), write{obj: pod(gpu)},
			`pods "p" is forbidden: insufficient quota to consume: requests.nvidia.com/gpu,requests.nvidia.com/mig`},
		{"what a quota demands is missed first", quotaOf(list("cpu", "1")), write{obj: pod(gpu)}, `pods "p" is forbidden: failed quota: q: must specify cpu for: c`},
		{"a priority without a quota", nil, write{obj: pod(important)}, uncovered},
		{"a priority that a quota names", quotaOf(list("pods", "1"), scope), write{obj: pod(important)}, ""},
		{"a priority that a quota of other things names", quotaOf(list("persistentvolumeclaims", "1"), scope), write{obj: pod(important)}, ""},
		{"a priority that no quota names", quotaOf(list("pods", "1")), write{obj: pod(important)}, uncovered},
		{"a claim", nil, write{obj: claim("1Gi", ofClass)},
			`persistentvolumeclaims "c" is forbidden: insufficient quota to consume: count/persistentvolumeclaims,fast.storageclass.storage.k8s.io/persistentvolumeclaims,fast.storageclass.storage.k8s.io/requests.storage,persistentvolumeclaims`},
		{"a claim that grows not", nil, write{obj: claim("1Gi", ofClass), old: claim("1Gi", ofClass)}, ""},
		{"an object of another group", nil, write{obj: &appsv1.Deployment{ObjectMeta: meta("ns", "d")}},
			`deployments.apps "d" is forbidden: insufficient quota to consume: count/deployments.apps`},
		{"a pod that comes under a quota", quotaOf(list("pods", "2"), terminating), write{obj: pod(gpu, deadline), old: pod(gpu)},
			`pods "p" is forbidden: insufficient quota to consume: requests.nvidia.com/gpu,requests.nvidia.com/mig`},
		{"a pod that uses no more", nil, write{obj: pod(gpu, deadline), old: pod(gpu)}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			there := []store.Object{&schedulingv1.PriorityClass{ObjectMeta: meta("", "cluster-services"), Value: 9}}
			if tt.quota != nil {
				there = append(there, tt.quota)
			}
			w := newWorld(t, func(c *Config) { c.Configurations = Configurations{"ResourceQuota": asJSON(t, configuration)} }, there...)
			checkError(t, w.run(t, tt.attributes(t), false), tt.want)
		})
	}
}

// asJSON is a document as it comes out of the file that holds those of all plugins.
func asJSON(t *testing.T, document string) []byte {
	t.Helper()
	data, err := yaml.YAMLToJSON([]byte(document))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestTheConfigurationOfQuotasIsChecked(t *testing.T) {
	for document, want := range map[string]string{
		"{apiVersion: apiserver.config.k8s.io/v1, kind: ResourceQuotaConfiguration, limitedResources: [{resource: pods}]}":                   "",
		"{apiVersion: resourcequota.admission.k8s.io/v1beta1, kind: Configuration}":                                                          "",
		"{apiVersion: resourcequota.admission.k8s.io/v1alpha1, kind: Configuration}":                                                         "",
		"{apiVersion: apiserver.config.k8s.io/v1, kind: ResourceQuotaConfiguration, limitedResources: [{resource: pods}, {apiGroup: apps}]}": "limitedResources[1].resource: Required value",
		"{apiVersion: apiserver.config.k8s.io/v1, kind: ResourceQuotaConfiguration, limited: []}":                                            `unknown field "limited"`,
		"{apiVersion: apiserver.config.k8s.io/v2, kind: ResourceQuotaConfiguration}":                                                         `no kind "ResourceQuotaConfiguration" is registered for version "apiserver.config.k8s.io/v2"`,
	} {
		_, err := NewResourceQuota(asJSON(t, document), nil)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", document, err, want)
		}
	}
}

func TestAQuotaIsNeverOverdrawn(t *testing.T) {
	const hard, writers = 5, 16
	w := newWorld(t, nil, quotaOf(list("pods", fmt.Sprint(hard))))
	var made, refused atomic.Int32
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			p := pod()
			p.Name = fmt.Sprint("p", i)
			err := w.run(t, write{obj: p}.attributes(t), true)
			switch {
			case err == nil:
				made.Add(1)
			case apierrors.IsForbidden(err):
				refused.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if made.Load() != hard || refused.Load() != writers-hard {
		t.Errorf("made %d, refused %d", made.Load(), refused.Load())
	}
	q, err := find[*corev1.ResourceQuota](w.store.Snapshot(), resourceQuotas, "ns", "q")
	if err != nil {
		t.Fatal(err)
	}
	if n := q.Status.Used["pods"]; n.Value() != hard {
		t.Errorf("used %v", q.Status.Used)
	}
}

func TestAWriteThatFailsOrIsDryTakesNoQuota(t *testing.T) {
	w := newWorld(t, nil, quotaOf(list("pods", "1")))
	a := write{obj: pod()}.attributes(t)
	a.DryRun = true
	before := w.store.Revision()
	if _, err := w.store.Update(t.Context(), func(tx *store.Tx) error { return w.Commit(tx, a) }); err != nil {
		t.Fatal(err)
	}
	a.DryRun = false
	failed := errors.New("failed")
	if _, err := w.store.Update(t.Context(), func(tx *store.Tx) error {
		return errors.Join(w.Commit(tx, a), failed)
	}); !errors.Is(err, failed) {
		t.Fatal(err)
	}
	if w.store.Revision() != before {
		t.Error("something was written")
	}
	checkError(t, w.run(t, a, true), "")
	second := pod()
	second.Name = "second"
	authtest.Delete(t, w.store, pod())
	if err := w.run(t, write{obj: second}.attributes(t), false); !apierrors.IsForbidden(err) {
		t.Errorf("usage went down without its controller: %v", err)
	}
}
