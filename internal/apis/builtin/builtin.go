// Package builtin is the list of kinds that Proa serves, and what a server
// serves of it: feature gates and runtime configuration choose kinds, versions
// and fields; the markers of upstream's types add to each kind's validation.
package builtin

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/apis"
	"proa/internal/apis/admissionregistration"
	"proa/internal/apis/apiextensions"
	"proa/internal/apis/apiregistration"
	"proa/internal/apis/apiserverinternal"
	"proa/internal/apis/apps"
	"proa/internal/apis/authentication"
	"proa/internal/apis/authorization"
	"proa/internal/apis/autoscaling"
	"proa/internal/apis/batch"
	"proa/internal/apis/certificates"
	"proa/internal/apis/coordination"
	"proa/internal/apis/core"
	"proa/internal/apis/discovery"
	"proa/internal/apis/feature"
	"proa/internal/apis/flowcontrol"
	"proa/internal/apis/lifecycle"
	"proa/internal/apis/marker"
	"proa/internal/apis/networking"
	"proa/internal/apis/node"
	"proa/internal/apis/policy"
	"proa/internal/apis/rbac"
	"proa/internal/apis/resource"
	"proa/internal/apis/scheduling"
	"proa/internal/apis/storage"
	"proa/internal/apis/storagemigration"
)

// resources are all kinds in all versions.
func resources() []*apis.Resource {
	return slices.Concat(
		core.Resources(), admissionregistration.Resources(), apiextensions.Resources(), apiregistration.Resources(), apiserverinternal.Resources(), apps.Resources(), authentication.Resources(), authorization.Resources(),
		autoscaling.Resources(), batch.Resources(), certificates.Resources(), coordination.Resources(), discovery.Resources(),
		flowcontrol.Resources(), lifecycle.Resources(), networking.Resources(), node.Resources(), policy.Resources(), rbac.Resources(),
		resource.Resources(), scheduling.Resources(), storage.Resources(), storagemigration.Resources(),
	)
}

// Catalogue returns a new catalogue of what a server serves by default. The
// Resource values must not be changed.
func Catalogue() *apis.Catalogue { return Serving(feature.Gates{}, feature.Runtime{}) }

// Everything returns a new catalogue of all kinds in all versions, whatever a
// server may serve of them: what a client can name.
func Everything() *apis.Catalogue { return apis.NewCatalogue(resources()...) }

// Options are the flags that choose what is served.
type Options struct {
	FeatureGates  string // A=true,B=false
	RuntimeConfig string // api/all=true,group/version=false,group/version/resource=true
}

// Parse reads both flags; an error is a user's mistake.
func (o Options) Parse() (feature.Gates, feature.Runtime, error) {
	gates, err := feature.ParseGates(o.FeatureGates)
	if err != nil {
		return gates, feature.Runtime{}, fmt.Errorf("--feature-gates: %w", err)
	}
	runtime, err := feature.ParseRuntime(o.RuntimeConfig, groupVersions())
	if err != nil {
		return gates, runtime, fmt.Errorf("--runtime-config: %w", err)
	}
	return gates, runtime, nil
}

// groupVersions are those of all kinds.
func groupVersions() []schema.GroupVersion {
	var all []schema.GroupVersion
	for _, r := range resources() {
		all = append(all, r.GroupVersionKind().GroupVersion())
		for _, s := range r.Also {
			all = append(all, schema.GroupVersion{Group: s.Group, Version: s.Version})
		}
	}
	return all
}

// Serving returns a new catalogue of what a server with these settings serves.
func Serving(gates feature.Gates, runtime feature.Runtime) *apis.Catalogue {
	rules := marker.New(gates)
	var list []*apis.Resource
	for _, r := range resources() {
		if s := served(r, gates, runtime); s != nil {
			mark(s, rules)
			warnInert(s)
			reserve(s, gates)
			holdWholes(s, gates)
			list = append(list, s)
		}
	}
	return apis.NewCatalogue(list...)
}

// served returns a kind with the versions that are on, nil when none is.
func served(r *apis.Resource, gates feature.Gates, runtime feature.Runtime) *apis.Resource {
	if r.Gate != "" && !gates.Enabled(r.Gate) {
		return nil
	}
	s := *r
	s.Readable, s.Also = slices.Concat(r.Readable, r.Also), nil
	for _, v := range r.Also {
		if runtime.Serves(schema.GroupVersionResource{Group: v.Group, Version: v.Version, Resource: r.Plural}) {
			s.Also = append(s.Also, v)
		}
	}
	s.Unserved = !runtime.Serves(r.GroupVersionResource())
	if s.Unserved && len(s.Also) == 0 {
		return nil
	}
	return &s
}
