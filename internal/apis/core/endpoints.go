package core

import (
	corev1 "k8s.io/api/core/v1"

	"proa/internal/apis"
)

// Endpoints is the core/v1 endpoints resource.
var Endpoints = apis.Resource{
	Version: "v1", Kind: "Endpoints", Plural: "endpoints", Short: []string{"ep"},
	ChecksNameOnUpdate: true,
	New:                apis.New[corev1.Endpoints], NewList: apis.NewList[corev1.EndpointsList],
	NoGeneration:        true,
	AllowCreateOnUpdate: true,
	Default:             apis.On(defaultEndpoints),
	Validate:            apis.Check(validateEndpoints),
	ValidateUpdate:      apis.CheckUpdate(validateEndpointsUpdate),
	Columns:             endpointsColumns,
	Row:                 apis.Cells(endpointsRow),
}

func defaultEndpoints(e *corev1.Endpoints) {
	for i := range e.Subsets {
		for j := range e.Subsets[i].Ports {
			if p := &e.Subsets[i].Ports[j]; p.Protocol == "" {
				p.Protocol = corev1.ProtocolTCP
			}
		}
	}
}
