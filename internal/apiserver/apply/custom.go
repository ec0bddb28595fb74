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
	"sigs.k8s.io/structured-merge-diff/v6/schema"

	"proa/internal/apis"
)

// customTracker does for custom resources what the differ does for Go types: it
// records plain writes, and has the type by which applies are merged, without turning
// objects and entries from one form into another. It works on the JSON values of
// managedFields as they are.
type customTracker struct {
	root   *branch
	schema *schema.Schema
	ref    schema.TypeRef
	empty  map[string]any

	mu     sync.Mutex                // guards what follows
	fields map[string]map[string]any // fieldsV1 by its JSON; shared and read-only
	texts  map[uintptr]fieldsText    // the JSON of these, and of others that were read
}

// fieldsText keeps a fieldsV1, so that no other comes to have its address.
type fieldsText struct {
	fields map[string]any
	text   []byte
}

// maxFields bounds the records that a tracker remembers.
const maxFields = 1024

func newCustomTracker(types managedfields.TypeConverter, empty apis.Object) *customTracker {
	none, err := types.ObjectToTyped(empty)
	if err != nil {
		return nil
	}
	root, err := newBranch(none.Schema(), none.TypeRef())
	if err != nil || root == nil || root.object == nil || !root.object.granular {
		return nil
	}
	return &customTracker{
		root: root, schema: none.Schema(), ref: none.TypeRef(), empty: empty.(*unstructured.Unstructured).Object,
		fields: map[string]map[string]any{}, texts: map[uintptr]fieldsText{},
	}
}

// valid says that an object, its managedFields aside, is of the tracker's type.
func (c *customTracker) valid(u *unstructured.Unstructured) bool {
	for name, v := range u.Object {
		b := c.root.object.at(name)
		meta, isMap := v.(map[string]any)
		if name != "metadata" || !isMap || b == nil || b.object == nil {
			if !b.valid(v) {
				return false
			}
			continue
		}
		for name, v := range meta {
			if name != managed && !b.object.at(name).valid(v) {
				return false
			}
		}
	}
	return true
}

// managed is the field of metadata that nobody owns or compares.
const managed = "managedFields"

// compare compares two valid objects without their managedFields.
func (c *customTracker) compare(old, now map[string]any) (*differences, bool) {
	d := &differences{path: make(fieldpath.Path, 0, 16), without: managed}
	d.object(c.root.object, old, now)
	return d, !d.failed
}

func rawEntries(u *unstructured.Unstructured) ([]any, bool) {
	meta, _ := u.Object["metadata"].(map[string]any)
	raw, ok := meta[managed]
	list, _ := raw.([]any)
	return list, ok
}

// createdCustom is created for a custom resource.
func (m *Manager) createdCustom(u *unstructured.Unstructured, manager string) bool {
	if _, sent := rawEntries(u); sent || !m.custom.valid(u) {
		return false
	}
	w := shapeWriters.Get().(*shapeWriter)
	defer shapeWriters.Put(w)
	w.buf, w.keys = w.buf[:0], w.keys[:0]
	w.outlineFields(m.custom.root.object, u.Object)
	record, ok := m.shapes.get(w.buf)
	if !ok {
		diff, ok := m.custom.compare(m.custom.empty, u.Object)
		if !ok {
			return false
		}
		if record, ok = m.record(diff); !ok {
			return false
		}
		m.shapes.put(w.buf, record)
	}
	if record == nil {
		return true
	}
	return m.custom.set(u, []metav1.ManagedFieldsEntry{m.entry(cmp.Or(manager, unnamed), record)}, nil, nil)
}

// trackCustom is track for a custom resource.
func (m *Manager) trackCustom(u, old *unstructured.Unstructured, manager string) bool {
	raw, _ := rawEntries(old)
	if sent, ok := rawEntries(u); ok && m.subresource == "" && !equal(sent, raw) {
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
	if !m.custom.valid(old) || !m.custom.valid(u) {
		return false
	}
	diff, ok := m.custom.compare(old.Object, u.Object)
	if !ok {
		return false
	}
	touched, removed := union(&diff.modified.set, &diff.added.set), &diff.removed.set
	if m.filter != nil {
		touched, removed = m.filter.Filter(touched), m.filter.Filter(removed)
	}
	tracked, ok := m.claim(entries, touched, removed, manager)
	return ok && m.custom.set(u, tracked, entries, raw)
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
		owned, ok := object["fieldsV1"].(map[string]any)
		if !ok || text("apiVersion") != m.version || text("fieldsType") != "FieldsV1" {
			return nil, false
		}
		fields, err := m.custom.textOf(owned)
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
			if before[j].FieldsV1 == e.FieldsV1 && before[j].Time == e.Time {
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
	if meta[managed] = list; len(list) == 0 {
		delete(meta, managed)
	}
	return true
}

// fieldsOf returns a fieldsV1 by its JSON.
func (c *customTracker) fieldsOf(text []byte) (map[string]any, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if fields, ok := c.fields[string(text)]; ok {
		return fields, true
	}
	var fields map[string]any
	if json.Unmarshal(text, &fields) != nil {
		return nil, false
	}
	if len(c.fields) >= maxFields {
		clear(c.fields)
	}
	c.fields[string(text)] = fields
	c.keepLocked(fields, text)
	return fields, true
}

// textOf returns the JSON of a fieldsV1, which nobody changes.
func (c *customTracker) textOf(fields map[string]any) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known, ok := c.texts[reflect.ValueOf(fields).Pointer()]; ok {
		return known.text, nil
	}
	text, err := json.Marshal(fields)
	if err == nil {
		c.keepLocked(fields, text)
	}
	return text, err
}

func (c *customTracker) keepLocked(fields map[string]any, text []byte) {
	if len(c.texts) >= maxFields {
		clear(c.texts)
	}
	c.texts[reflect.ValueOf(fields).Pointer()] = fieldsText{fields, text}
}
