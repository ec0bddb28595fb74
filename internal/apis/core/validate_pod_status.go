package core

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	"proa/internal/apis/validate"
)

// validatePodStatusUpdate holds what nodes and controllers say of a pod to what the
// pod asks for, and to what they said before.
func validatePodStatusUpdate(p, old *corev1.Pod) field.ErrorList {
	path, s, was := field.NewPath("status"), &p.Status, &old.Status
	errs := validatePodAnnotationsUpdate(p, old, metadataAnnotations)
	errs = append(errs, validatePodConditions(s.Conditions, path.Child("conditions"))...)
	errs = append(errs, validateNomination(p, old, path.Child("nominatedNodeName"))...)
	errs = append(errs, validateGenerationSeen(s.ObservedGeneration, path)...)
	errs = append(errs, validate.Immutable(path.Child("qosClass"), s.QOSClass, was.QOSClass)...)
	errs = append(errs, validateTransitions(s.ContainerStatuses, was.ContainerStatuses, old.Spec.Containers, &old.Spec, path.Child("containerStatuses"))...)
	errs = append(errs, validateTransitions(s.InitContainerStatuses, was.InitContainerStatuses, old.Spec.InitContainers, &old.Spec, path.Child("initContainerStatuses"))...)
	errs = append(errs, validateEphemeralTransitions(s.EphemeralContainerStatuses, was.EphemeralContainerStatuses, path.Child("ephemeralContainerStatuses"))...)
	errs = append(errs, validateClaimStatuses(p, path)...)
	errs = append(errs, validatePodIPs(s, was, path.Child("podIPs"))...)
	errs = append(errs, validateHostIPs(s, was, path.Child("hostIPs"))...)
	for _, list := range [...]struct {
		name     string
		statuses []corev1.ContainerStatus
	}{
		{"containerStatuses", s.ContainerStatuses}, {"initContainerStatuses", s.InitContainerStatuses}, {"ephemeralContainerStatuses", s.EphemeralContainerStatuses},
	} {
		errs = append(errs, validateContainerUsers(list.statuses, p.Spec.OS, path.Child(list.name))...)
		errs = append(errs, validateMountedImages(list.statuses, path.Child(list.name))...)
	}
	errs = append(errs, validateResourceHealth(s.ContainerStatuses, p.Spec.Containers, path.Child("containerStatuses"))...)
	errs = append(errs, validateResourceHealth(s.InitContainerStatuses, p.Spec.InitContainers, path.Child("initContainerStatuses"))...)
	for i := range s.EphemeralContainerStatuses {
		if len(s.EphemeralContainerStatuses[i].AllocatedResourcesStatus) > 0 {
			at := path.Child("ephemeralContainerStatuses").Index(i).Child("allocatedResourcesStatus")
			errs = append(errs, field.Forbidden(at, "must not be specified in container status"))
		}
	}
	return errs
}

func validatePodConditions(conditions []corev1.PodCondition, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, c := range conditions {
		errs = append(errs, validateGenerationSeen(c.ObservedGeneration, path.Index(i))...)
		errs = append(errs, validate.QualifiedName(path.Index(i).Child("Type"), string(c.Type))...)
	}
	return errs
}

func validateGenerationSeen(n int64, path *field.Path) field.ErrorList {
	if n >= 0 {
		return nil
	}
	return field.ErrorList{field.Invalid(path.Child("observedGeneration"), n, "must be a non-negative integer")}
}

func validateNomination(p, old *corev1.Pod, path *field.Path) field.ErrorList {
	name := p.Status.NominatedNodeName
	if name == "" || name == old.Status.NominatedNodeName {
		return nil
	}
	errs := validate.NodeName(path, name)
	if old.Spec.NodeName != "" {
		errs = append(errs, field.Forbidden(path, "may not be set on pods that are already bound to a node"))
	}
	return errs
}

// validatePodIPs wants one address of a family. Those that are there may stay,
// however they are written.
func validatePodIPs(s, was *corev1.PodStatus, path *field.Path) field.ErrorList {
	ips, known := make([]string, len(s.PodIPs)), make([]string, len(was.PodIPs))
	for i := range s.PodIPs {
		ips[i] = s.PodIPs[i].IP
	}
	for i := range was.PodIPs {
		known[i] = was.PodIPs[i].IP
	}
	return validateFamilies(ips, known, s.PodIPs, path)
}

func validateHostIPs(s, was *corev1.PodStatus, path *field.Path) field.ErrorList {
	if len(s.HostIPs) == 0 {
		return nil
	}
	var errs field.ErrorList
	if first := s.HostIPs[0].IP; first != s.HostIP {
		errs = append(errs, field.Invalid(path.Index(0).Child("ip"), first, "must be equal to `hostIP`"))
	}
	ips, known := make([]string, len(s.HostIPs)), make([]string, len(was.HostIPs))
	for i := range s.HostIPs {
		ips[i] = s.HostIPs[i].IP
	}
	for i := range was.HostIPs {
		known[i] = was.HostIPs[i].IP
	}
	return append(errs, validateFamilies(ips, known, s.HostIPs, path)...)
}

func validateFamilies(ips, known []string, shown any, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, ip := range ips {
		errs = append(errs, validation.IsValidIPForLegacyField(path.Index(i), ip, true, known)...)
	}
	if len(ips) <= 1 {
		return errs
	}
	dual, err := netutils.IsDualStackIPStrings(ips)
	if err != nil {
		errs = append(errs, field.InternalError(path, fmt.Errorf("failed to check for dual stack with error:%v", err)))
	}
	if !dual || len(ips) > 2 {
		errs = append(errs, field.Invalid(path, shown, "may specify no more than one IP for each IP family"))
	}
	return errs
}

func validateContainerUsers(statuses []corev1.ContainerStatus, os *corev1.PodOS, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range statuses {
		user, at := statuses[i].User, path.Index(i).Child("user", "linux")
		switch {
		case user == nil || user.Linux == nil:
		case os == nil || os.Name == corev1.Linux:
			errs = append(errs, validateLinuxUser(user.Linux, at)...)
		case os.Name == corev1.Windows:
			errs = append(errs, field.Forbidden(at, "cannot be set for a windows pod"))
		}
	}
	return errs
}

func validateLinuxUser(u *corev1.LinuxContainerUser, path *field.Path) field.ErrorList {
	errs := validate.Invalid(path.Child("uid"), u.UID, validation.IsValidUserID(u.UID))
	errs = append(errs, validate.Invalid(path.Child("gid"), u.GID, validation.IsValidGroupID(u.GID))...)
	for i, gid := range u.SupplementalGroups {
		errs = append(errs, validate.Invalid(path.Child("supplementalGroups").Index(i), gid, validation.IsValidGroupID(gid))...)
	}
	return errs
}

// maxImageRef is how long the digest of a mounted image may be.
const maxImageRef = 256

func validateMountedImages(statuses []corev1.ContainerStatus, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range statuses {
		for j, m := range statuses[i].VolumeMounts {
			if m.VolumeStatus == nil || m.VolumeStatus.Image == nil {
				continue
			}
			ref, at := m.VolumeStatus.Image.ImageRef, path.Index(i).Child("volumeMounts").Index(j).Child("volumeStatus", "imageVolumeStatus", "imageRef")
			switch {
			case ref == "":
				errs = append(errs, field.Required(at, "imageRef must not be empty"))
			case len(ref) > maxImageRef:
				errs = append(errs, field.TooLong(at, ref, maxImageRef))
			}
		}
	}
	return errs
}

// validateResourceHealth: what is said of a container's devices is of those it asked
// for. A status of no container of the pod is let be.
func validateResourceHealth(statuses []corev1.ContainerStatus, containers []corev1.Container, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range statuses {
		c := containerNamed(containers, statuses[i].Name)
		for j, r := range statuses[i].AllocatedResourcesStatus {
			at := path.Index(i).Child("allocatedResourcesStatus").Index(j)
			if c != nil {
				errs = append(errs, validateAskedFor(c, r.Name, at.Child("name"))...)
			}
			errs = append(errs, validateHealth(r.Resources, at.Child("resources"))...)
		}
	}
	return errs
}

func containerNamed(containers []corev1.Container, name string) *corev1.Container {
	for i := range containers {
		if containers[i].Name == name {
			return &containers[i]
		}
	}
	return nil
}

func validateAskedFor(c *corev1.Container, name corev1.ResourceName, path *field.Path) field.ErrorList {
	const claim = "claim:"
	if !strings.HasPrefix(string(name), claim) {
		if _, asked := c.Resources.Requests[name]; asked {
			return nil
		}
		return field.ErrorList{field.Invalid(path, name, "must match one of the container's resource requests")}
	}
	for _, r := range c.Resources.Claims {
		known := claim + r.Name
		if r.Request != "" {
			known += "/" + r.Request
		}
		if string(name) == known {
			return nil
		}
	}
	return field.ErrorList{field.Invalid(path, name, "must match one of the container's resource claims in a format 'claim:<claimName>/<request>' or 'claim:<claimName>' if request is empty")}
}

func validateHealth(list []corev1.ResourceHealth, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[corev1.ResourceID]()
	for i, r := range list {
		at := path.Index(i)
		errs = append(errs, validate.OneOf(at.Child("health"), r.Health,
			corev1.ResourceHealthStatusHealthy, corev1.ResourceHealthStatusUnhealthy, corev1.ResourceHealthStatusUnknown)...)
		if m := r.Message; m != nil && *m == "" {
			errs = append(errs, field.Required(at.Child("message"), "must be non-empty if specified"))
		} else if m != nil && len(*m) > corev1.ResourceHealthMessageMaxLength {
			errs = append(errs, field.TooLong(at.Child("message"), *m, corev1.ResourceHealthMessageMaxLength))
		}
		if seen.Has(r.ResourceID) {
			errs = append(errs, field.Duplicate(at.Child("resourceID"), r.ResourceID))
		}
		seen.Insert(r.ResourceID)
	}
	return errs
}

// validateClaimStatuses: the claims that were made for a pod are those it asks for.
func validateClaimStatuses(p *corev1.Pod, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	asked, seen := sets.New[string](), sets.New[string]()
	for _, c := range p.Spec.ResourceClaims {
		asked.Insert(c.Name)
	}
	for i, s := range p.Status.ResourceClaimStatuses {
		at := path.Child("resourceClaimStatuses").Index(i)
		if !asked.Has(s.Name) {
			errs = append(errs, field.Invalid(at.Child("name"), s.Name, "must match the name of an entry in `spec.resourceClaims`"))
		}
		if seen.Has(s.Name) {
			errs = append(errs, field.Duplicate(at.Child("name"), s.Name))
		}
		seen.Insert(s.Name)
		if name := s.ResourceClaimName; name != nil {
			errs = append(errs, validate.Invalid(at.Child("resourceClaimName"), *name, apivalidation.NameIsDNSSubdomain(*name, false))...)
		}
	}
	if s := p.Status.ExtendedResourceClaimStatus; s != nil {
		errs = append(errs, validateExtendedClaim(s, &p.Spec, path.Child("extendedResourceClaimStatus"))...)
	}
	return errs
}

// validateExtendedClaim: the claim that stands for extended resources says which of
// its requests is for which container.
func validateExtendedClaim(s *corev1.PodExtendedResourceClaimStatus, spec *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	mappings := path.Child("requestMappings")
	if len(s.RequestMappings) == 0 {
		errs = append(errs, field.Required(mappings, "at least one request mapping is required"))
	}
	seen := sets.New[corev1.ContainerExtendedResourceRequest]()
	for i, m := range s.RequestMappings {
		at := mappings.Index(i)
		c := containerNamed(spec.Containers, m.ContainerName)
		if c == nil {
			c = containerNamed(spec.InitContainers, m.ContainerName)
		}
		if c == nil {
			errs = append(errs, field.Invalid(at.Child("containerName"), m.ContainerName, "must match the name of an entry in spec.initContainers.name or spec.containers.name"))
		} else if _, asked := c.Resources.Requests[corev1.ResourceName(m.ResourceName)]; !asked {
			errs = append(errs, field.Invalid(at.Child("resourceName"), m.ResourceName, "must match the extended resource name of an entry in spec.initContainers.resources.requests or spec.containers.resources.requests"))
		}
		errs = append(errs, validate.Label(path.Child("requestName"), m.RequestName)...)
		if seen.Has(m) {
			errs = append(errs, field.Duplicate(at.Child("containerName"), m.ContainerName),
				field.Duplicate(at.Child("resourceName"), m.ResourceName), field.Duplicate(at.Child("requestName"), m.RequestName))
		}
		seen.Insert(m)
	}
	name := path.Child("resourceClaimName")
	if s.ResourceClaimName == "" {
		return append(errs, field.Required(name, ""))
	}
	return append(errs, validate.Invalid(name, s.ResourceClaimName, apivalidation.NameIsDNSSubdomain(s.ResourceClaimName, false))...)
}
