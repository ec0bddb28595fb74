package core

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis/validate"
)

// Bounds of Windows options, as Active Directory has them.
const (
	maxCredentialSpec = 64 * 1024
	maxUserDomain     = 256
	maxUserName       = 104
	badInUserName     = `"/\:;|=,+*?<>@[]`
)

var (
	netBIOSName    = regexp.MustCompile(`^[^\\/:\*\?"<>|\.][^\\/:\*\?"<>|]{0,14}$`)
	windowsDNSName = regexp.MustCompile(`^[a-zA-Z0-9][-a-zA-Z0-9]*(\.[a-zA-Z0-9][-a-zA-Z0-9]*)+$`)
)

func validateWindowsOptions(o *corev1.WindowsSecurityContextOptions, at *field.Path) field.ErrorList {
	if o == nil {
		return nil
	}
	var errs field.ErrorList
	if o.GMSACredentialSpecName != nil {
		errs = append(errs, validate.Subdomain(at.Child("gmsaCredentialSpecName"), *o.GMSACredentialSpecName)...)
	}
	if spec := o.GMSACredentialSpec; spec != nil {
		switch {
		case len(*spec) == 0:
			errs = append(errs, field.Invalid(at.Child("gmsaCredentialSpec"), *spec, "gmsaCredentialSpec cannot be an empty string"))
		case len(*spec) > maxCredentialSpec:
			errs = append(errs, field.Invalid(at.Child("gmsaCredentialSpec"), *spec, fmt.Sprintf("gmsaCredentialSpec size must be under %d KiB", maxCredentialSpec/1024)))
		}
	}
	if o.RunAsUserName != nil {
		errs = append(errs, validateUserName(*o.RunAsUserName, at.Child("runAsUserName"))...)
	}
	return errs
}

// validateUserName wants DOMAIN\USER, or USER alone.
func validateUserName(name string, at *field.Path) field.ErrorList {
	invalid := func(why string) field.ErrorList { return field.ErrorList{field.Invalid(at, name, why)} }
	switch {
	case name == "":
		return invalid("runAsUserName cannot be an empty string")
	case strings.ContainsFunc(name, unicode.IsControl):
		return invalid("runAsUserName cannot contain control characters")
	case strings.Count(name, `\`) > 1:
		return invalid("runAsUserName cannot contain more than one backslash")
	}
	domain, user, qualified := strings.Cut(name, `\`)
	if !qualified {
		domain, user = "", name
	}
	var errs field.ErrorList
	if qualified {
		if len(domain) >= maxUserDomain {
			errs = append(errs, invalid(fmt.Sprintf("runAsUserName's Domain length must be under %d characters", maxUserDomain))...)
		}
		if !netBIOSName.MatchString(domain) && !windowsDNSName.MatchString(domain) {
			errs = append(errs, invalid("runAsUserName's Domain doesn't match the NetBios nor the DNS format")...)
		}
	}
	switch {
	case user == "":
		errs = append(errs, invalid("runAsUserName's User cannot be empty")...)
	case len(user) > maxUserName:
		errs = append(errs, invalid(fmt.Sprintf("runAsUserName's User length must not be longer than %d characters", maxUserName))...)
	}
	if user != "" && strings.Trim(user, ". ") == "" {
		errs = append(errs, invalid("runAsUserName's User cannot contain only periods or spaces")...)
	}
	if strings.ContainsAny(user, badInUserName) {
		errs = append(errs, invalid("runAsUserName's User cannot contain the following characters: "+badInUserName)...)
	}
	return errs
}

// validateHostProcess: containers of a pod are all processes of the host, in its
// network, or none is (KEP-1981).
func validateHostProcess(s *corev1.PodSpec, at *field.Path) field.ErrorList {
	var ofPod *bool
	if s.SecurityContext != nil && s.SecurityContext.WindowsOptions != nil {
		ofPod = s.SecurityContext.WindowsOptions.HostProcess
	}
	var errs field.ErrorList
	all, host := 0, 0
	eachContainerAt(s, at, func(c *corev1.Container, at *field.Path) {
		all++
		is := ofPod
		if c.SecurityContext != nil && c.SecurityContext.WindowsOptions != nil && c.SecurityContext.WindowsOptions.HostProcess != nil {
			is = c.SecurityContext.WindowsOptions.HostProcess
			if ofPod != nil && *ofPod != *is {
				errs = append(errs, field.Invalid(at.Child("securityContext", "windowsOptions", "hostProcess"), *is,
					fmt.Sprintf("pod hostProcess value must be identical if both are specified, was %v", *ofPod)))
			}
		}
		if is != nil && *is {
			host++
		}
	})
	if host == 0 {
		return errs
	}
	if host != all {
		errs = append(errs, field.Invalid(at, "", "If pod contains any hostProcess containers then all containers must be HostProcess containers"))
	}
	if !s.HostNetwork {
		errs = append(errs, field.Invalid(at.Child("hostNetwork"), s.HostNetwork, "hostNetwork must be true if pod contains any hostProcess containers"))
	}
	return errs
}

// eachContainerAt visits containers of every kind with their paths.
func eachContainerAt(s *corev1.PodSpec, at *field.Path, visit func(*corev1.Container, *field.Path)) {
	for i := range s.InitContainers {
		visit(&s.InitContainers[i], at.Child("initContainers").Index(i))
	}
	for i := range s.Containers {
		visit(&s.Containers[i], at.Child("containers").Index(i))
	}
	for i := range s.EphemeralContainers {
		c := corev1.Container(s.EphemeralContainers[i].EphemeralContainerCommon)
		visit(&c, at.Child("ephemeralContainers").Index(i))
	}
}

// validateOS: options of one operating system are no use on the other.
func validateOS(s *corev1.PodSpec, at *field.Path) field.ErrorList {
	if s.OS == nil {
		return nil
	}
	if s.OS.Name == "" {
		return field.ErrorList{field.Required(at.Child("os", "name"), "")}
	}
	switch s.OS.Name {
	case corev1.Linux:
		return validateLinuxPod(s, at)
	case corev1.Windows:
		return validateWindowsPod(s, at)
	}
	return validate.OneOf(at.Child("os"), s.OS.Name, corev1.Linux, corev1.Windows)
}

func validateLinuxPod(s *corev1.PodSpec, at *field.Path) field.ErrorList {
	const message = "windows options cannot be set for a linux pod"
	var errs field.ErrorList
	if sc := s.SecurityContext; sc != nil && sc.WindowsOptions != nil {
		errs = append(errs, field.Forbidden(at.Child("securityContext", "windowsOptions"), message))
	}
	eachContainerAt(s, at, func(c *corev1.Container, at *field.Path) {
		if c.SecurityContext != nil && c.SecurityContext.WindowsOptions != nil {
			errs = append(errs, field.Forbidden(at.Child("securityContext", "windowsOptions"), message))
		}
	})
	return errs
}

func validateWindowsPod(s *corev1.PodSpec, at *field.Path) field.ErrorList {
	const message = "cannot be set for a windows pod"
	var errs field.ErrorList
	forbid := func(set bool, at *field.Path) {
		if set {
			errs = append(errs, field.Forbidden(at, message))
		}
	}
	if sc, at := s.SecurityContext, at.Child("securityContext"); sc != nil {
		forbid(sc.AppArmorProfile != nil, at.Child("appArmorProfile"))
		forbid(sc.SELinuxOptions != nil, at.Child("seLinuxOptions"))
		forbid(sc.SeccompProfile != nil, at.Child("seccompProfile"))
		forbid(sc.FSGroup != nil, at.Child("fsGroup"))
		forbid(sc.FSGroupChangePolicy != nil, at.Child("fsGroupChangePolicy"))
		forbid(len(sc.Sysctls) > 0, at.Child("sysctls"))
		forbid(sc.RunAsUser != nil, at.Child("runAsUser"))
		forbid(sc.RunAsGroup != nil, at.Child("runAsGroup"))
		forbid(sc.SupplementalGroups != nil, at.Child("supplementalGroups"))
		forbid(sc.SupplementalGroupsPolicy != nil, at.Child("supplementalGroupsPolicy"))
		forbid(sc.SELinuxChangePolicy != nil, at.Child("seLinuxChangePolicy"))
	}
	forbid(s.HostUsers != nil, at.Child("hostUsers"))
	forbid(s.HostPID, at.Child("hostPID"))
	forbid(s.HostIPC, at.Child("hostIPC"))
	forbid(s.ShareProcessNamespace != nil, at.Child("shareProcessNamespace"))
	eachContainerAt(s, at, func(c *corev1.Container, at *field.Path) {
		sc, at := c.SecurityContext, at.Child("securityContext")
		if sc == nil {
			return
		}
		forbid(sc.AppArmorProfile != nil, at.Child("appArmorProfile"))
		forbid(sc.SELinuxOptions != nil, at.Child("seLinuxOptions"))
		forbid(sc.SeccompProfile != nil, at.Child("seccompProfile"))
		forbid(sc.Capabilities != nil, at.Child("capabilities"))
		forbid(sc.ReadOnlyRootFilesystem != nil, at.Child("readOnlyRootFilesystem"))
		forbid(sc.Privileged != nil, at.Child("privileged"))
		forbid(sc.AllowPrivilegeEscalation != nil, at.Child("allowPrivilegeEscalation"))
		forbid(sc.ProcMount != nil, at.Child("procMount"))
		forbid(sc.RunAsUser != nil, at.Child("runAsUser"))
		forbid(sc.RunAsGroup != nil, at.Child("runAsGroup"))
	})
	return errs
}
