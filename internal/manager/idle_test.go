package manager

import (
	"context"
	"maps"
	"net/netip"
	"net/url"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
	"proa/internal/scheduler"
	"proa/internal/simulate"
)

// together are parts that end together.
type together []controllertest.Runner

func (t together) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, r := range t {
		g.Go(func() error { return r.Run(ctx) })
	}
	return g.Wait()
}

// everything is all controllers, the scheduler and simulated nodes.
func everything(c controllers.Config, w *controllertest.World, nodes int) together {
	m, err := New(w.T.Context(), Config{
		Cache: c.Cache, As: func(string) client.API { return c.Cache.API() }, Catalogue: w.Catalogue, Clock: c.Clock,
		Controllers: []string{"*", "selinux-warning-controller", "token-cleaner-controller", "bootstrap-signer-controller"},
		RootCA:      []byte("authority"), PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
		Metrics: func(context.Context, string, url.Values) ([]byte, error) {
			return []byte(`{"items":[{"value":"40"}]}`), nil
		},
	})
	if err != nil {
		w.T.Fatal(err)
	}
	binder, err := scheduler.New(scheduler.Config{Cache: c.Cache, Clock: c.Clock})
	if err != nil {
		w.T.Fatal(err)
	}
	fleet, err := simulate.New(simulate.Config{Cache: c.Cache, Clock: c.Clock, Fleet: simulate.Fleet{Nodes: nodes}})
	if err != nil {
		w.T.Fatal(err)
	}
	return together{m, binder, fleet}
}

func selector(app string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
}

func template(app string, restart corev1.RestartPolicy) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}},
		Spec:       corev1.PodSpec{RestartPolicy: restart, Containers: []corev1.Container{{Name: "c", Image: "example.org/" + app}}},
	}
}

// workloads are one of nearly each that a controller looks after.
func workloads() []client.Object {
	named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }
	claim := corev1.PersistentVolumeClaim{ObjectMeta: named("data"), Spec: corev1.PersistentVolumeClaimSpec{
		StorageClassName: new(""), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{"storage": resource.MustParse("1Gi")}},
	}}
	return []client.Object{
		&corev1.ResourceQuota{ObjectMeta: named("enough"), Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"pods": resource.MustParse("100"), "count/jobs.batch": resource.MustParse("9")}}},
		&appsv1.Deployment{ObjectMeta: named("web"), Spec: appsv1.DeploymentSpec{Replicas: new(int32(3)), Selector: selector("web"), Template: template("web", "")}},
		&appsv1.DaemonSet{ObjectMeta: named("agent"), Spec: appsv1.DaemonSetSpec{Selector: selector("agent"), Template: template("agent", "")}},
		&appsv1.StatefulSet{ObjectMeta: named("db"), Spec: appsv1.StatefulSetSpec{
			Replicas: new(int32(2)), ServiceName: "db", Selector: selector("db"), Template: template("db", ""), VolumeClaimTemplates: []corev1.PersistentVolumeClaim{claim},
		}},
		&corev1.ReplicationController{ObjectMeta: named("old"), Spec: corev1.ReplicationControllerSpec{Selector: map[string]string{"app": "old"}, Template: new(template("old", ""))}},
		&batchv1.Job{ObjectMeta: named("count"), Spec: batchv1.JobSpec{Completions: new(int32(3)), Template: template("count", corev1.RestartPolicyNever)}},
		&batchv1.CronJob{ObjectMeta: named("yearly"), Spec: batchv1.CronJobSpec{
			Schedule: "0 0 31 12 *", JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: template("yearly", corev1.RestartPolicyNever)}},
		}},
		&policyv1.PodDisruptionBudget{ObjectMeta: named("web"), Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: new(intstr.FromInt32(2)), Selector: selector("web")}},
		&corev1.Service{ObjectMeta: named("web"), Spec: corev1.ServiceSpec{ClusterIP: "None", Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}}}},
		&autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: named("web"), Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}, MaxReplicas: 9,
			Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{
				Metric: autoscalingv2.MetricIdentifier{Name: "messages"},
				Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: new(resource.MustParse("10"))},
			}}},
		}},
		&resourcev1.ResourceClaim{ObjectMeta: named("unused"), Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
			Name: "r", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu"},
		}}}}},
	}
}

// disk is a volume for a claim of the StatefulSet.
func disk(name string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
		Capacity: corev1.ResourceList{"storage": resource.MustParse("1Gi")}, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/disk"}},
	}}
}

// A cluster that has settled writes nothing but its nodes' leases, whatever runs in it.
func TestASettledClusterWritesLeasesAlone(t *testing.T) {
	const (
		nodes  = 5
		settle = 40 * time.Minute
		hours  = 2
		period = 10 * time.Second // of a node's lease
	)
	controllertest.Run(t, func(w *controllertest.World) {
		for _, name := range []string{corev1.NamespaceNodeLease, metav1.NamespaceSystem, metav1.NamespacePublic} {
			w.Create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
		}
		defer w.Start(func(c controllers.Config) []controllertest.Runner {
			return []controllertest.Runner{everything(c, w, nodes)}
		})()
		for _, name := range []string{"disk-0", "disk-1"} {
			if _, err := client.Of[*corev1.PersistentVolume](w.API).Create(w.T.Context(), disk(name)); err != nil {
				t.Fatal(err)
			}
		}
		for _, obj := range workloads() {
			w.Create(obj)
		}
		time.Sleep(settle)
		w.Settle()
		web := controllertest.Get[*appsv1.Deployment](w, "web")
		job := controllertest.Get[*batchv1.Job](w, "count")
		db := controllertest.Get[*appsv1.StatefulSet](w, "db")
		if web.Status.AvailableReplicas != 4 || job.Status.CompletionTime == nil || db.Status.ReadyReplicas != 2 {
			t.Fatalf("not settled: %+v, %+v, %+v", web.Status, job.Status, db.Status)
		}
		w.Writes()
		for range hours {
			time.Sleep(time.Hour)
			w.Settle()
			if got, want := w.Writes(), map[string]int{"update leases": nodes * int(time.Hour/period)}; !maps.Equal(got, want) {
				t.Errorf("writes in an hour: %v, want %v", got, want)
			}
		}
	})
}
