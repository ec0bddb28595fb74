package apiregistration

import (
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Priority orders group versions in discovery: groups by the first number, the
// versions of a group by the second; the highest comes first.
type Priority struct{ Group, Version int32 }

// Custom is the priority of groups of custom resources.
var Custom = Priority{1000, 100}

// builtinGroups are upstream's numbers.
var builtinGroups = map[string]int32{
	"": 18000, "apiregistration.k8s.io": 17950, "apps": 17800, "events.k8s.io": 17750, "authentication.k8s.io": 17700,
	"authorization.k8s.io": 17600, "autoscaling": 17500, "batch": 17400, "certificates.k8s.io": 17300,
	"networking.k8s.io": 17200, "policy": 17100, "rbac.authorization.k8s.io": 17000, "storage.k8s.io": 16800,
	"admissionregistration.k8s.io": 16700, "apiextensions.k8s.io": 16700, "scheduling.k8s.io": 16600,
	"coordination.k8s.io": 16500, "node.k8s.io": 16300, "discovery.k8s.io": 16200, "flowcontrol.apiserver.k8s.io": 16100,
	"internal.apiserver.k8s.io": 16000, "resource.k8s.io": 16200, "storagemigration.k8s.io": 15800,
	MetricsGroup: 100,
}

// MetricsGroup is served by this server only as long as nobody else does.
const MetricsGroup = "metrics.k8s.io"

// builtinVersions are upstream's numbers where they do not follow from the
// version's own rank.
var builtinVersions = map[schema.GroupVersion]int32{
	{Version: "v1"}: 1,
	{Group: "events.k8s.io", Version: "v1beta1"}:                 5,
	{Group: "autoscaling", Version: "v2"}:                        30,
	{Group: "admissionregistration.k8s.io", Version: "v1beta1"}:  12,
	{Group: "admissionregistration.k8s.io", Version: "v1alpha1"}: 9,
	{Group: "coordination.k8s.io", Version: "v1beta1"}:           13,
	{Group: "coordination.k8s.io", Version: "v1alpha2"}:          12,
	{Group: "discovery.k8s.io", Version: "v1beta1"}:              12,
	{Group: "flowcontrol.apiserver.k8s.io", Version: "v1"}:       21,
	{Group: "internal.apiserver.k8s.io", Version: "v1alpha1"}:    9,
	{Group: "resource.k8s.io", Version: "v1"}:                    21,
	{Group: "resource.k8s.io", Version: "v1beta2"}:               13,
	{Group: "resource.k8s.io", Version: "v1beta1"}:               12,
	{Group: "resource.k8s.io", Version: "v1alpha3"}:              9,
	{Group: MetricsGroup, Version: "v1beta1"}:                    100,
}

// PriorityOf is the priority of a group version that this server serves itself.
// What is not built in has the priority of custom resources.
func PriorityOf(gv schema.GroupVersion) Priority {
	group, ok := builtinGroups[gv.Group]
	if !ok {
		return Custom
	}
	version, ok := builtinVersions[gv]
	switch {
	case ok:
	case strings.Contains(gv.Version, "alpha"):
		version = 1
	case strings.Contains(gv.Version, "beta"):
		version = 9
	default:
		version = 15
	}
	return Priority{group, version}
}

// AutomanagedLabel says how an APIService follows what this server serves itself.
const AutomanagedLabel = "kube-aggregator.kubernetes.io/automanaged"

const (
	OnStart = "onstart" // it is made right when the server starts
	Always  = "true"    // it is made right whenever it differs
)
