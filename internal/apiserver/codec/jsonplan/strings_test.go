package jsonplan

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"unsafe"
)

func TestStringsThatWereReadLatelyAreShared(t *testing.T) {
	b := []byte("a-string-of-this-test-alone")
	first := share(b)
	second := share([]byte(strings.Clone(first)))
	if unsafe.StringData(first) != unsafe.StringData(second) {
		t.Error("the same string is kept twice")
	}
	b[0] = 'X'
	if first != "a-string-of-this-test-alone" {
		t.Errorf("a string changed with the bytes it was read from: %s", first)
	}
}

func TestSharedStringsAreThoseThatWereRead(t *testing.T) {
	var readers sync.WaitGroup
	for r := range 4 {
		readers.Go(func() {
			for i := range 20_000 { // several times the places there are
				want := fmt.Sprint((i*(r+1))%9973, strings.Repeat("x", i%300))
				if got := share([]byte(want)); got != want {
					t.Errorf("%q became %q", want, got)
					return
				}
			}
		})
	}
	readers.Wait()
}
