// Package builtin is the list of kinds that every Proa serves: those that a part
// of the program acts on.
package builtin

import (
	"slices"

	"proa/internal/apis"
	"proa/internal/apis/apps"
	"proa/internal/apis/authentication"
	"proa/internal/apis/authorization"
	"proa/internal/apis/batch"
	"proa/internal/apis/certificates"
	"proa/internal/apis/coordination"
	"proa/internal/apis/core"
	"proa/internal/apis/discovery"
	"proa/internal/apis/networking"
	"proa/internal/apis/node"
	"proa/internal/apis/policy"
	"proa/internal/apis/rbac"
	"proa/internal/apis/scheduling"
	"proa/internal/apis/storage"
)

// Catalogue returns a new catalogue of the built-in kinds. The Resource values
// are shared and must not be changed.
func Catalogue() *apis.Catalogue {
	return apis.NewCatalogue(slices.Concat(
		core.Resources(), apps.Resources(), authentication.Resources(), authorization.Resources(), batch.Resources(),
		certificates.Resources(), coordination.Resources(), discovery.Resources(), networking.Resources(), node.Resources(),
		policy.Resources(), rbac.Resources(), scheduling.Resources(), storage.Resources(),
	)...)
}
