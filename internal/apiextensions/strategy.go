package apiextensions

import (
	"maps"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"proa/internal/apis"
)

func dropStatus(obj apis.Object) { delete(obj.(*unstructured.Unstructured).Object, "status") }

// keepStatus lets a write of the main resource leave the status alone.
func keepStatus(obj, old apis.Object) { carry(obj, old, "status") }

func carry(to, from apis.Object, name string) {
	u := to.(*unstructured.Unstructured)
	if value, ok := from.(*unstructured.Unstructured).Object[name]; ok {
		u.Object[name] = value
	} else {
		delete(u.Object, name)
	}
}

// keepAllButStatus lets a write of the status subresource change nothing else but
// the record of who wrote it.
func keepAllButStatus(obj, old apis.Object) {
	u := obj.(*unstructured.Unstructured)
	next := maps.Clone(old.(*unstructured.Unstructured).Object)
	if status, ok := u.Object["status"]; ok {
		next["status"] = status
	} else {
		delete(next, "status")
	}
	meta, _ := next["metadata"].(map[string]any)
	meta = maps.Clone(meta)
	if sent, ok := u.Object["metadata"].(map[string]any); ok && sent["managedFields"] != nil {
		meta["managedFields"] = sent["managedFields"]
	} else {
		delete(meta, "managedFields")
	}
	next["metadata"] = meta
	u.Object = next
}

func (v *version) subresources() []apis.Subresource {
	var list []apis.Subresource
	verbs := []string{"get", "patch", "update"}
	if v.hasStatus() {
		list = append(list, apis.Subresource{Name: "status", Verbs: verbs, PrepareUpdate: keepAllButStatus, ValidateUpdate: v.validateStatus})
	}
	if s := v.scale(); s != nil {
		list = append(list, apis.Subresource{
			Name: "scale", Group: "autoscaling", Version: "v1", Kind: "Scale", New: newScale, Verbs: verbs,
			Scale: &apis.Scale{
				Paths:          v.definition.replicasPaths(),
				Missing:        func(obj apis.Object) bool { _, ok := number(obj, s.SpecReplicasPath); return !ok },
				Replicas:       func(obj apis.Object) int32 { n, _ := number(obj, s.SpecReplicasPath); return n },
				StatusReplicas: func(obj apis.Object) int32 { n, _ := number(obj, s.StatusReplicasPath); return n },
				SetReplicas: func(obj apis.Object, n int32) {
					// Fails where something on the way is no object, which validation reports.
					_ = unstructured.SetNestedField(obj.(*unstructured.Unstructured).Object, int64(n), pathOf(s.SpecReplicasPath)...)
				},
				Selector: func(obj apis.Object) string {
					if s.LabelSelectorPath == nil {
						return ""
					}
					text, _, _ := unstructured.NestedString(obj.(*unstructured.Unstructured).Object, pathOf(*s.LabelSelectorPath)...)
					return text
				},
			},
		})
	}
	return list
}

// replicasPaths are where the versions have their replicas, nil for one without scale.
func (d *definition) replicasPaths() map[string][]string {
	paths := map[string][]string{}
	for _, v := range d.versions {
		paths[v.kind.GroupVersion().String()] = nil
		if s := v.scale(); s != nil {
			paths[v.kind.GroupVersion().String()] = pathOf(s.SpecReplicasPath)
		}
	}
	return paths
}

func number(obj apis.Object, path string) (int32, bool) {
	n, ok, err := unstructured.NestedInt64(obj.(*unstructured.Unstructured).Object, pathOf(path)...)
	return int32(n), ok && err == nil
}

func newScale() apis.Object { return new(autoscalingv1.Scale) }
