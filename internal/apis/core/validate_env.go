package core

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis/validate"
)

var (
	// downwardLabels are all the pod fields that the downward API knows.
	downwardLabels = sets.New("metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid",
		"spec.nodeName", "spec.restartPolicy", "spec.serviceAccountName", "spec.schedulerName",
		"status.phase", "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs")
	envFields = sets.New("metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName",
		"status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs")
	volumeFields   = sets.New("metadata.name", "metadata.namespace", "metadata.labels", "metadata.annotations", "metadata.uid")
	resourceFields = sets.New("limits.cpu", "limits.memory", "limits.ephemeral-storage", "requests.cpu", "requests.memory", "requests.ephemeral-storage")

	cpuDivisors  = sets.New("1m", "1")
	byteDivisors = sets.New("1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei")
)

func validateEnv(env []corev1.EnvVar, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range env {
		e, at := &env[i], path.Index(i)
		if e.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
		} else {
			errs = append(errs, validate.Invalid(at.Child("name"), e.Name, validation.IsRelaxedEnvVarName(e.Name))...)
		}
		errs = append(errs, validateEnvSource(e, at.Child("valueFrom"))...)
	}
	return errs
}

func validateEnvSource(e *corev1.EnvVar, path *field.Path) field.ErrorList {
	from := e.ValueFrom
	if from == nil {
		return nil
	}
	var errs field.ErrorList
	sources := 0
	if from.FieldRef != nil {
		sources++
		errs = append(errs, validateFieldRef(from.FieldRef, envFields, path.Child("fieldRef"))...)
	}
	if from.ResourceFieldRef != nil {
		sources++
		errs = append(errs, validateResourceFieldRef(from.ResourceFieldRef, false, path.Child("resourceFieldRef"))...)
	}
	if r := from.ConfigMapKeyRef; r != nil {
		sources++
		errs = append(errs, validateKeyRef(r.Name, r.Key, path.Child("configMapKeyRef"))...)
	}
	if r := from.SecretKeyRef; r != nil {
		sources++
		errs = append(errs, validateKeyRef(r.Name, r.Key, path.Child("secretKeyRef"))...)
	}
	if from.FileKeyRef != nil {
		sources++
		errs = append(errs, validateFileKeyRef(from.FileKeyRef, path.Child("fileKeyRef"))...)
	}
	switch {
	case sources == 0:
		errs = append(errs, field.Invalid(path, "", "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"))
	case e.Value != "":
		errs = append(errs, field.Invalid(path, "", "may not be specified when `value` is not empty"))
	case sources > 1:
		errs = append(errs, field.Invalid(path, "", "may not have more than one field specified at a time"))
	}
	return errs
}

func validateFieldRef(ref *corev1.ObjectFieldSelector, allowed sets.Set[string], path *field.Path) field.ErrorList {
	if ref.APIVersion == "" {
		return field.ErrorList{field.Required(path.Child("apiVersion"), "")}
	}
	if ref.FieldPath == "" {
		return field.ErrorList{field.Required(path.Child("fieldPath"), "")}
	}
	if name, key, ok := subscript(ref.FieldPath); ok {
		switch name {
		case "metadata.annotations":
			return validate.Invalid(path, key, validation.IsQualifiedName(strings.ToLower(key)))
		case "metadata.labels":
			return validate.Invalid(path, key, validation.IsQualifiedName(key))
		}
		return field.ErrorList{field.Invalid(path, name, "does not support subscript")}
	}
	fieldPath := ref.FieldPath
	if fieldPath == "spec.host" {
		fieldPath = "spec.nodeName"
	}
	if ref.APIVersion != "v1" {
		return field.ErrorList{field.Invalid(path.Child("fieldPath"), ref.FieldPath, "error converting fieldPath: unsupported pod version: "+ref.APIVersion)}
	}
	if !downwardLabels.Has(fieldPath) {
		return field.ErrorList{field.Invalid(path.Child("fieldPath"), ref.FieldPath, "error converting fieldPath: field label not supported: "+ref.FieldPath)}
	}
	if !allowed.Has(fieldPath) {
		return field.ErrorList{field.NotSupported(path.Child("fieldPath"), fieldPath, sets.List(allowed))}
	}
	return nil
}

// subscript splits "metadata.labels['key']".
func subscript(path string) (name, key string, ok bool) {
	inner, closed := strings.CutSuffix(path, "']")
	if !closed {
		return path, "", false
	}
	name, key, ok = strings.Cut(inner, "['")
	if !ok || name == "" {
		return path, "", false
	}
	return name, key, true
}

func validateResourceFieldRef(ref *corev1.ResourceFieldSelector, inVolume bool, path *field.Path) field.ErrorList {
	if inVolume && ref.ContainerName == "" {
		return field.ErrorList{field.Required(path.Child("containerName"), "")}
	}
	if ref.Resource == "" {
		return field.ErrorList{field.Required(path.Child("resource"), "")}
	}
	huge := strings.HasPrefix(ref.Resource, "limits."+corev1.ResourceHugePagesPrefix) || strings.HasPrefix(ref.Resource, "requests."+corev1.ResourceHugePagesPrefix)
	if !resourceFields.Has(ref.Resource) && !huge {
		return field.ErrorList{field.NotSupported(path.Child("resource"), ref.Resource, sets.List(resourceFields))}
	}
	return validateDivisor(ref.Resource, ref.Divisor, path)
}

func validateDivisor(name string, divisor resource.Quantity, path *field.Path) field.ErrorList {
	if divisor.IsZero() {
		return nil
	}
	invalid := func(values, of string) field.ErrorList {
		return field.ErrorList{field.Invalid(path.Child("divisor"), name, fmt.Sprintf("only divisor's values %s are supported with the %s resource", values, of))}
	}
	const bytes = "1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei"
	switch _, of, _ := strings.Cut(name, "."); {
	case of == "cpu":
		if !cpuDivisors.Has(divisor.String()) {
			return invalid("1m and 1", "cpu")
		}
	case byteDivisors.Has(divisor.String()):
	case of == "memory":
		return invalid(bytes, "memory")
	case of == "ephemeral-storage":
		return invalid(bytes, "local ephemeral storage")
	default:
		return invalid(bytes, "hugepages")
	}
	return nil
}

// validateKeyRef checks a reference to a key of a ConfigMap or Secret.
func validateKeyRef(name, key string, path *field.Path) field.ErrorList {
	errs := validate.Subdomain(path.Child("name"), name)
	if key == "" {
		return append(errs, field.Required(path.Child("key"), ""))
	}
	return append(errs, validate.Invalid(path.Child("key"), key, validation.IsConfigMapKey(key))...)
}

func requiredSubdomain(at *field.Path, name string) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(at, "")}
	}
	return validate.Subdomain(at, name)
}

func validateFileKeyRef(ref *corev1.FileKeySelector, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if ref.Key == "" {
		errs = append(errs, field.Required(path.Child("key"), ""))
	} else {
		errs = append(errs, validate.Invalid(path.Child("key"), ref.Key, validation.IsRelaxedEnvVarName(ref.Key))...)
	}
	if ref.VolumeName == "" {
		errs = append(errs, field.Required(path.Child("volumeName"), ""))
	} else {
		errs = append(errs, validate.Label(path.Child("volumeName"), ref.VolumeName)...)
	}
	if ref.Path == "" {
		return append(errs, field.Required(path.Child("path"), ""))
	}
	return append(errs, validateNoBacksteps(ref.Path, path.Child("path"))...)
}

// validateFileKeyVolumes: files that variables are read from (KEP-3721) are in the
// pod's empty directories.
func validateFileKeyVolumes(p *podContext, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	check := func(env []corev1.EnvVar, path *field.Path) {
		for i, e := range env {
			if e.ValueFrom == nil || e.ValueFrom.FileKeyRef == nil {
				continue
			}
			name, at := e.ValueFrom.FileKeyRef.VolumeName, path.Child("env").Index(i).Child("valueFrom", "fileKeyRef", "volumeName")
			switch source, known := p.volumes[name]; {
			case !known:
				errs = append(errs, field.NotFound(at, name))
			case source.EmptyDir == nil:
				errs = append(errs, field.Invalid(at, name, "referenced volume must be of type emptyDir"))
			}
		}
	}
	for i := range p.spec.InitContainers {
		check(p.spec.InitContainers[i].Env, path.Child("initContainers").Index(i))
	}
	for i := range p.spec.Containers {
		check(p.spec.Containers[i].Env, path.Child("containers").Index(i))
	}
	for i := range p.spec.EphemeralContainers {
		check(p.spec.EphemeralContainers[i].Env, path.Child("ephemeralContainers").Index(i))
	}
	return errs
}

func validateEnvFrom(sources []corev1.EnvFromSource, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, s := range sources {
		at := path.Index(i)
		if s.Prefix != "" {
			errs = append(errs, validate.Invalid(at.Child("prefix"), s.Prefix, validation.IsRelaxedEnvVarName(s.Prefix))...)
		}
		if s.ConfigMapRef != nil {
			errs = append(errs, requiredSubdomain(at.Child("configMapRef", "name"), s.ConfigMapRef.Name)...)
		}
		if s.SecretRef != nil {
			errs = append(errs, requiredSubdomain(at.Child("secretRef", "name"), s.SecretRef.Name)...)
		}
		switch {
		case s.ConfigMapRef == nil && s.SecretRef == nil:
			errs = append(errs, field.Invalid(path, "", "must specify one of: `configMapRef` or `secretRef`"))
		case s.ConfigMapRef != nil && s.SecretRef != nil:
			errs = append(errs, field.Invalid(path, "", "may not have more than one field specified at a time"))
		}
	}
	return errs
}
