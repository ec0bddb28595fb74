package flowcontrol

import (
	"fmt"
	"slices"
	"strings"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/util/shufflesharding"

	"proa/internal/apis/validate"
)

const (
	maxPrecedence  = int32(10_000)
	maxQueues      = int32(10_000_000)
	maxHashBits    = 60 // of a shuffle sharder
	exemptName     = flowcontrolv1.PriorityLevelConfigurationNameExempt
	catchAllName   = flowcontrolv1.PriorityLevelConfigurationNameCatchAll
	exemptPriority = int32(1)
)

// verbs are those that rules may name besides "*".
var verbs = []string{"get", "list", "create", "update", "delete", "deletecollection", "patch", "watch", "proxy"}

// unlike refuses a spec that is not the mandatory one of that name.
func unlike(path *field.Path, name string, spec, want any) field.ErrorList {
	if apiequality.Semantic.DeepEqual(spec, want) {
		return nil
	}
	return field.ErrorList{field.Invalid(path, spec, fmt.Sprintf("spec of '%s' must equal the fixed value", name))}
}

func validateSchema(s *flowcontrolv1.FlowSchema) field.ErrorList {
	path := field.NewPath("spec")
	var errs field.ErrorList
	_, mandatory := Mandatory()
	for _, m := range mandatory {
		if m.Name == s.Name {
			errs = append(errs, unlike(path, s.Name, s.Spec, m.Spec)...)
		}
	}
	p := s.Spec.MatchingPrecedence
	switch {
	case p <= 0:
		errs = append(errs, field.Invalid(path.Child("matchingPrecedence"), p, "must be a positive value"))
	case p > maxPrecedence:
		errs = append(errs, field.Invalid(path.Child("matchingPrecedence"), p, fmt.Sprintf("must not be greater than %v", maxPrecedence)))
	case p == exemptPriority && s.Name != exemptName:
		errs = append(errs, field.Invalid(path.Child("matchingPrecedence"), p, "only the schema named 'exempt' may have matchingPrecedence 1"))
	}
	if m := s.Spec.DistinguisherMethod; m != nil && m.Type != flowcontrolv1.FlowDistinguisherMethodByNamespaceType && m.Type != flowcontrolv1.FlowDistinguisherMethodByUserType {
		errs = append(errs, field.NotSupported(path.Child("distinguisherMethod", "type"), validate.Hub(m), []flowcontrolv1.FlowDistinguisherMethodType{flowcontrolv1.FlowDistinguisherMethodByNamespaceType, flowcontrolv1.FlowDistinguisherMethodByUserType}))
	}
	errs = append(errs, validateLevelName(s.Spec.PriorityLevelConfiguration.Name, path.Child("priorityLevelConfiguration", "name"))...)
	for i := range s.Spec.Rules {
		errs = append(errs, validateRule(&s.Spec.Rules[i], path.Child("rules").Index(i))...)
	}
	return append(errs, validateSchemaStatus(s, nil)...)
}

func validateLevelName(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "must reference a priority level")}
	}
	return validate.Invalid(path, name, apivalidation.NameIsDNSSubdomain(name, false))
}

func validateRule(r *flowcontrolv1.PolicyRulesWithSubjects, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(r.Subjects) == 0 {
		errs = append(errs, field.Required(path.Child("subjects"), "subjects must contain at least one value"))
	}
	for i := range r.Subjects {
		errs = append(errs, validateSubject(&r.Subjects[i], path.Child("subjects").Index(i))...)
	}
	if len(r.ResourceRules) == 0 && len(r.NonResourceRules) == 0 {
		errs = append(errs, field.Required(path, "at least one of resourceRules and nonResourceRules has to be non-empty"))
	}
	for i := range r.ResourceRules {
		errs = append(errs, validateResourceRule(&r.ResourceRules[i], path.Child("resourceRules").Index(i))...)
	}
	for i := range r.NonResourceRules {
		errs = append(errs, validateNonResourceRule(&r.NonResourceRules[i], path.Child("nonResourceRules").Index(i))...)
	}
	return errs
}

func validateSubject(s *flowcontrolv1.Subject, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	var foreign []string
	if s.ServiceAccount != nil && s.Kind != flowcontrolv1.SubjectKindServiceAccount {
		foreign = append(foreign, "serviceAccount")
	}
	if s.User != nil && s.Kind != flowcontrolv1.SubjectKindUser {
		foreign = append(foreign, "user")
	}
	if s.Group != nil && s.Kind != flowcontrolv1.SubjectKindGroup {
		foreign = append(foreign, "group")
	}
	switch s.Kind {
	case flowcontrolv1.SubjectKindServiceAccount:
		errs = append(errs, validateServiceAccount(s.ServiceAccount, path.Child("serviceAccount"))...)
	case flowcontrolv1.SubjectKindUser:
		errs = append(errs, requiredName(s.User != nil, func() string { return s.User.Name }, path.Child("user"), "user is required when subject kind is 'User'")...)
	case flowcontrolv1.SubjectKindGroup:
		errs = append(errs, requiredName(s.Group != nil, func() string { return s.Group.Name }, path.Child("group"), "group is required when subject kind is 'Group'")...)
	default:
		return append(errs, validate.OneOf(path.Child("kind"), s.Kind, flowcontrolv1.SubjectKindServiceAccount, flowcontrolv1.SubjectKindGroup, flowcontrolv1.SubjectKindUser)...)
	}
	for _, name := range foreign {
		errs = append(errs, field.Forbidden(path.Child(name), fmt.Sprintf("%s is forbidden when subject kind is not '%s'", name, strings.ToUpper(name[:1])+name[1:])))
	}
	return errs
}

func requiredName(set bool, name func() string, path *field.Path, missing string) field.ErrorList {
	if !set {
		return field.ErrorList{field.Required(path, missing)}
	}
	if name() == "" {
		return field.ErrorList{field.Required(path.Child("name"), "")}
	}
	return nil
}

func validateServiceAccount(sa *flowcontrolv1.ServiceAccountSubject, path *field.Path) field.ErrorList {
	if sa == nil {
		return field.ErrorList{field.Required(path, "serviceAccount is required when subject kind is 'ServiceAccount'")}
	}
	var errs field.ErrorList
	if sa.Name == "" {
		errs = append(errs, field.Required(path.Child("name"), ""))
	} else if sa.Name != flowcontrolv1.NameAll {
		errs = append(errs, validate.Invalid(path.Child("name"), sa.Name, apivalidation.ValidateServiceAccountName(sa.Name, false))...)
	}
	if sa.Namespace == "" {
		return append(errs, field.Required(path.Child("namespace"), "must specify namespace for service account"))
	}
	return append(errs, validate.Invalid(path.Child("namespace"), sa.Namespace, apivalidation.ValidateNamespaceName(sa.Namespace, false))...)
}

// validateVerbs wants "*" alone, or known verbs.
func validateVerbs(list []string, path *field.Path) field.ErrorList {
	if len(list) == 0 {
		return field.ErrorList{field.Required(path, "verbs must contain at least one value")}
	}
	if slices.Contains(list, flowcontrolv1.VerbAll) {
		if len(list) > 1 {
			return field.ErrorList{field.Invalid(path, list, "if '*' is present, must not specify other verbs")}
		}
		return nil
	}
	for _, v := range list {
		if !slices.Contains(verbs, v) {
			sorted := slices.Sorted(slices.Values(verbs))
			return field.ErrorList{field.NotSupported(path, list, sorted)}
		}
	}
	return nil
}

func alone(list []string, path *field.Path, missing, extra string) field.ErrorList {
	if len(list) == 0 {
		return field.ErrorList{field.Required(path, missing)}
	}
	if len(list) > 1 && slices.Contains(list, "*") {
		return field.ErrorList{field.Invalid(path, list, extra)}
	}
	return nil
}

func validateResourceRule(r *flowcontrolv1.ResourcePolicyRule, path *field.Path) field.ErrorList {
	errs := validateVerbs(r.Verbs, path.Child("verbs"))
	errs = append(errs, alone(r.APIGroups, path.Child("apiGroups"), "resource rules must supply at least one api group", "if '*' is present, must not specify other api groups")...)
	errs = append(errs, alone(r.Resources, path.Child("resources"), "resource rules must supply at least one resource", "if '*' is present, must not specify other resources")...)
	if len(r.Namespaces) == 0 && !r.ClusterScope {
		errs = append(errs, field.Required(path.Child("namespaces"), "resource rules that are not cluster scoped must supply at least one namespace"))
	} else if slices.Contains(r.Namespaces, flowcontrolv1.NamespaceEvery) {
		if len(r.Namespaces) > 1 {
			errs = append(errs, field.Invalid(path.Child("namespaces"), r.Namespaces, "if '*' is present, must not specify other namespaces"))
		}
	} else {
		for i, ns := range r.Namespaces {
			for _, m := range apivalidation.ValidateNamespaceName(ns, false) {
				errs = append(errs, field.Invalid(path.Child("namespaces").Index(i), ns, "each member of this list must be '*' or a DNS-1123 label; "+m))
			}
		}
	}
	return errs
}

func validateNonResourceRule(r *flowcontrolv1.NonResourcePolicyRule, path *field.Path) field.ErrorList {
	errs := validateVerbs(r.Verbs, path.Child("verbs"))
	urls := path.Child("nonResourceURLs")
	if len(r.NonResourceURLs) == 0 {
		return append(errs, field.Required(urls, "nonResourceURLs must contain at least one value"))
	}
	if slices.Contains(r.NonResourceURLs, flowcontrolv1.NonResourceAll) {
		if len(r.NonResourceURLs) > 1 {
			errs = append(errs, field.Invalid(urls, r.NonResourceURLs, "if '*' is present, must not specify other non-resource URLs"))
		}
		return errs
	}
	for i, url := range r.NonResourceURLs {
		errs = append(errs, validateURL(url, urls.Index(i))...)
	}
	return errs
}

func validateURL(url string, path *field.Path) field.ErrorList {
	switch {
	case url == "":
		return field.ErrorList{field.Invalid(path, url, "must not be empty")}
	case url == "/":
		return nil
	case !strings.HasPrefix(url, "/"):
		return field.ErrorList{field.Invalid(path, url, "must start with slash")}
	case strings.Contains(url, " "):
		return field.ErrorList{field.Invalid(path, url, "must not contain white-space")}
	case strings.Contains(url, "//"):
		return field.ErrorList{field.Invalid(path, url, "must not contain double slash")}
	case strings.Contains(strings.TrimSuffix(url, "/*"), "*"):
		return field.ErrorList{field.Invalid(path, url, "wildcard can only do suffix matching")}
	}
	return nil
}

func validateSchemaStatus(s, _ *flowcontrolv1.FlowSchema) field.ErrorList {
	path := field.NewPath("status", "conditions")
	var types []string
	for _, c := range s.Status.Conditions {
		types = append(types, string(c.Type))
	}
	return validateConditionTypes(types, path)
}

func validateConditionTypes(types []string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, t := range types {
		if slices.Contains(types[:i], t) {
			errs = append(errs, field.Duplicate(path.Index(i).Child("type"), t))
		}
		if t == "" {
			errs = append(errs, field.Required(path.Index(i).Child("type"), ""))
		}
	}
	return errs
}

func validateLevel(l *flowcontrolv1.PriorityLevelConfiguration) field.ErrorList {
	path := field.NewPath("spec")
	errs := validateMandatoryLevel(l, path)
	switch l.Spec.Type {
	case flowcontrolv1.PriorityLevelEnablementExempt:
		if e := l.Spec.Exempt; e != nil {
			errs = append(errs, validateShares(e.NominalConcurrencyShares, path.Child("exempt"))...)
			errs = append(errs, validateLendable(e.LendablePercent, path.Child("exempt"))...)
		}
	case flowcontrolv1.PriorityLevelEnablementLimited:
		if l.Spec.Limited == nil {
			errs = append(errs, field.Required(path.Child("limited"), ""))
		} else {
			errs = append(errs, validateLimited(l.Spec.Limited, path.Child("limited"))...)
		}
	default:
		errs = append(errs, validate.RequiredOneOf(path.Child("type"), l.Spec.Type, flowcontrolv1.PriorityLevelEnablementExempt, flowcontrolv1.PriorityLevelEnablementLimited)...)
	}
	if l.Spec.Limited != nil && l.Spec.Type != flowcontrolv1.PriorityLevelEnablementLimited {
		errs = append(errs, field.Forbidden(path.Child("limited"), ""))
	}
	if l.Spec.Exempt != nil && l.Spec.Type != flowcontrolv1.PriorityLevelEnablementExempt {
		errs = append(errs, field.Forbidden(path.Child("exempt"), ""))
	}
	return append(errs, validateLevelStatus(l, nil)...)
}

// validateMandatoryLevel: of the exempt level only the numbers may change, of
// the catch-all level the shares.
func validateMandatoryLevel(l *flowcontrolv1.PriorityLevelConfiguration, path *field.Path) field.ErrorList {
	levels, _ := Mandatory()
	for _, m := range levels {
		if m.Name != l.Name {
			continue
		}
		if l.Name == exemptName {
			if l.Spec.Type != flowcontrolv1.PriorityLevelEnablementExempt {
				return field.ErrorList{field.Invalid(path.Child("type"), l.Spec.Type, "must be 'Exempt' for the priority level named 'exempt'")}
			}
			want := m.Spec.DeepCopy()
			want.Exempt = l.Spec.Exempt
			return unlikeButFor(path, l, *want, "exempt")
		}
		want := m.Spec.DeepCopy()
		if l.Name == catchAllName && l.Spec.Limited != nil && want.Limited != nil {
			want.Limited.NominalConcurrencyShares = l.Spec.Limited.NominalConcurrencyShares
			want.Limited.LendablePercent = l.Spec.Limited.LendablePercent
		}
		return unlike(path, l.Name, l.Spec, *want)
	}
	if l.Spec.Type == flowcontrolv1.PriorityLevelEnablementExempt {
		return field.ErrorList{field.Invalid(path.Child("type"), l.Spec.Type, "type must not be 'Exempt' for a priority level that is not named 'exempt'")}
	}
	return nil
}

func unlikeButFor(path *field.Path, l *flowcontrolv1.PriorityLevelConfiguration, want flowcontrolv1.PriorityLevelConfigurationSpec, name string) field.ErrorList {
	if apiequality.Semantic.DeepEqual(l.Spec, want) {
		return nil
	}
	return field.ErrorList{field.Invalid(path, l.Spec, fmt.Sprintf("spec of '%s' except the 'spec.exempt' field must equal the fixed value", name))}
}

func validateShares(n *int32, path *field.Path) field.ErrorList {
	switch {
	case n == nil:
		return field.ErrorList{field.Required(path.Child("nominalConcurrencyShares"), "")}
	case *n < 0:
		return field.ErrorList{field.Invalid(path.Child("nominalConcurrencyShares"), *n, "must be a non-negative integer")}
	}
	return nil
}

func validateLendable(n *int32, path *field.Path) field.ErrorList {
	if n != nil && (*n < 0 || *n > 100) {
		return field.ErrorList{field.Invalid(path.Child("lendablePercent"), *n, "must be between 0 and 100, inclusive")}
	}
	return nil
}

func validateLimited(l *flowcontrolv1.LimitedPriorityLevelConfiguration, path *field.Path) field.ErrorList {
	errs := validateShares(l.NominalConcurrencyShares, path)
	errs = append(errs, validateLimitResponse(&l.LimitResponse, path.Child("limitResponse"))...)
	errs = append(errs, validateLendable(l.LendablePercent, path)...)
	if n := l.BorrowingLimitPercent; n != nil && *n < 0 {
		errs = append(errs, field.Invalid(path.Child("borrowingLimitPercent"), *n, "if specified, must be a non-negative integer"))
	}
	return errs
}

func validateLimitResponse(r *flowcontrolv1.LimitResponse, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch r.Type {
	case flowcontrolv1.LimitResponseTypeReject:
	case flowcontrolv1.LimitResponseTypeQueue:
		if r.Queuing == nil {
			return field.ErrorList{field.Required(path.Child("queuing"), "")}
		}
		return validateQueuing(r.Queuing, path.Child("queuing"))
	default:
		errs = append(errs, validate.RequiredOneOf(path.Child("type"), r.Type, flowcontrolv1.LimitResponseTypeQueue, flowcontrolv1.LimitResponseTypeReject)...)
	}
	if r.Queuing != nil && r.Type != flowcontrolv1.LimitResponseTypeQueue {
		errs = append(errs, field.Forbidden(path.Child("queuing"), ""))
	}
	return errs
}

func validateQueuing(q *flowcontrolv1.QueuingConfiguration, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if q.QueueLengthLimit <= 0 {
		errs = append(errs, field.Invalid(path.Child("queueLengthLimit"), q.QueueLengthLimit, "must be positive"))
	}
	switch {
	case q.Queues <= 0:
		errs = append(errs, field.Invalid(path.Child("queues"), q.Queues, "must be positive"))
	case q.Queues > maxQueues:
		errs = append(errs, field.Invalid(path.Child("queues"), q.Queues, fmt.Sprintf("must not be greater than %d", maxQueues)))
	}
	switch {
	case q.HandSize <= 0:
		errs = append(errs, field.Invalid(path.Child("handSize"), q.HandSize, "must be positive"))
	case q.HandSize > q.Queues:
		errs = append(errs, field.Invalid(path.Child("handSize"), q.HandSize, fmt.Sprintf("should not be greater than queues (%d)", q.Queues)))
	default:
		if bits := shufflesharding.RequiredEntropyBits(int(q.Queues), int(q.HandSize)); bits > maxHashBits {
			errs = append(errs, field.Invalid(path.Child("handSize"), q.HandSize,
				fmt.Sprintf("required entropy bits of deckSize %d and handSize %d should not be greater than %d", q.Queues, q.HandSize, maxHashBits)))
		}
	}
	return errs
}

func validateLevelStatus(l, _ *flowcontrolv1.PriorityLevelConfiguration) field.ErrorList {
	var types []string
	for _, c := range l.Status.Conditions {
		types = append(types, string(c.Type))
	}
	return validateConditionTypes(types, field.NewPath("status", "conditions"))
}
