package core

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis/validate"
)

var (
	protocols                     = []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}
	pullPolicies                  = []corev1.PullPolicy{corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever}
	maxRestartRules, maxExitCodes = 20, 255
)

// podContext is what rules about a container need to know of its pod.
type podContext struct {
	spec    *corev1.PodSpec
	volumes map[string]corev1.VolumeSource // the valid ones
	claims  sets.Set[string]               // names of resource claims
	isPod   bool                           // not a template
}

// userNamespace says that the pod's users are not the host's.
func (p *podContext) userNamespace() bool { return p.spec.HostUsers != nil && !*p.spec.HostUsers }

func (p *podContext) grace() int64 {
	switch g := p.spec.TerminationGracePeriodSeconds; {
	case g == nil:
		return 0
	case *g < 0:
		return 1
	default:
		return *g
	}
}

func validateContainers(p *podContext, path *field.Path) field.ErrorList {
	containers := p.spec.Containers
	if len(containers) == 0 {
		return field.ErrorList{field.Required(path, "")}
	}
	var errs field.ErrorList
	names := sets.New[string]()
	for i := range containers {
		c, at := &containers[i], path.Index(i)
		errs = append(errs, validateContainer(c, p, at)...)
		if names.Has(c.Name) {
			errs = append(errs, field.Duplicate(at.Child("name"), c.Name))
		}
		names.Insert(c.Name)
		errs = append(errs, validateRunning(c, p, at)...)
		errs = append(errs, validateContainerRestart(c, at)...)
	}
	return append(errs, validateHostPortConflicts(containers, path)...)
}

func validateInitContainers(p *podContext, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	names := sets.New[string]()
	for _, c := range p.spec.Containers {
		names.Insert(c.Name)
	}
	for i := range p.spec.InitContainers {
		c, at := &p.spec.InitContainers[i], path.Index(i)
		errs = append(errs, validateContainer(c, p, at)...)
		if c.Name != "" && names.Has(c.Name) {
			errs = append(errs, field.Duplicate(at.Child("name"), c.Name))
		}
		names.Insert(c.Name)
		errs = append(errs, validateHostPortConflicts([]corev1.Container{*c}, path)...)
		errs = append(errs, validateContainerRestart(c, at)...)
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			errs = append(errs, validateRunning(c, p, at)...)
			continue
		}
		const sidecarOnly = "may not be set for init containers without restartPolicy=Always"
		for name, set := range validate.Sorted(map[string]bool{
			"lifecycle": c.Lifecycle != nil, "livenessProbe": c.LivenessProbe != nil,
			"readinessProbe": c.ReadinessProbe != nil, "startupProbe": c.StartupProbe != nil,
		}) {
			if set {
				errs = append(errs, field.Forbidden(at.Child(name), sidecarOnly))
			}
		}
	}
	return errs
}

func validateEphemeralContainers(p *podContext, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	names, targets := sets.New[string](), sets.New[string]()
	for _, c := range p.spec.Containers {
		names.Insert(c.Name)
		targets.Insert(c.Name)
	}
	for _, c := range p.spec.InitContainers {
		names.Insert(c.Name)
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			targets.Insert(c.Name)
		}
	}
	for i := range p.spec.EphemeralContainers {
		ec, at := &p.spec.EphemeralContainers[i], path.Index(i)
		c := corev1.Container(ec.EphemeralContainerCommon)
		errs = append(errs, validateContainer(&c, p, at)...)
		if names.Has(c.Name) {
			errs = append(errs, field.Duplicate(at.Child("name"), c.Name))
		}
		names.Insert(c.Name)
		if ec.TargetContainerName != "" && !targets.Has(ec.TargetContainerName) {
			errs = append(errs, field.NotFound(at.Child("targetContainerName"), ec.TargetContainerName))
		}
		errs = append(errs, forbidInEphemeral(&c, at)...)
	}
	return errs
}

func forbidInEphemeral(c *corev1.Container, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	forbid := func(set bool, path *field.Path) {
		if set {
			errs = append(errs, field.Forbidden(path, "cannot be set for an Ephemeral Container"))
		}
	}
	forbid(len(c.Ports) > 0, path.Child("ports"))
	forbid(c.LivenessProbe != nil, path.Child("livenessProbe"))
	forbid(c.ReadinessProbe != nil, path.Child("readinessProbe"))
	forbid(c.StartupProbe != nil, path.Child("startupProbe"))
	forbid(c.Lifecycle != nil, path.Child("lifecycle"))
	forbid(len(c.Resources.Limits)+len(c.Resources.Requests)+len(c.Resources.Claims) > 0, path.Child("resources"))
	forbid(len(c.ResizePolicy) > 0, path.Child("resizePolicy"))
	forbid(c.RestartPolicy != nil, path.Child("restartPolicy"))
	forbid(len(c.RestartPolicyRules) > 0, path.Child("restartPolicyRules"))
	for i, m := range c.VolumeMounts {
		forbid(m.SubPath != "", path.Child("volumeMounts").Index(i).Child("subPath"))
		forbid(m.SubPathExpr != "", path.Child("volumeMounts").Index(i).Child("subPathExpr"))
	}
	return errs
}

// validateContainer checks what containers of every kind have in common.
func validateContainer(c *corev1.Container, p *podContext, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if c.Name == "" {
		errs = append(errs, field.Required(path.Child("name"), ""))
	} else {
		errs = append(errs, validate.Label(path.Child("name"), c.Name)...)
	}
	if c.Image == "" {
		errs = append(errs, field.Required(path.Child("image"), ""))
	}
	errs = append(errs, validate.RequiredListed(path.Child("terminationMessagePolicy"), c.TerminationMessagePolicy,
		corev1.TerminationMessageReadFile, corev1.TerminationMessageFallbackToLogsOnError)...)
	errs = append(errs, validatePorts(c.Ports, path.Child("ports"))...)
	errs = append(errs, validateEnv(c.Env, path.Child("env"))...)
	errs = append(errs, validateEnvFrom(c.EnvFrom, path.Child("envFrom"))...)
	errs = append(errs, validateMounts(c, p, path.Child("volumeMounts"))...)
	errs = append(errs, validateDevices(c, p, path.Child("volumeDevices"))...)
	errs = append(errs, validate.RequiredOneOf(path.Child("imagePullPolicy"), c.ImagePullPolicy, pullPolicies...)...)
	errs = append(errs, validateRequirements(&c.Resources, p.claims, path.Child("resources"))...)
	errs = append(errs, validateResizePolicy(c.ResizePolicy, p.spec.RestartPolicy, path.Child("resizePolicy"))...)
	return append(errs, validateSecurityContext(c.SecurityContext, p, path.Child("securityContext"))...)
}

// validateRunning checks what only containers have that run beside others.
func validateRunning(c *corev1.Container, p *podContext, path *field.Path) field.ErrorList {
	errs := validateLifecycle(c.Lifecycle, p, path.Child("lifecycle"))
	errs = append(errs, validateProbe(c.LivenessProbe, path.Child("livenessProbe"))...)
	errs = append(errs, onlyOneSuccess(c.LivenessProbe, path.Child("livenessProbe"))...)
	errs = append(errs, validateProbe(c.ReadinessProbe, path.Child("readinessProbe"))...)
	if r := c.ReadinessProbe; r != nil && r.TerminationGracePeriodSeconds != nil {
		errs = append(errs, field.Invalid(path.Child("readinessProbe", "terminationGracePeriodSeconds"), *r.TerminationGracePeriodSeconds, "must not be set for readinessProbes"))
	}
	errs = append(errs, validateProbe(c.StartupProbe, path.Child("startupProbe"))...)
	return append(errs, onlyOneSuccess(c.StartupProbe, path.Child("startupProbe"))...)
}

func onlyOneSuccess(p *corev1.Probe, path *field.Path) field.ErrorList {
	if p == nil || p.SuccessThreshold == 1 {
		return nil
	}
	return field.ErrorList{field.Invalid(path.Child("successThreshold"), p.SuccessThreshold, "must be 1")}
}

func validateProbe(p *corev1.Probe, path *field.Path) field.ErrorList {
	if p == nil {
		return nil
	}
	errs := validateHandler(handler{p.Exec, p.HTTPGet, p.TCPSocket, p.GRPC, nil}, 0, path)
	errs = append(errs, validate.NonNegative(path.Child("initialDelaySeconds"), p.InitialDelaySeconds)...)
	errs = append(errs, validate.NonNegative(path.Child("timeoutSeconds"), p.TimeoutSeconds)...)
	errs = append(errs, validate.NonNegative(path.Child("periodSeconds"), p.PeriodSeconds)...)
	errs = append(errs, validate.NonNegative(path.Child("successThreshold"), p.SuccessThreshold)...)
	errs = append(errs, validate.NonNegative(path.Child("failureThreshold"), p.FailureThreshold)...)
	if g := p.TerminationGracePeriodSeconds; g != nil && *g <= 0 {
		errs = append(errs, field.Invalid(path.Child("terminationGracePeriodSeconds"), *g, "must be greater than 0"))
	}
	return errs
}

func validateLifecycle(l *corev1.Lifecycle, p *podContext, path *field.Path) field.ErrorList {
	if l == nil {
		return nil
	}
	var errs field.ErrorList
	if h := l.PostStart; h != nil {
		errs = append(errs, validateHandler(handler{h.Exec, h.HTTPGet, h.TCPSocket, nil, h.Sleep}, p.grace(), path.Child("postStart"))...)
	}
	if h := l.PreStop; h != nil {
		errs = append(errs, validateHandler(handler{h.Exec, h.HTTPGet, h.TCPSocket, nil, h.Sleep}, p.grace(), path.Child("preStop"))...)
	}
	if l.StopSignal != nil {
		errs = append(errs, validateStopSignal(*l.StopSignal, p.spec.OS, path.Child("stopSignal"))...)
	}
	return errs
}

func validateStopSignal(s corev1.Signal, os *corev1.PodOS, path *field.Path) field.ErrorList {
	switch {
	case os == nil:
		return field.ErrorList{field.Forbidden(path, "may not be set for containers with empty `spec.os.name`")}
	case os.Name == corev1.Windows:
		return validate.OneOf(path, s, corev1.SIGTERM, corev1.SIGKILL)
	}
	return nil
}

// handler is what a probe or a lifecycle hook does: one of these.
type handler struct {
	exec  *corev1.ExecAction
	http  *corev1.HTTPGetAction
	tcp   *corev1.TCPSocketAction
	grpc  *corev1.GRPCAction
	sleep *corev1.SleepAction
}

func validateHandler(h handler, grace int64, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	found := 0
	check := func(set bool, name string, validate func(*field.Path) field.ErrorList) {
		switch {
		case !set:
		case found > 0:
			errs = append(errs, field.Forbidden(path.Child(name), "may not specify more than 1 handler type"))
		default:
			found++
			errs = append(errs, validate(path.Child(name))...)
		}
	}
	check(h.exec != nil, "exec", func(at *field.Path) field.ErrorList {
		if len(h.exec.Command) == 0 {
			return field.ErrorList{field.Required(at.Child("command"), "")}
		}
		return nil
	})
	check(h.http != nil, "httpGet", func(at *field.Path) field.ErrorList { return validateHTTPGet(h.http, at) })
	check(h.tcp != nil, "tcpSocket", func(at *field.Path) field.ErrorList {
		return validate.PortNumOrName(at.Child("port"), h.tcp.Port)
	})
	check(h.grpc != nil, "grpc", func(at *field.Path) field.ErrorList {
		return validate.PortNumOrName(at.Child("port"), intstr.FromInt32(h.grpc.Port))
	})
	check(h.sleep != nil, "sleep", func(at *field.Path) field.ErrorList {
		if s := h.sleep.Seconds; s < 0 || s > grace {
			return field.ErrorList{field.Invalid(at, s, fmt.Sprintf("must be non-negative and less than terminationGracePeriodSeconds (%d)", grace))}
		}
		return nil
	})
	if found == 0 {
		errs = append(errs, field.Required(path, "must specify a handler type"))
	}
	return errs
}

func validateHTTPGet(a *corev1.HTTPGetAction, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if a.Path == "" {
		errs = append(errs, field.Required(path.Child("path"), ""))
	}
	errs = append(errs, validate.PortNumOrName(path.Child("port"), a.Port)...)
	errs = append(errs, validate.OneOf(path.Child("scheme"), a.Scheme, corev1.URISchemeHTTP, corev1.URISchemeHTTPS)...)
	for _, h := range a.HTTPHeaders {
		errs = append(errs, validate.Invalid(path.Child("httpHeaders"), h.Name, validation.IsHTTPHeaderName(h.Name))...)
	}
	return errs
}

func validatePorts(ports []corev1.ContainerPort, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	names := sets.New[string]()
	for i, p := range ports {
		at := path.Index(i)
		if p.Name != "" {
			bad := validate.Invalid(at.Child("name"), p.Name, validation.IsValidPortName(p.Name))
			if len(bad) == 0 && names.Has(p.Name) {
				bad = append(bad, field.Duplicate(at.Child("name"), p.Name))
			}
			errs = append(errs, bad...)
			names.Insert(p.Name)
		}
		if p.ContainerPort == 0 {
			errs = append(errs, field.Required(at.Child("containerPort"), ""))
		} else {
			errs = append(errs, validate.Port(at.Child("containerPort"), p.ContainerPort)...)
		}
		if p.HostPort != 0 {
			errs = append(errs, validate.Port(at.Child("hostPort"), p.HostPort)...)
		}
		errs = append(errs, validate.RequiredOneOf(at.Child("protocol"), p.Protocol, protocols...)...)
	}
	return errs
}

func validateHostPortConflicts(containers []corev1.Container, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	taken := sets.New[string]()
	for i, c := range containers {
		for j, p := range c.Ports {
			if p.HostPort == 0 {
				continue
			}
			key := fmt.Sprintf("%s/%s/%d", p.Protocol, p.HostIP, p.HostPort)
			if taken.Has(key) {
				errs = append(errs, field.Duplicate(path.Index(i).Child("ports").Index(j).Child("hostPort"), key))
			}
			taken.Insert(key)
		}
	}
	return errs
}

func validateResizePolicy(policies []corev1.ContainerResizePolicy, restart corev1.RestartPolicy, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[corev1.ResourceName]()
	for i, p := range policies {
		if seen.Has(p.ResourceName) {
			errs = append(errs, field.Duplicate(path.Index(i), p.ResourceName))
		}
		seen.Insert(p.ResourceName)
		errs = append(errs, validate.RequiredOneOf(path, p.ResourceName, corev1.ResourceCPU, corev1.ResourceMemory)...)
		errs = append(errs, validate.RequiredOneOf(path, p.RestartPolicy, corev1.NotRequired, corev1.RestartContainer)...)
		if restart == corev1.RestartPolicyNever && p.RestartPolicy != corev1.NotRequired {
			errs = append(errs, field.Invalid(path, p.RestartPolicy, "must be 'NotRequired' when `restartPolicy` is 'Never'"))
		}
	}
	return errs
}

// validateContainerRestart checks a container's own restart policy and rules (KEP-5307).
func validateContainerRestart(c *corev1.Container, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if c.RestartPolicy != nil {
		errs = append(errs, validate.OneOf(path.Child("restartPolicy"), *c.RestartPolicy,
			corev1.ContainerRestartPolicyAlways, corev1.ContainerRestartPolicyNever, corev1.ContainerRestartPolicyOnFailure)...)
	} else if len(c.RestartPolicyRules) > 0 {
		errs = append(errs, field.Required(path.Child("restartPolicy"), "must specify restartPolicy when restart rules are used"))
	}
	rules := path.Child("restartPolicyRules")
	if len(c.RestartPolicyRules) > maxRestartRules {
		errs = append(errs, field.TooMany(rules, len(c.RestartPolicyRules), maxRestartRules))
	}
	for i, r := range c.RestartPolicyRules {
		at := rules.Index(i)
		errs = append(errs, validate.OneOf(at.Child("action"), r.Action, corev1.ContainerRestartRuleActionRestart, corev1.ContainerRestartRuleActionRestartAllContainers)...)
		if r.ExitCodes == nil {
			errs = append(errs, field.Required(at.Child("exitCodes"), "must be specified"))
			continue
		}
		codes := at.Child("exitCodes")
		errs = append(errs, validate.OneOf(codes.Child("operator"), r.ExitCodes.Operator,
			corev1.ContainerRestartRuleOnExitCodesOpIn, corev1.ContainerRestartRuleOnExitCodesOpNotIn)...)
		if n := len(r.ExitCodes.Values); n > maxExitCodes {
			errs = append(errs, field.TooMany(codes.Child("values"), n, maxExitCodes))
		}
	}
	return errs
}
