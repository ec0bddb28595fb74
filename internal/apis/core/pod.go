package core

import (
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	policyv1beta1 "k8s.io/api/policy/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/apis"
)

// oldEviction is the version of evictions that clients from before 1.22 send.
var oldEviction = apis.Served{
	Group: "policy", Version: "v1beta1", Kind: "Eviction", New: apis.New[policyv1beta1.Eviction],
	ToHub: func(obj apis.Object) (apis.Object, error) {
		e := obj.(*policyv1beta1.Eviction)
		return &policyv1.Eviction{ObjectMeta: e.ObjectMeta, DeleteOptions: e.DeleteOptions}, nil
	},
}

// Pods is the core/v1 pods resource.
var Pods = apis.Resource{
	Version: "v1", Kind: "Pod", Plural: "pods", Short: []string{"po"}, Categories: []string{"all"},
	New: apis.New[corev1.Pod], NewList: apis.NewList[corev1.PodList],
	Subresources: []apis.Subresource{
		{Name: "attach", Version: "v1", Kind: "PodAttachOptions", Verbs: []string{"create", "get"}},
		{Name: "binding", Version: "v1", Kind: "Binding", New: apis.New[corev1.Binding], Verbs: []string{"create"}},
		apis.Writable("ephemeralcontainers", prepareEphemeralContainers, validateEphemeralContainersUpdate),
		{Name: "eviction", Group: "policy", Version: "v1", Kind: "Eviction", Accepts: []apis.Served{oldEviction}, New: apis.New[policyv1.Eviction], Verbs: []string{"create"}},
		{Name: "exec", Version: "v1", Kind: "PodExecOptions", Verbs: []string{"create", "get"}},
		{Name: "log", Verbs: []string{"get"}},
		{Name: "portforward", Version: "v1", Kind: "PodPortForwardOptions", Verbs: []string{"create", "get"}},
		{Name: "proxy", Version: "v1", Kind: "PodProxyOptions", Verbs: []string{"create", "delete", "get", "patch", "update"}},
		apis.Writable("resize", prepareResize, validateResizeUpdate),
		apis.Resetting(apis.Writable("status", preparePodStatus, validatePodStatusUpdate),
			"spec", "metadata.deletionTimestamp", "metadata.ownerReferences"),
	},
	Stamp:          apis.Stamped(stampGated),
	Default:        apis.On(DefaultPod),
	PrepareCreate:  apis.On(preparePod),
	PrepareUpdate:  apis.OnUpdate(preparePodUpdate),
	Validate:       apis.Check(validatePod),
	ValidateUpdate: apis.CheckUpdate(validatePodUpdate),
	Warnings:       apis.Warn(podWarnings),
	Fields:         apis.Selectable(podFields),
	FieldAliases:   map[string]string{"spec.host": "spec.nodeName"},
	Indexed:        []string{"spec.nodeName"},
	GracefulDelete: podGrace,
	Columns:        podColumns,
	Row:            apis.Cells(podRow),
	RowConditions:  podConditions,
}

var podFields = map[string]func(*corev1.Pod) string{
	"spec.nodeName":            func(p *corev1.Pod) string { return p.Spec.NodeName },
	"spec.restartPolicy":       func(p *corev1.Pod) string { return string(p.Spec.RestartPolicy) },
	"spec.schedulerName":       func(p *corev1.Pod) string { return p.Spec.SchedulerName },
	"spec.serviceAccountName":  func(p *corev1.Pod) string { return p.Spec.ServiceAccountName },
	"spec.hostNetwork":         func(p *corev1.Pod) string { return strconv.FormatBool(p.Spec.HostNetwork) },
	"status.phase":             func(p *corev1.Pod) string { return string(p.Status.Phase) },
	"status.podIP":             podAddress,
	"status.podIPs":            podAddress,
	"status.nominatedNodeName": func(p *corev1.Pod) string { return p.Status.NominatedNodeName },
}

func podAddress(p *corev1.Pod) string {
	if len(p.Status.PodIPs) > 0 {
		return p.Status.PodIPs[0].IP
	}
	return p.Status.PodIP
}

func preparePod(p *corev1.Pod) {
	completePodResources(p)
	p.Status = corev1.PodStatus{Phase: corev1.PodPending, QOSClass: QOSClass(p)}
	if len(p.Spec.SchedulingGates) > 0 {
		p.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonSchedulingGated,
			Message: "Scheduling is blocked due to non-empty scheduling gates",
		}}
	}
	mergeLabelKeys(p)
	syncAppArmor(p)
}

// stampGated says since when a new pod has been held back by its gates.
func stampGated(p, old *corev1.Pod, now metav1.Time) {
	if old == nil && len(p.Spec.SchedulingGates) > 0 {
		p.Status.Conditions[0].LastTransitionTime = now
	}
}

func preparePodUpdate(p, old *corev1.Pod) {
	p.Status = old.Status
	if p.Spec.Resources == nil {
		p.Spec.Resources = old.Spec.Resources.DeepCopy() // the client may not know of them
	}
}

func preparePodStatus(p, old *corev1.Pod) {
	p.Spec = old.Spec
	p.DeletionTimestamp = nil
	p.OwnerReferences = old.OwnerReferences
	if p.Status.QOSClass == "" {
		p.Status.QOSClass = old.Status.QOSClass
	}
	keepGenerationsSeen(&p.Status, &old.Status)
	defaultHostIPs(p)
}

// keepGenerationsSeen: who does not know of observedGeneration does not clear it.
// Several conditions may be of one type; the first of them keeps the first one's.
func keepGenerationsSeen(s, old *corev1.PodStatus) {
	if s.ObservedGeneration == 0 {
		s.ObservedGeneration = old.ObservedGeneration
	}
	if !slices.ContainsFunc(s.Conditions, func(c corev1.PodCondition) bool { return c.ObservedGeneration == 0 }) {
		return
	}
	seen := map[corev1.PodConditionType][]int64{}
	for _, c := range old.Conditions {
		seen[c.Type] = append(seen[c.Type], c.ObservedGeneration)
	}
	for i := range s.Conditions {
		c := &s.Conditions[i]
		before := seen[c.Type]
		if len(before) == 0 {
			continue
		}
		if c.ObservedGeneration == 0 {
			c.ObservedGeneration = before[0]
		}
		seen[c.Type] = before[1:]
	}
}

func prepareEphemeralContainers(p, old *corev1.Pod) {
	changed := old.DeepCopy()
	copyIdentity(changed, p)
	changed.Spec.EphemeralContainers = p.Spec.EphemeralContainers
	*p = *changed
}

func prepareResize(p, old *corev1.Pod) {
	if len(p.Spec.Containers) != len(old.Spec.Containers) || len(p.Spec.InitContainers) != len(old.Spec.InitContainers) {
		return // validation says so
	}
	changed := old.DeepCopy()
	copyIdentity(changed, p)
	changed.Spec.Containers = withResources(changed.Spec.Containers, p.Spec.Containers)
	changed.Spec.InitContainers = withResources(changed.Spec.InitContainers, p.Spec.InitContainers)
	if p.Spec.Resources != nil {
		changed.Spec.Resources = p.Spec.Resources
	}
	completePodResources(changed)
	*p = *changed
}

// copyIdentity keeps what the update's preconditions are checked against.
func copyIdentity(to, from *corev1.Pod) {
	to.Name, to.Namespace, to.UID, to.ResourceVersion = from.Name, from.Namespace, from.UID, from.ResourceVersion
	to.ManagedFields = from.ManagedFields
}

// withResources takes over resources and resize policies. Containers of other names,
// or in another order, are returned as they came, for validation to refuse.
func withResources(containers, from []corev1.Container) []corev1.Container {
	for i := range containers {
		if containers[i].Name != from[i].Name {
			return from
		}
		containers[i].Resources, containers[i].ResizePolicy = from[i].Resources, from[i].ResizePolicy
	}
	return containers
}

// podGrace is 0 for a pod that runs nowhere: unassigned or finished.
func podGrace(obj apis.Object, opts *metav1.DeleteOptions) int64 {
	p := obj.(*corev1.Pod)
	if p.Spec.NodeName == "" || p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded {
		return 0
	}
	var seconds int64
	if opts != nil && opts.GracePeriodSeconds != nil {
		seconds = *opts.GracePeriodSeconds
	} else if p.Spec.TerminationGracePeriodSeconds != nil {
		seconds = *p.Spec.TerminationGracePeriodSeconds
	}
	if seconds < 0 {
		return 1
	}
	return seconds
}
