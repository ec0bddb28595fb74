package walk

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	storagehelpers "k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"
)

// service goes on to the pods that it should lead to.
func (w *Walker) service(ctx context.Context, namespace, name string) ([]*Step, error) {
	svc, err := w.API.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	s := &Step{Kind: "Service", Namespace: namespace, Name: name}
	deleted(s, svc)
	steps := []*Step{s}
	if svc.Spec.Type == corev1.ServiceTypeExternalName {
		s.say("It is another name of %s: DNS says so, nothing else is done.", svc.Spec.ExternalName)
		return steps, nil
	}
	if svc.Spec.Type == corev1.ServiceTypeLoadBalancer && len(svc.Status.LoadBalancer.Ingress) == 0 {
		if class := ptr.Deref(svc.Spec.LoadBalancerClass, ""); class != "" {
			s.say("No load balancer has given it an address: whoever serves the class %s has to.", class)
		} else {
			s.say("No load balancer has given it an address: a cloud controller manager has to.")
		}
	}
	if err := w.events(ctx, s, svc); err != nil {
		return steps, err
	}
	ready, all, err := w.endpoints(ctx, namespace, name)
	if err != nil {
		return steps, err
	}
	s.say("%d of %d endpoints are ready.", ready, all)
	if len(svc.Spec.Selector) == 0 {
		s.say("It has no selector: its endpoints are somebody else's to make.")
		return steps, nil
	}
	pods, err := w.selected(ctx, namespace, labels.SelectorFromSet(svc.Spec.Selector))
	if err != nil {
		return steps, err
	}
	if len(pods) == 0 {
		s.say("No pod has the labels that it selects: %s.", labels.FormatLabels(svc.Spec.Selector))
		return steps, nil
	}
	for i := range svc.Spec.Ports {
		p := &svc.Spec.Ports[i]
		if text := p.TargetPort.StrVal; text != "" && !namesPort(&pods[0], text) {
			s.say("Port %d leads to the port named %q, which pod %s has not.", p.Port, text, pods[0].Name)
		}
	}
	if ready == all && ready > 0 {
		return steps, nil
	}
	more, err := w.worst(ctx, pods)
	return append(steps, more...), err
}

func namesPort(pod *corev1.Pod, name string) bool {
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for _, c := range list {
			for _, p := range c.Ports {
				if p.Name == name {
					return true
				}
			}
		}
	}
	return false
}

func (w *Walker) endpoints(ctx context.Context, namespace, service string) (ready, all int, err error) {
	slices, err := w.API.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service})
	if err != nil {
		return 0, 0, fmt.Errorf("endpoint slices: %w", err)
	}
	for _, slice := range slices.Items {
		for _, e := range slice.Endpoints {
			all++
			if ptr.Deref(e.Conditions.Ready, true) {
				ready++
			}
		}
	}
	return ready, all, nil
}

func (w *Walker) claim(ctx context.Context, namespace, name string) ([]*Step, error) {
	c, err := w.API.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return w.ofClaim(ctx, c)
}

// ofClaim says what a claim waits for: its class, its first pod, its provisioner, or
// more room.
func (w *Walker) ofClaim(ctx context.Context, c *corev1.PersistentVolumeClaim) ([]*Step, error) {
	s := &Step{Kind: "PersistentVolumeClaim", Namespace: c.Namespace, Name: c.Name}
	deleted(s, c)
	steps := []*Step{s}
	switch c.Status.Phase {
	case corev1.ClaimBound:
		s.say("It is bound to volume %s.", c.Spec.VolumeName)
		for _, cond := range c.Status.Conditions {
			if cond.Status == corev1.ConditionTrue {
				s.say("%s: %s %s", cond.Type, cond.Reason, cond.Message)
			}
		}
		return steps, w.users(ctx, s, c)
	case corev1.ClaimLost:
		s.say("Its volume %s is gone, and with it the data.", c.Spec.VolumeName)
		return steps, w.events(ctx, s, c)
	}
	if c.Spec.VolumeName != "" {
		s.say("It waits for volume %s, which it names.", c.Spec.VolumeName)
	}
	if err := w.class(ctx, s, c); err != nil {
		return steps, err
	}
	return steps, w.events(ctx, s, c, "WaitForFirstConsumer", "WaitForPodScheduled", "ExternalProvisioning", "FailedBinding")
}

// users tells which pods keep a claim that is being deleted.
func (w *Walker) users(ctx context.Context, s *Step, c *corev1.PersistentVolumeClaim) error {
	if c.DeletionTimestamp == nil {
		return nil
	}
	pods, err := w.selected(ctx, c.Namespace, labels.Everything())
	if err != nil {
		return err
	}
	var names []string
	for _, p := range pods {
		for _, v := range p.Spec.Volumes {
			if v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == c.Name {
				names = append(names, p.Name)
			}
		}
	}
	if len(names) > 0 {
		s.say("Pods use it: %s.", strings.Join(names, ", "))
	}
	return nil
}

func (w *Walker) class(ctx context.Context, s *Step, c *corev1.PersistentVolumeClaim) error {
	name := storagehelpers.GetPersistentVolumeClaimClass(c)
	if name == "" {
		s.say("It has no storage class: it waits for a volume without one that fits, or for a default class.")
		return nil
	}
	class, err := w.API.StorageV1().StorageClasses().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		s.say("Its storage class %s does not exist: it waits for a volume of that class that fits.", name)
		return nil
	case err != nil:
		return err
	case ptr.Deref(class.VolumeBindingMode, storagev1.VolumeBindingImmediate) == storagev1.VolumeBindingWaitForFirstConsumer && c.Annotations[storagehelpers.AnnSelectedNode] == "":
		s.say("Its class %s binds when a pod that uses it is scheduled.", name)
	default:
		s.say("It waits for a volume of class %s, which %s makes.", name, class.Provisioner)
	}
	return nil
}
