package core

import (
	"encoding/json"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis/validate"
)

// maxDataSize bounds the values of a ConfigMap or Secret together, in bytes.
const maxDataSize = 1 << 20

func validateConfigMap(c *corev1.ConfigMap) field.ErrorList {
	var errs field.ErrorList
	size := 0
	for _, key := range validate.SortedKeys(c.Data) {
		errs = append(errs, validate.Invalid(field.NewPath("data").Key(key), key, validation.IsConfigMapKey(key))...)
		if _, both := c.BinaryData[key]; both {
			errs = append(errs, field.Invalid(field.NewPath("data").Key(key), key, "duplicate of key present in binaryData"))
		}
		size += len(c.Data[key])
	}
	for _, key := range validate.SortedKeys(c.BinaryData) {
		errs = append(errs, validate.Invalid(field.NewPath("binaryData").Key(key), key, validation.IsConfigMapKey(key))...)
		size += len(c.BinaryData[key])
	}
	if size > maxDataSize {
		errs = append(errs, field.TooLong(field.NewPath(""), "", maxDataSize))
	}
	return errs
}

const onceImmutable = "field is immutable when `immutable` is set"

func validateConfigMapUpdate(c, old *corev1.ConfigMap) field.ErrorList {
	var errs field.ErrorList
	if isImmutable(old.Immutable) {
		if !isImmutable(c.Immutable) {
			errs = append(errs, field.Forbidden(field.NewPath("immutable"), onceImmutable))
		}
		if !apiequality.Semantic.DeepEqual(c.Data, old.Data) {
			errs = append(errs, field.Forbidden(field.NewPath("data"), onceImmutable))
		}
		if !apiequality.Semantic.DeepEqual(c.BinaryData, old.BinaryData) {
			errs = append(errs, field.Forbidden(field.NewPath("binaryData"), onceImmutable))
		}
	}
	return append(errs, validateConfigMap(c)...)
}

func isImmutable(b *bool) bool { return b != nil && *b }

func validateSecret(s *corev1.Secret) field.ErrorList {
	var errs field.ErrorList
	data := field.NewPath("data")
	size := 0
	for _, key := range validate.SortedKeys(s.Data) {
		errs = append(errs, validate.Invalid(data.Key(key), key, validation.IsConfigMapKey(key))...)
		size += len(s.Data[key])
	}
	if size > maxDataSize {
		errs = append(errs, field.TooLong(data, "", maxDataSize))
	}
	need := func(key string) bool {
		_, ok := s.Data[key]
		if !ok {
			errs = append(errs, field.Required(data.Key(key), ""))
		}
		return ok
	}
	switch s.Type {
	case corev1.SecretTypeServiceAccountToken:
		if s.Annotations[corev1.ServiceAccountNameKey] == "" {
			errs = append(errs, field.Required(field.NewPath("metadata", "annotations").Key(corev1.ServiceAccountNameKey), ""))
		}
	case corev1.SecretTypeDockercfg:
		errs = append(errs, validateJSONKey(s, corev1.DockerConfigKey, data)...)
	case corev1.SecretTypeDockerConfigJson:
		errs = append(errs, validateJSONKey(s, corev1.DockerConfigJsonKey, data)...)
	case corev1.SecretTypeBasicAuth:
		_, user := s.Data[corev1.BasicAuthUsernameKey]
		_, password := s.Data[corev1.BasicAuthPasswordKey]
		if !user && !password {
			errs = append(errs, field.Required(data.Key(corev1.BasicAuthUsernameKey), ""), field.Required(data.Key(corev1.BasicAuthPasswordKey), ""))
		}
	case corev1.SecretTypeSSHAuth:
		if len(s.Data[corev1.SSHAuthPrivateKey]) == 0 {
			errs = append(errs, field.Required(data.Key(corev1.SSHAuthPrivateKey), ""))
		}
	case corev1.SecretTypeTLS:
		need(corev1.TLSCertKey)
		need(corev1.TLSPrivateKeyKey)
	}
	return errs
}

func validateJSONKey(s *corev1.Secret, key string, data *field.Path) field.ErrorList {
	value, ok := s.Data[key]
	if !ok {
		return field.ErrorList{field.Required(data.Key(key), "")}
	}
	if err := json.Unmarshal(value, &map[string]any{}); err != nil {
		return field.ErrorList{field.Invalid(data.Key(key), "<secret contents redacted>", err.Error())}
	}
	return nil
}

func validateSecretUpdate(s, old *corev1.Secret) field.ErrorList {
	errs := validate.Immutable(field.NewPath("type"), s.Type, old.Type)
	if isImmutable(old.Immutable) {
		if !isImmutable(s.Immutable) {
			errs = append(errs, field.Forbidden(field.NewPath("immutable"), onceImmutable))
		}
		if !apiequality.Semantic.DeepEqual(s.Data, old.Data) {
			errs = append(errs, field.Forbidden(field.NewPath("data"), onceImmutable))
		}
	}
	return append(errs, validateSecret(s)...)
}

func validateNamespace(n *corev1.Namespace) field.ErrorList {
	var errs field.ErrorList
	for _, f := range n.Spec.Finalizers {
		errs = append(errs, validateFinalizer(string(f), field.NewPath("spec", "finalizers"))...)
	}
	return errs
}

func validateFinalizer(name string, at *field.Path) field.ErrorList {
	errs := validate.QualifiedName(at, name)
	standard := []string{string(corev1.FinalizerKubernetes), metav1.FinalizerOrphanDependents, metav1.FinalizerDeleteDependents}
	if !strings.Contains(name, "/") && !slices.Contains(standard, name) {
		errs = append(errs, field.Invalid(at, name, "name is neither a standard finalizer name nor is it fully qualified"))
	}
	return errs
}

func validateNamespaceFinalize(n, _ *corev1.Namespace) field.ErrorList {
	var errs field.ErrorList
	for i, f := range n.Spec.Finalizers {
		errs = append(errs, validateFinalizer(string(f), field.NewPath("spec", "finalizers").Index(i))...)
	}
	return errs
}

func validateNamespaceStatusUpdate(n, _ *corev1.Namespace) field.ErrorList {
	phase := field.NewPath("status", "Phase")
	switch {
	case n.DeletionTimestamp.IsZero() && n.Status.Phase != corev1.NamespaceActive:
		return field.ErrorList{field.Invalid(phase, n.Status.Phase, "may only be 'Active' if `deletionTimestamp` is empty")}
	case !n.DeletionTimestamp.IsZero() && n.Status.Phase != corev1.NamespaceTerminating:
		return field.ErrorList{field.Invalid(phase, n.Status.Phase, "may only be 'Terminating' if `deletionTimestamp` is not empty")}
	}
	return nil
}
