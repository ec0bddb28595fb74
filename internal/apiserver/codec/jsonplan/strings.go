package jsonplan

import (
	"hash/maphash"
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
