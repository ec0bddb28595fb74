package codec

import (
	"io"
	"runtime"
	"sync"

	"proa/internal/apiserver/codec/jsonplan"
	"proa/internal/apiserver/codec/protoplan"
	"proa/internal/store"
)

// Bounds of a chunk. As many as two per processor are in memory at a time.
const (
	chunkItems = 256
	chunkBytes = 256 << 10 // as stored
)

// chunk is a run of a list's items, encoded by a goroutine of its own.
type chunk struct {
	buf  *[]byte
	err  error
	done chan struct{}
}

var chunkBuffers = sync.Pool{New: func() any { return new([]byte) }}

// Memo remembers where in a buffer stands what objects have in common, so that it is
// copied and not encoded again. It is Reset when the buffer is used for something else.
// The zero value is ready for use.
type Memo struct {
	json  jsonplan.Memo
	proto protoplan.Memo
}

// Reset forgets everything.
func (m *Memo) Reset() {
	m.json.Reset()
	m.proto.Reset()
}

var memos = sync.Pool{New: func() any { return new(Memo) }}

// encoding appends an item of a list to b. The memo is of what else b holds.
type encoding func(b []byte, i int, m *Memo) ([]byte, error)

// writeChunks encodes items on all processors and writes what encode appends for
// each, in order.
func writeChunks(w io.Writer, items []*store.Item, encode encoding) error {
	window := 2 * runtime.GOMAXPROCS(0)
	var encoding sync.WaitGroup
	defer encoding.Wait()
	var started []*chunk
	for next := 0; ; {
		for next < len(items) && len(started) < window {
			c := &chunk{buf: chunkBuffers.Get().(*[]byte), done: make(chan struct{})}
			from, to := next, chunkEnd(items, next)
			encoding.Go(func() {
				defer close(c.done)
				c.encode(from, to, encode)
			})
			started, next = append(started, c), to
		}
		if len(started) == 0 {
			return nil
		}
		c := started[0]
		started = started[1:]
		<-c.done
		if c.err != nil {
			return c.err
		}
		if _, err := w.Write(*c.buf); err != nil {
			return err
		}
		if cap(*c.buf) <= 8*chunkBytes {
			chunkBuffers.Put(c.buf)
		}
	}
}

// chunkEnd is where the chunk ends that starts at an item.
func chunkEnd(items []*store.Item, start int) int {
	size := 0
	for i := start; i < len(items); i++ {
		if size += items[i].Size(); i > start && size > chunkBytes || i-start == chunkItems {
			return i
		}
	}
	return len(items)
}

func (c *chunk) encode(from, to int, encode encoding) {
	b, memo := (*c.buf)[:0], memos.Get().(*Memo)
	for i := from; i < to && c.err == nil; i++ {
		b, c.err = encode(b, i, memo)
	}
	memo.Reset()
	memos.Put(memo)
	*c.buf = b
}
