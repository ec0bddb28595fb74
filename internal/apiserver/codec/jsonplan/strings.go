package jsonplan

import (
	"bytes"
	"hash/maphash"
	"slices"
	"sync/atomic"
)

// Most strings of an object are those of many others: names of fields in maps,
// images, paths, values of a template. What was read lately is kept, and read
// again as the same string, so that fifty thousand pods share what they have in
// common. A string that falls into the place of another takes it; none is ever
// wrong for having been lost.
var (
	lately [1 << lateBits]atomic.Pointer[string]
	seed   = maphash.MakeSeed()
)

const (
	lateBits = 12
	lateMost = 256 // bytes of a string that is kept, which bounds all to 1 MiB
)

// share returns b as a string.
func share(b []byte) string {
	if len(b) == 0 || len(b) > lateMost {
		return string(b)
	}
	place := &lately[maphash.Bytes(seed, b)&(1<<lateBits-1)]
	if known := place.Load(); known != nil && *known == string(b) {
		return *known
	}
	s := string(b)
	place.Store(&s)
	return s
}

// records are sets of fields that were read lately, as lately are strings.
var records [1 << recordBits]atomic.Pointer[[]byte]

const (
	recordBits = 8
	recordMost = 4 << 10 // bytes of one that is kept, which bounds all to 1 MiB
)

// shareFields returns a copy of raw that others may have, too. Nobody changes it.
func shareFields(raw []byte) []byte {
	if len(raw) > recordMost {
		return bytes.Clone(raw)
	}
	place := &records[maphash.Bytes(seed, raw)&(1<<recordBits-1)]
	if known := place.Load(); known != nil && bytes.Equal(*known, raw) {
		return *known
	}
	own := slices.Clip(bytes.Clone(raw))
	place.Store(&own)
	return own
}
