package apps

import (
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"proa/internal/apis"
	"proa/internal/apis/core"
)

// DaemonSets is the apps/v1 daemonsets resource.
var DaemonSets = apis.Resource{
	Group: "apps", Version: "v1", Kind: "DaemonSet", Plural: "daemonsets", Short: []string{"ds"}, Categories: []string{"all"},
	New: apis.New[appsv1.DaemonSet], NewList: apis.NewList[appsv1.DaemonSetList],
	Subresources: []apis.Subresource{
		apis.Writable("status", func(d, old *appsv1.DaemonSet) {
			d.Spec = old.Spec
			setTemplateGeneration(d, templateGeneration(old))
		}, validateDaemonSetStatusUpdate),
	},
	Default: apis.On(defaultDaemonSet),
	PrepareCreate: apis.On(func(d *appsv1.DaemonSet) {
		d.Status = appsv1.DaemonSetStatus{}
		setTemplateGeneration(d, max(1, templateGeneration(d)))
	}),
	PrepareUpdate: apis.OnUpdate(func(d, old *appsv1.DaemonSet) {
		d.Status = old.Status
		n := templateGeneration(old)
		if !apiequality.Semantic.DeepEqual(d.Spec.Template, old.Spec.Template) {
			n++
		}
		setTemplateGeneration(d, n)
	}),
	Validate:       apis.Check(validateDaemonSet),
	ValidateUpdate: apis.CheckUpdate(validateDaemonSetUpdate),
	Warnings:       warnings(func(d *appsv1.DaemonSet) *corev1.PodTemplateSpec { return &d.Spec.Template }, false),
	Columns:        daemonSetColumns,
	Row:            apis.Cells(daemonSetRow),
}

// templateGeneration counts the templates that a DaemonSet had. It was a field of
// older versions of the API; of this one it is an annotation.
func templateGeneration(d *appsv1.DaemonSet) int64 {
	n, _ := strconv.ParseInt(d.Annotations[appsv1.DeprecatedTemplateGeneration], 10, 64)
	return n
}

func setTemplateGeneration(d *appsv1.DaemonSet, n int64) {
	if d.Annotations == nil {
		d.Annotations = map[string]string{}
	}
	d.Annotations[appsv1.DeprecatedTemplateGeneration] = strconv.FormatInt(n, 10)
}

func defaultDaemonSet(d *appsv1.DaemonSet) {
	s := &d.Spec
	setTemplateGeneration(d, templateGeneration(d))
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
