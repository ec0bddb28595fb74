package store

import (
	"reflect"
	"sync"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Item is one revision of one object, with the wire bytes of that revision. It
// is shared by every reader and must not be changed.
type Item struct {
	Key      Key
	Revision int64 // the revision that wrote it; also the object's resourceVersion
	Object   Object

	size      int32  // bytes of the engine's value, before it is sealed
	seal      int32  // the Cipher's generation that it was sealed in
	sum       uint64 // of the engine's value, if this process has encoded it; 0: not known
	length    atomic.Int32
	cache     *encodingCache
	encodings atomic.Pointer[encoding]
}

// NewItem wraps an object that is not stored, such as the result of a dry run.
// Its Revision is 0.
func NewItem(key Key, obj Object) *Item { return &Item{Key: key, Object: obj} }

// Size is how many bytes the engine keeps for the item, 0 for one that it does not keep.
func (i *Item) Size() int { return int(i.size) }

// Length is how long the object is as a protobuf message of its own kind. Whoever
// needs it first measures it.
func (i *Item) Length(measure func(Object) (int, error)) (int, error) {
	if n := i.length.Load(); n > 0 {
		return int(n), nil
	}
	n, err := measure(i.Object)
	if err == nil {
		i.length.Store(int32(n))
	}
	return n, err
}

// encoding is one format's bytes in an item's list. The list only grows, by a
// compare-and-swap at its head; bytes become nil when the cache is over its budget.
type encoding struct {
	format string
	bytes  atomic.Pointer[[]byte]
	next   *encoding
}

// Encoding returns the object's bytes in a format, an opaque name chosen by the
// caller, and keeps them with the item while the store's budget for encodings
// lasts. Callers that race for the same format may all encode, but all get the
// bytes of one of them. Nobody modifies the bytes.
func (i *Item) Encoding(format string, encode func(Object) ([]byte, error)) ([]byte, error) {
	if e := findEncoding(i.encodings.Load(), format); e != nil {
		if b := e.bytes.Load(); b != nil {
			return *b, nil
		}
	}
	fresh, err := encode(i.Object)
	if err != nil {
		return nil, err
	}
	e := i.encodingFor(format)
	for {
		if e.bytes.CompareAndSwap(nil, &fresh) {
			if i.cache != nil {
				i.cache.add(e, len(fresh))
			}
			return fresh, nil
		}
		if b := e.bytes.Load(); b != nil {
			return *b, nil
		}
	}
}

func (i *Item) encodingFor(format string) *encoding {
	for {
		head := i.encodings.Load()
		if e := findEncoding(head, format); e != nil {
			return e
		}
		e := &encoding{format: format, next: head}
		if i.encodings.CompareAndSwap(head, e) {
			return e
		}
	}
}

func findEncoding(e *encoding, format string) *encoding {
	for ; e != nil; e = e.next {
		if e.format == format {
			return e
		}
	}
	return nil
}

// encodingCache bounds the bytes that all items of a store keep in encoded
// form: when they exceed the budget the oldest go. The queue refers to the
// encodings only, so it keeps no object alive.
type encodingCache struct {
	budget int64

	mu    sync.Mutex // guards the rest
	used  int64
	queue []cachedEncoding
	head  int
}

type cachedEncoding struct {
	encoding *encoding
	size     int64
}

func (c *encodingCache) add(e *encoding, size int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue = append(c.queue, cachedEncoding{e, int64(size)})
	c.used += int64(size)
	for c.used > c.budget && c.head < len(c.queue) {
		old := c.queue[c.head]
		c.queue[c.head] = cachedEncoding{}
		c.head++
		c.used -= old.size
		old.encoding.bytes.Store(nil)
	}
	if c.head > len(c.queue)/2 {
		n := copy(c.queue, c.queue[c.head:])
		clear(c.queue[n:])
		c.queue, c.head = c.queue[:n], 0
	}
}

// copyMeta returns a copy of obj whose metadata can be set without touching
// obj. What lies below the metadata stays shared.
func copyMeta(obj Object) Object {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		return copyUnstructuredMeta(u)
	}
	v := reflect.ValueOf(obj)
	if v.Kind() != reflect.Pointer {
		return obj.DeepCopyObject().(Object)
	}
	p := reflect.New(v.Type().Elem())
	p.Elem().Set(v.Elem())
	dup := p.Interface().(Object)
	if a, ok := obj.(metav1.ObjectMetaAccessor); !ok || a.GetObjectMeta() == dup.(metav1.ObjectMetaAccessor).GetObjectMeta() {
		return obj.DeepCopyObject().(Object)
	}
	return dup
}

func copyUnstructuredMeta(u *unstructured.Unstructured) Object {
	top := make(map[string]any, len(u.Object))
	for k, v := range u.Object {
		top[k] = v
	}
	if meta, ok := top["metadata"].(map[string]any); ok {
		dup := make(map[string]any, len(meta))
		for k, v := range meta {
			dup[k] = v
		}
		top["metadata"] = dup
	}
	return &unstructured.Unstructured{Object: top}
}
