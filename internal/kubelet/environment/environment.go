// Package environment computes a container's environment variables from its pod,
// the objects it refers to and the node: service variables, envFrom, env with
// its references, and $(NAME) expansion, in upstream's order of precedence.
package environment

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
)

// MasterNamespace is where the service of the API server lives, whose variables
// every container gets.
const MasterNamespace = "default"

// Variable is one NAME=value pair.
type Variable struct{ Name, Value string }

// Source reads the objects that variables refer to, from the pod's namespace.
// A missing object is a NotFound status error.
type Source interface {
	ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
}

// Inputs is what the variables of a pod's containers depend on besides the pod.
type Inputs struct {
	Source Source
	// Services holds the services of the pod's namespace and of
	// MasterNamespace, in any order.
	Services []*corev1.Service
	// Allocatable of the node is the value of a limit that is not set.
	Allocatable corev1.ResourceList
	// HostIPs of the node and PodIPs of the pod, the primary one first. PodIPs
	// default to those in the pod's status.
	HostIPs, PodIPs []string
	// ReadVolumeFile reads a file of one of the pod's volumes, for fileKeyRef
	// (KEP-3721). It returns an fs.ErrNotExist for a missing file.
	ReadVolumeFile func(volume, path string) ([]byte, error)
}

// For returns the variables of one container: those of envFrom, then those of
// env, then service variables that neither sets. Its error is the message of
// the waiting reason CreateContainerConfigError.
func For(ctx context.Context, pod *corev1.Pod, container *corev1.Container, in Inputs) ([]Variable, error) {
	b := &builder{ctx: ctx, pod: pod, container: container, in: in, values: map[string]string{}}
	b.services = serviceVariables(in.Services, pod.Namespace, ptr.Deref(pod.Spec.EnableServiceLinks, corev1.DefaultEnableServiceLinks))
	for i := range container.EnvFrom {
		if err := b.addAll(&container.EnvFrom[i]); err != nil {
			return nil, err
		}
	}
	for i := range container.Env {
		if err := b.add(&container.Env[i]); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(b.services)) {
		if _, taken := b.values[name]; !taken {
			b.set(name, b.services[name])
		}
	}
	return b.list(), nil
}

type builder struct {
	ctx       context.Context
	pod       *corev1.Pod
	container *corev1.Container
	in        Inputs
	services  map[string]string
	values    map[string]string
	order     []string // names in the order they were first set
}

func (b *builder) set(name, value string) {
	if _, ok := b.values[name]; !ok {
		b.order = append(b.order, name)
	}
	b.values[name] = value
}

func (b *builder) list() []Variable {
	out := make([]Variable, 0, len(b.order))
	for _, name := range b.order {
		out = append(out, Variable{name, b.values[name]})
	}
	return out
}

func (b *builder) lookup(name string) (string, bool) {
	if v, ok := b.values[name]; ok {
		return v, true
	}
	v, ok := b.services[name]
	return v, ok
}

func (b *builder) addAll(from *corev1.EnvFromSource) error {
	switch {
	case from.ConfigMapRef != nil:
		cm, err := b.configMap(from.ConfigMapRef.Name, from.ConfigMapRef.Optional)
		if err != nil || cm == nil {
			return err
		}
		for _, key := range slices.Sorted(maps.Keys(cm.Data)) {
			b.set(from.Prefix+key, cm.Data[key])
		}
	case from.SecretRef != nil:
		secret, err := b.secret(from.SecretRef.Name, from.SecretRef.Optional)
		if err != nil || secret == nil {
			return err
		}
		for _, key := range slices.Sorted(maps.Keys(secret.Data)) {
			b.set(from.Prefix+key, string(secret.Data[key]))
		}
	}
	return nil
}

func (b *builder) add(env *corev1.EnvVar) error {
	if env.Value != "" || env.ValueFrom == nil {
		b.set(env.Name, expand(env.Value, b.lookup, nil))
		return nil
	}
	value, ok, err := b.resolve(env.ValueFrom)
	if err != nil {
		return err
	}
	if ok {
		b.set(env.Name, value)
	}
	return nil
}

// resolve returns the value of a reference; ok is false when it is optional and
// what it names is missing.
func (b *builder) resolve(from *corev1.EnvVarSource) (value string, ok bool, err error) {
	switch {
	case from.FieldRef != nil:
		value, err = PodField(b.pod, from.FieldRef, b.in.HostIPs, b.in.PodIPs)
		return value, err == nil, err
	case from.ResourceFieldRef != nil:
		value, err = ResourceField(b.pod, b.container, from.ResourceFieldRef, b.in.Allocatable)
		return value, err == nil, err
	case from.ConfigMapKeyRef != nil:
		return b.configMapKey(from.ConfigMapKeyRef)
	case from.SecretKeyRef != nil:
		return b.secretKey(from.SecretKeyRef)
	case from.FileKeyRef != nil:
		return b.fileKey(from.FileKeyRef)
	}
	return "", true, nil
}

func (b *builder) configMapKey(ref *corev1.ConfigMapKeySelector) (string, bool, error) {
	cm, err := b.configMap(ref.Name, ref.Optional)
	if err != nil || cm == nil {
		return "", false, err
	}
	value, ok := cm.Data[ref.Key]
	if !ok && !ptr.Deref(ref.Optional, false) {
		return "", false, fmt.Errorf("couldn't find key %v in ConfigMap %v/%v", ref.Key, b.pod.Namespace, ref.Name)
	}
	return value, ok, nil
}

func (b *builder) secretKey(ref *corev1.SecretKeySelector) (string, bool, error) {
	secret, err := b.secret(ref.Name, ref.Optional)
	if err != nil || secret == nil {
		return "", false, err
	}
	value, ok := secret.Data[ref.Key]
	if !ok && !ptr.Deref(ref.Optional, false) {
		return "", false, fmt.Errorf("couldn't find key %v in Secret %v/%v", ref.Key, b.pod.Namespace, ref.Name)
	}
	return string(value), ok, nil
}

// configMap returns nil and no error for a missing optional object.
func (b *builder) configMap(name string, optional *bool) (*corev1.ConfigMap, error) {
	cm, err := b.in.Source.ConfigMap(b.ctx, b.pod.Namespace, name)
	if apierrors.IsNotFound(err) {
		if ptr.Deref(optional, false) {
			return nil, nil
		}
		return nil, apierrors.NewNotFound(corev1.Resource("configmap"), name)
	}
	return cm, err
}

func (b *builder) secret(name string, optional *bool) (*corev1.Secret, error) {
	secret, err := b.in.Source.Secret(b.ctx, b.pod.Namespace, name)
	if apierrors.IsNotFound(err) {
		if ptr.Deref(optional, false) {
			return nil, nil
		}
		return nil, apierrors.NewNotFound(corev1.Resource("secret"), name)
	}
	return secret, err
}
