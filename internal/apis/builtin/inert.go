package builtin

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/apis"
)

// inert are kinds that are kept and checked while no part of Proa acts on them
// yet, each with what a user must know. Whoever creates one is warned; the
// entry goes away with the change that makes the kind act.
var inert = map[schema.GroupResource]string{
	{Group: "networking.k8s.io", Resource: "networkpolicies"}:      "network policies are not enforced by this version: traffic is not restricted",
	{Group: "storage.k8s.io", Resource: "volumeattributesclasses"}: "attributes of volumes are not changed by this version",
}

// warnInert adds the warning of an inert kind to those that it has.
func warnInert(r *apis.Resource) {
	text, found := inert[r.GroupResource()]
	if !found {
		return
	}
	own := r.Warnings
	r.Warnings = func(obj, old apis.Object) []string {
		var warnings []string
		if own != nil {
			warnings = own(obj, old)
		}
		if old == nil {
			warnings = append(warnings, text)
		}
		return warnings
	}
}
