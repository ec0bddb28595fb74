package apps

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"proa/internal/apis"
	"proa/internal/apis/core"
)

// DaemonSets is the apps/v1 daemonsets resource.
var DaemonSets = apis.Resource{
	Group: "apps", Version: "v1", Kind: "DaemonSet", Plural: "daemonsets", Short: []string{"ds"}, Categories: []string{"all"},
	New: apis.New[appsv1.DaemonSet], NewList: apis.NewList[appsv1.DaemonSetList],
	Subresources: []apis.Subresource{
		apis.Writable("status", func(d, old *appsv1.DaemonSet) { d.Spec = old.Spec }, validateDaemonSetStatusUpdate),
	},
	Default: apis.On(defaultDaemonSet),
	PrepareCreate: apis.On(func(d *appsv1.DaemonSet) {
		d.Status = appsv1.DaemonSetStatus{}
	}),
	PrepareUpdate: apis.OnUpdate(func(d, old *appsv1.DaemonSet) {
		d.Status = old.Status
	}),
	Validate:       apis.Check(validateDaemonSet),
	ValidateUpdate: apis.CheckUpdate(validateDaemonSetUpdate),
	Warnings:       warnings(func(d *appsv1.DaemonSet) *corev1.PodTemplateSpec { return &d.Spec.Template }, false),
	Columns:        daemonSetColumns,
	Row:            apis.Cells(daemonSetRow),
}

func defaultDaemonSet(d *appsv1.DaemonSet) {
	s := &d.Spec
	core.DefaultTemplate(&s.Template)
	if s.UpdateStrategy.Type == "" {
		s.UpdateStrategy.Type = appsv1.RollingUpdateDaemonSetStrategyType
	}
	if s.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType {
		if s.UpdateStrategy.RollingUpdate == nil {
			s.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{}
		}
		r := s.UpdateStrategy.RollingUpdate
		if r.MaxUnavailable == nil {
			r.MaxUnavailable = number(1)
		}
		if r.MaxSurge == nil {
			r.MaxSurge = number(0)
		}
	}
	if s.RevisionHistoryLimit == nil {
		s.RevisionHistoryLimit = new(int32(10))
	}
}
