package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// kinds are those whose objects make up the end state. Events and leases tell how
// it came about.
var kinds = []schema.GroupVersionResource{
	{Version: "v1", Resource: "namespaces"},
	{Version: "v1", Resource: "pods"},
	{Version: "v1", Resource: "replicationcontrollers"},
	{Version: "v1", Resource: "services"},
	{Version: "v1", Resource: "endpoints"},
	{Version: "v1", Resource: "serviceaccounts"},
	{Version: "v1", Resource: "configmaps"},
	{Version: "v1", Resource: "resourcequotas"},
	{Version: "v1", Resource: "persistentvolumes"},
	{Version: "v1", Resource: "persistentvolumeclaims"},
	{Group: "apps", Version: "v1", Resource: "deployments"},
	{Group: "apps", Version: "v1", Resource: "replicasets"},
	{Group: "apps", Version: "v1", Resource: "statefulsets"},
	{Group: "apps", Version: "v1", Resource: "daemonsets"},
	{Group: "apps", Version: "v1", Resource: "controllerrevisions"},
	{Group: "batch", Version: "v1", Resource: "jobs"},
	{Group: "batch", Version: "v1", Resource: "cronjobs"},
	{Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"},
	{Group: "certificates.k8s.io", Version: "v1", Resource: "certificatesigningrequests"},
	{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"},
	{Group: "resource.k8s.io", Version: "v1", Resource: "resourceclaims"},
}

// incidental are fields whose values nobody asked for: they differ between any two
// runs.
var incidental = map[string]bool{
	"uid": true, "resourceVersion": true, "creationTimestamp": true, "managedFields": true, "selfLink": true,
	"startTime": true, "completionTime": true, "lastScheduleTime": true, "lastSuccessfulTime": true,
	"lastTransitionTime": true, "lastUpdateTime": true, "lastProbeTime": true, "lastPhaseTransitionTime": true, "startedAt": true, "finishedAt": true,
	"endpoints.kubernetes.io/last-change-trigger-time": true, "batch.kubernetes.io/cronjob-scheduled-timestamp": true,
	"message": true, "generateName": true,
	"nodeName": true, "podIP": true, "podIPs": true, "hostIP": true, "hostIPs": true, "ip": true, "addresses": true,
	"request": true, "certificate": true, "authentication.kubernetes.io/credential-id": true, "schedule": true,
	"clusterIP": true, "clusterIPs": true, "volumeName": true, "containerID": true, "ca.crt": true,
	"batch.kubernetes.io/controller-uid": true, "controller-uid": true,
	"zone": true, "topology.kubernetes.io/zone": true,
	"generation": true, "observedGeneration": true, // how many steps there were
	"pool": true, "device": true, "allocationTimestamp": true, "resourceClaimName": true,
}

// state is the cluster, one line per object, without what is incidental.
func state(ctx context.Context, c *cluster) ([]string, error) {
	d, err := dynamic.NewForConfig(c.access)
	if err != nil {
		return nil, err
	}
	var lines []string
	lists := map[schema.GroupVersionResource]*unstructured.UnstructuredList{}
	there := map[types.UID]bool{}
	for _, kind := range kinds {
		if lists[kind], err = d.Resource(kind).List(ctx, metav1.ListOptions{}); err != nil {
			return nil, err
		}
		for _, obj := range lists[kind].Items {
			there[obj.GetUID()] = true
		}
	}
	for kind, list := range lists {
		for _, obj := range list.Items {
			if obj.GetNamespace() == "default" {
				continue // the API server's own Service names its port
			}
			for _, owner := range obj.GetOwnerReferences() {
				if !there[owner.UID] {
					lines = append(lines, fmt.Sprintf("%s %s belongs to %s %s, which is gone", kind.Resource, lasting(&obj), owner.Kind, owner.Name))
				}
			}
			if observed, ok, _ := unstructured.NestedInt64(obj.Object, "status", "observedGeneration"); ok && observed != obj.GetGeneration() {
				lines = append(lines, fmt.Sprintf("%s %s is not yet observed", kind.Resource, lasting(&obj)))
			}
			lines = append(lines, line(kind, &obj))
		}
	}
	slices.Sort(lines)
	return slices.CompactFunc(lines, twice), nil
}

// twice tells whether two pods did the same part of a Job, which Jobs allow: a
// pod may be complete before anybody knows that there are two.
func twice(a, b string) bool {
	return a == b && strings.HasPrefix(a, "pods ") && strings.Contains(a, `"kind":"Job"`)
}

// lasting is an object's name without the part that the server made up.
func lasting(obj *unstructured.Unstructured) string {
	name := obj.GetName()
	if prefix := obj.GetGenerateName(); prefix != "" && strings.HasPrefix(name, prefix) {
		// A StatefulSet's pods have names of their own.
		if len(obj.GetOwnerReferences()) == 0 || obj.GetOwnerReferences()[0].Kind != "StatefulSet" {
			name = prefix + "*"
		}
	}
	return obj.GetNamespace() + "/" + name
}

// scheduledName is the name of a CronJob's Job, which tells when it was due.
var scheduledName = regexp.MustCompile(`cron-\d{8}`)

func line(kind schema.GroupVersionResource, obj *unstructured.Unstructured) string {
	name := lasting(obj)
	switch kind.Resource {
	case "persistentvolumes":
		name = "" // which of equal volumes a claim gets is chance
		obj.SetName("")
	case "resourceclaims":
		if obj.GetGenerateName() != "" {
			name = "of a pod" // whose name is chance
		}
	}
	content := without(obj.Object).(map[string]any)
	unstructured.RemoveNestedField(content, "metadata", "name")
	text, err := json.Marshal(content)
	if err != nil {
		panic(err) // it came as JSON
	}
	return scheduledName.ReplaceAllString(kind.Resource+" "+name+" "+string(text), "cron-*")
}

// without returns a copy that lacks what is incidental. Lists of objects are sorted.
func without(value any) any {
	switch v := value.(type) {
	case map[string]any:
		m := map[string]any{}
		for key, inner := range v {
			if kept := without(inner); !incidental[key] && !isEmpty(kept) {
				m[key] = kept
			}
		}
		return generated(m)
	case []any:
		l := make([]any, len(v))
		for i, inner := range v {
			l[i] = without(inner)
		}
		slices.SortFunc(l, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		return l
	}
	return value
}

func isEmpty(value any) bool {
	m, isMap := value.(map[string]any)
	return isMap && len(m) == 0
}

// generated takes the random part out of the reference to a pod, or to a node.
func generated(m map[string]any) map[string]any {
	name, _ := m["name"].(string)
	switch m["kind"] {
	case "Pod":
		if i := strings.LastIndexByte(name, '-'); i > 0 && len(name)-i == 6 {
			m["name"] = name[:i] + "-*"
		}
	case "Node":
		m["name"] = "*"
	}
	if m["resource"] == "pods" { // who has a claim
		m["name"] = name[:strings.LastIndexByte(name, '-')] + "-*"
	}
	if name != "" && strings.HasPrefix(name, "kube-api-access-") {
		m["name"] = "kube-api-access-*"
	}
	if m["key"] == "metadata.name" { // the node affinity of a DaemonSet's pod
		delete(m, "values")
	}
	return m
}
