package core

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis/validate"
)

const (
	maxSysctl          = 253
	sysctlPattern      = "([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
	maxAppArmorProfile = 4095
)

var sysctlName = regexp.MustCompile("^" + sysctlPattern + "$")

func isPrivileged(sc *corev1.SecurityContext) bool {
	return sc != nil && sc.Privileged != nil && *sc.Privileged
}

func validateUser(at *field.Path, id *int64) field.ErrorList {
	if id == nil {
		return nil
	}
	return validate.Invalid(at, *id, validation.IsValidUserID(*id))
}

func validateGroup(at *field.Path, id *int64) field.ErrorList {
	if id == nil {
		return nil
	}
	return validate.Invalid(at, *id, validation.IsValidGroupID(*id))
}

func validateSecurityContext(sc *corev1.SecurityContext, p *podContext, at *field.Path) field.ErrorList {
	if sc == nil {
		return nil
	}
	errs := validateUser(at.Child("runAsUser"), sc.RunAsUser)
	errs = append(errs, validateGroup(at.Child("runAsGroup"), sc.RunAsGroup)...)
	if m := sc.ProcMount; m != nil {
		errs = append(errs, validate.OneOf(at.Child("procMount"), *m, corev1.DefaultProcMount, corev1.UnmaskedProcMount)...)
		if *m == corev1.UnmaskedProcMount && !p.userNamespace() {
			errs = append(errs, field.Invalid(at.Child("procMount"), *m, "`hostUsers` must be false to use `Unmasked`"))
		}
	}
	errs = append(errs, validateSeccomp(sc.SeccompProfile, at.Child("seccompProfile"))...)
	if sc.AllowPrivilegeEscalation != nil && !*sc.AllowPrivilegeEscalation {
		if isPrivileged(sc) {
			errs = append(errs, field.Invalid(at, sc, "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"))
		}
		if sc.Capabilities != nil && slices.Contains(sc.Capabilities.Add, "CAP_SYS_ADMIN") {
			errs = append(errs, field.Invalid(at, sc, "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN"))
		}
	}
	errs = append(errs, validateWindowsOptions(sc.WindowsOptions, at.Child("windowsOptions"))...)
	return append(errs, validateAppArmor(sc.AppArmorProfile, at.Child("appArmorProfile"))...)
}

func validateSeccomp(p *corev1.SeccompProfile, at *field.Path) field.ErrorList {
	if p == nil {
		return nil
	}
	var errs field.ErrorList
	switch p.Type {
	case corev1.SeccompProfileTypeLocalhost:
		if p.LocalhostProfile == nil {
			errs = append(errs, field.Required(at.Child("localhostProfile"), "must be set when seccomp type is Localhost"))
		} else {
			errs = append(errs, validateDescendingPath(*p.LocalhostProfile, at.Child("localhostProfile"))...)
		}
		return errs
	case corev1.SeccompProfileTypeRuntimeDefault, corev1.SeccompProfileTypeUnconfined:
	case "":
		errs = append(errs, field.Required(at.Child("type"), "type is required when seccompProfile is set"))
	default:
		errs = append(errs, field.NotSupported(at.Child("type"), p.Type, []corev1.SeccompProfileType{
			corev1.SeccompProfileTypeLocalhost, corev1.SeccompProfileTypeRuntimeDefault, corev1.SeccompProfileTypeUnconfined}))
	}
	if p.LocalhostProfile != nil {
		errs = append(errs, field.Invalid(at.Child("localhostProfile"), p, "can only be set when seccomp type is Localhost"))
	}
	return errs
}

func validateAppArmor(p *corev1.AppArmorProfile, at *field.Path) field.ErrorList {
	if p == nil {
		return nil
	}
	local := at.Child("localhostProfile")
	switch p.Type {
	case corev1.AppArmorProfileTypeLocalhost:
		switch {
		case p.LocalhostProfile == nil || strings.TrimSpace(*p.LocalhostProfile) == "":
			return field.ErrorList{field.Required(local, "must be set when AppArmor type is Localhost")}
		case strings.TrimSpace(*p.LocalhostProfile) != *p.LocalhostProfile:
			return field.ErrorList{field.Invalid(local, *p.LocalhostProfile, "must not be padded with whitespace")}
		case len(*p.LocalhostProfile) > maxAppArmorProfile:
			return field.ErrorList{field.TooLong(local, "", maxAppArmorProfile)}
		}
	case corev1.AppArmorProfileTypeRuntimeDefault, corev1.AppArmorProfileTypeUnconfined:
		if p.LocalhostProfile != nil {
			return field.ErrorList{field.Invalid(local, p.LocalhostProfile, "can only be set when AppArmor type is Localhost")}
		}
	case "":
		return field.ErrorList{field.Required(at.Child("type"), "type is required when appArmorProfile is set")}
	default:
		return field.ErrorList{field.NotSupported(at.Child("type"), p.Type, []corev1.AppArmorProfileType{
			corev1.AppArmorProfileTypeLocalhost, corev1.AppArmorProfileTypeRuntimeDefault, corev1.AppArmorProfileTypeUnconfined})}
	}
	return nil
}

func validatePodSecurity(p *podContext, spec, at *field.Path) field.ErrorList {
	s := p.spec
	errs := validateHostNetwork(p, s.Containers, spec.Child("containers"))
	errs = append(errs, validateHostNetwork(p, s.InitContainers, spec.Child("initContainers"))...)
	if s.ShareProcessNamespace != nil && *s.ShareProcessNamespace && s.HostPID {
		errs = append(errs, field.Invalid(spec.Child("shareProcessNamespace"), *s.ShareProcessNamespace, "ShareProcessNamespace and HostPID cannot both be enabled"))
	}
	sc := s.SecurityContext
	if sc == nil {
		return errs
	}
	errs = append(errs, validateGroup(at.Child("fsGroup"), sc.FSGroup)...)
	errs = append(errs, validateUser(at.Child("runAsUser"), sc.RunAsUser)...)
	errs = append(errs, validateGroup(at.Child("runAsGroup"), sc.RunAsGroup)...)
	for i := range sc.SupplementalGroups {
		errs = append(errs, validateGroup(at.Child("supplementalGroups").Index(i), &sc.SupplementalGroups[i])...)
	}
	errs = append(errs, validateSysctls(sc.Sysctls, s, at.Child("sysctls"))...)
	if v := sc.FSGroupChangePolicy; v != nil {
		errs = append(errs, validate.OneOf(at.Child("fsGroupChangePolicy"), *v, corev1.FSGroupChangeAlways, corev1.FSGroupChangeOnRootMismatch)...)
	}
	if v := sc.SupplementalGroupsPolicy; v != nil {
		errs = append(errs, validate.OneOf(at.Child("supplementalGroupsPolicy"), *v, corev1.SupplementalGroupsPolicyMerge, corev1.SupplementalGroupsPolicyStrict)...)
	}
	if v := sc.SELinuxChangePolicy; v != nil {
		errs = append(errs, validate.OneOf(at.Child("seLinuxChangePolicy"), *v, corev1.SELinuxChangePolicyMountOption, corev1.SELinuxChangePolicyRecursive)...)
	}
	errs = append(errs, validateSeccomp(sc.SeccompProfile, at.Child("seccompProfile"))...)
	errs = append(errs, validateWindowsOptions(sc.WindowsOptions, at.Child("windowsOptions"))...)
	return append(errs, validateAppArmor(sc.AppArmorProfile, at.Child("appArmorProfile"))...)
}

// validateHostNetwork: ports of pods in the host's network are the host's. In a
// template a host port may still be absent.
func validateHostNetwork(p *podContext, containers []corev1.Container, at *field.Path) field.ErrorList {
	if !p.spec.HostNetwork {
		return nil
	}
	var errs field.ErrorList
	for i, c := range containers {
		for j, port := range c.Ports {
			if (p.isPod || port.HostPort != 0) && port.HostPort != port.ContainerPort {
				errs = append(errs, field.Invalid(at.Index(i).Child("ports").Index(j).Child("hostPort"), port.HostPort, "must match `containerPort` when `hostNetwork` is true"))
			}
		}
	}
	return errs
}

func validateSysctls(sysctls []corev1.Sysctl, s *corev1.PodSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[string]()
	for i, sysctl := range sysctls {
		name := at.Index(i).Child("name")
		switch dotted := strings.ReplaceAll(sysctl.Name, "/", "."); {
		case sysctl.Name == "":
			errs = append(errs, field.Required(name, ""))
		case len(sysctl.Name) > maxSysctl || !sysctlName.MatchString(sysctl.Name):
			errs = append(errs, field.Invalid(name, sysctl.Name, fmt.Sprintf("must have at most %d characters and match regex %s", maxSysctl, "^"+sysctlPattern+"$")))
		case seen.Has(sysctl.Name):
			errs = append(errs, field.Duplicate(name, sysctl.Name))
		case s.HostNetwork && strings.HasPrefix(dotted, "net."):
			errs = append(errs, field.Invalid(name, sysctl.Name, "may not be specified when 'hostNetwork' is true"))
		case s.HostIPC && (strings.HasPrefix(dotted, "kernel.shm") || strings.HasPrefix(dotted, "kernel.msg") || dotted == "kernel.sem" || strings.HasPrefix(dotted, "fs.mqueue.")):
			errs = append(errs, field.Invalid(name, sysctl.Name, "may not be specified when 'hostIPC' is true"))
		}
		seen.Insert(sysctl.Name)
	}
	return errs
}

func validateHostUsers(s *corev1.PodSpec, at *field.Path) field.ErrorList {
	if s.HostUsers == nil || *s.HostUsers {
		return nil
	}
	var errs field.ErrorList
	forbid := func(set bool, at *field.Path) {
		if set {
			errs = append(errs, field.Forbidden(at, "when `hostUsers` is false"))
		}
	}
	forbid(s.HostNetwork, at.Child("hostNetwork"))
	forbid(s.HostPID, at.Child("hostPID"))
	forbid(s.HostIPC, at.Child("hostIPC"))
	for i, c := range s.Containers {
		forbid(len(c.VolumeDevices) > 0, at.Child("containers").Index(i).Child("volumeDevices"))
	}
	return errs
}
