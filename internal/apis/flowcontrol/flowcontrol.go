// Package flowcontrol declares the kinds of the flowcontrol.apiserver.k8s.io
// group, v1, and lists the objects that every cluster has of them (KEP-1040).
package flowcontrol

import (
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"

	"proa/internal/apis"
)

const group = "flowcontrol.apiserver.k8s.io"

// Resources returns every kind of the group.
func Resources() []*apis.Resource {
	return []*apis.Resource{&FlowSchemas, &PriorityLevelConfigurations}
}

// AutoUpdateAnnotation on a suggested object says "true" while the server keeps
// its spec as suggested; a user who wants another spec sets it to "false".
const AutoUpdateAnnotation = flowcontrolv1.AutoUpdateAnnotationKey

// Mandatory returns the objects that the server restores whenever they are
// deleted or changed: the exempt and catch-all levels and schemas.
func Mandatory() ([]*flowcontrolv1.PriorityLevelConfiguration, []*flowcontrolv1.FlowSchema) {
	return bootstrap.MandatoryPriorityLevelConfigurations, bootstrap.MandatoryFlowSchemas
}

// Suggested returns the objects that the server makes once, and keeps as they
// are as long as AutoUpdateAnnotation says so.
func Suggested() ([]*flowcontrolv1.PriorityLevelConfiguration, []*flowcontrolv1.FlowSchema) {
	return bootstrap.SuggestedPriorityLevelConfigurations, bootstrap.SuggestedFlowSchemas
}

// Defaults of absent fields.
const (
	defaultPrecedence = int32(1000)
	defaultShares     = int32(30)
	defaultQueues     = int32(64)
	defaultHandSize   = int32(8)
	defaultQueueLimit = int32(50)
)

// FlowSchemas is the flowcontrol.apiserver.k8s.io/v1 flowschemas resource.
var FlowSchemas = apis.Resource{
	Group: group, Version: "v1", Kind: "FlowSchema", Plural: "flowschemas", Scope: apis.Cluster,
	ChecksNameOnUpdate: true,
	New:                apis.New[flowcontrolv1.FlowSchema], NewList: apis.NewList[flowcontrolv1.FlowSchemaList],
	Readable: olderSchemas,
	Default: apis.On(func(s *flowcontrolv1.FlowSchema) {
		if s.Spec.MatchingPrecedence == 0 {
			s.Spec.MatchingPrecedence = defaultPrecedence
		}
	}),
	Subresources: []apis.Subresource{
		apis.Status(func(s, old *flowcontrolv1.FlowSchema) { s.Spec = old.Spec }, validateSchemaStatus),
	},
	PrepareCreate: apis.On(func(s *flowcontrolv1.FlowSchema) { s.Status = flowcontrolv1.FlowSchemaStatus{} }),
	PrepareUpdate: apis.OnUpdate(func(s, old *flowcontrolv1.FlowSchema) { s.Status = old.Status }),
	Validate:      apis.Check(validateSchema),
	Columns: []metav1.TableColumnDefinition{
		apis.NameColumn,
		apis.Column("PriorityLevel", "string", flowcontrolv1.PriorityLevelConfigurationReference{}.SwaggerDoc()["name"]),
		apis.Column("MatchingPrecedence", "string", flowcontrolv1.FlowSchemaSpec{}.SwaggerDoc()["matchingPrecedence"]),
		apis.Column("DistinguisherMethod", "string", flowcontrolv1.FlowSchemaSpec{}.SwaggerDoc()["distinguisherMethod"]),
		apis.AgeColumn,
		apis.Column("MissingPL", "string", "references a broken or non-existent PriorityLevelConfiguration"),
	},
	Row: apis.Cells(func(s *flowcontrolv1.FlowSchema, now time.Time) []any {
		level, method, missing := s.Spec.PriorityLevelConfiguration.Name, "<none>", "?"
		if level == "" {
			level = "<none>"
		}
		if m := s.Spec.DistinguisherMethod; m != nil {
			method = string(m.Type)
		}
		for _, c := range s.Status.Conditions {
			if c.Type == flowcontrolv1.FlowSchemaConditionDangling {
				missing = string(c.Status)
			}
		}
		return []any{s.Name, level, int64(s.Spec.MatchingPrecedence), method, apis.AgeOf(s, now), missing}
	}),
}

// PriorityLevelConfigurations is the flowcontrol.apiserver.k8s.io/v1
// prioritylevelconfigurations resource.
var PriorityLevelConfigurations = apis.Resource{
	Group: group, Version: "v1", Kind: "PriorityLevelConfiguration", Plural: "prioritylevelconfigurations", Scope: apis.Cluster,
	ChecksNameOnUpdate: true,
	New:                apis.New[flowcontrolv1.PriorityLevelConfiguration], NewList: apis.NewList[flowcontrolv1.PriorityLevelConfigurationList],
	Readable: olderLevels,
	Default:  apis.On(defaultLevel),
	Subresources: []apis.Subresource{
		apis.Status(func(l, old *flowcontrolv1.PriorityLevelConfiguration) { l.Spec = old.Spec }, validateLevelStatus),
	},
	PrepareCreate: apis.On(func(l *flowcontrolv1.PriorityLevelConfiguration) {
		l.Status = flowcontrolv1.PriorityLevelConfigurationStatus{}
	}),
	PrepareUpdate: apis.OnUpdate(func(l, old *flowcontrolv1.PriorityLevelConfiguration) { l.Status = old.Status }),
	Validate:      apis.Check(validateLevel),
	Columns: []metav1.TableColumnDefinition{
		apis.NameColumn,
		apis.Column("Type", "string", flowcontrolv1.PriorityLevelConfigurationSpec{}.SwaggerDoc()["type"]),
		apis.Column("NominalConcurrencyShares", "string", flowcontrolv1.LimitedPriorityLevelConfiguration{}.SwaggerDoc()["nominalConcurrencyShares"]),
		apis.Column("Queues", "string", flowcontrolv1.QueuingConfiguration{}.SwaggerDoc()["queues"]),
		apis.Column("HandSize", "string", flowcontrolv1.QueuingConfiguration{}.SwaggerDoc()["handSize"]),
		apis.Column("QueueLengthLimit", "string", flowcontrolv1.QueuingConfiguration{}.SwaggerDoc()["queueLengthLimit"]),
		apis.AgeColumn,
	},
	Row: apis.Cells(levelRow),
}

func levelRow(l *flowcontrolv1.PriorityLevelConfiguration, now time.Time) []any {
	const none = "<none>"
	var shares, queues, hand, limit any = none, none, none, none
	switch {
	case l.Spec.Limited != nil:
		if n := l.Spec.Limited.NominalConcurrencyShares; n != nil {
			shares = int64(*n)
		}
		if q := l.Spec.Limited.LimitResponse.Queuing; q != nil {
			queues, hand, limit = int64(q.Queues), int64(q.HandSize), int64(q.QueueLengthLimit)
		}
	case l.Spec.Exempt != nil && l.Spec.Exempt.NominalConcurrencyShares != nil:
		shares = int64(*l.Spec.Exempt.NominalConcurrencyShares)
	}
	return []any{l.Name, string(l.Spec.Type), shares, queues, hand, limit, apis.AgeOf(l, now)}
}

// defaultLevel fills in shares only where they are absent: an explicit 0 stays.
func defaultLevel(l *flowcontrolv1.PriorityLevelConfiguration) {
	if e := l.Spec.Exempt; e != nil {
		if e.NominalConcurrencyShares == nil {
			e.NominalConcurrencyShares = new(int32(0))
		}
		if e.LendablePercent == nil {
			e.LendablePercent = new(int32(0))
		}
	}
	limited := l.Spec.Limited
	if limited == nil {
		return
	}
	if limited.NominalConcurrencyShares == nil {
		limited.NominalConcurrencyShares = new(defaultShares)
	}
	if limited.LendablePercent == nil {
		limited.LendablePercent = new(int32(0))
	}
	q := limited.LimitResponse.Queuing
	if q == nil {
		return
	}
	for field, value := range map[*int32]int32{&q.HandSize: defaultHandSize, &q.Queues: defaultQueues, &q.QueueLengthLimit: defaultQueueLimit} {
		if *field == 0 {
			*field = value
		}
	}
}
