package objects

import (
	"context"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"proa/pkg/proatest"
)

// amounts are resources by name, in the notation of quantities.
type amounts map[corev1.ResourceName]string

func (a amounts) list() corev1.ResourceList {
	list := corev1.ResourceList{}
	for name, quantity := range a {
		list[name] = resource.MustParse(quantity)
	}
	return list
}

// everything is a quota of all that the tests of a namespace make.
var everything = amounts{
	"pods": "5", "services": "10", "services.nodeports": "1", "services.loadbalancers": "1",
	"replicationcontrollers": "10", "resourcequotas": "1", "cpu": "1", "memory": "500Mi",
	"configmaps": "2", "secrets": "10", "persistentvolumeclaims": "10", "requests.storage": "10Gi",
	"ephemeral-storage": "50Gi", "gold.storageclass.storage.k8s.io/persistentvolumeclaims": "10",
	"gold.storageclass.storage.k8s.io/requests.storage": "10Gi",
	"count/replicasets.apps":                            "5", "requests.example.com/dongle": "3",
}

// quotas are those of the namespace of a test.
type quotas struct {
	*server
	corev1client.ResourceQuotaInterface
}

// newQuotas starts a server with the controller of quotas.
func newQuotas(t *testing.T) quotas {
	t.Helper()
	s := newServer(t, proatest.Options{Controllers: []string{"resourcequota-controller"}, DisableAdmissionPlugins: []string{"ServiceAccount"}})
	return quotas{s, s.CoreV1().ResourceQuotas(space)}
}

func (q quotas) create(ctx context.Context, t *testing.T, name string, hard amounts, scopes ...corev1.ResourceQuotaScope) *corev1.ResourceQuota {
	t.Helper()
	return must(q.Create(ctx, &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"quota": name}},
		Spec:       corev1.ResourceQuotaSpec{Hard: hard.list(), Scopes: scopes},
	}, metav1.CreateOptions{}))(t)
}

// uses waits until a quota says that so much is used; what is not named is none.
func (q quotas) uses(ctx context.Context, t *testing.T, name string, want amounts) {
	t.Helper()
	q.until(ctx, t, name, func(quota *corev1.ResourceQuota) bool {
		all := amounts{}
		for resource := range quota.Spec.Hard {
			all[resource] = "0"
		}
		for resource, quantity := range want {
			all[resource] = quantity
		}
		return equality.Semantic.DeepEqual(quota.Status.Used, all.list()) && equality.Semantic.DeepEqual(quota.Status.Hard, quota.Spec.Hard)
	})
}

// until waits for a state of a quota.
func (q quotas) until(ctx context.Context, t *testing.T, name string, is func(*corev1.ResourceQuota) bool) {
	t.Helper()
	w := must(q.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name}))(t)
	defer w.Stop()
	var last corev1.ResourceQuotaStatus
	for {
		select {
		case e, open := <-w.ResultChan():
			quota, ok := e.Object.(*corev1.ResourceQuota)
			if !open || !ok {
				t.Fatalf("the watch of quota %s gave %v", name, e)
			}
			if is(quota) {
				return
			}
			last = quota.Status
		case <-ctx.Done():
			t.Fatalf("quota %s stays at %v of %v", name, last.Used, last.Hard)
		}
	}
}

// refuses wants a create to be refused for a quota, with all that it says.
func refuses(t *testing.T, err error, texts ...string) {
	t.Helper()
	if !apierrors.IsForbidden(err) {
		t.Fatalf("want forbidden, got %v", err)
	}
	for _, text := range append(texts, "exceeded quota: ") {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%v does not say %q", err, text)
		}
	}
}

// TestAQuotaCountsObjects is the life of one object of each kind that is
// counted: it is in status.used while it is there, and no longer.
func TestAQuotaCountsObjects(t *testing.T) {
	t.Parallel()
	meta := metav1.ObjectMeta{Name: "x"}
	labels := map[string]string{"app": "x"}
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: podSpec(nil, nil)}
	for _, kind := range []struct {
		name   string
		as     corev1.ResourceName
		create func(context.Context, *server) error
		remove func(context.Context, *server) error
	}{
		{"ConfigMap", "configmaps", func(ctx context.Context, s *server) error {
			_, err := s.CoreV1().ConfigMaps(space).Create(ctx, &corev1.ConfigMap{ObjectMeta: meta}, metav1.CreateOptions{})
			return err
		}, func(ctx context.Context, s *server) error {
			return s.CoreV1().ConfigMaps(space).Delete(ctx, "x", atOnce)
		}},
		{"Secret", "secrets", func(ctx context.Context, s *server) error {
			_, err := s.CoreV1().Secrets(space).Create(ctx, &corev1.Secret{ObjectMeta: meta}, metav1.CreateOptions{})
			return err
		}, func(ctx context.Context, s *server) error { return s.CoreV1().Secrets(space).Delete(ctx, "x", atOnce) }},
		{"ReplicationController", "replicationcontrollers", func(ctx context.Context, s *server) error {
			rc := &corev1.ReplicationController{ObjectMeta: meta, Spec: corev1.ReplicationControllerSpec{Replicas: new(int32), Selector: labels, Template: &template}}
			_, err := s.CoreV1().ReplicationControllers(space).Create(ctx, rc, metav1.CreateOptions{})
			return err
		}, func(ctx context.Context, s *server) error {
			return s.CoreV1().ReplicationControllers(space).Delete(ctx, "x", atOnce)
		}},
		{"ReplicaSet", "count/replicasets.apps", func(ctx context.Context, s *server) error {
			rs := &appsv1.ReplicaSet{ObjectMeta: meta, Spec: appsv1.ReplicaSetSpec{Replicas: new(int32), Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template}}
			_, err := s.AppsV1().ReplicaSets(space).Create(ctx, rs, metav1.CreateOptions{})
			return err
		}, func(ctx context.Context, s *server) error {
			return s.AppsV1().ReplicaSets(space).Delete(ctx, "x", atOnce)
		}},
	} {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			ctx, q := within(t), newQuotas(t)
			q.create(ctx, t, "all", everything)
			q.uses(ctx, t, "all", amounts{"resourcequotas": "1"})
			if err := kind.create(ctx, q.server); err != nil {
				t.Fatal(err)
			}
			q.uses(ctx, t, "all", amounts{"resourcequotas": "1", kind.as: "1"})
			if err := kind.remove(ctx, q.server); err != nil {
				t.Fatal(err)
			}
			q.uses(ctx, t, "all", amounts{"resourcequotas": "1"})
		})
	}
}

func TestAQuotaCountsServices(t *testing.T) {
	t.Parallel()
	ctx, q := within(t), newQuotas(t)
	q.create(ctx, t, "all", everything)
	q.uses(ctx, t, "all", amounts{"resourcequotas": "1"})
	services := q.CoreV1().Services(space)
	create := func(name string, kind corev1.ServiceType) error {
		_, err := services.Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Type: kind, Ports: []corev1.ServicePort{{Port: 80}}},
		}, metav1.CreateOptions{})
		return err
	}
	for name, kind := range map[string]corev1.ServiceType{"cluster-ip": corev1.ServiceTypeClusterIP, "node-port": corev1.ServiceTypeNodePort} {
		if err := create(name, kind); err != nil {
			t.Fatal(err)
		}
	}
	err := create("load-balancer", corev1.ServiceTypeLoadBalancer) // which would have a node port, too
	refuses(t, err, "exceeded quota: all, requested: services.nodeports=1, used: services.nodeports=1, limited: services.nodeports=1")
	q.uses(ctx, t, "all", amounts{"resourcequotas": "1", "services": "2", "services.nodeports": "1"})
	for _, name := range []string{"cluster-ip", "node-port"} {
		if err := services.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	q.uses(ctx, t, "all", amounts{"resourcequotas": "1"})
}

func podSpec(requests, limits amounts) corev1.PodSpec {
	c := corev1.Container{Name: "c", Image: "nginx", Resources: corev1.ResourceRequirements{Requests: requests.list(), Limits: limits.list()}}
	return corev1.PodSpec{Containers: []corev1.Container{c}}
}

func TestAQuotaCountsWhatPodsAskFor(t *testing.T) {
	t.Parallel()
	ctx, q := within(t), newQuotas(t)
	q.create(ctx, t, "all", everything)
	q.uses(ctx, t, "all", amounts{"resourcequotas": "1"})
	requests := amounts{"cpu": "500m", "memory": "252Mi", "ephemeral-storage": "30Gi", "example.com/dongle": "2"}
	dongles := amounts{"example.com/dongle": "2"}
	pod := must(q.pod(ctx, "fits", podSpec(requests, dongles)))(t)
	used := amounts{
		"resourcequotas": "1", "pods": "1", "cpu": "500m", "memory": "252Mi", "ephemeral-storage": "30Gi", "requests.example.com/dongle": "2",
	}
	q.uses(ctx, t, "all", used)

	_, err := q.pod(ctx, "wants-cpu", podSpec(amounts{"cpu": "600m", "memory": "100Mi", "ephemeral-storage": "1Gi"}, nil))
	refuses(t, err, "requested: cpu=600m, used: cpu=500m, limited: cpu=1")
	_, err = q.pod(ctx, "wants-dongles", podSpec(amounts{"cpu": "500m", "memory": "100Mi", "ephemeral-storage": "1Gi", "example.com/dongle": "2"}, dongles))
	refuses(t, err, "requested: requests.example.com/dongle=2, used: requests.example.com/dongle=2, limited: requests.example.com/dongle=3")
	if _, err = q.pod(ctx, "says-nothing", podSpec(nil, nil)); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "failed quota: all: must specify cpu for: c") {
		t.Errorf("a pod that does not say what it wants: %v", err)
	}

	pod.Spec.Containers[0].Resources.Requests = amounts{"cpu": "100m", "memory": "100Mi", "ephemeral-storage": "10Gi", "example.com/dongle": "2"}.list()
	if _, err := q.CoreV1().Pods(space).Update(ctx, pod, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("an update of what a pod asks for: %v", err)
	}
	q.uses(ctx, t, "all", used)
	if err := q.CoreV1().Pods(space).Delete(ctx, "fits", atOnce); err != nil {
		t.Fatal(err)
	}
	q.uses(ctx, t, "all", amounts{"resourcequotas": "1"})
}

// TestAQuotaOfAScopeCountsOnlyThePodsInIt has two quotas of opposite scopes, and
// each pod counts in one of them.
func TestAQuotaOfAScopeCountsOnlyThePodsInIt(t *testing.T) {
	t.Parallel()
	pods := amounts{"pods": "5"}
	resources := amounts{"pods": "5", "requests.cpu": "1", "requests.memory": "500Mi", "limits.cpu": "2", "limits.memory": "1Gi"}
	burstable := podSpec(amounts{"cpu": "500m", "memory": "200Mi"}, amounts{"cpu": "1", "memory": "400Mi"})
	counted := amounts{"pods": "1", "requests.cpu": "500m", "requests.memory": "200Mi", "limits.cpu": "1", "limits.memory": "400Mi"}
	ending := *burstable.DeepCopy()
	ending.ActiveDeadlineSeconds = new(int64(3600))
	for _, pair := range []struct {
		in, out corev1.ResourceQuotaScope
		hard    amounts
		pods    [2]corev1.PodSpec // inside and outside of the first scope
		counted amounts
	}{
		{corev1.ResourceQuotaScopeBestEffort, corev1.ResourceQuotaScopeNotBestEffort, pods, [2]corev1.PodSpec{podSpec(nil, nil), burstable}, amounts{"pods": "1"}},
		{corev1.ResourceQuotaScopeTerminating, corev1.ResourceQuotaScopeNotTerminating, resources, [2]corev1.PodSpec{ending, burstable}, counted},
	} {
		t.Run(string(pair.in), func(t *testing.T) {
			t.Parallel()
			ctx, q := within(t), newQuotas(t)
			names := [2]string{"in", "out"}
			q.create(ctx, t, names[0], pair.hard, pair.in)
			q.create(ctx, t, names[1], pair.hard, pair.out)
			for i := range names {
				q.uses(ctx, t, names[i], nil)
			}
			for i, spec := range pair.pods {
				must(q.pod(ctx, "pod", spec))(t)
				q.uses(ctx, t, names[i], pair.counted)
				q.uses(ctx, t, names[1-i], nil)
				if err := q.CoreV1().Pods(space).Delete(ctx, "pod", atOnce); err != nil {
					t.Fatal(err)
				}
				q.uses(ctx, t, names[i], nil)
			}
		})
	}
}

// TestTheStatusOfAQuota follows its spec, and is no way to change it.
func TestTheStatusOfAQuota(t *testing.T) {
	t.Parallel()
	ctx, q := within(t), newQuotas(t)
	small, big, wrong := amounts{"cpu": "500m", "memory": "500Mi"}, amounts{"cpu": "1", "memory": "1Gi"}, amounts{"cpu": "2", "memory": "2Gi"}
	created := q.create(ctx, t, "q", small)
	if !equality.Semantic.DeepEqual(created.Spec.Hard, small.list()) {
		t.Fatalf("created with %v", created.Spec.Hard)
	}
	hard := func(want amounts) func(*corev1.ResourceQuota) bool {
		return func(quota *corev1.ResourceQuota) bool {
			return equality.Semantic.DeepEqual(quota.Status.Hard, want.list())
		}
	}
	q.until(ctx, t, "q", hard(small))
	quota := must(q.Get(ctx, "q", metav1.GetOptions{}))(t)
	quota.Status.Used = amounts{"cpu": "100m", "memory": "1Mi"}.list()
	updated := must(q.UpdateStatus(ctx, quota, metav1.UpdateOptions{}))(t)
	if !equality.Semantic.DeepEqual(updated.Status.Used, quota.Status.Used) || !equality.Semantic.DeepEqual(updated.Status.Hard, updated.Spec.Hard) {
		t.Errorf("updated to %v", updated.Status)
	}

	patched := must(q.Patch(ctx, "q", types.StrategicMergePatchType, []byte(`{"spec":{"hard":{"cpu":"1","memory":"1Gi"}}}`), metav1.PatchOptions{}))(t)
	if !equality.Semantic.DeepEqual(patched.Spec.Hard, big.list()) {
		t.Errorf("patched to %v", patched.Spec.Hard)
	}
	q.until(ctx, t, "q", hard(big))
	var status corev1.ResourceQuota
	if err := q.CoreV1().RESTClient().Get().Namespace(space).Resource("resourcequotas").Name("q").SubResource("status").Do(ctx).Into(&status); err != nil {
		t.Fatal(err)
	}
	if status.UID != created.UID || !hard(big)(&status) {
		t.Errorf("the status reads %v", status.Status)
	}

	repatched := must(q.Patch(ctx, "q", types.StrategicMergePatchType,
		[]byte(`{"spec":{"hard":{"cpu":"2"}},"status":{"hard":{"cpu":"2","memory":"2Gi"}}}`), metav1.PatchOptions{}, "status"))(t)
	if !hard(wrong)(repatched) || !equality.Semantic.DeepEqual(repatched.Spec.Hard, big.list()) {
		t.Errorf("a patch of the status left %v and %v", repatched.Status.Hard, repatched.Spec.Hard)
	}
	q.until(ctx, t, "q", hard(big)) // as the controller sees what was written
}

func TestAQuotaIsUpdatedAndDeleted(t *testing.T) {
	t.Parallel()
	ctx, q := within(t), newQuotas(t)
	quota := q.create(ctx, t, "q", amounts{"cpu": "1", "memory": "500Mi"})
	more := amounts{"cpu": "2", "memory": "1Gi"}
	q.until(ctx, t, "q", func(seen *corev1.ResourceQuota) bool { quota = seen; return seen.Status.Hard != nil })
	quota.Spec.Hard = more.list()
	updated := must(q.Update(ctx, quota, metav1.UpdateOptions{}))(t)
	read := must(q.Get(ctx, "q", metav1.GetOptions{}))(t)
	if !equality.Semantic.DeepEqual(updated.Spec.Hard, more.list()) || !equality.Semantic.DeepEqual(read.Spec.Hard, more.list()) {
		t.Errorf("updated to %v, read as %v", updated.Spec.Hard, read.Spec.Hard)
	}
	if err := q.Delete(ctx, "q", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := q.Get(ctx, "q", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("deleted, it reads %v", err)
	}
}

func TestQuotasAreFoundPatchedAndDeletedByLabel(t *testing.T) {
	t.Parallel()
	ctx, q := within(t), newQuotas(t)
	q.create(ctx, t, "q", amounts{"cpu": "1", "memory": "500Mi"})
	q.create(ctx, t, "other", amounts{"cpu": "1"})
	everywhere := q.CoreV1().ResourceQuotas("")
	byLabel := metav1.ListOptions{LabelSelector: "quota=q"}
	w := must(everywhere.Watch(ctx, byLabel))(t)
	defer w.Stop()
	if list := must(everywhere.List(ctx, byLabel))(t); len(list.Items) != 1 || list.Items[0].Name != "q" {
		t.Errorf("the label lists %v", list.Items)
	}
	patch := `{"metadata":{"labels":{"patched":"yes"}},"spec":{"hard":{"memory":"750Mi"}}}`
	patched := must(q.Patch(ctx, "q", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}))(t)
	if patched.Labels["patched"] != "yes" || !equality.Semantic.DeepEqual(patched.Spec.Hard, amounts{"cpu": "1", "memory": "750Mi"}.list()) {
		t.Errorf("patched to %v, %v", patched.Labels, patched.Spec)
	}
	if err := q.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "patched=yes"}); err != nil {
		t.Fatal(err)
	}
	for next(ctx, t, w).Type != watch.Deleted {
	}
	if left := must(q.List(ctx, metav1.ListOptions{}))(t); len(left.Items) != 1 || left.Items[0].Name != "other" {
		t.Errorf("left are %v", left.Items)
	}
}
