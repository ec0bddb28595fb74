package resource

import (
	"encoding/json"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/dynamic-resource-allocation/cel"

	"proa/internal/apis/validate"
)

type errorList = field.ErrorList

func keepSpec(spec, old any) errorList {
	return validate.Immutable(field.NewPath("spec"), spec, old)
}

func validateClass(c *resourcev1.DeviceClass) errorList {
	return append(validateSelectors(c.Spec.Selectors, field.NewPath("spec", "selectors")), validateClassConfig(c)...)
}

// validateClassUpdate does not compile again what a class has had: what was valid
// for the server that took it stays so.
func validateClassUpdate(c, old *resourcev1.DeviceClass) errorList {
	var errs errorList
	if !apiequality.Semantic.DeepEqual(c.Spec.Selectors, old.Spec.Selectors) {
		errs = validateSelectors(c.Spec.Selectors, field.NewPath("spec", "selectors"))
	}
	if apiequality.Semantic.DeepEqual(c.Spec.Config, old.Spec.Config) {
		return errs
	}
	return append(errs, validateClassConfig(c)...)
}

func validateClassConfig(c *resourcev1.DeviceClass) errorList {
	if len(c.Spec.Config) > resourcev1.DeviceConfigMaxSize {
		return nil // a marker says so
	}
	var errs errorList
	for i := range c.Spec.Config {
		errs = append(errs, validateConfiguration(&c.Spec.Config[i].DeviceConfiguration, field.NewPath("spec", "config").Index(i))...)
	}
	return errs
}

func validateTemplate(t *resourcev1.ResourceClaimTemplate) errorList {
	path := field.NewPath("spec")
	errs := metav1validation.ValidateLabels(t.Spec.Labels, path.Child("metadata", "labels"))
	errs = append(errs, validate.Annotations(path.Child("metadata", "annotations"), t.Spec.Annotations)...)
	return append(errs, validateClaimSpec(&t.Spec.Spec, path.Child("spec"))...)
}

func validateClaim(c *resourcev1.ResourceClaim) errorList {
	return validateClaimSpec(&c.Spec, field.NewPath("spec"))
}

// validateClaimSpec looks into no list that is longer than its marker allows.
func validateClaimSpec(s *resourcev1.ResourceClaimSpec, path *field.Path) errorList {
	devices := path.Child("devices")
	d, names := &derived{constraints: s.Devices.Constraints}, requestNames(s)
	var errs errorList
	if len(s.Devices.Requests) <= resourcev1.DeviceRequestsMaxSize {
		for i := range s.Devices.Requests {
			errs = append(errs, validateRequest(&s.Devices.Requests[i], d, devices.Child("requests").Index(i))...)
		}
	}
	if len(s.Devices.Constraints) <= resourcev1.DeviceConstraintsMaxSize {
		for i := range s.Devices.Constraints {
			errs = append(errs, validateConstraint(&s.Devices.Constraints[i], names, devices.Child("constraints").Index(i))...)
		}
	}
	if len(s.Devices.Config) <= resourcev1.DeviceConfigMaxSize {
		for i := range s.Devices.Config {
			c := &s.Devices.Config[i]
			at := devices.Child("config").Index(i)
			errs = append(errs, validateRequestNames(c.Requests, names, at.Child("requests"))...)
			errs = append(errs, validateConfiguration(&c.DeviceConfiguration, at)...)
		}
	}
	return append(errs, d.total(devices)...)
}

// requestNames are what constraints and results may refer to: requests, and
// alternatives as request/alternative.
func requestNames(s *resourcev1.ResourceClaimSpec) sets.Set[string] {
	names := sets.New[string]()
	for _, r := range s.Devices.Requests {
		names.Insert(r.Name)
		for _, f := range r.FirstAvailable {
			names.Insert(r.Name + "/" + f.Name)
		}
	}
	return names
}

func validateRequest(r *resourcev1.DeviceRequest, d *derived, path *field.Path) errorList {
	errs := validate.Label(path.Child("name"), r.Name)
	switch {
	case r.Exactly == nil && len(r.FirstAvailable) == 0:
		return append(errs, field.Required(path, "exactly one of `exactly` or `firstAvailable` is required"))
	case r.Exactly != nil && len(r.FirstAvailable) > 0:
		return append(errs, field.Invalid(path, nil, "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set"))
	}
	if e := r.Exactly; e != nil {
		at := path.Child("exactly")
		errs = append(errs, validateClassName(e.DeviceClassName, at.Child("deviceClassName"))...)
		errs = append(errs, validateSelectors(e.Selectors, at.Child("selectors"))...)
		errs = append(errs, d.validate(e.DerivedAttributes, r.Name, at.Child("derivedAttributes"))...)
		errs = append(errs, validateAllocationMode(e.AllocationMode, e.Count, at)...)
		errs = append(errs, validateTolerations(e.Tolerations, at.Child("tolerations"))...)
	}
	if len(r.FirstAvailable) > resourcev1.FirstAvailableDeviceRequestMaxSize {
		return errs
	}
	for i := range r.FirstAvailable {
		f, at := &r.FirstAvailable[i], path.Child("firstAvailable").Index(i)
		errs = append(errs, validate.Label(at.Child("name"), f.Name)...)
		errs = append(errs, validateClassName(f.DeviceClassName, at.Child("deviceClassName"))...)
		errs = append(errs, validateSelectors(f.Selectors, at.Child("selectors"))...)
		errs = append(errs, d.validate(f.DerivedAttributes, r.Name+"/"+f.Name, at.Child("derivedAttributes"))...)
		errs = append(errs, validateAllocationMode(f.AllocationMode, f.Count, at)...)
		errs = append(errs, validateTolerations(f.Tolerations, at.Child("tolerations"))...)
	}
	return errs
}

func validateClassName(name string, path *field.Path) errorList {
	if name == "" {
		return errorList{field.Required(path, "")}
	}
	return validate.Subdomain(path, name)
}

func validateAllocationMode(mode resourcev1.DeviceAllocationMode, count int64, path *field.Path) errorList {
	switch mode {
	case resourcev1.DeviceAllocationModeAll:
		if count != 0 {
			return errorList{field.Invalid(path.Child("count"), count, "must not be specified when allocationMode is 'All'")}
		}
	case resourcev1.DeviceAllocationModeExactCount:
		if count <= 0 {
			return errorList{field.Invalid(path.Child("count"), count, "must be greater than zero")}
		}
	default:
		return validate.OneOf(path.Child("allocationMode"), mode, resourcev1.DeviceAllocationModeAll, resourcev1.DeviceAllocationModeExactCount)
	}
	return nil
}

func validateSelectors(selectors []resourcev1.DeviceSelector, path *field.Path) errorList {
	if len(selectors) > resourcev1.DeviceSelectorsMaxSize {
		return nil // a marker says so
	}
	var errs errorList
	for i, s := range selectors {
		at := path.Index(i).Child("cel")
		if s.CEL == nil {
			errs = append(errs, field.Required(at, ""))
			continue
		}
		errs = append(errs, validateExpression(s.CEL.Expression, at.Child("expression"))...)
	}
	return errs
}

// validateExpression compiles a selector and bounds what it may cost.
func validateExpression(expression string, path *field.Path) errorList {
	cost, errs := compile(expression, path, false)
	if cost > resourcev1.CELSelectorExpressionMaxCost {
		errs = append(errs, field.Forbidden(path, "too complex, exceeds cost limit"))
	}
	return errs
}

// compile returns what an expression costs at most: a selector, or one that derives
// an attribute.
func compile(expression string, path *field.Path, derives bool) (cost uint64, errs errorList) {
	if len(expression) > resourcev1.CELSelectorExpressionMaxLength {
		return 0, errorList{field.TooLong(path, "", resourcev1.CELSelectorExpressionMaxLength)}
	}
	env := environment.NewExpressions
	compiler := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true})
	result := compiler.CompileCELExpression(expression, cel.Options{EnvType: &env, DerivedAttribute: derives})
	e := result.Error
	switch {
	case e == nil:
		return result.MaxCost, nil
	case e.Type == apiservercel.ErrorTypeRequired:
		return 0, errorList{field.Required(path, e.Detail)}
	case e.Type == apiservercel.ErrorTypeInvalid:
		return 0, errorList{field.Invalid(path, expression, e.Detail)}
	}
	return 0, errorList{field.InternalError(path, e)}
}

func validateConstraint(c *resourcev1.DeviceConstraint, names sets.Set[string], path *field.Path) errorList {
	errs := validateRequestNames(c.Requests, names, path.Child("requests"))
	if c.MatchAttribute == nil && c.DistinctAttribute == nil {
		errs = append(errs, field.Required(path, `exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set`))
	}
	return errs
}

func validateRequestNames(requests []string, names sets.Set[string], path *field.Path) errorList {
	var errs errorList
	for i, name := range requests {
		errs = append(errs, validateRequestName(name, names, path.Index(i))...)
	}
	return errs
}

func validateRequestName(name string, names sets.Set[string], path *field.Path) errorList {
	unknown := field.Invalid(path, name, "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'")
	parts := strings.Split(name, "/")
	if len(parts) > 2 {
		return errorList{unknown}
	}
	var errs errorList
	for _, part := range parts {
		errs = append(errs, validate.Label(path, part)...)
	}
	if !names.Has(name) {
		errs = append(errs, unknown)
	}
	return errs
}

func validateConfiguration(c *resourcev1.DeviceConfiguration, path *field.Path) errorList {
	if c.Opaque == nil {
		return errorList{field.Required(path.Child("opaque"), "")}
	}
	return validateRaw(&c.Opaque.Parameters, resourcev1.OpaqueParametersMaxLength, path.Child("opaque", "parameters"))
}

// validateRaw wants a JSON object of at most max bytes.
func validateRaw(r *runtime.RawExtension, most int, path *field.Path) errorList {
	var v any
	switch {
	case len(r.Raw) == 0:
		return errorList{field.Required(path, "")}
	case len(r.Raw) > most:
		return errorList{field.TooLong(path, "", most)}
	}
	if err := json.Unmarshal(r.Raw, &v); err != nil {
		return errorList{field.Invalid(path, "<value omitted>", "error parsing data as JSON: "+err.Error())}
	}
	if v == nil {
		return errorList{field.Required(path, "")}
	}
	if _, ok := v.(map[string]any); !ok {
		return errorList{field.Invalid(path, "<value omitted>", "must be a valid JSON object")}
	}
	return nil
}

func validateTolerations(tolerations []resourcev1.DeviceToleration, path *field.Path) errorList {
	var errs errorList
	for i, t := range tolerations {
		at := path.Index(i)
		switch t.Operator {
		case resourcev1.DeviceTolerationOpExists:
			if t.Value != "" {
				errs = append(errs, field.Invalid(at.Child("value"), t.Value, "must be empty for operator `Exists`"))
			}
		case resourcev1.DeviceTolerationOpEqual:
			errs = append(errs, validate.LabelValue(at.Child("value"), t.Value)...)
		case "":
			errs = append(errs, field.Required(at.Child("operator"), ""))
		default:
			errs = append(errs, validate.OneOf(at.Child("operator"), t.Operator, resourcev1.DeviceTolerationOpExists, resourcev1.DeviceTolerationOpEqual)...)
		}
		if t.Effect != "" {
			errs = append(errs, validate.OneOf(at.Child("effect"), t.Effect, resourcev1.DeviceTaintEffectNoExecute, resourcev1.DeviceTaintEffectNoSchedule, resourcev1.DeviceTaintEffectNone)...)
		}
	}
	return errs
}

func validateTaint(t *resourcev1.DeviceTaint, path *field.Path) errorList {
	errs := validate.LabelName(path.Child("key"), t.Key)
	if t.Value != "" {
		errs = append(errs, validate.LabelValue(path.Child("value"), t.Value)...)
	}
	return append(errs, validate.RequiredOneOf(path.Child("effect"), t.Effect,
		resourcev1.DeviceTaintEffectNoExecute, resourcev1.DeviceTaintEffectNoSchedule, resourcev1.DeviceTaintEffectNone)...)
}

func validateRule(r *resourcev1.DeviceTaintRule) errorList {
	path := field.NewPath("spec")
	errs := validateDeviceSelector(r.Spec.DeviceSelector, path.Child("deviceSelector"))
	errs = append(errs, validateTaint(&r.Spec.Taint, path.Child("taint"))...)
	return append(errs, validateRuleStatus(r, nil)...)
}

func validateDeviceSelector(s *resourcev1.DeviceTaintSelector, path *field.Path) errorList {
	if s == nil {
		return nil
	}
	var errs errorList
	if s.Driver != nil {
		errs = append(errs, validate.CSIDriverName(path.Child("driver"), *s.Driver)...)
	}
	if s.Pool != nil {
		errs = append(errs, validatePoolName(*s.Pool, path.Child("pool"))...)
	}
	if s.Device != nil {
		errs = append(errs, validate.Label(path.Child("device"), *s.Device)...)
	}
	return errs
}

// validatePoolName wants subdomains with slashes between them.
func validatePoolName(name string, path *field.Path) errorList {
	if name == "" {
		return errorList{field.Required(path, "")}
	}
	var errs errorList
	if len(name) > resourcev1.PoolNameMaxLength {
		errs = append(errs, field.TooLong(path, "", resourcev1.PoolNameMaxLength))
	}
	for part := range strings.SplitSeq(name, "/") {
		errs = append(errs, validate.Subdomain(path, part)...)
	}
	return errs
}

func validateRuleStatus(r, _ *resourcev1.DeviceTaintRule) errorList {
	path := field.NewPath("status", "conditions")
	errs := metav1validation.ValidateConditions(r.Status.Conditions, path)
	if n := len(r.Status.Conditions); n > resourcev1.DeviceTaintRuleStatusMaxConditions {
		errs = append(errs, field.TooMany(path, n, resourcev1.DeviceTaintRuleStatusMaxConditions))
	}
	return errs
}
