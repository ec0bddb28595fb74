package faults

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

const work = "work" // the namespace of what stays

// must ends a test whose user was told no: users meet no faults.
func must(t *testing.T) func(_ any, err error) {
	return func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
}

// play is the story: what users ask for, what they change, what they delete.
func play(t *testing.T, c *cluster) {
	begin(t, c)
	publish(t, c)
	due := c.schedule(t)
	c.losePower(t, 1)
	c.await(t, "all that was asked for is there", begun)
	// It would be swept after an hour, whenever somebody looks.
	must(t)(nil, c.user.CertificatesV1().CertificateSigningRequests().Delete(t.Context(), "somebody", metav1.DeleteOptions{}))
	c.clock.jump(due.Sub(c.clock.Now()) + 3*time.Hour)
	evict(t, c)
	change(t, c)
	recall(t, c)
	c.losePower(t, 2)
	c.clock.jump(-20 * time.Second)
	c.await(t, "all that was changed is so", changed)
	c.clock.jump(-2 * time.Hour)
	must(t)(c.user.AppsV1().Deployments(work).Patch(t.Context(), "web", types.MergePatchType, []byte(`{"spec":{"replicas":4}}`), metav1.PatchOptions{}))
	c.await(t, "fewer are left", func(ctx context.Context, api kubernetes.Interface) error {
		web, err := api.AppsV1().Deployments(work).Get(ctx, "web", metav1.GetOptions{})
		if err == nil && (web.Status.Replicas != 4 || web.Status.AvailableReplicas != 4) {
			err = fmt.Errorf("web: %+v", web.Status)
		}
		return err
	})
}

func begin(t *testing.T, c *cluster) {
	ctx, api, must := t.Context(), c.user, must(t)
	for i := range 3 {
		must(api.CoreV1().PersistentVolumes().Create(ctx, volume(i), metav1.CreateOptions{}))
	}
	for _, name := range []string{work, "short-lived"} {
		must(api.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}))
		c.await(t, "namespace "+name+" has its service account", func(ctx context.Context, api kubernetes.Interface) error {
			return second(api.CoreV1().ServiceAccounts(name).Get(ctx, "default", metav1.GetOptions{}))
		})
	}
	must(api.CoreV1().ResourceQuotas(work).Create(ctx, &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "enough"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"pods": resource.MustParse("200"), "count/replicasets.apps": resource.MustParse("50")}},
	}, metav1.CreateOptions{}))

	// A pod that a ReplicaSet adopts, and one that only looks like it.
	adopted := template("adopter", "v1")
	must(api.CoreV1().Pods(work).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "found", Labels: adopted.Labels}, Spec: adopted.Spec}, metav1.CreateOptions{}))
	must(api.CoreV1().Pods(work).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "stranger", Labels: map[string]string{"app": "stranger"}}, Spec: adopted.Spec}, metav1.CreateOptions{}))

	for _, name := range []string{"web", "temporary"} {
		must(api.AppsV1().Deployments(work).Create(ctx, &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       appsv1.DeploymentSpec{Replicas: ptr.To[int32](6), Selector: selector(name), Template: template(name, "v1")},
		}, metav1.CreateOptions{}))
	}
	must(api.AppsV1().Deployments("short-lived").Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       appsv1.DeploymentSpec{Replicas: ptr.To[int32](3), Selector: selector("web"), Template: template("web", "v1")},
	}, metav1.CreateOptions{}))
	for _, name := range []string{"adopter", "parent"} {
		must(api.AppsV1().ReplicaSets(work).Create(ctx, &appsv1.ReplicaSet{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       appsv1.ReplicaSetSpec{Replicas: ptr.To[int32](3), Selector: selector(name), Template: template(name, "v1")},
		}, metav1.CreateOptions{}))
	}
	must(api.CoreV1().ReplicationControllers(work).Create(ctx, &corev1.ReplicationController{
		ObjectMeta: metav1.ObjectMeta{Name: "old"},
		Spec:       corev1.ReplicationControllerSpec{Replicas: ptr.To[int32](2), Selector: map[string]string{"app": "old"}, Template: ptr.To(template("old", "v1"))},
	}, metav1.CreateOptions{}))
	must(api.AppsV1().DaemonSets(work).Create(ctx, &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "agent"},
		Spec:       appsv1.DaemonSetSpec{Selector: selector("agent"), Template: template("agent", "v1")},
	}, metav1.CreateOptions{}))
	must(api.AppsV1().StatefulSets(work).Create(ctx, &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "db"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: ptr.To[int32](3), ServiceName: "db", Selector: selector("db"), Template: template("db", "v1"),
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{claim()},
		},
	}, metav1.CreateOptions{}))
	for _, name := range []string{"count", "swept"} {
		job := &batchv1.Job{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: batchv1.JobSpec{
				Completions: ptr.To[int32](7), Parallelism: ptr.To[int32](3), CompletionMode: ptr.To(batchv1.IndexedCompletion),
				Template: template(name, "v1"),
			},
		}
		job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
		if name == "swept" {
			job.Spec.TTLSecondsAfterFinished = ptr.To[int32](0)
		}
		must(api.BatchV1().Jobs(work).Create(ctx, job, metav1.CreateOptions{}))
	}
	must(api.CoreV1().Services(work).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{}))
	must(api.PolicyV1().PodDisruptionBudgets(work).Create(ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromString("50%")), Selector: selector("web")},
	}, metav1.CreateOptions{}))

	must(api.AppsV1().Deployments(work).Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "scaled"},
		Spec:       appsv1.DeploymentSpec{Replicas: ptr.To[int32](1), Selector: selector("scaled"), Template: template("scaled", "v1")},
	}, metav1.CreateOptions{}))
	must(api.AutoscalingV2().HorizontalPodAutoscalers(work).Create(ctx, &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "scaled"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "scaled"}, MaxReplicas: 9,
			Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{
				Metric: autoscalingv2.MetricIdentifier{Name: "messages"},
				Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: ptr.To(resource.MustParse("10"))},
			}}},
		},
	}, metav1.CreateOptions{}))
	request(t, c)

	// Two that own each other, and a chain of owners.
	a, err := api.CoreV1().ConfigMaps(work).Create(ctx, owned("loop-a"), metav1.CreateOptions{})
	must(a, err)
	b, err := api.CoreV1().ConfigMaps(work).Create(ctx, owned("loop-b", a), metav1.CreateOptions{})
	must(b, err)
	patch := fmt.Sprintf(`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"loop-b","uid":"%s"}]}}`, b.UID)
	must(api.CoreV1().ConfigMaps(work).Patch(ctx, "loop-a", types.MergePatchType, []byte(patch), metav1.PatchOptions{}))
	last, err := api.CoreV1().ConfigMaps(work).Create(ctx, owned("chain-0"), metav1.CreateOptions{})
	must(last, err)
	for i := range 4 {
		last, err = api.CoreV1().ConfigMaps(work).Create(ctx, owned(fmt.Sprintf("chain-%d", i+1), last), metav1.CreateOptions{})
		must(last, err)
	}
}

// begun tells what is missing until all that was asked for is there.
func begun(ctx context.Context, api kubernetes.Interface) error {
	web, db, agent, err := kept(ctx, api)
	if err != nil {
		return err
	}
	temporary, err := api.AppsV1().Deployments(work).Get(ctx, "temporary", metav1.GetOptions{})
	if err != nil {
		return err
	}
	parent, err := api.AppsV1().ReplicaSets(work).Get(ctx, "parent", metav1.GetOptions{})
	if err != nil {
		return err
	}
	if web.Status.AvailableReplicas != 6 || temporary.Status.AvailableReplicas != 6 || parent.Status.ReadyReplicas != 3 ||
		db.Status.ReadyReplicas != 3 || agent.Status.NumberReady != nodes {
		return fmt.Errorf("ready: web %d, temporary %d, parent %d, db %d, agent %d", web.Status.AvailableReplicas,
			temporary.Status.AvailableReplicas, parent.Status.ReadyReplicas, db.Status.ReadyReplicas, agent.Status.NumberReady)
	}
	if err := equipped(ctx, api, 2); err != nil {
		return err
	}
	csr, err := api.CertificatesV1().CertificateSigningRequests().Get(ctx, "somebody", metav1.GetOptions{})
	if err == nil && len(csr.Status.Certificate) == 0 {
		err = fmt.Errorf("there is no certificate: %+v", csr.Status)
	}
	return err
}

// kept are the workloads that stay to the end.
func kept(ctx context.Context, api kubernetes.Interface) (web *appsv1.Deployment, db *appsv1.StatefulSet, agent *appsv1.DaemonSet, err error) {
	if web, err = api.AppsV1().Deployments(work).Get(ctx, "web", metav1.GetOptions{}); err != nil {
		return
	}
	if db, err = api.AppsV1().StatefulSets(work).Get(ctx, "db", metav1.GetOptions{}); err != nil {
		return
	}
	agent, err = api.AppsV1().DaemonSets(work).Get(ctx, "agent", metav1.GetOptions{})
	return
}

func change(t *testing.T, c *cluster) {
	ctx, api, must := t.Context(), c.user, must(t)
	// Timers know nothing of the jump: a change makes the CronJob look at the clock.
	must(api.BatchV1().CronJobs(work).Patch(ctx, "cron", types.MergePatchType, []byte(`{"metadata":{"labels":{"due":"now"}}}`), metav1.PatchOptions{}))
	v2 := []byte(`{"spec":{"template":{"metadata":{"labels":{"version":"v2"}}}}}`)
	must(api.AppsV1().Deployments(work).Patch(ctx, "web", types.MergePatchType, v2, metav1.PatchOptions{}))
	must(api.AppsV1().StatefulSets(work).Patch(ctx, "db", types.MergePatchType, v2, metav1.PatchOptions{}))
	must(api.AppsV1().DaemonSets(work).Patch(ctx, "agent", types.MergePatchType, v2, metav1.PatchOptions{}))
	must(api.CoreV1().ReplicationControllers(work).Patch(ctx, "old", types.MergePatchType, []byte(`{"spec":{"replicas":1}}`), metav1.PatchOptions{}))

	foreground := metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationForeground)}
	orphan := metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationOrphan)}
	must(nil, api.AppsV1().Deployments(work).Delete(ctx, "temporary", foreground))
	must(nil, api.AppsV1().ReplicaSets(work).Delete(ctx, "parent", orphan))
	must(nil, api.CoreV1().ConfigMaps(work).Delete(ctx, "loop-a", metav1.DeleteOptions{}))
	must(nil, api.CoreV1().ConfigMaps(work).Delete(ctx, "chain-0", metav1.DeleteOptions{}))
	must(nil, api.CoreV1().Namespaces().Delete(ctx, "short-lived", metav1.DeleteOptions{}))
}

// changed tells what is not so yet.
func changed(ctx context.Context, api kubernetes.Interface) error {
	if ns, err := api.CoreV1().Namespaces().Get(ctx, "short-lived", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return fmt.Errorf("namespace short-lived: %v, %+v", err, ns.Status)
	}
	if err := second(api.AppsV1().Deployments(work).Get(ctx, "temporary", metav1.GetOptions{})); !apierrors.IsNotFound(err) {
		return fmt.Errorf("deployment temporary: %v", err)
	}
	for _, name := range []string{"loop-b", "chain-4"} {
		if err := second(api.CoreV1().ConfigMaps(work).Get(ctx, name, metav1.GetOptions{})); !apierrors.IsNotFound(err) {
			return fmt.Errorf("configmap %s: %v", name, err)
		}
	}
	if err := second(api.BatchV1().Jobs(work).Get(ctx, "swept", metav1.GetOptions{})); !apierrors.IsNotFound(err) {
		return fmt.Errorf("job swept: %v", err)
	}
	web, db, agent, err := kept(ctx, api)
	if err != nil {
		return err
	}
	count, err := api.BatchV1().Jobs(work).Get(ctx, "count", metav1.GetOptions{})
	if err != nil {
		return err
	}
	if err := served(ctx, api); err != nil {
		return err
	}
	if err := reequipped(ctx, api); err != nil {
		return err
	}
	if web.Status.UpdatedReplicas != 6 || web.Status.Replicas != 6 || web.Status.AvailableReplicas != 6 || db.Status.UpdatedReplicas != 3 || db.Status.ReadyReplicas != 3 ||
		db.Status.CurrentRevision != db.Status.UpdateRevision || agent.Status.UpdatedNumberScheduled != nodes || agent.Status.NumberAvailable != nodes || count.Status.CompletionTime == nil {
		return fmt.Errorf("updated: web %d, db %d, agent %d; job count %+v",
			web.Status.UpdatedReplicas, db.Status.UpdatedReplicas, agent.Status.UpdatedNumberScheduled, count.Status)
	}
	return nil
}

// schedule makes a CronJob that is due once, within two minutes, and says when.
func (c *cluster) schedule(t *testing.T) time.Time {
	due := c.clock.Now().UTC().Truncate(time.Minute).Add(2 * time.Minute)
	job := batchv1.JobSpec{Template: template("cron", "v1")}
	job.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	must(t)(c.user.BatchV1().CronJobs(work).Create(t.Context(), &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Name: "cron"},
		Spec: batchv1.CronJobSpec{
			Schedule: fmt.Sprintf("%d %d %d %d *", due.Minute(), due.Hour(), due.Day(), due.Month()), TimeZone: ptr.To("Etc/UTC"),
			JobTemplate: batchv1.JobTemplateSpec{Spec: job},
		},
	}, metav1.CreateOptions{}))
	return due
}

// evict asks for the eviction of a pod that a budget protects until it is allowed.
func evict(t *testing.T, c *cluster) {
	pods, err := c.user.CoreV1().Pods(work).List(t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
	must(t)(pods, err)
	c.await(t, "an eviction is allowed", func(ctx context.Context, api kubernetes.Interface) error {
		err := api.CoreV1().Pods(work).EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pods.Items[0].Name, Namespace: work}})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// request asks for a client certificate, and approves it.
func request(t *testing.T, c *cluster) {
	requests := c.user.CertificatesV1().CertificateSigningRequests()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t)(key, err)
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "somebody"}}, key)
	must(t)(der, err)
	csr, err := requests.Create(t.Context(), &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "somebody"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), SignerName: certificatesv1.KubeAPIServerClientSignerName,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth},
		},
	}, metav1.CreateOptions{})
	must(t)(csr, err)
	csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Known", Message: "known",
	}}
	must(t)(requests.UpdateApproval(t.Context(), csr.Name, csr, metav1.UpdateOptions{}))
}

// served tells what of the CronJob and the autoscaler is missing.
func served(ctx context.Context, api kubernetes.Interface) error {
	jobs, err := api.BatchV1().Jobs(work).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	done := 0
	for _, job := range jobs.Items {
		if metav1.GetControllerOf(&job) != nil && job.Status.CompletionTime != nil {
			done++
		}
	}
	scaled, err := api.AppsV1().Deployments(work).Get(ctx, "scaled", metav1.GetOptions{})
	if err != nil {
		return err
	}
	if done != 1 || scaled.Status.AvailableReplicas != messages/10 {
		return fmt.Errorf("%d runs of the CronJob, %d scaled replicas", done, scaled.Status.AvailableReplicas)
	}
	return nil
}

func second[T any](_ T, err error) error { return err }

func selector(app string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
}

func template(app, version string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app, "version": version}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "example.org/" + app}}},
	}
}

func owned(name string, owners ...*corev1.ConfigMap) *corev1.ConfigMap {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, owner := range owners {
		cm.OwnerReferences = append(cm.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID})
	}
	return cm
}

func volume(i int) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("disk-%d", i)},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{"storage": resource.MustParse("1Gi")}, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/disk"}},
		},
	}
}

func claim() corev1.PersistentVolumeClaim {
	return corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "data"},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: ptr.To(""), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{"storage": resource.MustParse("1Gi")}},
		},
	}
}
