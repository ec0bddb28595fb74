package pebble

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/store"
)

// format is the version of the layout on disk, written when a store is made. A
// program refuses a store whose format is newer than its own.
//
//	!format                            decimal number
//	!floor                             revision (8 bytes): the oldest state that can be read
//	e revision(8) key                  one change of one key:
//	    kind(1) millis prev value          kind 0 put, 1 delete; when it was committed;
//	                                       the revision of the entry it replaces, 0 for none
//
// Keys are strings with their length in front: group, resource, namespace, and
// the name to the end. Numbers are big endian in keys and uvarints in values.
//
// It is a log by revision and there is no second copy of the current state:
// entries are appended, so the tree below never has to merge what was written
// with what is there. An entry is live until another one replaces it; as
// each names what it replaces, both the state at any revision from the floor on and
// what can be deleted follow from the entries after it alone.
const format = 1

var (
	formatKey = []byte("!format")
	floorKey  = []byte("!floor")
)

const entryPrefix = 'e'

var errTruncated = errors.New("entry is cut short")

// entry is the part of a change that is kept in the value.
type entry struct {
	deleted bool
	millis  int64 // Unix time of the commit, never less than in an earlier entry
	prev    int64
	value   []byte
}

// revisionKey is the lower bound of the entries of a revision.
func revisionKey(revision int64) []byte { return appendRevision(nil, revision) }

func appendRevision(b []byte, revision int64) []byte {
	return binary.BigEndian.AppendUint64(append(b, entryPrefix), uint64(revision))
}

// appendEntryKey appends the key of an entry.
func appendEntryKey(b []byte, revision int64, key store.Key) []byte {
	b = appendRevision(b, revision)
	b = appendString(b, key.Resource.Group)
	b = appendString(b, key.Resource.Resource)
	b = appendString(b, key.Namespace)
	return append(b, key.Name...)
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// splitEntryKey returns the revision and the encoded key that follows it.
func splitEntryKey(b []byte) (revision int64, key []byte, err error) {
	if len(b) < 9 || b[0] != entryPrefix {
		return 0, nil, errTruncated
	}
	revision = int64(binary.BigEndian.Uint64(b[1:]))
	if revision <= 0 {
		return 0, nil, fmt.Errorf("entry has revision %d", revision)
	}
	return revision, b[9:], nil
}

// keyDecoder decodes keys. It shares the strings of resource names between the
// keys it returns.
type keyDecoder struct {
	resources map[string]schema.GroupResource
}

func (d *keyDecoder) decode(b []byte) (store.Key, error) {
	group, rest, err := cutString(b)
	if err != nil {
		return store.Key{}, err
	}
	resource, rest, err := cutString(rest)
	if err != nil {
		return store.Key{}, err
	}
	head := b[:len(b)-len(rest)]
	namespace, name, err := cutString(rest)
	if err != nil {
		return store.Key{}, err
	}
	gr, ok := d.resources[string(head)]
	if !ok {
		if d.resources == nil {
			d.resources = map[string]schema.GroupResource{}
		}
		gr = schema.GroupResource{Group: string(group), Resource: string(resource)}
		d.resources[string(head)] = gr
	}
	return store.Key{Resource: gr, Namespace: string(namespace), Name: string(name)}, nil
}

func cutString(b []byte) (s, rest []byte, err error) {
	n, b, err := cutUvarint(b)
	if err != nil || n > uint64(len(b)) {
		return nil, nil, errTruncated
	}
	return b[:n], b[n:], nil
}

func cutUvarint(b []byte) (uint64, []byte, error) {
	n, size := binary.Uvarint(b)
	if size <= 0 {
		return 0, nil, errTruncated
	}
	return n, b[size:], nil
}

// maxEntryHead is the most that appendEntryHead appends.
const maxEntryHead = 1 + 2*binary.MaxVarintLen64

func appendEntryHead(b []byte, e entry) []byte {
	kind := byte(0)
	if e.deleted {
		kind = 1
	}
	b = binary.AppendUvarint(append(b, kind), uint64(e.millis))
	return binary.AppendUvarint(b, uint64(e.prev))
}

// decodeEntry decodes the value of an entry; the result refers to b.
func decodeEntry(b []byte) (entry, error) {
	if len(b) == 0 {
		return entry{}, errTruncated
	}
	if b[0] > 1 {
		return entry{}, fmt.Errorf("entry has unknown kind %d", b[0])
	}
	millis, rest, err := cutUvarint(b[1:])
	if err != nil {
		return entry{}, err
	}
	prev, rest, err := cutUvarint(rest)
	if err != nil {
		return entry{}, err
	}
	if int64(millis) < 0 || int64(prev) < 0 {
		return entry{}, errors.New("entry has a number out of range")
	}
	return entry{deleted: b[0] == 1, millis: int64(millis), prev: int64(prev), value: rest}, nil
}

func (e entry) time() time.Time { return time.UnixMilli(e.millis) }

func decodeRevision(b []byte) (int64, error) {
	if len(b) != 8 || b[0] > 127 {
		return 0, errTruncated
	}
	return int64(binary.BigEndian.Uint64(b)), nil
}
