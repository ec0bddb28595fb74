package core

import (
	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"

	"proa/internal/apis"
)

// Services is the core/v1 services resource. Cluster IPs, node ports and the
// health check port are allocated by the registry, not defaulted here.
var Services = apis.Resource{
	Version: "v1", Kind: "Service", Plural: "services", Short: []string{"svc"}, Categories: []string{"all"},
	New: apis.New[corev1.Service], NewList: apis.NewList[corev1.ServiceList],
	NoGeneration:        true,
	AllowCreateOnUpdate: true,
	Subresources: []apis.Subresource{
		{Name: "proxy", Version: "v1", Kind: "ServiceProxyOptions", Verbs: []string{"create", "delete", "get", "patch", "update"}},
		apis.Writable("status", prepareServiceStatus, validateServiceStatusUpdate),
	},
	Default:        apis.On(defaultService),
	PrepareCreate:  apis.On(prepareService),
	PrepareUpdate:  apis.OnUpdate(prepareServiceUpdate),
	Validate:       apis.Check(validateService),
	ValidateUpdate: apis.CheckUpdate(validateServiceUpdate),
	ValidateName:   apivalidation.NameIsDNSLabel,
	Warnings:       apis.Warn(serviceWarnings),
	Fields: apis.Selectable(map[string]func(*corev1.Service) string{
		"spec.clusterIP": func(s *corev1.Service) string { return s.Spec.ClusterIP },
		"spec.type":      func(s *corev1.Service) string { return string(s.Spec.Type) },
	}),
	Columns: serviceColumns,
	Row:     apis.Cells(serviceRow),
}

func prepareService(s *corev1.Service) {
	s.Status = corev1.ServiceStatus{}
	dropTypeDependentFields(s, nil)
}

func prepareServiceUpdate(s, old *corev1.Service) {
	s.Status = old.Status
	patchAllocated(s, old)
	dropTypeDependentFields(s, old)
}

func prepareServiceStatus(s, old *corev1.Service) { s.Spec = old.Spec }
