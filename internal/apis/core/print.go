package core

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"

	"proa/internal/apis"
	"proa/internal/apis/validate"
)

// ContainersAndImages lists the names and images of a template's containers.
func ContainersAndImages(t *corev1.PodTemplateSpec) (names, images string) {
	if t == nil {
		return "", ""
	}
	var n, i []string
	for _, c := range t.Spec.Containers {
		n, i = append(n, c.Name), append(i, c.Image)
	}
	return strings.Join(n, ","), strings.Join(i, ",")
}

var replicationControllerColumns = []metav1.TableColumnDefinition{
	apis.NameColumn,
	apis.Column("Desired", "integer", corev1.ReplicationControllerSpec{}.SwaggerDoc()["replicas"]),
	apis.Column("Current", "integer", corev1.ReplicationControllerStatus{}.SwaggerDoc()["replicas"]),
	apis.Column("Ready", "integer", corev1.ReplicationControllerStatus{}.SwaggerDoc()["readyReplicas"]),
	apis.AgeColumn,
	apis.Wide("Containers", "string", "Names of each container in the template."),
	apis.Wide("Images", "string", "Images referenced by each container in the template."),
	apis.Wide("Selector", "string", corev1.ReplicationControllerSpec{}.SwaggerDoc()["selector"]),
}

func replicationControllerRow(rc *corev1.ReplicationController, now time.Time) []any {
	var desired int64
	if rc.Spec.Replicas != nil {
		desired = int64(*rc.Spec.Replicas)
	}
	names, images := ContainersAndImages(rc.Spec.Template)
	return []any{rc.Name, desired, int64(rc.Status.Replicas), int64(rc.Status.ReadyReplicas), apis.AgeOf(rc, now), names, images, labels.FormatLabels(rc.Spec.Selector)}
}

var serviceColumns = []metav1.TableColumnDefinition{
	apis.NameColumn,
	apis.Column("Type", "string", corev1.ServiceSpec{}.SwaggerDoc()["type"]),
	apis.Column("Cluster-IP", "string", corev1.ServiceSpec{}.SwaggerDoc()["clusterIP"]),
	apis.Column("External-IP", "string", corev1.ServiceSpec{}.SwaggerDoc()["externalIPs"]),
	apis.Column("Port(s)", "string", corev1.ServiceSpec{}.SwaggerDoc()["ports"]),
	apis.AgeColumn,
	apis.Wide("Selector", "string", corev1.ServiceSpec{}.SwaggerDoc()["selector"]),
}

func serviceRow(s *corev1.Service, now time.Time) []any {
	ip := s.Spec.ClusterIP
	if len(s.Spec.ClusterIPs) > 0 {
		ip = s.Spec.ClusterIPs[0]
	}
	ports := make([]string, len(s.Spec.Ports))
	for i, p := range s.Spec.Ports {
		ports[i] = fmt.Sprintf("%d/%s", p.Port, p.Protocol)
		if p.NodePort > 0 {
			ports[i] = fmt.Sprintf("%d:%d/%s", p.Port, p.NodePort, p.Protocol)
		}
	}
	return []any{
		s.Name, string(s.Spec.Type), apis.Or(ip, "<none>"), externalIP(s), apis.Or(strings.Join(ports, ","), "<none>"),
		apis.AgeOf(s, now), labels.FormatLabels(s.Spec.Selector),
	}
}

func externalIP(s *corev1.Service) string {
	switch s.Spec.Type {
	case corev1.ServiceTypeExternalName:
		return s.Spec.ExternalName
	case corev1.ServiceTypeLoadBalancer:
		given := sets.New[string]()
		for _, in := range s.Status.LoadBalancer.Ingress {
			if a := apis.Or(in.IP, in.Hostname); a != "" {
				given.Insert(a)
			}
		}
		all := sets.List(given)
		if len(s.Spec.ExternalIPs) > 0 {
			all = append(all, s.Spec.ExternalIPs...)
		}
		return apis.Or(strings.Join(all, ","), "<pending>")
	case corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort:
		return apis.Or(strings.Join(s.Spec.ExternalIPs, ","), "<none>")
	}
	return "<unknown>"
}

var endpointsColumns = []metav1.TableColumnDefinition{
	apis.NameColumn,
	apis.Column("Endpoints", "string", corev1.Endpoints{}.SwaggerDoc()["subsets"]),
	apis.AgeColumn,
}

func endpointsRow(e *corev1.Endpoints, now time.Time) []any {
	return []any{e.Name, printSubsets(e.Subsets), apis.AgeOf(e, now)}
}

func printSubsets(subsets []corev1.EndpointSubset) string {
	const shown = 3
	var all []string
	for _, s := range subsets {
		if len(s.Ports) == 0 {
			for _, a := range s.Addresses {
				all = append(all, a.IP)
			}
		}
		for _, p := range s.Ports {
			for _, a := range s.Addresses {
				all = append(all, net.JoinHostPort(a.IP, strconv.Itoa(int(p.Port))))
			}
		}
	}
	switch {
	case len(all) == 0:
		return "<none>"
	case len(all) > shown:
		return fmt.Sprintf("%s + %d more...", strings.Join(all[:shown], ","), len(all)-shown)
	default:
		return strings.Join(all, ",")
	}
}

var nodeColumns = []metav1.TableColumnDefinition{
	apis.NameColumn,
	apis.Column("Status", "string", "The status of the node"),
	apis.Column("Roles", "string", "The roles of the node"),
	apis.AgeColumn,
	apis.Column("Version", "string", corev1.NodeSystemInfo{}.SwaggerDoc()["kubeletVersion"]),
	apis.Wide("Internal-IP", "string", corev1.NodeStatus{}.SwaggerDoc()["addresses"]),
	apis.Wide("External-IP", "string", corev1.NodeStatus{}.SwaggerDoc()["addresses"]),
	apis.Wide("OS-Image", "string", corev1.NodeSystemInfo{}.SwaggerDoc()["osImage"]),
	apis.Wide("Kernel-Version", "string", corev1.NodeSystemInfo{}.SwaggerDoc()["kernelVersion"]),
	apis.Wide("Container-Runtime", "string", corev1.NodeSystemInfo{}.SwaggerDoc()["containerRuntimeVersion"]),
}

func nodeRow(n *corev1.Node, now time.Time) []any {
	status := "Unknown"
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			status = "Ready"
			if c.Status != corev1.ConditionTrue {
				status = "NotReady"
			}
		}
	}
	if n.Spec.Unschedulable {
		status += ",SchedulingDisabled"
	}
	info := n.Status.NodeInfo
	kernel := apis.Or(info.KernelVersion, "<unknown>")
	if info.Architecture != "" {
		kernel += " (" + info.Architecture + ")"
	}
	return []any{
		n.Name, status, nodeRoles(n), apis.AgeOf(n, now), info.KubeletVersion, nodeAddress(n, corev1.NodeInternalIP), nodeAddress(n, corev1.NodeExternalIP),
		apis.Or(info.OSImage, "<unknown>"), kernel, apis.Or(info.ContainerRuntimeVersion, "<unknown>"),
	}
}

func nodeRoles(n *corev1.Node) string {
	roles := sets.New[string]()
	for key, value := range n.Labels {
		if role, ok := strings.CutPrefix(key, "node-role.kubernetes.io/"); ok && role != "" {
			roles.Insert(role)
		} else if key == "kubernetes.io/role" && value != "" {
			roles.Insert(value)
		}
	}
	return apis.Or(strings.Join(sets.List(roles), ","), "<none>")
}

func nodeAddress(n *corev1.Node, t corev1.NodeAddressType) string {
	for _, a := range n.Status.Addresses {
		if a.Type == t {
			return a.Address
		}
	}
	return "<none>"
}

var persistentVolumeColumns = []metav1.TableColumnDefinition{
	apis.NameColumn,
	apis.Column("Capacity", "string", corev1.PersistentVolumeSpec{}.SwaggerDoc()["capacity"]),
	apis.Column("Access Modes", "string", corev1.PersistentVolumeSpec{}.SwaggerDoc()["accessModes"]),
	apis.Column("Reclaim Policy", "string", corev1.PersistentVolumeSpec{}.SwaggerDoc()["persistentVolumeReclaimPolicy"]),
	apis.Column("Status", "string", corev1.PersistentVolumeStatus{}.SwaggerDoc()["phase"]),
	apis.Column("Claim", "string", corev1.PersistentVolumeSpec{}.SwaggerDoc()["claimRef"]),
	apis.Column("StorageClass", "string", "StorageClass of the pv"),
	apis.Column("VolumeAttributesClass", "string", "VolumeAttributesClass of the pv"),
	apis.Column("Reason", "string", corev1.PersistentVolumeStatus{}.SwaggerDoc()["reason"]),
	apis.AgeColumn,
	apis.Wide("VolumeMode", "string", corev1.PersistentVolumeSpec{}.SwaggerDoc()["volumeMode"]),
}

func persistentVolumeRow(pv *corev1.PersistentVolume, now time.Time) []any {
	claim := ""
	if ref := pv.Spec.ClaimRef; ref != nil {
		claim = ref.Namespace + "/" + ref.Name
	}
	phase := string(pv.Status.Phase)
	if pv.DeletionTimestamp != nil {
		phase = "Terminating"
	}
	capacity := pv.Spec.Capacity[corev1.ResourceStorage]
	return []any{
		pv.Name, capacity.String(), printModes(pv.Spec.AccessModes), string(pv.Spec.PersistentVolumeReclaimPolicy), phase, claim,
		apis.Or(pv.Annotations[corev1.BetaStorageClassAnnotation], pv.Spec.StorageClassName), orUnset(pv.Spec.VolumeAttributesClassName),
		pv.Status.Reason, apis.AgeOf(pv, now), orUnset(pv.Spec.VolumeMode),
	}
}

var claimColumns = []metav1.TableColumnDefinition{
	apis.NameColumn,
	apis.Column("Status", "string", corev1.PersistentVolumeClaimStatus{}.SwaggerDoc()["phase"]),
	apis.Column("Volume", "string", corev1.PersistentVolumeClaimSpec{}.SwaggerDoc()["volumeName"]),
	apis.Column("Capacity", "string", corev1.PersistentVolumeClaimStatus{}.SwaggerDoc()["capacity"]),
	apis.Column("Access Modes", "string", corev1.PersistentVolumeClaimStatus{}.SwaggerDoc()["accessModes"]),
	apis.Column("StorageClass", "string", "StorageClass of the pvc"),
	apis.Column("VolumeAttributesClass", "string", "VolumeAttributesClass of the pvc"),
	apis.AgeColumn,
	apis.Wide("VolumeMode", "string", corev1.PersistentVolumeClaimSpec{}.SwaggerDoc()["volumeMode"]),
}

func claimRow(c *corev1.PersistentVolumeClaim, now time.Time) []any {
	phase, capacity, modes := string(c.Status.Phase), "", ""
	if c.DeletionTimestamp != nil {
		phase = "Terminating"
	}
	if c.Spec.VolumeName != "" {
		q := c.Status.Capacity[corev1.ResourceStorage]
		capacity, modes = q.String(), printModes(c.Status.AccessModes)
	}
	class := c.Annotations[corev1.BetaStorageClassAnnotation]
	if class == "" && c.Spec.StorageClassName != nil {
		class = *c.Spec.StorageClassName
	}
	return []any{
		c.Name, phase, c.Spec.VolumeName, capacity, modes, class, orUnset(c.Spec.VolumeAttributesClassName),
		apis.AgeOf(c, now), orUnset(c.Spec.VolumeMode),
	}
}

func orUnset[S ~string](s *S) string {
	if s == nil {
		return "<unset>"
	}
	return string(*s)
}

func printModes(modes []corev1.PersistentVolumeAccessMode) string {
	var short []string
	for _, m := range []struct {
		mode  corev1.PersistentVolumeAccessMode
		short string
	}{{corev1.ReadWriteOnce, "RWO"}, {corev1.ReadOnlyMany, "ROX"}, {corev1.ReadWriteMany, "RWX"}, {corev1.ReadWriteOncePod, "RWOP"}} {
		if slices.Contains(modes, m.mode) {
			short = append(short, m.short)
		}
	}
	return strings.Join(short, ",")
}

var eventColumns = []metav1.TableColumnDefinition{
	apis.Column("Last Seen", "string", corev1.Event{}.SwaggerDoc()["lastTimestamp"]),
	apis.Column("Type", "string", corev1.Event{}.SwaggerDoc()["type"]),
	apis.Column("Reason", "string", corev1.Event{}.SwaggerDoc()["reason"]),
	apis.Column("Object", "string", corev1.Event{}.SwaggerDoc()["involvedObject"]),
	apis.Wide("Subobject", "string", corev1.ObjectReference{}.SwaggerDoc()["fieldPath"]),
	apis.Wide("Source", "string", corev1.Event{}.SwaggerDoc()["source"]),
	apis.Column("Message", "string", corev1.Event{}.SwaggerDoc()["message"]),
	apis.Wide("First Seen", "string", corev1.Event{}.SwaggerDoc()["firstTimestamp"]),
	apis.Wide("Count", "string", corev1.Event{}.SwaggerDoc()["count"]),
	{Name: "Name", Type: "string", Format: "name", Description: metav1.ObjectMeta{}.SwaggerDoc()["name"], Priority: 1},
}

func eventRow(e *corev1.Event, now time.Time) []any {
	first := e.FirstTimestamp
	if first.IsZero() {
		first = metav1.Time(e.EventTime)
	}
	count := int64(e.Count)
	if e.Series != nil {
		count = int64(e.Series.Count)
	} else if count == 0 {
		count = 1
	}
	object := strings.ToLower(e.InvolvedObject.Kind)
	if e.InvolvedObject.Name != "" {
		object += "/" + e.InvolvedObject.Name
	}
	return []any{
		apis.Age(metav1.NewTime(lastSeen(e)), now), e.Type, e.Reason, object, e.InvolvedObject.FieldPath, eventSource(e),
		strings.TrimSpace(e.Message), apis.Age(first, now), count, e.Name,
	}
}

func eventSource(e *corev1.Event) string {
	component, host := e.Source.Component, e.Source.Host
	if component == "" {
		component, host = e.ReportingController, e.ReportingInstance
	}
	if host == "" {
		return component
	}
	return component + ", " + host
}

var quotaColumns = []metav1.TableColumnDefinition{
	apis.NameColumn,
	apis.Column("Request", "string", "Request represents a minimum amount of cpu/memory that a container may consume."),
	apis.Column("Limit", "string", "Limits control the maximum amount of cpu/memory that a container may use independent of contention on the node."),
	apis.AgeColumn,
}

func quotaRow(q *corev1.ResourceQuota, now time.Time) []any {
	var requests, limits []string
	for _, name := range validate.SortedKeys(q.Status.Hard) {
		hard, used := q.Status.Hard[name], q.Status.Used[name]
		shown := fmt.Sprintf("%s: %s/%s", name, used.String(), hard.String())
		if strings.HasPrefix(string(name), "limits") {
			limits = append(limits, shown)
		} else {
			requests = append(requests, shown)
		}
	}
	return []any{q.Name, strings.Join(requests, ", "), strings.Join(limits, ", "), apis.AgeOf(q, now)}
}
