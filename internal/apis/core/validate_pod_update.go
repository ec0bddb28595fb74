package core

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	podresource "k8s.io/component-helpers/resource"

	"proa/internal/apis/validate"
)

const updatableFields = "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`," +
	"`spec.tolerations` (only additions to existing tolerations)," +
	"`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"

// validatePodUpdate holds a pod to what it was made as, but for a few fields.
func validatePodUpdate(p, old *corev1.Pod) field.ErrorList {
	spec := field.NewPath("spec")
	errs := validatePodAnnotationsUpdate(p, old, metadataAnnotations)
	same := sameSpec(&p.Spec, &old.Spec)
	if !same { // else it was looked at when it was written
		errs = append(errs, validatePodSpec(&p.Spec, p.Name, true, spec)...)
		if p.Spec.ServiceAccountName == "" {
			errs = append(errs, forbidTokens(p.Spec.Volumes, spec.Child("volumes"))...)
		}
	}
	images, stop := validateImageUpdates(p.Spec.Containers, old.Spec.Containers, spec.Child("containers"))
	errs = append(errs, images...)
	if stop {
		return errs
	}
	images, stop = validateImageUpdates(p.Spec.InitContainers, old.Spec.InitContainers, spec.Child("initContainers"))
	errs = append(errs, images...)
	if stop {
		return errs
	}
	deadline, stop := validateDeadlineUpdate(p.Spec.ActiveDeadlineSeconds, old.Spec.ActiveDeadlineSeconds, spec.Child("activeDeadlineSeconds"))
	errs = append(errs, deadline...)
	if stop {
		return errs
	}
	errs = append(errs, validateAddedTolerations(p.Spec.Tolerations, old.Spec.Tolerations, spec.Child("tolerations"))...)
	errs = append(errs, validateGateUpdate(p.Spec.SchedulingGates, old.Spec.SchedulingGates, spec.Child("schedulingGates"))...)
	if same {
		return errs
	}
	munged := mungeUpdatable(p, old)
	gated := len(old.Spec.SchedulingGates) > 0
	if gated {
		errs = append(errs, validateGatedUpdate(&p.Spec, &old.Spec, spec)...)
		munged.NodeSelector = old.Spec.NodeSelector
		munged.Affinity = old.Spec.Affinity
	}
	if !sameSpec(munged, &old.Spec) {
		errs = append(errs, field.Forbidden(spec, fmt.Sprintf("pod updates may not change fields other than %s\n%v", updatableFields, diff.Diff(validate.Hub(old.Spec), validate.Hub(*munged)))))
	}
	return errs
}

// sameSpec is semantic equality. Specs that are the same on the wire are equal,
// and that takes a fraction of the time to find out.
func sameSpec(a, b *corev1.PodSpec) bool {
	if a.Size() == b.Size() {
		x, err1 := a.Marshal()
		y, err2 := b.Marshal()
		if err1 == nil && err2 == nil && bytes.Equal(x, y) {
			return true
		}
	}
	return apiequality.Semantic.DeepEqual(*a, *b)
}

// mungeUpdatable returns the new spec with what may change set back. It shares
// everything below with the old and the new one.
func mungeUpdatable(p, old *corev1.Pod) *corev1.PodSpec {
	spec := p.Spec
	munged := &spec
	munged.Containers, munged.InitContainers = slices.Clone(spec.Containers), slices.Clone(spec.InitContainers)
	for i := range munged.Containers {
		munged.Containers[i].Image = old.Spec.Containers[i].Image
	}
	for i := range munged.InitContainers {
		munged.InitContainers[i].Image = old.Spec.InitContainers[i].Image
	}
	munged.ActiveDeadlineSeconds = old.Spec.ActiveDeadlineSeconds
	munged.SchedulingGates = old.Spec.SchedulingGates
	munged.Tolerations = old.Spec.Tolerations
	if was, is := old.Spec.TerminationGracePeriodSeconds, munged.TerminationGracePeriodSeconds; was != nil && *was < 0 && is != nil && *is == 1 {
		munged.TerminationGracePeriodSeconds = was
	}
	return munged
}

func validateImageUpdates(containers, old []corev1.Container, path *field.Path) (field.ErrorList, bool) {
	if len(containers) != len(old) {
		return field.ErrorList{field.Forbidden(path, "pod updates may not add or remove containers")}, true
	}
	var errs field.ErrorList
	for i, c := range containers {
		if strings.TrimSpace(c.Image) == "" {
			errs = append(errs, field.Required(path.Index(i).Child("image"), ""))
		}
	}
	return errs, false
}

// validateDeadlineUpdate lets a deadline come nearer. With a wrong number the rest
// of the update is not looked at.
func validateDeadlineUpdate(is, was *int64, path *field.Path) (errs field.ErrorList, stop bool) {
	switch {
	case is == nil && was != nil:
		return field.ErrorList{field.Invalid(path, is, "must not update from a positive integer to nil value")}, false
	case is == nil:
	case *is < 0 || *is > math.MaxInt32:
		return field.ErrorList{field.Invalid(path, *is, validation.InclusiveRangeError(0, math.MaxInt32))}, true
	case was != nil && *was < *is:
		return field.ErrorList{field.Invalid(path, *is, "must be less than or equal to previous value")}, true
	}
	return nil, false
}

func validateGateUpdate(gates, old []corev1.PodSchedulingGate, path *field.Path) field.ErrorList {
	known := sets.New[string]()
	for _, g := range old {
		known.Insert(g.Name)
	}
	var errs field.ErrorList
	for i, g := range gates {
		if !known.Has(g.Name) {
			errs = append(errs, field.Forbidden(path.Index(i).Child("name"), fmt.Sprintf("only deletion is allowed, but found new scheduling gate '%s'", g.Name)))
		}
	}
	return errs
}

// validateAddedTolerations lets tolerations be added, and the time of old ones change.
func validateAddedTolerations(tolerations, old []corev1.Toleration, path *field.Path) field.ErrorList {
	for _, was := range old {
		was.TolerationSeconds = nil
		kept := false
		for _, is := range tolerations {
			is.TolerationSeconds = nil
			if is == was {
				kept = true
				break
			}
		}
		if !kept {
			return field.ErrorList{field.Forbidden(path, "existing toleration can not be modified except its tolerationSeconds")}
		}
	}
	return ValidateTolerations(path, tolerations)
}

// validateGatedUpdate: while gates hold a pod back, where it may run can be
// narrowed (KEP-3838).
func validateGatedUpdate(s, old *corev1.PodSpec, path *field.Path) field.ErrorList {
	errs := validate.Labels(path.Child("nodeSelector"), s.NodeSelector)
	for _, key := range validate.SortedKeys(old.NodeSelector) {
		if v, kept := s.NodeSelector[key]; !kept || v != old.NodeSelector[key] {
			errs = append(errs, field.Invalid(path.Child("nodeSelector"), s.NodeSelector, "only additions to spec.nodeSelector are allowed (no mutations or deletions)"))
			break
		}
	}
	errs = append(errs, validateAffinity(s.Affinity, path.Child("affinity"))...)
	is, was := s.Affinity.DeepCopy(), old.Affinity.DeepCopy()
	at := path.Child("affinity", "nodeAffinity")
	errs = append(errs, validateNarrowedTerms(requiredTerms(is), requiredTerms(was), at.Child(whileScheduling))...)
	dropNodeAffinity(is)
	dropNodeAffinity(was)
	if !apiequality.Semantic.DeepEqual(emptyIfNil(is), emptyIfNil(was)) {
		errs = append(errs, field.Invalid(path.Child("affinity"), s.Affinity, "field is immutable"))
	}
	return errs
}

func requiredTerms(a *corev1.Affinity) []corev1.NodeSelectorTerm {
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	return a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
}

// validateNarrowedTerms: terms stay as many, each with requirements added at most.
func validateNarrowedTerms(terms, old []corev1.NodeSelectorTerm, path *field.Path) field.ErrorList {
	if len(old) == 0 {
		return nil
	}
	at := path.Child("nodeSelectorTerms")
	if len(terms) != len(old) {
		return field.ErrorList{field.Invalid(at, terms, "no additions/deletions to non-empty NodeSelectorTerms list are allowed")}
	}
	isPrefix := func(long, short []corev1.NodeSelectorRequirement) bool {
		return len(long) >= len(short) && apiequality.Semantic.DeepEqual(long[:len(short)], short)
	}
	var errs field.ErrorList
	for i := range terms {
		wasEmpty := len(old[i].MatchExpressions) == 0 && len(old[i].MatchFields) == 0
		isEmpty := len(terms[i].MatchExpressions) == 0 && len(terms[i].MatchFields) == 0
		if wasEmpty != isEmpty || !isPrefix(terms[i].MatchExpressions, old[i].MatchExpressions) || !isPrefix(terms[i].MatchFields, old[i].MatchFields) {
			errs = append(errs, field.Invalid(at.Index(i), terms[i], "only additions are allowed (no mutations or deletions)"))
		}
	}
	return errs
}

func dropNodeAffinity(a *corev1.Affinity) {
	if a != nil {
		a.NodeAffinity = nil
	}
}

func emptyIfNil(a *corev1.Affinity) corev1.Affinity {
	if a == nil {
		return corev1.Affinity{}
	}
	return *a
}

func validateEphemeralContainersUpdate(p, old *corev1.Pod) field.ErrorList {
	path := field.NewPath("spec", "ephemeralContainers")
	if _, static := p.Annotations[corev1.MirrorPodAnnotationKey]; static {
		return field.ErrorList{field.Forbidden(field.NewPath(""), "static pods do not support ephemeral containers")}
	}
	volumes, _ := validateVolumes(p.Spec.Volumes, p.Name, true, field.NewPath("spec", "volumes"))
	errs := validateEphemeralContainers(&podContext{spec: &p.Spec, volumes: volumes, isPod: true}, path)
	is := map[string]corev1.EphemeralContainer{}
	for _, c := range p.Spec.EphemeralContainers {
		is[c.Name] = c
	}
	for _, was := range old.Spec.EphemeralContainers {
		if c, kept := is[was.Name]; !kept {
			errs = append(errs, field.Forbidden(path, fmt.Sprintf("existing ephemeral containers %q may not be removed\n", was.Name)))
		} else if !apiequality.Semantic.DeepEqual(c, was) {
			errs = append(errs, field.Forbidden(path, fmt.Sprintf("existing ephemeral containers %q may not be changed\n%v", was.Name, diff.Diff(validate.Hub(was), validate.Hub(c)))))
		}
	}
	return errs
}

// validateResizeUpdate lets cpu and memory change, and nothing that would move
// the pod to another class of service (KEP-1287).
func validateResizeUpdate(p, old *corev1.Pod) field.ErrorList {
	spec := field.NewPath("spec")
	if _, static := old.Annotations[corev1.MirrorPodAnnotationKey]; static {
		return field.ErrorList{field.Forbidden(field.NewPath(""), "static pods cannot be resized")}
	}
	if old.Spec.OS != nil && old.Spec.OS.Name == corev1.Windows {
		return field.ErrorList{field.Forbidden(field.NewPath(""), "windows pods cannot be resized")}
	}
	errs := validatePodAnnotations(p.Annotations, &p.Spec, metadataAnnotations)
	errs = append(errs, validatePodSpec(&p.Spec, p.Name, true, spec)...)
	if QOSClass(p) != qosClassOf(old) {
		errs = append(errs, field.Invalid(spec, p.Status.QOSClass, "Pod QOS Class may not change as a result of resizing"))
	}
	if !resizable(old) {
		errs = append(errs, field.Forbidden(spec, "Pod running on node without support for resize"))
	}
	errs = append(errs, validatePodLevelResize(p.Spec.Resources, old.Spec.Resources, spec)...)
	if len(old.Status.NodeAllocatableResourceClaimStatuses) > 0 {
		errs = append(errs, field.Forbidden(spec, "pods with node allocatable resource claims cannot be resized"))
	}
	if moved := validateOrder(&p.Spec, &old.Spec, spec); len(moved) > 0 {
		return append(errs, moved...)
	}
	errs = append(errs, validateKept(p.Spec.InitContainers, old.Spec.InitContainers, spec.Child("initContainers"))...)
	errs = append(errs, validateKept(p.Spec.Containers, old.Spec.Containers, spec.Child("containers"))...)
	for i := range p.Spec.Containers {
		if !onlyComputable(&p.Spec.Containers[i], &old.Spec.Containers[i]) {
			errs = append(errs, field.Forbidden(spec, "only cpu and memory resources are mutable"))
		}
	}
	for i := range p.Spec.InitContainers {
		errs = append(errs, validateInitResize(&p.Spec.InitContainers[i], &old.Spec.InitContainers[i], spec, i)...)
	}
	if len(errs) == 0 && (p.Spec.Resources == nil) != (old.Spec.Resources == nil) && !podresource.IsPodLevelResourcesSet(p) {
		errs = append(errs, field.Forbidden(spec, "only cpu and memory resources are mutable"))
	}
	return errs
}

// qosClassOf is the class that a pod was made with.
func qosClassOf(p *corev1.Pod) corev1.PodQOSClass {
	if p.Status.QOSClass != "" {
		return p.Status.QOSClass
	}
	return QOSClass(p)
}

// resizable says that the node of a running pod tells what its containers have.
func resizable(p *corev1.Pod) bool {
	for i := range p.Status.ContainerStatuses {
		if s := &p.Status.ContainerStatuses[i]; s.State.Running != nil {
			return s.Resources != nil
		}
	}
	return true
}

// validatePodLevelResize lets the cpu and memory of the pod as a whole change.
func validatePodLevelResize(is, was *corev1.ResourceRequirements, spec *field.Path) field.ErrorList {
	set := func(r *corev1.ResourceRequirements) bool { return r != nil && len(r.Requests)+len(r.Limits) > 0 }
	if !set(is) && !set(was) {
		return nil
	}
	at := spec.Child("resources")
	if is == nil {
		return field.ErrorList{field.Forbidden(at, "pod-level resources cannot be removed")}
	}
	var errs field.ErrorList
	before := corev1.ResourceRequirements{}
	if was != nil {
		before = *was
	}
	if lacks(is.Requests, before.Requests) {
		errs = append(errs, field.Forbidden(at.Child("requests"), "pod-level resource requests cannot be removed"))
	}
	if lacks(is.Limits, before.Limits) {
		errs = append(errs, field.Forbidden(at.Child("limits"), "pod-level resource limits cannot be removed"))
	}
	munged := is.DeepCopy()
	restoreComputable(munged, before)
	if !apiequality.Semantic.DeepEqual(*munged, before) {
		errs = append(errs, field.Forbidden(spec, "only cpu and memory resources are mutable at pod-level"))
	}
	return errs
}

// validateOrder wants the same containers in the same order.
func validateOrder(is, was *corev1.PodSpec, spec *field.Path) field.ErrorList {
	var errs field.ErrorList
	compare := func(is, was []corev1.Container, kind string) {
		if len(is) != len(was) {
			errs = append(errs, field.Forbidden(spec.Child(kind), kind+" may not be added or removed on resize"))
			return
		}
		for i := range was {
			if is[i].Name != was[i].Name {
				errs = append(errs, field.Forbidden(spec.Child(kind).Index(i).Child("name"), kind+" may not be renamed or reordered on resize"))
			}
		}
	}
	compare(is.Containers, was.Containers, "containers")
	compare(is.InitContainers, was.InitContainers, "initContainers")
	return errs
}

func validateKept(is, was []corev1.Container, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range was {
		at := path.Index(i).Child("resources")
		if lacks(is[i].Resources.Requests, was[i].Resources.Requests) {
			errs = append(errs, field.Forbidden(at.Child("requests"), "resource requests cannot be removed"))
		}
		if lacks(is[i].Resources.Limits, was[i].Resources.Limits) {
			errs = append(errs, field.Forbidden(at.Child("limits"), "resource limits cannot be removed"))
		}
	}
	return errs
}

// lacks says that a resource is no longer there.
func lacks(is, was corev1.ResourceList) bool {
	for name := range was {
		if _, ok := is[name]; !ok {
			return true
		}
	}
	return false
}

// onlyComputable says that containers differ in nothing but cpu and memory.
func onlyComputable(is, was *corev1.Container) bool {
	munged := is.DeepCopy()
	restoreComputable(&munged.Resources, was.Resources)
	return apiequality.Semantic.DeepEqual(munged, was)
}

// validateInitResize: one that runs once cannot be restarted for a resize.
func validateInitResize(is, was *corev1.Container, spec *field.Path, i int) field.ErrorList {
	var errs field.ErrorList
	at := spec.Child("initContainers").Index(i)
	if !onlyComputable(is, was) {
		errs = append(errs, field.Forbidden(at, "only cpu and memory resources for init or sidecar containers are mutable"))
	}
	sidecar := is.RestartPolicy != nil && *is.RestartPolicy == corev1.ContainerRestartPolicyAlways
	if sidecar || apiequality.Semantic.DeepEqual(is, was) {
		return errs
	}
	for _, policy := range is.ResizePolicy {
		if policy.RestartPolicy == corev1.RestartContainer {
			errs = append(errs, field.Forbidden(at, "non-sidecar init containers with a resize policy of RestartContainer cannot be resized"))
		}
	}
	return errs
}

// restoreComputable sets cpu and memory back to what they were.
func restoreComputable(is *corev1.ResourceRequirements, was corev1.ResourceRequirements) {
	restore := func(is, was corev1.ResourceList) corev1.ResourceList {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			if q, had := was[name]; had {
				if is == nil {
					is = corev1.ResourceList{}
				}
				is[name] = q
			} else {
				delete(is, name)
			}
		}
		return is
	}
	is.Limits, is.Requests = restore(is.Limits, was.Limits), restore(is.Requests, was.Requests)
}
