package apis

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
)

// Custom is what a kind made by a CustomResourceDefinition has besides. Each
// served version of it is a Resource of its own (Resource.Versions) with its own
// schema, columns and subresources: a request is defaulted, admitted, validated
// and answered in the version it names. Only the store knows one version for all,
// so objects pass Load on their way out of it and Store on their way in.
type Custom struct {
	Definition string    // name of the CustomResourceDefinition
	UID        types.UID // and its UID

	// State differs between any two states of any definitions: what is derived
	// from an object and its kind is kept under it.
	State string
	// Lifetime ends when the catalogue no longer holds this value.
	Lifetime context.Context

	StorageVersion string
	ListKind       string
	Warning        string // for the client of every request; empty: none
	Terminating    bool   // the definition is being deleted: nothing is created any more

	// Load returns a stored object in this version, under the present schema:
	// obj itself when it already is so. Neither is to be changed.
	Load func(obj Object) (Object, error)
	// Prepare lets Load of many objects cost one conversion. Nil: no need.
	Prepare func(objs []Object)
	// Store returns what to keep of an object of this version. It may keep obj.
	Store func(obj Object) (Object, error)
	// Stored says that an object is as Store would keep it today.
	Stored func(obj Object) bool
	// Coerce drops from obj, fresh from a client, what the schema does not know
	// and returns the dropped paths when asked to report them. The error says
	// what in metadata is malformed.
	Coerce func(obj Object, report bool) (unknown []string, err error)
	// Convert returns obj in another version of the definition, served or not.
	// The error is runtime.IsNotRegisteredError for a version it does not have.
	Convert func(obj Object, version string) (Object, error)

	// Merge is the schema that server-side apply merges by.
	Merge func() managedfields.TypeConverter
	// OpenAPI describes the kind in OpenAPI 3 or 2 as JSON values; fields that it
	// shares with every kind (apiVersion, kind, metadata) are left out. Nil: it
	// cannot be described field by field.
	OpenAPI func(v3 bool) map[string]any
}
