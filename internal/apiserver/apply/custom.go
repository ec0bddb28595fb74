package apply

import (
	"cmp"
	"encoding/json"
	"reflect"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"proa/internal/apis"
	"proa/internal/apiserver/wire"
)

// customTracker does for custom resources what the differ does for Go types: it
// records plain writes without turning objects and entries from one form into
// another. It works on the JSON values of managedFields as they are.
type customTracker struct {
	types managedfields.TypeConverter
	empty *typed.TypedValue

	mu     sync.Mutex                // guards fields
	fields map[string]map[string]any // fieldsV1 by its JSON; shared and read-only
}

// maxFields bounds the records that a tracker remembers.
const maxFields = 1024

func newCustomTracker(types managedfields.TypeConverter, empty apis.Object) *customTracker {
	none, err := types.ObjectToTyped(empty)
	if err != nil {
		return nil
	}
	return &customTracker{types: types, empty: none, fields: map[string]map[string]any{}}
}

func (c *customTracker) typed(u *unstructured.Unstructured) (*typed.TypedValue, error) {
	if _, ok := rawEntries(u); ok {
		u = wire.Detached(u).(*unstructured.Unstructured)
		delete(u.Object["metadata"].(map[string]any), "managedFields")
	}
	return c.types.ObjectToTyped(u)
}

func rawEntries(u *unstructured.Unstructured) ([]any, bool) {
	meta, _ := u.Object["metadata"].(map[string]any)
	raw, ok := meta["managedFields"]
	list, _ := raw.([]any)
	return list, ok
}

// createdCustom is created for a custom resource.
func (m *Manager) createdCustom(u *unstructured.Unstructured, manager string) bool {
	if _, sent := rawEntries(u); sent {
		return false
	}
	now, err := m.custom.typed(u)
	if err != nil {
		return false
	}
	touched, _, ok := m.changed(m.custom.empty, now)
	if !ok {
		return false
	}
	mine := touched.Difference(stripped)
	if mine.Empty() {
		return true
	}
	record, err := mine.ToJSON()
	if err != nil {
		return false
	}
	return m.custom.set(u, []metav1.ManagedFieldsEntry{m.entry(cmp.Or(manager, unnamed), record)}, nil, nil)
}

// trackCustom is track for a custom resource.
func (m *Manager) trackCustom(u, old *unstructured.Unstructured, manager string) bool {
	raw, _ := rawEntries(old)
	if sent, ok := rawEntries(u); ok && m.subresource == "" && !reflect.DeepEqual(sent, raw) {
		return false
	}
	entries, ok := m.read(raw)
	if !ok {
		return false
	}
	if len(entries) == 0 && old.GetUID() != "" {
		u.SetManagedFields(nil) // never tracked: not from now on either
		return true
	}
	before, err := m.custom.typed(old)
	if err != nil {
		return false
	}
	now, err := m.custom.typed(u)
	if err != nil {
		return false
	}
	touched, removed, ok := m.changed(before, now)
	if !ok {
		return false
	}
	tracked, ok := m.claim(entries, touched, removed, manager)
	return ok && m.custom.set(u, tracked, entries, raw)
}

func (m *Manager) changed(old, now *typed.TypedValue) (touched, removed *fieldpath.Set, ok bool) {
	diff, err := old.Compare(now)
	if err != nil {
		return nil, nil, false
	}
	touched, removed = union(diff.Modified, diff.Added), diff.Removed
	if m.filter != nil {
		touched, removed = m.filter.Filter(touched), m.filter.Filter(removed)
	}
	return touched, removed, true
}

// read returns the entries of an object; false when they are for the general way.
func (m *Manager) read(raw []any) ([]metav1.ManagedFieldsEntry, bool) {
	entries := make([]metav1.ManagedFieldsEntry, len(raw))
	updaters := 0
	for i, item := range raw {
		object, ok := item.(map[string]any)
		if !ok {
			return nil, false
		}
		text := func(name string) string { s, _ := object[name].(string); return s }
		if text("apiVersion") != m.version || text("fieldsType") != "FieldsV1" || object["fieldsV1"] == nil {
			return nil, false
		}
		fields, err := json.Marshal(object["fieldsV1"])
		if err != nil {
			return nil, false
		}
		entries[i] = metav1.ManagedFieldsEntry{
			Manager: text("manager"), Operation: metav1.ManagedFieldsOperationType(text("operation")), APIVersion: m.version,
			FieldsType: "FieldsV1", FieldsV1: &metav1.FieldsV1{Raw: fields}, Subresource: text("subresource"),
		}
		if s := text("time"); s != "" {
			t, err := time.Parse(time.RFC3339, s)
			if err != nil {
				return nil, false
			}
			local := metav1.NewTime(t)
			entries[i].Time = &local
		}
		if entries[i].Operation == metav1.ManagedFieldsOperationUpdate {
			updaters++
		}
	}
	return entries, updaters < maxUpdaters
}

// set writes entries into an object. Those that are among before keep their value in raw.
func (c *customTracker) set(u *unstructured.Unstructured, entries, before []metav1.ManagedFieldsEntry, raw []any) bool {
	list := make([]any, len(entries))
	for i := range entries {
		e := &entries[i]
		for j := range before {
			if before[j].FieldsV1 == e.FieldsV1 {
				list[i] = raw[j]
			}
		}
		if list[i] != nil {
			continue
		}
		fields, ok := c.fieldsOf(e.FieldsV1.Raw)
		if !ok {
			return false
		}
		object := map[string]any{
			"manager": e.Manager, "operation": string(e.Operation), "apiVersion": e.APIVersion,
			"fieldsType": e.FieldsType, "fieldsV1": fields,
		}
		if e.Time != nil {
			object["time"] = e.Time.UTC().Format(time.RFC3339)
		}
		if e.Subresource != "" {
			object["subresource"] = e.Subresource
		}
		list[i] = object
	}
	meta, ok := u.Object["metadata"].(map[string]any)
	if !ok {
		return false
	}
	meta["managedFields"] = list
	return true
}

func (c *customTracker) fieldsOf(raw []byte) (map[string]any, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if fields, ok := c.fields[string(raw)]; ok {
		return fields, true
	}
	var fields map[string]any
	if json.Unmarshal(raw, &fields) != nil {
		return nil, false
	}
	if len(c.fields) >= maxFields {
		clear(c.fields)
	}
	c.fields[string(raw)] = fields
	return fields, true
}
