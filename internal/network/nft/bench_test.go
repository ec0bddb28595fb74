package nft

import (
	"testing"

	"github.com/google/nftables"

	"proa/internal/network/nettest"
)

// BenchmarkCommit is what the smallest transaction costs.
func BenchmarkCommit(b *testing.B) {
	space := nettest.New(b)
	made := NewBatch("bench")
	made.AddTable()
	set := made.AddSet(Set{Name: "ports", Key: nftables.TypeInetService})
	if err := made.Commit(space.FD()); err != nil {
		b.Fatal(err)
	}
	set.ID = 0
	element := []Element{{Key: []byte{0, 80}}}
	conn := NewConn(space.FD())
	defer conn.Close()
	for b.Loop() {
		change := NewBatch("bench")
		change.AddElements(set, element)
		change.DeleteElements(set, element)
		if err := conn.Commit(change); err != nil {
			b.Fatal(err)
		}
	}
}
