package apps

import (
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/apis"
	"proa/internal/apis/core"
)

var (
	containersColumn = apis.Wide("Containers", "string", "Names of each container in the template.")
	imagesColumn     = apis.Wide("Images", "string", "Images referenced by each container in the template.")
)

var deploymentColumns = []metav1.TableColumnDefinition{
	apis.NameColumn,
	apis.Column("Ready", "string", "Number of the pod with ready state"),
	apis.Column("Up-to-date", "string", appsv1.DeploymentStatus{}.SwaggerDoc()["updatedReplicas"]),
	apis.Column("Available", "string", appsv1.DeploymentStatus{}.SwaggerDoc()["availableReplicas"]),
	apis.AgeColumn, containersColumn, imagesColumn,
	apis.Wide("Selector", "string", appsv1.DeploymentSpec{}.SwaggerDoc()["selector"]),
}

func deploymentRow(d *appsv1.Deployment, now time.Time) []any {
	return append([]any{
		d.Name, fmt.Sprintf("%d/%d", d.Status.ReadyReplicas, desired(d.Spec.Replicas)),
		int64(d.Status.UpdatedReplicas), int64(d.Status.AvailableReplicas), apis.AgeOf(d, now),
	}, wide(&d.Spec.Template, d.Spec.Selector)...)
}

var replicaSetColumns = []metav1.TableColumnDefinition{
	apis.NameColumn,
	apis.Column("Desired", "integer", appsv1.ReplicaSetSpec{}.SwaggerDoc()["replicas"]),
	apis.Column("Current", "integer", appsv1.ReplicaSetStatus{}.SwaggerDoc()["replicas"]),
	apis.Column("Ready", "integer", appsv1.ReplicaSetStatus{}.SwaggerDoc()["readyReplicas"]),
	apis.AgeColumn, containersColumn, imagesColumn,
	apis.Wide("Selector", "string", appsv1.ReplicaSetSpec{}.SwaggerDoc()["selector"]),
}

func replicaSetRow(rs *appsv1.ReplicaSet, now time.Time) []any {
	return append([]any{
		rs.Name, desired(rs.Spec.Replicas), int64(rs.Status.Replicas), int64(rs.Status.ReadyReplicas), apis.AgeOf(rs, now),
	}, wide(&rs.Spec.Template, rs.Spec.Selector)...)
}

var statefulSetColumns = []metav1.TableColumnDefinition{
	apis.NameColumn,
	apis.Column("Ready", "string", "Number of the pod with ready state"),
	apis.AgeColumn, containersColumn, imagesColumn,
}

func statefulSetRow(s *appsv1.StatefulSet, now time.Time) []any {
	names, images := core.ContainersAndImages(&s.Spec.Template)
	return []any{s.Name, fmt.Sprintf("%d/%d", s.Status.ReadyReplicas, desired(s.Spec.Replicas)), apis.AgeOf(s, now), names, images}
}

var daemonSetColumns = []metav1.TableColumnDefinition{
	apis.NameColumn,
	apis.Column("Desired", "integer", appsv1.DaemonSetStatus{}.SwaggerDoc()["desiredNumberScheduled"]),
	apis.Column("Current", "integer", appsv1.DaemonSetStatus{}.SwaggerDoc()["currentNumberScheduled"]),
	apis.Column("Ready", "integer", appsv1.DaemonSetStatus{}.SwaggerDoc()["numberReady"]),
	apis.Column("Up-to-date", "integer", appsv1.DaemonSetStatus{}.SwaggerDoc()["updatedNumberScheduled"]),
	apis.Column("Available", "integer", appsv1.DaemonSetStatus{}.SwaggerDoc()["numberAvailable"]),
	apis.Column("Node Selector", "string", corev1.PodSpec{}.SwaggerDoc()["nodeSelector"]),
	apis.AgeColumn, containersColumn, imagesColumn,
	apis.Wide("Selector", "string", appsv1.DaemonSetSpec{}.SwaggerDoc()["selector"]),
}

func daemonSetRow(d *appsv1.DaemonSet, now time.Time) []any {
	s := d.Status
	return append([]any{
		d.Name, int64(s.DesiredNumberScheduled), int64(s.CurrentNumberScheduled), int64(s.NumberReady),
		int64(s.UpdatedNumberScheduled), int64(s.NumberAvailable),
		metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: d.Spec.Template.Spec.NodeSelector}), apis.AgeOf(d, now),
	}, wide(&d.Spec.Template, d.Spec.Selector)...)
}

func desired(replicas *int32) int64 {
	if replicas == nil {
		return 0
	}
	return int64(*replicas)
}

func wide(t *corev1.PodTemplateSpec, selector *metav1.LabelSelector) []any {
	names, images := core.ContainersAndImages(t)
	return []any{names, images, metav1.FormatLabelSelector(selector)}
}

// formatResource prints a reference as kubectl takes it: "deployment.apps/web".
func formatResource(group, kind, name string) string {
	resource := strings.ToLower(kind)
	if group != "" {
		resource += "." + group
	}
	return resource + "/" + name
}
