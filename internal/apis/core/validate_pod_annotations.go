package core

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis/validate"
)

const tolerationsAnnotation = "scheduler.alpha.kubernetes.io/tolerations"

var metadataAnnotations = field.NewPath("metadata", "annotations")

// validatePodAnnotations checks the annotations that say what fields say by now, and
// those with which a pod says what it is.
func validatePodAnnotations(annotations map[string]string, s *corev1.PodSpec, path *field.Path) field.ErrorList {
	errs := validateStandingAnnotations(annotations, s, path)
	if !isDeletionCost(annotations) {
		errs = append(errs, field.Invalid(path.Key(corev1.PodDeletionCost), annotations[corev1.PodDeletionCost], "must be a 32bit integer"))
	}
	return errs
}

func isDeletionCost(annotations map[string]string) bool {
	cost, set := annotations[corev1.PodDeletionCost]
	_, err := strconv.ParseInt(cost, 10, 32)
	return !set || err == nil && !strings.HasPrefix(cost, "+") && (len(cost) == 1 || cost[0] != '0')
}

// validatePodAnnotationsUpdate keeps a pod the mirror that it is, and confined as it
// was made. A deletion cost that was wrong may stay wrong.
func validatePodAnnotationsUpdate(p, old *corev1.Pod, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for key, was := range validate.Sorted(old.Annotations) {
		if is, kept := p.Annotations[key]; kept && is == was {
			continue
		}
		if strings.HasPrefix(key, appArmorAnnotation) {
			errs = append(errs, field.Forbidden(path.Key(key), "may not remove or update AppArmor annotations"))
		}
		if key == corev1.MirrorPodAnnotationKey {
			errs = append(errs, field.Forbidden(path.Key(key), "may not remove or update mirror pod annotation"))
		}
	}
	for _, key := range validate.SortedKeys(p.Annotations) {
		if _, known := old.Annotations[key]; known {
			continue
		}
		if strings.HasPrefix(key, appArmorAnnotation) {
			errs = append(errs, field.Forbidden(path.Key(key), "may not add AppArmor annotations"))
		}
		if key == corev1.MirrorPodAnnotationKey {
			errs = append(errs, field.Forbidden(path.Key(key), "may not add mirror pod annotation"))
		}
	}
	if isDeletionCost(old.Annotations) {
		return append(errs, validatePodAnnotations(p.Annotations, &p.Spec, path)...)
	}
	return append(errs, validateStandingAnnotations(p.Annotations, &p.Spec, path)...)
}

// validateStandingAnnotations are the rules that hold whatever was there before.
func validateStandingAnnotations(annotations map[string]string, s *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if value, mirror := annotations[corev1.MirrorPodAnnotationKey]; mirror && s.NodeName == "" {
		errs = append(errs, field.Invalid(path.Key(corev1.MirrorPodAnnotationKey), value, "must set spec.nodeName if mirror pod annotation is set"))
	}
	if text := annotations[tolerationsAnnotation]; text != "" {
		var tolerations []corev1.Toleration
		if err := json.Unmarshal([]byte(text), &tolerations); err != nil {
			errs = append(errs, field.Invalid(path, tolerationsAnnotation, err.Error()))
		} else {
			errs = append(errs, ValidateTolerations(path.Child(tolerationsAnnotation), tolerations)...)
		}
	}
	for key, profile := range validate.Sorted(annotations) {
		if key == corev1.SeccompPodAnnotationKey || strings.HasPrefix(key, corev1.SeccompContainerAnnotationKeyPrefix) {
			errs = append(errs, validateSeccompAnnotation(profile, path.Child(key))...)
		}
		if name, of := strings.CutPrefix(key, appArmorAnnotation); of {
			errs = append(errs, validateAppArmorAnnotation(name, profile, s, path.Key(key))...)
		}
	}
	return errs
}

func validateSeccompAnnotation(profile string, path *field.Path) field.ErrorList {
	if file, local := strings.CutPrefix(profile, corev1.SeccompLocalhostProfileNamePrefix); local {
		return validateDescendingPath(file, path)
	}
	switch profile {
	case corev1.SeccompProfileRuntimeDefault, corev1.DeprecatedSeccompProfileDockerDefault, corev1.SeccompProfileNameUnconfined:
		return nil
	}
	return field.ErrorList{field.Invalid(path, profile, "must be a valid seccomp profile")}
}

func validateAppArmorAnnotation(container, profile string, s *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	ephemeral := func(c corev1.EphemeralContainer) bool { return c.Name == container }
	if containerNamed(s.Containers, container) == nil && containerNamed(s.InitContainers, container) == nil && !slices.ContainsFunc(s.EphemeralContainers, ephemeral) {
		errs = append(errs, field.Invalid(path, container, "container not found"))
	}
	switch {
	case profile == "", profile == corev1.DeprecatedAppArmorBetaProfileRuntimeDefault, profile == corev1.DeprecatedAppArmorBetaProfileNameUnconfined:
	case strings.HasPrefix(profile, corev1.DeprecatedAppArmorBetaProfileNamePrefix):
	default:
		errs = append(errs, field.Invalid(path, profile, fmt.Sprintf("invalid AppArmor profile name: %q", profile)))
	}
	return errs
}
