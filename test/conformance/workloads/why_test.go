package workloads

import (
	"context"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/explain/walk"
	"proa/pkg/proatest"
)

// why is what `proa why` tells; of a pod it is what its condition says.
func (c *cluster) why(object string) string {
	c.t.Helper()
	w := &walk.Walker{API: c, Pod: func(ctx context.Context, namespace, name string) ([]string, error) {
		p, err := c.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		return []string{podCondition(p, corev1.PodScheduled).Message}, nil
	}}
	kind, name, _ := strings.Cut(object, "/")
	steps, err := w.Walk(c.ctx, kind, ns, name)
	c.ok(err)
	var text strings.Builder
	for _, s := range steps {
		text.WriteString(s.Kind + " " + s.Name + ": " + strings.Join(s.Sentences, " ") + "\n")
	}
	return text.String()
}

// explained checks the way that an explanation takes, and what it says there.
func (c *cluster) explained(object string, steps ...string) {
	c.t.Helper()
	got := c.why(object)
	lines := strings.Split(strings.TrimSpace(got), "\n")
	if len(lines) != len(steps) {
		c.t.Errorf("%s: %d steps, want %d:\n%s", object, len(lines), len(steps), got)
		return
	}
	for i, want := range steps {
		kind, sentence, _ := strings.Cut(want, ": ")
		if !strings.HasPrefix(lines[i], kind) || !strings.Contains(lines[i], sentence) {
			c.t.Errorf("%s: step %d is %s, want %s", object, i, lines[i], want)
		}
	}
}

func TestWhyTheObjectsOfPodsAreNotWell(t *testing.T) {
	c := start(t, 1, func(o *proatest.Options) { o.Scheduler = true })
	large := func(name string) corev1.PodTemplateSpec {
		p := template(name)
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1k")}
		return p
	}
	waits := func(name string) {
		t.Helper()
		c.pods("app="+name, func(pods []corev1.Pod) error {
			if len(pods) != 1 {
				return want("pods", len(pods), 1)
			}
			return want("reason", podCondition(&pods[0], corev1.PodScheduled).Reason, corev1.PodReasonUnschedulable)
		})
	}
	must(c.AppsV1().Deployments(ns).Create(c.ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{Selector: selector("web"), Template: large("web")}}, metav1.CreateOptions{}))(c)
	waits("web")
	until(c, c.AppsV1().Deployments(ns), named("web"), func(l *appsv1.DeploymentList) error { // its controllers have seen the pod
		return all(want("replicas", l.Items[0].Status.Replicas, 1), want("conditions", len(l.Items[0].Status.Conditions) >= 2, true))
	})
	const full = "Insufficient cpu"
	c.explained("deployment/web", "Deployment web: MinimumReplicasUnavailable", "ReplicaSet web-: 1 of 1 pods exist, 0 are available.", "Pod web-: "+full)

	c.quota("none", corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"count/jobs.batch": resource.MustParse("5"), "pods": resource.MustParse("1")}})
	must(c.AppsV1().Deployments(ns).Create(c.ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "more"},
		Spec: appsv1.DeploymentSpec{Selector: selector("more"), Template: template("more")}}, metav1.CreateOptions{}))(c)
	until(c, c.AppsV1().Deployments(ns), named("more"), func(l *appsv1.DeploymentList) error {
		for _, d := range l.Items[0].Status.Conditions {
			if d.Type == appsv1.DeploymentReplicaFailure {
				return nil
			}
		}
		return want("failures", 0, 1)
	})
	c.explained("deploy/more", "Deployment more: exceeded quota: none", "ReplicaSet more-: exceeded quota: none")
	c.ok(c.CoreV1().ResourceQuotas(ns).Delete(c.ctx, "none", metav1.DeleteOptions{}))

	must(c.AppsV1().StatefulSets(ns).Create(c.ctx, &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "db"}, Spec: appsv1.StatefulSetSpec{
		Replicas: new(int32(3)), Selector: selector("db"), Template: template("db"), ServiceName: "db",
		VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: once, StorageClassName: new("absent"), Resources: corev1.VolumeResourceRequirements{Requests: size("1Gi")}}}},
	}}, metav1.CreateOptions{}))(c)
	waits("db")
	c.explained("sts/db", "StatefulSet db: Those after db-0 wait for it (podManagementPolicy OrderedReady).", "Pod db-0: pod has unbound immediate PersistentVolumeClaims",
		"PersistentVolumeClaim data-db-0: Its storage class absent does not exist")

	must(c.BatchV1().Jobs(ns).Create(c.ctx, &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "later"}, Spec: batchv1.JobSpec{
		Suspend: new(true), Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: podSpec("").Containers}},
	}}, metav1.CreateOptions{}))(c)
	c.explained("job/later", "Job later: It is suspended: it has no pods until spec.suspend is false.")

	must(c.service("web", func(s *corev1.ServiceSpec) { s.Selector = labels("web") }))(c)
	c.explained("svc/web", "Service web: endpoints are ready", "Pod web-: "+full)
	must(c.service("nobody", func(s *corev1.ServiceSpec) { s.Selector = labels("nobody") }))(c)
	c.explained("service/nobody", "Service nobody: No pod has the labels that it selects: app=nobody.")
}
