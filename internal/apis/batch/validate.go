package batch

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	_ "time/tzdata" // time zones of CronJobs must not depend on the host

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis/core"
	"proa/internal/apis/validate"
)

const (
	maxIndexed      = 100_000 // parallelism and failed indexes of an Indexed job
	manyCompletions = 100_000
	maxOfMany       = 10_000 // parallelism and failed indexes of a job with many completions
	maxRules        = 20
	maxExitCodes    = 255
	maxConditions   = 20
	maxManagedBy    = 63
	maxSucceeded    = 64 << 10 // bytes of a rule's indexes
	maxCronJobName  = 52       // leaves room for the 11 characters a job's name adds
)

func validateJob(j *batchv1.Job) field.ErrorList {
	errs := append(validateGenerated(j), validateSelectingSpec(&j.Spec, field.NewPath("spec"))...)
	return append(errs, validateHostNames(j)...)
}

// validateHostNames: the last index makes the longest host name of a pod.
func validateHostNames(j *batchv1.Job) field.ErrorList {
	s := &j.Spec
	if !isIndexed(s) || s.Completions == nil || *s.Completions <= 0 {
		return nil
	}
	last := fmt.Sprintf("%s-%d", j.Name, *s.Completions-1)
	if len(validation.IsDNS1123Label(last)) == 0 {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("metadata", "name"), j.Name, "will not able to create pod with invalid DNS label: "+last)}
}

// validateSelectingSpec checks the spec of a job, which has a selector, unlike one
// in the template of a CronJob.
func validateSelectingSpec(s *batchv1.JobSpec, path *field.Path) field.ErrorList {
	errs := validateJobSpec(s, path)
	if s.Selector == nil {
		errs = append(errs, field.Required(path.Child("selector"), ""))
	} else {
		errs = append(errs, validate.Selector(path.Child("selector"), s.Selector)...)
	}
	if selector, err := metav1.LabelSelectorAsSelector(s.Selector); err == nil && !selector.Matches(labels.Set(s.Template.Labels)) {
		errs = append(errs, field.Invalid(path.Child("template", "metadata", "labels"), s.Template.Labels, "`selector` does not match template `labels`"))
	}
	return errs
}

func isIndexed(s *batchv1.JobSpec) bool {
	return s.CompletionMode != nil && *s.CompletionMode == batchv1.IndexedCompletion
}

// validateGenerated: unless the user selects, labels and selector are the job's own.
func validateGenerated(j *batchv1.Job) field.ErrorList {
	if j.Spec.ManualSelector != nil && *j.Spec.ManualSelector || j.Spec.Selector == nil {
		return nil
	}
	var errs field.ErrorList
	at := field.NewPath("spec", "template", "metadata", "labels")
	for _, want := range [][2]string{{"controller-uid", string(j.UID)}, {"job-name", j.Name}, {batchv1.ControllerUidLabel, string(j.UID)}, {batchv1.JobNameLabel, j.Name}} {
		switch value, set := j.Spec.Template.Labels[want[0]]; {
		case !set:
			errs = append(errs, field.Required(at.Key(want[0]), fmt.Sprintf("must be '%s'", want[1])))
		case value != want[1]:
			errs = append(errs, field.Invalid(at.Key(want[0]), value, fmt.Sprintf("must be '%s'", want[1])))
		}
	}
	if s := j.Spec.Selector; len(s.MatchExpressions) != 0 || len(s.MatchLabels) != 1 ||
		s.MatchLabels[batchv1.ControllerUidLabel] != string(j.UID) && s.MatchLabels["controller-uid"] != string(j.UID) {
		errs = append(errs, field.Invalid(field.NewPath("spec", "selector"), s, "`selector` not auto-generated"))
	}
	return errs
}

// validateJobSpec checks jobs and templates of jobs.
func validateJobSpec(s *batchv1.JobSpec, path *field.Path) field.ErrorList {
	errs := validate.NonNegativePtr(path.Child("parallelism"), s.Parallelism)
	errs = append(errs, validate.NonNegativePtr(path.Child("completions"), s.Completions)...)
	errs = append(errs, validate.NonNegativePtr(path.Child("activeDeadlineSeconds"), s.ActiveDeadlineSeconds)...)
	errs = append(errs, validate.NonNegativePtr(path.Child("backoffLimit"), s.BackoffLimit)...)
	errs = append(errs, validate.NonNegativePtr(path.Child("ttlSecondsAfterFinished"), s.TTLSecondsAfterFinished)...)
	errs = append(errs, validate.NonNegativePtr(path.Child("backoffLimitPerIndex"), s.BackoffLimitPerIndex)...)
	errs = append(errs, validate.NonNegativePtr(path.Child("maxFailedIndexes"), s.MaxFailedIndexes)...)
	if s.MaxFailedIndexes != nil && s.BackoffLimitPerIndex == nil {
		errs = append(errs, field.Required(path.Child("backoffLimitPerIndex"), "when maxFailedIndexes is specified"))
	}
	if m := s.ManagedBy; m != nil {
		errs = append(errs, validation.IsDomainPrefixedPath(path.Child("managedBy"), *m)...)
		if len(*m) > maxManagedBy {
			errs = append(errs, field.TooLong(path.Child("managedBy"), "", maxManagedBy))
		}
	}
	errs = append(errs, validateMode(s, path)...)
	if s.PodFailurePolicy != nil {
		errs = append(errs, validateFailurePolicy(s, path.Child("podFailurePolicy", "rules"))...)
	}
	if s.SuccessPolicy != nil {
		errs = append(errs, validateSuccessPolicy(s, path.Child("successPolicy"))...)
	}
	if p := s.PodReplacementPolicy; p != nil {
		if s.PodFailurePolicy != nil {
			errs = append(errs, validate.OneOf(path.Child("podReplacementPolicy"), *p, batchv1.Failed)...)
		} else {
			errs = append(errs, validate.OneOf(path.Child("podReplacementPolicy"), *p, batchv1.Failed, batchv1.TerminatingOrFailed)...)
		}
	}
	errs = append(errs, core.ValidateTemplate(&s.Template, path.Child("template"))...)
	restart := path.Child("template", "spec", "restartPolicy")
	switch p := s.Template.Spec.RestartPolicy; {
	case p == "" || p == corev1.RestartPolicyAlways:
		errs = append(errs, field.Required(restart, fmt.Sprintf("valid values: %q, %q", corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever)))
	case p != corev1.RestartPolicyOnFailure && p != corev1.RestartPolicyNever:
		errs = append(errs, field.NotSupported(restart, p, []corev1.RestartPolicy{corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever}))
	case s.PodFailurePolicy != nil && p != corev1.RestartPolicyNever:
		errs = append(errs, field.Invalid(restart, p, fmt.Sprintf("only %q is supported when podFailurePolicy is specified", corev1.RestartPolicyNever)))
	}
	return errs
}

func validateMode(s *batchv1.JobSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if m := s.CompletionMode; m != nil {
		errs = append(errs, validate.Listed(path.Child("completionMode"), *m, batchv1.NonIndexedCompletion, batchv1.IndexedCompletion)...)
	}
	if !isIndexed(s) && len(errs) > 0 {
		return errs
	}
	if !isIndexed(s) {
		if s.BackoffLimitPerIndex != nil {
			errs = append(errs, field.Invalid(path.Child("backoffLimitPerIndex"), *s.BackoffLimitPerIndex, "requires indexed completion mode"))
		}
		if s.MaxFailedIndexes != nil {
			errs = append(errs, field.Invalid(path.Child("maxFailedIndexes"), *s.MaxFailedIndexes, "requires indexed completion mode"))
		}
		return errs
	}
	if s.Completions == nil {
		errs = append(errs, field.Required(path.Child("completions"), fmt.Sprintf("when completion mode is %s", batchv1.IndexedCompletion)))
	}
	if s.Parallelism != nil && *s.Parallelism > maxIndexed {
		errs = append(errs, field.Invalid(path.Child("parallelism"), *s.Parallelism, fmt.Sprintf("must be less than or equal to %d when completion mode is %s", maxIndexed, batchv1.IndexedCompletion)))
	}
	if n := s.MaxFailedIndexes; n != nil {
		if s.Completions != nil && *n > *s.Completions {
			errs = append(errs, field.Invalid(path.Child("maxFailedIndexes"), *n, "must be less than or equal to completions"))
		}
		if *n > maxIndexed {
			errs = append(errs, field.Invalid(path.Child("maxFailedIndexes"), *n, fmt.Sprintf("must be less than or equal to %d", maxIndexed)))
		}
	}
	if s.Completions != nil && *s.Completions > manyCompletions && s.BackoffLimitPerIndex != nil {
		errs = append(errs, validateManyCompletions(s, path)...)
	}
	return errs
}

// validateManyCompletions keeps small what the status of a job says of its many indexes.
func validateManyCompletions(s *batchv1.JobSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if s.MaxFailedIndexes == nil {
		errs = append(errs, field.Required(path.Child("maxFailedIndexes"), fmt.Sprintf("must be specified when completions is above %d", manyCompletions)))
	}
	atMost := func(child string, n *int32) {
		if n != nil && *n > maxOfMany {
			errs = append(errs, field.Invalid(path.Child(child), *n,
				fmt.Sprintf("must be less than or equal to %d when completions are above %d and used with backoff limit per index", maxOfMany, manyCompletions)))
		}
	}
	atMost("parallelism", s.Parallelism)
	atMost("maxFailedIndexes", s.MaxFailedIndexes)
	return errs
}

func validateFailurePolicy(s *batchv1.JobSpec, path *field.Path) field.ErrorList {
	rules := s.PodFailurePolicy.Rules
	var errs field.ErrorList
	if len(rules) > maxRules {
		errs = append(errs, field.TooMany(path, len(rules), maxRules))
	}
	containers := sets.New[string]()
	for _, c := range slices.Concat(s.Template.Spec.Containers, s.Template.Spec.InitContainers) {
		containers.Insert(c.Name)
	}
	for i := range rules {
		r, at := &rules[i], path.Index(i)
		actions := []batchv1.PodFailurePolicyAction{batchv1.PodFailurePolicyActionCount, batchv1.PodFailurePolicyActionFailIndex, batchv1.PodFailurePolicyActionFailJob, batchv1.PodFailurePolicyActionIgnore}
		errs = append(errs, requiredValue(at.Child("action"), r.Action, actions...)...)
		if r.Action == batchv1.PodFailurePolicyActionFailIndex && s.BackoffLimitPerIndex == nil {
			errs = append(errs, field.Invalid(at.Child("action"), r.Action, "requires the backoffLimitPerIndex to be set"))
		}
		if r.OnExitCodes != nil {
			errs = append(errs, validateExitCodes(r.OnExitCodes, containers, at.Child("onExitCodes"))...)
		}
		if len(r.OnPodConditions) > maxConditions {
			errs = append(errs, field.TooMany(at.Child("onPodConditions"), len(r.OnPodConditions), maxConditions))
		}
		for k, c := range r.OnPodConditions {
			at := at.Child("onPodConditions").Index(k)
			errs = append(errs, validate.QualifiedName(at.Child("type"), string(c.Type))...)
			errs = append(errs, requiredValue(at.Child("status"), c.Status, corev1.ConditionFalse, corev1.ConditionTrue, corev1.ConditionUnknown)...)
		}
		switch {
		case r.OnExitCodes != nil && len(r.OnPodConditions) > 0:
			errs = append(errs, field.Invalid(at, field.OmitValueType{}, "specifying both OnExitCodes and OnPodConditions is not supported"))
		case r.OnExitCodes == nil && len(r.OnPodConditions) == 0:
			errs = append(errs, field.Invalid(at, field.OmitValueType{}, "specifying one of OnExitCodes and OnPodConditions is required"))
		}
	}
	return errs
}

// requiredValue says which values there are (sorted) where there is none.
func requiredValue[T ~string](path *field.Path, value T, allowed ...T) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(path, fmt.Sprintf("valid values: %q", allowed))}
	}
	return validate.OneOf(path, value, allowed...)
}

func validateExitCodes(r *batchv1.PodFailurePolicyOnExitCodesRequirement, containers sets.Set[string], path *field.Path) field.ErrorList {
	errs := requiredValue(path.Child("operator"), r.Operator, batchv1.PodFailurePolicyOnExitCodesOpIn, batchv1.PodFailurePolicyOnExitCodesOpNotIn)
	if r.ContainerName != nil && !containers.Has(*r.ContainerName) {
		errs = append(errs, field.Invalid(path.Child("containerName"), *r.ContainerName, "must be one of the container or initContainer names in the pod template"))
	}
	values := path.Child("values")
	switch n := len(r.Values); {
	case n == 0:
		errs = append(errs, field.Invalid(values, r.Values, "at least one value is required"))
	case n > maxExitCodes:
		errs = append(errs, field.TooMany(values, n, maxExitCodes))
	}
	seen := sets.New[int32]()
	for i, v := range r.Values {
		if v == 0 && r.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn {
			errs = append(errs, field.Invalid(values.Index(i), v, "must not be 0 for the In operator"))
		}
		if seen.Has(v) {
			errs = append(errs, field.Duplicate(values.Index(i), v))
		}
		seen.Insert(v)
	}
	if !slices.IsSorted(r.Values) {
		errs = append(errs, field.Invalid(values, r.Values, "must be ordered"))
	}
	return errs
}

func validateSuccessPolicy(s *batchv1.JobSpec, path *field.Path) field.ErrorList {
	if !isIndexed(s) {
		return field.ErrorList{field.Invalid(path, *s.SuccessPolicy, "requires indexed completion mode")}
	}
	var errs field.ErrorList
	rules := path.Child("rules")
	switch n := len(s.SuccessPolicy.Rules); {
	case n == 0:
		return append(errs, field.Required(rules, "at least one rules must be specified when the successPolicy is specified"))
	case n > maxRules:
		errs = append(errs, field.TooMany(rules, n, maxRules))
	}
	for i, r := range s.SuccessPolicy.Rules {
		at := rules.Index(i)
		if r.SucceededCount == nil && r.SucceededIndexes == nil {
			errs = append(errs, field.Required(at, "at least one of succeededCount or succeededIndexes must be specified"))
		}
		total := int32(-1)
		if r.SucceededIndexes != nil && s.Completions != nil {
			if len(*r.SucceededIndexes) > maxSucceeded {
				errs = append(errs, field.TooLong(at.Child("succeededIndexes"), "", maxSucceeded))
			}
			n, err := countIndexes(*r.SucceededIndexes, *s.Completions)
			if err != nil {
				n = 0
				errs = append(errs, field.Invalid(at.Child("succeededIndexes"), *r.SucceededIndexes, fmt.Sprintf("error parsing succeededIndexes: %s", err)))
			}
			total = n
		}
		if c := r.SucceededCount; c != nil {
			count := at.Child("succeededCount")
			errs = append(errs, validate.NonNegative(count, *c)...)
			if s.Completions != nil && *c > *s.Completions {
				errs = append(errs, field.Invalid(count, *c, fmt.Sprintf("must be less than or equal to %d (the number of specified completions)", *s.Completions)))
			}
			if total >= 0 && *c > total {
				errs = append(errs, field.Invalid(count, *c, fmt.Sprintf("must be less than or equal to %d (the number of indexes in the specified succeededIndexes field)", total)))
			}
		}
	}
	return errs
}

// countIndexes counts the indexes of "1,3-5,7", which rise and stay below completions.
func countIndexes(list string, completions int32) (int32, error) {
	intervals, err := parseIndexes(list, completions)
	var total int32
	for _, v := range intervals {
		total += v.last - v.first + 1
	}
	return total, err
}

// interval is a range of indexes, both ends included.
type interval struct{ first, last int32 }

// parseIndexes reads "1,3-5,7". With an error it returns what comes before it.
func parseIndexes(list string, completions int32) (intervals []interval, err error) {
	if list == "" {
		return nil, nil
	}
	last := int64(-1)
	for _, part := range strings.Split(list, ",") {
		low, high, isRange := strings.Cut(part, "-")
		from, err := strconv.ParseInt(low, 10, 32)
		if err != nil {
			return intervals, fmt.Errorf("cannot convert string to integer for index: %q", low)
		}
		if from >= int64(completions) {
			return intervals, fmt.Errorf("too large index: %q", low)
		}
		to := from
		if isRange {
			if to, err = strconv.ParseInt(high, 10, 32); err != nil {
				return intervals, fmt.Errorf("cannot convert string to integer for index: %q", high)
			}
			if to >= int64(completions) {
				return intervals, fmt.Errorf("too large index: %q", high)
			}
			if to <= from {
				return intervals, fmt.Errorf("non-increasing order, previous: %d, current: %d", from, to)
			}
		}
		if from <= last {
			return intervals, fmt.Errorf("non-increasing order, previous: %d, current: %d", last, from)
		}
		intervals = append(intervals, interval{int32(from), int32(to)})
		last = to
	}
	return intervals, nil
}

// validateJobUpdate: what a job runs is fixed; how much of it at once is not.
func validateJobUpdate(j, old *batchv1.Job) field.ErrorList {
	path, s, was := field.NewPath("spec"), &j.Spec, &old.Spec
	errs := validateSelectingSpec(s, path)
	switch at := path.Child("completions"); {
	case !isIndexed(s):
		errs = append(errs, validate.Immutable(at, s.Completions, was.Completions)...)
	case s.Completions != nil && (was.Completions == nil || *s.Completions != *was.Completions) && *s.Completions != *s.Parallelism:
		errs = append(errs, field.Invalid(at, *s.Completions, "can only be modified in tandem with spec.parallelism"))
	}
	errs = append(errs, validate.Immutable(path.Child("selector"), s.Selector, was.Selector)...)
	errs = append(errs, validateTemplateUpdate(j, old, path.Child("template"))...)
	errs = append(errs, validate.Immutable(path.Child("completionMode"), s.CompletionMode, was.CompletionMode)...)
	errs = append(errs, validate.Immutable(path.Child("podFailurePolicy"), s.PodFailurePolicy, was.PodFailurePolicy)...)
	errs = append(errs, validate.Immutable(path.Child("backoffLimitPerIndex"), s.BackoffLimitPerIndex, was.BackoffLimitPerIndex)...)
	errs = append(errs, validate.Immutable(path.Child("managedBy"), s.ManagedBy, was.ManagedBy)...)
	errs = append(errs, validate.Immutable(path.Child("successPolicy"), s.SuccessPolicy, was.SuccessPolicy)...)
	return append(errs, validateHostNames(j)...)
}

// isPaused: a suspended job whose pods, if it had any, are gone.
func isPaused(j *batchv1.Job) bool {
	idle := j.Status.StartTime == nil || slices.ContainsFunc(j.Status.Conditions, func(c batchv1.JobCondition) bool {
		return c.Type == batchv1.JobSuspended && c.Status == corev1.ConditionTrue
	})
	return j.Spec.Suspend != nil && *j.Spec.Suspend && idle && j.Status.Active == 0
}

// validateTemplateUpdate: while a suspended job has no pods, where they go (KEP-2926)
// and what they ask for (KEP-5440) may still be decided.
func validateTemplateUpdate(j, old *batchv1.Job, path *field.Path) field.ErrorList {
	is := j.Spec.Template.DeepCopy()
	was := &old.Spec.Template
	paused := isPaused(old)
	if paused {
		keepResources(is.Spec.Containers, was.Spec.Containers)
		keepResources(is.Spec.InitContainers, was.Spec.InitContainers)
		is.Labels, is.Annotations = was.Labels, was.Annotations
		is.Spec.NodeSelector, is.Spec.Tolerations, is.Spec.SchedulingGates = was.Spec.NodeSelector, was.Spec.Tolerations, was.Spec.SchedulingGates
		if a := is.Spec.Affinity; a != nil && was.Spec.Affinity != nil {
			a.NodeAffinity = was.Spec.Affinity.NodeAffinity
		} else if a != nil && a.PodAffinity == nil && a.PodAntiAffinity == nil {
			is.Spec.Affinity = nil
		} else if a == nil && was.Spec.Affinity != nil && was.Spec.Affinity.PodAffinity == nil && was.Spec.Affinity.PodAntiAffinity == nil {
			is.Spec.Affinity = was.Spec.Affinity
		}
	}
	switch {
	case len(validate.Immutable(path, is, was)) == 0:
		return nil
	case paused:
		return field.ErrorList{field.Invalid(path.Child("spec"), j.Spec.Template.Spec, "field is immutable")}
	}
	return field.ErrorList{field.Invalid(path, j.Spec.Template, "field is immutable")}
}

// keepResources gives containers the resources of the old ones in their places.
func keepResources(containers, old []corev1.Container) {
	for i := range containers {
		if len(containers) == len(old) && containers[i].Name == old[i].Name {
			containers[i].Resources = old[i].Resources
		}
	}
}

func validateCronJob(c *batchv1.CronJob) field.ErrorList {
	errs := validateCronJobSpec(&c.Spec, nil, field.NewPath("spec"))
	if len(c.Name) > maxCronJobName {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), c.Name, "must be no more than 52 characters"))
	}
	return errs
}

func validateCronJobUpdate(c, old *batchv1.CronJob) field.ErrorList {
	return validateCronJobSpec(&c.Spec, &old.Spec, field.NewPath("spec"))
}

func validateCronJobSpec(s, old *batchv1.CronJobSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	at := path.Child("schedule")
	if s.Schedule == "" {
		errs = append(errs, field.Required(at, ""))
	} else {
		errs = append(errs, validateSchedule(s, old != nil && strings.Contains(old.Schedule, "TZ"), at)...)
	}
	errs = append(errs, validate.NonNegativePtr(path.Child("startingDeadlineSeconds"), s.StartingDeadlineSeconds)...)
	if z := s.TimeZone; z != nil && (old == nil || old.TimeZone == nil || *old.TimeZone != *z) {
		errs = append(errs, validateTimeZone(*z, path.Child("timeZone"))...)
	}
	errs = append(errs, validate.RequiredOneOf(path.Child("concurrencyPolicy"), s.ConcurrencyPolicy, batchv1.AllowConcurrent, batchv1.ForbidConcurrent, batchv1.ReplaceConcurrent)...)
	template := path.Child("jobTemplate")
	errs = append(errs, validateJobSpec(&s.JobTemplate.Spec, template.Child("spec"))...)
	errs = append(errs, validate.NonNegativePtr(path.Child("successfulJobsHistoryLimit"), s.SuccessfulJobsHistoryLimit)...)
	return append(errs, validate.NonNegativePtr(path.Child("failedJobsHistoryLimit"), s.FailedJobsHistoryLimit)...)
}

func validateSchedule(s *batchv1.CronJobSpec, hadZone bool, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if _, err := parseSchedule(s.Schedule); err != nil {
		errs = append(errs, field.Invalid(path, s.Schedule, err.Error()))
	}
	switch withZone := strings.Contains(s.Schedule, "TZ"); {
	case withZone && s.TimeZone != nil:
		errs = append(errs, field.Invalid(path, s.Schedule, "cannot use both timeZone field and TZ or CRON_TZ in schedule"))
	case withZone && !hadZone:
		errs = append(errs, field.Invalid(path, s.Schedule, "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"))
	}
	return errs
}

// parseSchedule turns a panic of the parser on odd input into an error.
func parseSchedule(schedule string) (s cron.Schedule, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("invalid schedule format: %v", r)
		}
	}()
	return cron.ParseStandard(schedule)
}

func validateTimeZone(zone string, path *field.Path) field.ErrorList {
	if zone == "" {
		return field.ErrorList{field.Invalid(path, zone, "timeZone must be nil or non-empty string")}
	}
	if strings.EqualFold(zone, "Local") {
		return field.ErrorList{field.Invalid(path, zone, "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones")}
	}
	if _, err := time.LoadLocation(zone); err != nil {
		if errors.Is(err, syscall.ENAMETOOLONG) { // no file can have its name
			err = errors.New("unknown time zone " + zone)
		}
		return field.ErrorList{field.Invalid(path, zone, err.Error())}
	}
	return nil
}

// jobSpecWarnings: so many indexes that status may outgrow an object (KEP-3850).
func jobSpecWarnings(s *batchv1.JobSpec, path string) []string {
	const many, failing = 100_000, 10_000
	if isIndexed(s) && s.Completions != nil && *s.Completions > many && s.Parallelism != nil && *s.Parallelism > failing {
		return []string{path + ": In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, Kubernetes might not be able to track completedIndexes when a big number of indexes fail"}
	}
	return nil
}

func timeZoneWarnings(schedule string) []string {
	if strings.Contains(schedule, "TZ") {
		return []string{"CRON_TZ or TZ used in spec.schedule is not officially supported, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details"}
	}
	return nil
}
