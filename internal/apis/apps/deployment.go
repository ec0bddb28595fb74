package apps

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/apis"
	"proa/internal/apis/core"
)

// Deployments is the apps/v1 deployments resource.
var Deployments = apis.Resource{
	Group: "apps", Version: "v1", Kind: "Deployment", Plural: "deployments", Short: []string{"deploy"}, Categories: []string{"all"},
	New: apis.New[appsv1.Deployment], NewList: apis.NewList[appsv1.DeploymentList],
	AnnotationsCount: true,
	Subresources: []apis.Subresource{
		apis.Scalable(
			func(d *appsv1.Deployment) **int32 { return &d.Spec.Replicas },
			func(d *appsv1.Deployment) int32 { return d.Status.Replicas },
			func(d *appsv1.Deployment) string { return selectorString(d.Spec.Selector) },
		),
		apis.Resetting(apis.Writable("status", func(d, old *appsv1.Deployment) {
			d.Spec, d.Labels = old.Spec, old.Labels
		}, validateDeploymentStatusUpdate), "spec", "metadata.labels"),
	},
	Default: apis.On(defaultDeployment),
	PrepareCreate: apis.On(func(d *appsv1.Deployment) {
		d.Status = appsv1.DeploymentStatus{}
	}),
	PrepareUpdate: apis.OnUpdate(func(d, old *appsv1.Deployment) {
		d.Status = old.Status
	}),
	Validate:       apis.Check(validateDeployment),
	ValidateUpdate: apis.CheckUpdate(validateDeploymentUpdate),
	Warnings:       warnings(func(d *appsv1.Deployment) *corev1.PodTemplateSpec { return &d.Spec.Template }, true),
	Columns:        deploymentColumns,
	Row:            apis.Cells(deploymentRow),
}

func defaultDeployment(d *appsv1.Deployment) {
	s := &d.Spec
	core.DefaultTemplate(&s.Template)
	if s.Replicas == nil {
		s.Replicas = new(int32(1))
	}
	if s.Strategy.Type == "" {
		s.Strategy.Type = appsv1.RollingUpdateDeploymentStrategyType
	}
	if s.Strategy.Type == appsv1.RollingUpdateDeploymentStrategyType {
		if s.Strategy.RollingUpdate == nil {
			s.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{}
		}
		r := s.Strategy.RollingUpdate
		if r.MaxUnavailable == nil {
			r.MaxUnavailable = percent("25%")
		}
		if r.MaxSurge == nil {
			r.MaxSurge = percent("25%")
		}
	}
	if s.RevisionHistoryLimit == nil {
		s.RevisionHistoryLimit = new(int32(10))
	}
	if s.ProgressDeadlineSeconds == nil {
		s.ProgressDeadlineSeconds = new(int32(600))
	}
}

// selectorString is a selector as the scale subresource shows it: "" where it
// is absent or wrong.
func selectorString(s *metav1.LabelSelector) string {
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil || s == nil {
		return ""
	}
	return selector.String()
}
