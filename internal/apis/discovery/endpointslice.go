// Package discovery declares the kinds of the discovery.k8s.io group, v1.
package discovery

import (
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/apis"
)

// Resources returns every kind of the group.
func Resources() []*apis.Resource { return []*apis.Resource{&EndpointSlices} }

// EndpointSlices is the discovery.k8s.io/v1 endpointslices resource.
var EndpointSlices = apis.Resource{
	Group: "discovery.k8s.io", Version: "v1", Kind: "EndpointSlice", Plural: "endpointslices",
	ChecksNameOnUpdate: true,
	New:                apis.New[discoveryv1.EndpointSlice], NewList: apis.NewList[discoveryv1.EndpointSliceList],
	Default:        apis.On(defaultSlice),
	LabelsCount:    true,
	PrepareCreate:  apis.On(dropTopology),
	Settle:         apis.On(dropTopology), // upstream counts an update that brings one as a change
	Warnings:       apis.Warn(sliceWarnings),
	Validate:       apis.Check(validateSlice),
	ValidateUpdate: apis.CheckUpdate(validateSliceUpdate),
	Columns: []metav1.TableColumnDefinition{
		apis.NameColumn,
		apis.Column("AddressType", "string", discoveryv1.EndpointSlice{}.SwaggerDoc()["addressType"]),
		apis.Column("Ports", "string", discoveryv1.EndpointSlice{}.SwaggerDoc()["ports"]),
		apis.Column("Endpoints", "string", discoveryv1.EndpointSlice{}.SwaggerDoc()["endpoints"]),
		apis.AgeColumn,
	},
	Row: apis.Cells(func(s *discoveryv1.EndpointSlice, now time.Time) []any {
		return []any{s.Name, string(s.AddressType), printPorts(s.Ports), printEndpoints(s.Endpoints), apis.AgeOf(s, now)}
	}),
}

func defaultSlice(s *discoveryv1.EndpointSlice) {
	for i := range s.Ports {
		p := &s.Ports[i]
		if p.Name == nil {
			p.Name = new("")
		}
		if p.Protocol == nil {
			p.Protocol = new(corev1.ProtocolTCP)
		}
	}
}

// dropTopology: only slices of the beta version, which is gone, could set it.
func dropTopology(s *discoveryv1.EndpointSlice) {
	for i := range s.Endpoints {
		s.Endpoints[i].DeprecatedTopology = nil
	}
}

func sliceWarnings(s, old *discoveryv1.EndpointSlice) []string {
	if s.AddressType == discoveryv1.AddressTypeFQDN && old == nil {
		return []string{"spec.addressType: FQDN endpoints are deprecated"}
	}
	return nil
}

func printPorts(ports []discoveryv1.EndpointPort) string {
	if len(ports) == 0 {
		return "<unset>"
	}
	var shown []string
	for i, p := range ports {
		switch {
		case i == 3:
			return strings.Join(shown, ",") + " + " + strconv.Itoa(len(ports)-3) + " more..."
		case p.Port != nil:
			shown = append(shown, strconv.Itoa(int(*p.Port)))
		case p.Name != nil:
			shown = append(shown, *p.Name)
		default:
			shown = append(shown, "*")
		}
	}
	return apis.Or(strings.Join(shown, ","), "<unset>")
}

func printEndpoints(endpoints []discoveryv1.Endpoint) string {
	if len(endpoints) == 0 {
		return "<unset>"
	}
	var addresses []string
	for _, e := range endpoints {
		addresses = append(addresses, e.Addresses...)
	}
	if len(addresses) <= 3 {
		return strings.Join(addresses, ",")
	}
	return strings.Join(addresses[:3], ",") + " + " + strconv.Itoa(len(addresses)-3) + " more..."
}
