package core

import (
	"cmp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/google/go-containerregistry/pkg/name"
)

// File modes of projected volumes.
const (
	volumeFileMode         = int32(0o644)
	tokenExpirationSeconds = int64(60 * 60)
)

// DefaultPod fills the absent fields of a pod.
func DefaultPod(p *corev1.Pod) {
	if g := p.Spec.TerminationGracePeriodSeconds; g != nil && *g < 0 {
		p.Spec.TerminationGracePeriodSeconds = new(int64(1))
	}
	DefaultPodSpec(&p.Spec)
	// Requests follow limits in pods only: a template may meet a LimitRange first.
	for _, containers := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range containers {
			requestLimits(&containers[i].Resources)
		}
	}
	if p.Spec.HostNetwork {
		hostPorts(p.Spec.Containers)
		hostPorts(p.Spec.InitContainers)
	}
	if p.Spec.EnableServiceLinks == nil {
		p.Spec.EnableServiceLinks = new(corev1.DefaultEnableServiceLinks)
	}
	defaultHostIPs(p)
}

// DefaultTemplate fills the absent fields of the pod in a template.
func DefaultTemplate(t *corev1.PodTemplateSpec) { DefaultPodSpec(&t.Spec) }

// DefaultPodSpec fills what pods and templates of pods have in common.
func DefaultPodSpec(s *corev1.PodSpec) {
	setIfEmpty(&s.DNSPolicy, corev1.DNSClusterFirst)
	setIfEmpty(&s.RestartPolicy, corev1.RestartPolicyAlways)
	setIfEmpty(&s.SchedulerName, corev1.DefaultSchedulerName)
	if s.SecurityContext == nil {
		s.SecurityContext = &corev1.PodSecurityContext{}
	}
	if s.TerminationGracePeriodSeconds == nil {
		s.TerminationGracePeriodSeconds = new(int64(corev1.DefaultTerminationGracePeriodSeconds))
	}
	mirrorServiceAccount(s)
	for i := range s.Volumes {
		defaultVolume(&s.Volumes[i])
	}
	for i := range s.InitContainers {
		defaultContainer(&s.InitContainers[i])
	}
	for i := range s.Containers {
		defaultContainer(&s.Containers[i])
	}
	for i := range s.EphemeralContainers {
		c := corev1.Container(s.EphemeralContainers[i].EphemeralContainerCommon)
		defaultContainer(&c)
		s.EphemeralContainers[i].EphemeralContainerCommon = corev1.EphemeralContainerCommon(c)
	}
	roundResources(s.Overhead)
	if s.Resources != nil {
		roundResources(s.Resources.Limits)
		roundResources(s.Resources.Requests)
	}
}

// mirrorServiceAccount keeps the deprecated alias equal to the field that counts.
func mirrorServiceAccount(s *corev1.PodSpec) {
	s.ServiceAccountName = cmp.Or(s.ServiceAccountName, s.DeprecatedServiceAccount)
	s.DeprecatedServiceAccount = s.ServiceAccountName
}

// hostPorts: with the host's network a container port is the host's.
func hostPorts(containers []corev1.Container) {
	for i := range containers {
		for j := range containers[i].Ports {
			if p := &containers[i].Ports[j]; p.HostPort == 0 {
				p.HostPort = p.ContainerPort
			}
		}
	}
}

func defaultContainer(c *corev1.Container) {
	setIfEmpty(&c.TerminationMessagePath, corev1.TerminationMessagePathDefault)
	setIfEmpty(&c.TerminationMessagePolicy, corev1.TerminationMessageReadFile)
	if c.ImagePullPolicy == "" {
		c.ImagePullPolicy = pullPolicy(c.Image)
	}
	for i := range c.Ports {
		setIfEmpty(&c.Ports[i].Protocol, corev1.ProtocolTCP)
	}
	for i := range c.Env {
		if from := c.Env[i].ValueFrom; from != nil {
			defaultFieldRef(from.FieldRef)
			if from.FileKeyRef != nil && from.FileKeyRef.Optional == nil {
				from.FileKeyRef.Optional = new(false)
			}
		}
	}
	for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		defaultProbe(p)
	}
	if c.Lifecycle != nil {
		for _, h := range []*corev1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
			if h != nil {
				defaultHTTPGet(h.HTTPGet)
			}
		}
	}
	roundResources(c.Resources.Limits)
	roundResources(c.Resources.Requests)
}

func defaultProbe(p *corev1.Probe) {
	if p == nil {
		return
	}
	setIfZero(&p.TimeoutSeconds, 1)
	setIfZero(&p.PeriodSeconds, 10)
	setIfZero(&p.SuccessThreshold, 1)
	setIfZero(&p.FailureThreshold, 3)
	defaultHTTPGet(p.HTTPGet)
	if p.GRPC != nil && p.GRPC.Service == nil {
		p.GRPC.Service = new("")
	}
}

func defaultHTTPGet(a *corev1.HTTPGetAction) {
	if a == nil {
		return
	}
	setIfEmpty(&a.Path, "/")
	setIfEmpty(&a.Scheme, corev1.URISchemeHTTP)
}

func defaultFieldRef(ref *corev1.ObjectFieldSelector) {
	if ref != nil {
		setIfEmpty(&ref.APIVersion, "v1")
	}
}

// pullPolicy: an image that may change under its name is pulled each time.
func pullPolicy(image string) corev1.PullPolicy {
	ref, err := name.ParseReference(strings.TrimSpace(image), name.WeakValidation)
	if tag, ok := ref.(name.Tag); err == nil && ok && tag.TagStr() == name.DefaultTag {
		return corev1.PullAlways
	}
	return corev1.PullIfNotPresent
}

// requestLimits asks for what is limited where nothing is asked for.
func requestLimits(r *corev1.ResourceRequirements) {
	if r.Limits == nil {
		return
	}
	if r.Requests == nil {
		r.Requests = corev1.ResourceList{}
	}
	for name, limit := range r.Limits {
		if _, set := r.Requests[name]; !set {
			r.Requests[name] = limit.DeepCopy()
		}
	}
}

// roundResources keeps amounts to a thousandth, which is as fine as they count.
func roundResources(list corev1.ResourceList) {
	for name, q := range list {
		q.RoundUp(resource.Milli)
		list[name] = q
	}
}

// defaultHostIPs keeps the list and the single address of a host alike.
func defaultHostIPs(p *corev1.Pod) {
	if p.Status.HostIP != "" && len(p.Status.HostIPs) == 0 {
		p.Status.HostIPs = []corev1.HostIP{{IP: p.Status.HostIP}}
	}
	switch ip, list := p.Status.PodIP, p.Status.PodIPs; {
	case ip != "" && len(list) == 0:
		p.Status.PodIPs = []corev1.PodIP{{IP: ip}}
	case ip == "" && len(list) > 0:
		p.Status.PodIP = list[0].IP
	case len(list) > 0 && list[0].IP != ip:
		p.Status.PodIPs = []corev1.PodIP{{IP: ip}}
	}
}

func setIfEmpty[S ~string](field *S, value S) {
	if *field == "" {
		*field = value
	}
}

func setIfZero(field *int32, value int32) {
	if *field == 0 {
		*field = value
	}
}
