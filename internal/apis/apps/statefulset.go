package apps

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"proa/internal/apis"
	"proa/internal/apis/core"
)

// StatefulSets is the apps/v1 statefulsets resource.
var StatefulSets = apis.Resource{
	Group: "apps", Version: "v1", Kind: "StatefulSet", Plural: "statefulsets", Short: []string{"sts"}, Categories: []string{"all"},
	New: apis.New[appsv1.StatefulSet], NewList: apis.NewList[appsv1.StatefulSetList],
	Subresources: []apis.Subresource{
		apis.Scalable(
			func(s *appsv1.StatefulSet) **int32 { return &s.Spec.Replicas },
			func(s *appsv1.StatefulSet) int32 { return s.Status.Replicas },
			func(s *appsv1.StatefulSet) string { return selectorString(s.Spec.Selector) },
		),
		apis.Writable("status", func(s, old *appsv1.StatefulSet) { s.Spec = old.Spec }, validateStatefulSetStatusUpdate),
	},
	Default: apis.On(defaultStatefulSet),
	PrepareCreate: apis.On(func(s *appsv1.StatefulSet) {
		s.Status = appsv1.StatefulSetStatus{}
	}),
	PrepareUpdate: apis.OnUpdate(func(s, old *appsv1.StatefulSet) {
		s.Status = old.Status
	}),
	Validate:       apis.Check(validateStatefulSet),
	ValidateUpdate: apis.CheckUpdate(validateStatefulSetUpdate),
	ValidateName:   core.ValidateStatefulSetName,
	Warnings:       apis.Warn(statefulSetWarnings),
	Columns:        statefulSetColumns,
	Row:            apis.Cells(statefulSetRow),
}

var statefulSetTemplateWarnings = warnings(func(s *appsv1.StatefulSet) *corev1.PodTemplateSpec { return &s.Spec.Template }, false)

func statefulSetWarnings(s, old *appsv1.StatefulSet) []string {
	var before apis.Object
	if old != nil {
		before = old
	}
	texts := statefulSetTemplateWarnings(s, before)
	if n := s.Spec.RevisionHistoryLimit; n != nil && *n < 0 {
		texts = append(texts, "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended")
	}
	return texts
}

func defaultStatefulSet(sts *appsv1.StatefulSet) {
	s := &sts.Spec
	core.DefaultTemplate(&s.Template)
	if s.PodManagementPolicy == "" {
		s.PodManagementPolicy = appsv1.OrderedReadyPodManagement
	}
	if s.UpdateStrategy.Type == "" {
		s.UpdateStrategy.Type = appsv1.RollingUpdateStatefulSetStrategyType
		if s.UpdateStrategy.RollingUpdate == nil {
			s.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{}
		}
	}
	if s.UpdateStrategy.Type == appsv1.RollingUpdateStatefulSetStrategyType {
		if r := s.UpdateStrategy.RollingUpdate; r != nil {
			if r.Partition == nil {
				r.Partition = new(int32(0))
			}
			if r.MaxUnavailable == nil {
				r.MaxUnavailable = number(1)
			}
		}
	}
	if s.PersistentVolumeClaimRetentionPolicy == nil {
		s.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{}
	}
	retention := s.PersistentVolumeClaimRetentionPolicy
	if retention.WhenDeleted == "" {
		retention.WhenDeleted = appsv1.RetainPersistentVolumeClaimRetentionPolicyType
	}
	if retention.WhenScaled == "" {
		retention.WhenScaled = appsv1.RetainPersistentVolumeClaimRetentionPolicyType
	}
	if s.Replicas == nil {
		s.Replicas = new(int32(1))
	}
	if s.RevisionHistoryLimit == nil {
		s.RevisionHistoryLimit = new(int32(10))
	}
	for i := range s.VolumeClaimTemplates {
		t := &s.VolumeClaimTemplates[i]
		t.APIVersion, t.Kind = "v1", "PersistentVolumeClaim"
		core.DefaultClaimSpec(&t.Spec)
		if t.Status.Phase == "" {
			t.Status.Phase = corev1.ClaimPending
		}
	}
}
