package admission

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/rand"

	"proa/internal/auth/references"
	"proa/internal/store"
)

// ServiceAccount gives every pod a service account, the volume with its token
// and its image pull secrets.
type ServiceAccount struct {
	Store *store.Store
}

func (ServiceAccount) Name() string { return "ServiceAccount" }

const (
	accessVolume  = "kube-api-access"
	tokenPath     = "/var/run/secrets/kubernetes.io/serviceaccount"
	tokenSeconds  = 3607 // recognised by the token service, which extends such tokens
	rootCAMap     = "kube-root-ca.crt"
	mountableOnly = "kubernetes.io/enforce-mountable-secrets"

	// defaultAccountWait is how long a pod waits for the default service account
	// of a namespace that was just made.
	defaultAccountWait = time.Second
)

func (p ServiceAccount) Admit(ctx context.Context, a *Attributes) error {
	pod, ok := a.podCreated()
	if !ok || isMirror(pod) {
		return nil
	}
	if pod.Spec.ServiceAccountName == "" {
		if pod.Spec.ServiceAccountName = pod.Spec.DeprecatedServiceAccount; pod.Spec.ServiceAccountName == "" {
			pod.Spec.ServiceAccountName = "default"
		}
	}
	pod.Spec.DeprecatedServiceAccount = pod.Spec.ServiceAccountName
	sa, err := p.account(ctx, a.Namespace, pod.Spec.ServiceAccountName)
	if err != nil {
		return lookupFailed(a, pod, err)
	}
	if automounts(sa, pod) {
		mount(pod, a.Namespace)
	}
	if len(pod.Spec.ImagePullSecrets) == 0 {
		pod.Spec.ImagePullSecrets = append([]corev1.LocalObjectReference(nil), sa.ImagePullSecrets...)
	}
	return nil
}

func (p ServiceAccount) Validate(ctx context.Context, a *Attributes) error {
	if pod, ok := a.Object.(*corev1.Pod); ok && a.Operation == admissionv1.Update && a.Subresource == "ephemeralcontainers" {
		return p.validateEphemeral(ctx, a, pod)
	}
	pod, ok := a.podCreated()
	if !ok {
		return nil
	}
	if isMirror(pod) {
		return validateMirror(a, pod)
	}
	if pod.Spec.ServiceAccountName == "" {
		return a.forbidden(fmt.Errorf("no service account specified for pod %s/%s", a.Namespace, pod.Name))
	}
	sa, err := p.account(ctx, a.Namespace, pod.Spec.ServiceAccountName)
	if err != nil {
		return lookupFailed(a, pod, err)
	}
	if sa.Annotations[mountableOnly] == "true" {
		return limitSecrets(a, sa, pod)
	}
	return nil
}

// validateEphemeral holds containers that a pod gets later to the secrets that its
// service account may mount.
func (p ServiceAccount) validateEphemeral(ctx context.Context, a *Attributes, pod *corev1.Pod) error {
	if pod.Spec.ServiceAccountName == "" {
		return a.forbidden(fmt.Errorf("no service account specified for pod %s/%s", a.Namespace, pod.Name))
	}
	sa, err := p.account(ctx, a.Namespace, pod.Spec.ServiceAccountName)
	if err != nil {
		return lookupFailed(a, pod, err)
	}
	if sa.Annotations[mountableOnly] != "true" {
		return nil
	}
	mountable := func(name string) bool {
		return slices.ContainsFunc(sa.Secrets, func(s corev1.ObjectReference) bool { return s.Name == name })
	}
	for _, c := range pod.Spec.EphemeralContainers {
		for _, env := range c.Env {
			if from := env.ValueFrom; from != nil && from.SecretKeyRef != nil && !mountable(from.SecretKeyRef.Name) {
				return a.forbidden(fmt.Errorf("ephemeral container %s with envVar %s referencing secret.secretName=%q is not allowed because service account %s does not reference that secret",
					c.Name, env.Name, from.SecretKeyRef.Name, sa.Name))
			}
		}
		for _, from := range c.EnvFrom {
			if from.SecretRef != nil && !mountable(from.SecretRef.Name) {
				return a.forbidden(fmt.Errorf("ephemeral container %s with envFrom referencing secret.secretName=%q is not allowed because service account %s does not reference that secret",
					c.Name, from.SecretRef.Name, sa.Name))
			}
		}
	}
	return nil
}

func lookupFailed(a *Attributes, pod *corev1.Pod, err error) error {
	return a.forbidden(fmt.Errorf("error looking up service account %s/%s: %w", a.Namespace, pod.Spec.ServiceAccountName, err))
}

func isMirror(pod *corev1.Pod) bool {
	_, ok := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return ok
}

func validateMirror(a *Attributes, pod *corev1.Pod) error {
	if pod.Spec.ServiceAccountName != "" {
		return a.forbidden(errors.New("a mirror pod may not reference service accounts"))
	}
	for range references.Secrets(pod) {
		return a.forbidden(errors.New("a mirror pod may not reference secrets"))
	}
	for i := range pod.Spec.Volumes {
		if projected := pod.Spec.Volumes[i].Projected; projected != nil {
			for _, s := range projected.Sources {
				if s.ServiceAccountToken != nil {
					return a.forbidden(errors.New("a mirror pod may not use ServiceAccountToken volume projections"))
				}
			}
		}
	}
	return nil
}

// account finds a service account. The default one is made by a controller
// right after its namespace, which a pod created with it can outrun.
func (p ServiceAccount) account(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	sn := p.Store.Snapshot()
	sa, err := find[*corev1.ServiceAccount](sn, accounts, namespace, name)
	if err == nil || !apierrors.IsNotFound(err) {
		return sa, err
	}
	if name == "default" {
		if sa := p.await(ctx, sn, namespace, name); sa != nil {
			return sa, nil
		}
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "serviceaccount"}, name)
}

func (p ServiceAccount) await(ctx context.Context, sn *store.Snapshot, namespace, name string) *corev1.ServiceAccount {
	w, err := p.Store.Watch(accounts, namespace, sn.Revision())
	if err != nil {
		return nil
	}
	defer w.Stop()
	ctx, cancel := context.WithTimeout(ctx, defaultAccountWait)
	defer cancel()
	for {
		events, err := w.Next(ctx)
		if err != nil {
			return nil
		}
		for _, e := range events {
			if sa, ok := e.Item.Object.(*corev1.ServiceAccount); ok && sa.Name == name && e.Type != store.Deleted {
				return sa
			}
		}
	}
}

func automounts(sa *corev1.ServiceAccount, pod *corev1.Pod) bool {
	if pod.Spec.AutomountServiceAccountToken != nil {
		return *pod.Spec.AutomountServiceAccountToken
	}
	return sa.AutomountServiceAccountToken == nil || *sa.AutomountServiceAccountToken
}

// mount gives every container that has nothing at tokenPath the volume with token.
func mount(pod *corev1.Pod, namespace string) {
	volume, there := "", false
	for i := range pod.Spec.Volumes {
		if strings.HasPrefix(pod.Spec.Volumes[i].Name, accessVolume+"-") {
			volume, there = pod.Spec.Volumes[i].Name, true
			break
		}
	}
	if !there {
		volume = accessVolume + "-" + accessSuffix(namespace, pod.Spec.ServiceAccountName)
	}
	needed := false
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if !mounts(&list[i], tokenPath) {
				list[i].VolumeMounts = append(list[i].VolumeMounts, corev1.VolumeMount{Name: volume, ReadOnly: true, MountPath: tokenPath})
				needed = true
			}
		}
	}
	if needed && !there {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{
			Name: volume, VolumeSource: corev1.VolumeSource{Projected: accessSource()},
		})
	}
}

// accessSuffix looks like upstream's five random characters, but is the same for all
// pods of an account: their containers are then equal and kept once.
func accessSuffix(namespace, account string) string {
	h := fnv.New32a()
	h.Write([]byte(namespace + "/" + account))
	return rand.SafeEncodeString(strconv.FormatUint(uint64(h.Sum32())+1e5, 10))[:5]
}

func mounts(c *corev1.Container, path string) bool {
	for i := range c.VolumeMounts {
		if c.VolumeMounts[i].MountPath == path {
			return true
		}
	}
	return false
}

func accessSource() *corev1.ProjectedVolumeSource {
	mode, seconds := corev1.ProjectedVolumeSourceDefaultMode, int64(tokenSeconds)
	return &corev1.ProjectedVolumeSource{
		DefaultMode: &mode,
		Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: &seconds}},
			{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: rootCAMap},
				Items:                []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
			}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{
				{Path: "namespace", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"}},
			}}},
		},
	}
}

// limitSecrets holds a pod to the secrets that its service account lists.
func limitSecrets(a *Attributes, sa *corev1.ServiceAccount, pod *corev1.Pod) error {
	mountable, pull := map[string]bool{}, map[string]bool{}
	for _, s := range sa.Secrets {
		mountable[s.Name] = true
	}
	for i, s := range sa.ImagePullSecrets {
		pull[sa.ImagePullSecrets[i].Name] = s.Name != ""
	}
	for i, s := range pod.Spec.ImagePullSecrets {
		if !pull[s.Name] {
			return a.forbidden(fmt.Errorf("imagePullSecrets[%d].name=%q is not allowed because service account %s does not reference that imagePullSecret", i, s.Name, sa.Name))
		}
	}
	bare := *pod
	bare.Spec.ImagePullSecrets = nil
	for name := range references.Secrets(&bare) {
		if !mountable[name] {
			return a.forbidden(fmt.Errorf("volume or environment with secret.secretName=%q is not allowed because service account %s does not reference that secret", name, sa.Name))
		}
	}
	return nil
}
