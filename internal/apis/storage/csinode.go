package storage

import (
	"time"

	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis"
	"proa/internal/apis/validate"
)

const maxNodeID = 256

// CSINodes is the storage.k8s.io/v1 csinodes resource.
var CSINodes = apis.Resource{
	Group: "storage.k8s.io", Version: "v1", Kind: "CSINode", Plural: "csinodes", Scope: apis.Cluster,
	ChecksNameOnUpdate: true,
	New:                apis.New[storagev1.CSINode], NewList: apis.NewList[storagev1.CSINodeList],
	NoGeneration:      true,
	ConditionalUpdate: true,
	Subresources: []apis.Subresource{
		apis.Status(func(n, old *storagev1.CSINode) { n.Spec = old.Spec }, nil),
	},
	PrepareCreate:  apis.On(func(n *storagev1.CSINode) { n.Status = storagev1.CSINodeStatus{} }),
	PrepareUpdate:  apis.OnUpdate(func(n, old *storagev1.CSINode) { n.Status = old.Status }),
	Validate:       apis.Check(validateCSINode),
	ValidateUpdate: apis.CheckUpdate(validateCSINodeUpdate),
	Columns: []metav1.TableColumnDefinition{
		apis.NameColumn,
		apis.Column("Drivers", "integer", "Drivers indicates the number of CSI drivers registered on the node"),
		apis.AgeColumn,
	},
	Row: apis.Cells(func(n *storagev1.CSINode, now time.Time) []any {
		return []any{n.Name, int64(len(n.Spec.Drivers)), apis.AgeOf(n, now)}
	}),
}

func validateCSINode(n *storagev1.CSINode) field.ErrorList {
	var errs field.ErrorList
	path, names := field.NewPath("spec", "drivers"), map[string]bool{}
	for i, d := range n.Spec.Drivers {
		at := path.Index(i)
		errs = append(errs, validate.CSIDriverName(at.Child("name"), d.Name)...)
		errs = append(errs, validateNodeID(d.NodeID, at.Child("nodeID"))...)
		if d.Allocatable != nil {
			errs = append(errs, validate.NonNegativePtr(at.Child("allocatable", "count"), d.Allocatable.Count)...)
		}
		if names[d.Name] {
			errs = append(errs, field.Duplicate(at.Child("name"), d.Name))
		}
		names[d.Name] = true
		keys := map[string]bool{}
		for _, key := range d.TopologyKeys { // at the driver, as upstream reports them
			if keys[key] {
				errs = append(errs, field.Duplicate(at, key))
			}
			keys[key] = true
			if key == "" {
				errs = append(errs, field.Required(at, key))
			}
			errs = append(errs, validate.QualifiedName(at, key)...)
		}
	}
	return errs
}

func validateNodeID(id string, path *field.Path) field.ErrorList {
	if id == "" {
		return field.ErrorList{field.Required(path, id)}
	}
	if len(id) > maxNodeID {
		return field.ErrorList{field.Invalid(path, id, "must be 256 characters or less")}
	}
	return nil
}

// A registered driver may go or change how much it can attach, nothing else.
func validateCSINodeUpdate(n, old *storagev1.CSINode) field.ErrorList {
	errs := validateCSINode(n)
	before := map[string]storagev1.CSINodeDriver{}
	for _, d := range old.Spec.Drivers {
		before[d.Name] = d
	}
	for _, d := range n.Spec.Drivers {
		was, known := before[d.Name]
		d.Allocatable, was.Allocatable = nil, nil
		if known && !apiequality.Semantic.DeepEqual(d, was) {
			errs = append(errs, field.Invalid(field.NewPath("spec", "drivers"), d, apivalidation.FieldImmutableErrorMsg))
		}
	}
	return errs
}
