package nft

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"proa/internal/network/nettest"
)

func tables(t *testing.T, space *nettest.Space) []string {
	t.Helper()
	conn, err := nftables.New(nftables.WithNetNSFd(space.FD()))
	if err != nil {
		t.Fatal(err)
	}
	found, err := conn.ListTables()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, table := range found {
		names = append(names, table.Name)
	}
	return names
}

func TestATransactionIsAllOrNothing(t *testing.T) {
	space := nettest.New(t)
	b := NewBatch("whole")
	b.AddTable()
	b.AddChain("c", nil)
	b.AddRule("c", &expr.Verdict{Kind: expr.VerdictGoto, Chain: "absent"})
	if err := b.Commit(space.FD()); err == nil {
		t.Error("a jump to nowhere was taken")
	}
	if got := tables(t, space); len(got) > 0 {
		t.Errorf("tables %v after a refused transaction", got)
	}
	b = NewBatch("whole")
	b.AddTable()
	b.AddChain("c", nil)
	if err := b.Commit(space.FD()); err != nil {
		t.Fatal(err)
	}
	if got := tables(t, space); strings.Join(got, " ") != "whole" {
		t.Errorf("tables %v", got)
	}
}

func TestLargeSetsAndTransactions(t *testing.T) {
	space := nettest.New(t)
	b := NewBatch("large")
	b.AddTable()
	set := b.AddSet(Set{Name: "ports", Key: nftables.TypeInetService, Verdicts: true})
	var elements []Element
	for i := range 5000 {
		chain := fmt.Sprintf("chain/%s/%d", strings.Repeat("long", 40), i)
		b.AddChain(chain, nil)
		elements = append(elements, Element{Key: []byte{byte(i >> 8), byte(i)}, Verdict: &expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}})
	}
	b.AddElements(set, elements)
	if err := b.Commit(space.FD()); err != nil {
		t.Fatal(err)
	}
	set.ID = 0
	b = NewBatch("large")
	b.DeleteElements(set, elements[:1000])
	b.DeleteElements(set, elements[:1])
	if err := b.Commit(space.FD()); err == nil {
		t.Error("an element was deleted twice")
	}
	b = NewBatch("large")
	b.DeleteElements(set, elements)
	if err := b.Commit(space.FD()); err != nil {
		t.Fatal(err)
	}
}
