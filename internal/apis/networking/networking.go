// Package networking declares the kinds of the networking.k8s.io group, v1.
package networking

import "proa/internal/apis"

// Resources returns every kind of the group.
func Resources() []*apis.Resource {
	return []*apis.Resource{&IngressClasses, &Ingresses, &IPAddresses, &NetworkPolicies, &ServiceCIDRs}
}
