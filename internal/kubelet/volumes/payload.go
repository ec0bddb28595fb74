package volumes

import (
	"context"
	"errors"
	"fmt"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/utils/ptr"

	"proa/internal/kubelet/environment"
)

const defaultTokenLife = 3600

// payloadOf computes the files of a configMap, secret, downwardAPI or projected volume.
func (m *Manager) payloadOf(ctx context.Context, pod *corev1.Pod, v *corev1.Volume) (payload, error) {
	switch {
	case v.ConfigMap != nil:
		s := v.ConfigMap
		return m.configMapFiles(ctx, pod, s.Name, s.Items, mode(s.DefaultMode, corev1.ConfigMapVolumeSourceDefaultMode), s.Optional)
	case v.Secret != nil:
		s := v.Secret
		return m.secretFiles(ctx, pod, s.SecretName, s.Items, mode(s.DefaultMode, corev1.SecretVolumeSourceDefaultMode), s.Optional)
	case v.DownwardAPI != nil:
		s := v.DownwardAPI
		return m.downwardFiles(pod, s.Items, mode(s.DefaultMode, corev1.DownwardAPIVolumeSourceDefaultMode))
	}
	return m.projectedFiles(ctx, pod, v)
}

func mode(set *int32, otherwise int32) int32 { return ptr.Deref(set, otherwise) }

func (m *Manager) projectedFiles(ctx context.Context, pod *corev1.Pod, v *corev1.Volume) (payload, error) {
	s, all := v.Projected, payload{}
	var errs []error
	for i := range s.Sources {
		part, err := m.projection(ctx, pod, v, i, mode(s.DefaultMode, corev1.ProjectedVolumeSourceDefaultMode))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for path, f := range part {
			all[path] = f
		}
	}
	return all, utilerrors.NewAggregate(errs)
}

// projection is one source of a projected volume.
func (m *Manager) projection(ctx context.Context, pod *corev1.Pod, v *corev1.Volume, source int, mode int32) (payload, error) {
	s := &v.Projected.Sources[source]
	switch {
	case s.ConfigMap != nil:
		return m.configMapFiles(ctx, pod, s.ConfigMap.Name, s.ConfigMap.Items, mode, s.ConfigMap.Optional)
	case s.Secret != nil:
		return m.secretFiles(ctx, pod, s.Secret.Name, s.Secret.Items, mode, s.Secret.Optional)
	case s.DownwardAPI != nil:
		return m.downwardFiles(pod, s.DownwardAPI.Items, mode)
	case s.ServiceAccountToken != nil:
		return m.tokenFile(ctx, pod, s.ServiceAccountToken, mode)
	case s.ClusterTrustBundle != nil:
		return m.trustBundleFile(ctx, s.ClusterTrustBundle, mode)
	case s.PodCertificate != nil:
		return m.certificateFiles(pod, v.Name, source, s.PodCertificate, mode)
	}
	return nil, errors.New("projection has no source")
}

func (m *Manager) configMapFiles(ctx context.Context, pod *corev1.Pod, name string, items []corev1.KeyToPath, mode int32, optional *bool) (payload, error) {
	cm, err := m.source.ConfigMap(ctx, pod.Namespace, name)
	switch {
	case apierrors.IsNotFound(err) && ptr.Deref(optional, false):
		return payload{}, nil
	case apierrors.IsNotFound(err):
		return nil, apierrors.NewNotFound(corev1.Resource("configmap"), name)
	case err != nil:
		return nil, err
	}
	content := make(map[string][]byte, len(cm.Data)+len(cm.BinaryData))
	for key, value := range cm.Data {
		content[key] = []byte(value)
	}
	for key, value := range cm.BinaryData {
		content[key] = value
	}
	return pick(content, items, mode, optional, "configmap references non-existent config key: %s")
}

func (m *Manager) secretFiles(ctx context.Context, pod *corev1.Pod, name string, items []corev1.KeyToPath, mode int32, optional *bool) (payload, error) {
	secret, err := m.source.Secret(ctx, pod.Namespace, name)
	switch {
	case apierrors.IsNotFound(err) && ptr.Deref(optional, false):
		return payload{}, nil
	case apierrors.IsNotFound(err):
		return nil, apierrors.NewNotFound(corev1.Resource("secret"), name)
	case err != nil:
		return nil, err
	}
	return pick(secret.Data, items, mode, optional, "references non-existent secret key: %s")
}

// pick maps keys to files: all of them, or those that items name.
func pick(content map[string][]byte, items []corev1.KeyToPath, mode int32, optional *bool, missing string) (payload, error) {
	p := payload{}
	if len(items) == 0 {
		for key, data := range content {
			p[key] = file{Data: data, Mode: mode}
		}
		return p, nil
	}
	for _, item := range items {
		data, ok := content[item.Key]
		if !ok {
			if ptr.Deref(optional, false) {
				continue
			}
			return nil, fmt.Errorf(missing, item.Key)
		}
		p[item.Path] = file{Data: data, Mode: ptr.Deref(item.Mode, mode)}
	}
	return p, nil
}

func (m *Manager) downwardFiles(pod *corev1.Pod, items []corev1.DownwardAPIVolumeFile, mode int32) (payload, error) {
	p := payload{}
	var errs []error
	for i := range items {
		item := &items[i]
		value, err := m.downwardValue(pod, item)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		p[item.Path] = file{Data: []byte(value), Mode: ptr.Deref(item.Mode, mode)}
	}
	return p, utilerrors.NewAggregate(errs)
}

func (m *Manager) downwardValue(pod *corev1.Pod, item *corev1.DownwardAPIVolumeFile) (string, error) {
	if item.FieldRef != nil {
		return environment.PodField(pod, item.FieldRef, m.hostIPs(), nil)
	}
	if item.ResourceFieldRef == nil {
		return "", nil
	}
	container, err := environment.ContainerByName(pod, item.ResourceFieldRef.ContainerName)
	if err != nil {
		return "", err
	}
	return environment.ResourceField(pod, container, item.ResourceFieldRef, m.allocatable())
}

// tokenFile holds a service account token bound to the pod.
func (m *Manager) tokenFile(ctx context.Context, pod *corev1.Pod, s *corev1.ServiceAccountTokenProjection, mode int32) (payload, error) {
	var audiences []string
	if s.Audience != "" {
		audiences = []string{s.Audience}
	}
	tr, err := m.tokens.Token(ctx, pod.Namespace, pod.Spec.ServiceAccountName, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{
			Audiences:         audiences,
			ExpirationSeconds: ptr.To(ptr.Deref(s.ExpirationSeconds, defaultTokenLife)),
			BoundObjectRef: &authenticationv1.BoundObjectReference{
				APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID,
			},
		},
	})
	if err != nil {
		return nil, err
	}
	return payload{s.Path: credentialFile(pod, []byte(tr.Status.Token), mode)}, nil
}

// certificateFiles hold the key and the certificates that the pod was issued
// (KEP-4317), in one file, in two, or both.
func (m *Manager) certificateFiles(pod *corev1.Pod, volume string, source int, s *corev1.PodCertificateProjection, mode int32) (payload, error) {
	if m.certificates == nil {
		return nil, errors.New("podCertificate projections are not supported by this node")
	}
	key, chain, err := m.certificates.Credential(pod, volume, source)
	if err != nil {
		return nil, err
	}
	p := payload{}
	for path, data := range map[string][]byte{
		s.CredentialBundlePath: slices.Concat(key, chain), s.KeyPath: key, s.CertificateChainPath: chain,
	} {
		if path != "" {
			p[path] = credentialFile(pod, data, mode)
		}
	}
	return p, nil
}

// credentialFile is for root and the fsGroup of a pod that has one; else for the
// user that all its containers run as; where neither is known it has the
// volume's mode.
func credentialFile(pod *corev1.Pod, data []byte, mode int32) file {
	f := file{Data: data, Mode: mode}
	group := fsGroup(pod)
	if group == nil {
		f.UID = commonUser(pod)
	}
	if f.UID != nil || group != nil {
		f.Mode = 0o600 // setting fsGroup adds the group's bits
	}
	return f
}

// commonUser is the uid that all containers of a pod run as, nil when they differ
// or leave it to the image.
func commonUser(pod *corev1.Pod) *int64 {
	var inherited *int64
	if sc := pod.Spec.SecurityContext; sc != nil {
		inherited = sc.RunAsUser
	}
	var users []*int64
	add := func(sc *corev1.SecurityContext) {
		if sc != nil && sc.RunAsUser != nil {
			users = append(users, sc.RunAsUser)
			return
		}
		users = append(users, inherited)
	}
	for i := range pod.Spec.InitContainers {
		add(pod.Spec.InitContainers[i].SecurityContext)
	}
	for i := range pod.Spec.Containers {
		add(pod.Spec.Containers[i].SecurityContext)
	}
	for i := range pod.Spec.EphemeralContainers {
		add(pod.Spec.EphemeralContainers[i].SecurityContext)
	}
	for _, u := range users {
		if u == nil || *u != *users[0] {
			return nil
		}
	}
	if len(users) == 0 {
		return nil
	}
	return users[0]
}
