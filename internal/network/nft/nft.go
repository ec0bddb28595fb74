// Package nft sends transactions to nf_tables. It uses google/nftables'
// expressions; it has its own batches because that library asks the kernel for
// an acknowledgement and an echo of every message, and neither a change among
// thousands of Services nor ten thousand of them at once needs either.
package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Family of all tables: one table serves both IP families.
const family = unix.NFPROTO_INET

// Batch is a transaction on one table: all of it takes effect at once, or none.
// Names have at most 255 bytes. The zero Batch is not usable.
type Batch struct {
	table    string
	messages []netlink.Message
	err      error
}

// NewBatch returns an empty transaction on a table.
func NewBatch(table string) *Batch { return &Batch{table: table} }

// Len is the number of messages.
func (b *Batch) Len() int { return len(b.messages) }

func (b *Batch) add(kind, flags uint16, fill func(*netlink.AttributeEncoder)) {
	e := netlink.NewAttributeEncoder()
	e.ByteOrder = binary.BigEndian
	fill(e)
	attributes, err := e.Encode()
	b.err = errors.Join(b.err, err)
	b.messages = append(b.messages, netlink.Message{
		Header: netlink.Header{
			Type:  netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind),
			Flags: netlink.Request | netlink.HeaderFlags(flags),
		},
		Data: append([]byte{family, unix.NFNETLINK_V0, 0, 0}, attributes...),
	})
}

// AddTable makes the table unless it exists.
func (b *Batch) AddTable() {
	b.add(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_TABLE_NAME, b.table)
		e.Uint32(unix.NFTA_TABLE_FLAGS, 0)
	})
}

// DeleteTable deletes the table and all in it.
func (b *Batch) DeleteTable() {
	b.add(unix.NFT_MSG_DELTABLE, 0, func(e *netlink.AttributeEncoder) { e.String(unix.NFTA_TABLE_NAME, b.table) })
}

// Hook attaches a base chain to the packet path. Its policy is accept.
type Hook struct {
	Type     string // filter or nat
	Number   uint32 // unix.NF_INET_...
	Priority int32
}

// AddChain makes a chain, with a hook or to be jumped to.
func (b *Batch) AddChain(name string, hook *Hook) {
	b.add(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_CHAIN_TABLE, b.table)
		e.String(unix.NFTA_CHAIN_NAME, name)
		if hook == nil {
			return
		}
		e.Nested(unix.NFTA_CHAIN_HOOK, func(e *netlink.AttributeEncoder) error {
			e.Uint32(unix.NFTA_HOOK_HOOKNUM, hook.Number)
			e.Uint32(unix.NFTA_HOOK_PRIORITY, uint32(hook.Priority))
			return nil
		})
		e.String(unix.NFTA_CHAIN_TYPE, hook.Type)
	})
}

// FlushChain deletes the rules of a chain.
func (b *Batch) FlushChain(name string) {
	b.add(unix.NFT_MSG_DELRULE, 0, func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_RULE_TABLE, b.table)
		e.String(unix.NFTA_RULE_CHAIN, name)
	})
}

// DeleteChain deletes an empty chain to which nothing jumps.
func (b *Batch) DeleteChain(name string) {
	b.add(unix.NFT_MSG_DELCHAIN, 0, func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_CHAIN_TABLE, b.table)
		e.String(unix.NFTA_CHAIN_NAME, name)
	})
}

// AddRule appends a rule to a chain.
func (b *Batch) AddRule(chain string, exprs ...expr.Any) {
	b.add(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_RULE_TABLE, b.table)
		e.String(unix.NFTA_RULE_CHAIN, chain)
		e.Nested(unix.NFTA_RULE_EXPRESSIONS, func(e *netlink.AttributeEncoder) error {
			for _, x := range exprs {
				raw, err := expr.Marshal(family, x)
				if err != nil {
					return fmt.Errorf("rule in %s: %w", chain, err)
				}
				e.Bytes(unix.NLA_F_NESTED|unix.NFTA_LIST_ELEM, raw)
			}
			return nil
		})
	})
}

// Set is a set or, with Data or Verdicts, a map.
type Set struct {
	Name     string // of an anonymous set: set by AddAnonymous
	ID       uint32 // within the batch that makes it; later batches use the name
	Key      nftables.SetDatatype
	Data     nftables.SetDatatype // zero for a set or a verdict map
	Verdicts bool
	Interval bool // elements are ranges: each start is followed by an end element
	// Dynamic sets are filled by rules; elements leave after Timeout.
	Dynamic bool
	Timeout time.Duration
	Size    uint32 // at most; 0: no limit

	anonymous bool
}

// Element of a set. Key (and Data) are big endian, each field padded to four bytes.
type Element struct {
	Key     []byte
	Data    []byte
	Verdict *expr.Verdict
	End     bool // first key after a range
}

// setIDs tells the sets of a batch apart; the kernel forgets an ID with its batch.
var setIDs atomic.Uint32

// AddSet makes an empty set.
func (b *Batch) AddSet(s Set) Set {
	s.ID = setIDs.Add(1)
	var flags uint32
	for flag, on := range map[uint32]bool{
		unix.NFT_SET_ANONYMOUS | unix.NFT_SET_CONSTANT: s.anonymous,
		unix.NFT_SET_MAP:      s.Verdicts || s.Data.Bytes > 0,
		unix.NFT_SET_INTERVAL: s.Interval,
		unix.NFT_SET_EVAL:     s.Dynamic,
		unix.NFT_SET_TIMEOUT:  s.Timeout > 0,
	} {
		if on {
			flags |= flag
		}
	}
	b.add(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_SET_TABLE, b.table)
		e.String(unix.NFTA_SET_NAME, s.Name)
		e.Uint32(unix.NFTA_SET_FLAGS, flags)
		e.Uint32(unix.NFTA_SET_KEY_TYPE, s.Key.GetNFTMagic())
		e.Uint32(unix.NFTA_SET_KEY_LEN, s.Key.Bytes)
		e.Uint32(unix.NFTA_SET_ID, s.ID)
		switch {
		case s.Verdicts:
			e.Uint32(unix.NFTA_SET_DATA_TYPE, unix.NFT_DATA_VERDICT)
			e.Uint32(unix.NFTA_SET_DATA_LEN, 0)
		case s.Data.Bytes > 0:
			e.Uint32(unix.NFTA_SET_DATA_TYPE, s.Data.GetNFTMagic())
			e.Uint32(unix.NFTA_SET_DATA_LEN, s.Data.Bytes)
		}
		if s.Timeout > 0 {
			e.Uint64(unix.NFTA_SET_TIMEOUT, uint64(s.Timeout.Milliseconds()))
		}
		if s.Size > 0 {
			e.Nested(unix.NFTA_SET_DESC, func(e *netlink.AttributeEncoder) error {
				e.Uint32(unix.NFTA_SET_DESC_SIZE, s.Size)
				return nil
			})
		}
	})
	return s
}

// AddAnonymous makes the unnamed constant set of one rule, which must follow.
func (b *Batch) AddAnonymous(s Set, elements []Element) Set {
	s.anonymous = true
	s.Name = "__set%d"
	if s.Verdicts || s.Data.Bytes > 0 {
		s.Name = "__map%d"
	}
	s.Size = uint32(len(elements))
	s = b.AddSet(s)
	b.AddElements(s, elements)
	return s
}

// DeleteSet deletes a set to which no rule refers.
func (b *Batch) DeleteSet(name string) {
	b.add(unix.NFT_MSG_DELSET, 0, func(e *netlink.AttributeEncoder) {
		e.String(unix.NFTA_SET_TABLE, b.table)
		e.String(unix.NFTA_SET_NAME, name)
	})
}

// perMessage keeps the elements of a message, at most some 300 bytes each,
// below the 64 KiB that an attribute can hold.
const perMessage = 200

// AddElements adds elements, none of which may be in a map with another value.
func (b *Batch) AddElements(s Set, elements []Element) {
	b.elements(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, s, elements)
}

// DeleteElements deletes elements, all of which must exist.
func (b *Batch) DeleteElements(s Set, elements []Element) {
	b.elements(unix.NFT_MSG_DELSETELEM, 0, s, elements)
}

func (b *Batch) elements(kind, flags uint16, s Set, elements []Element) {
	for len(elements) > 0 {
		some := elements[:min(len(elements), perMessage)]
		elements = elements[len(some):]
		b.add(kind, flags, func(e *netlink.AttributeEncoder) {
			e.String(unix.NFTA_SET_ELEM_LIST_TABLE, b.table)
			e.String(unix.NFTA_SET_ELEM_LIST_SET, s.Name)
			if s.ID != 0 {
				e.Uint32(unix.NFTA_SET_ELEM_LIST_SET_ID, s.ID)
			}
			e.Nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS, func(e *netlink.AttributeEncoder) error {
				for _, element := range some {
					e.Nested(unix.NFTA_LIST_ELEM, element.encode)
				}
				return nil
			})
		})
	}
}

func (x Element) encode(e *netlink.AttributeEncoder) error {
	value := func(raw []byte) func(*netlink.AttributeEncoder) error {
		return func(e *netlink.AttributeEncoder) error { e.Bytes(unix.NFTA_DATA_VALUE, raw); return nil }
	}
	if x.End {
		e.Uint32(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END)
	}
	e.Nested(unix.NFTA_SET_ELEM_KEY, value(x.Key))
	switch {
	case x.Verdict != nil:
		e.Nested(unix.NFTA_SET_ELEM_DATA, func(e *netlink.AttributeEncoder) error {
			e.Nested(unix.NFTA_DATA_VERDICT, func(e *netlink.AttributeEncoder) error {
				e.Uint32(unix.NFTA_VERDICT_CODE, uint32(x.Verdict.Kind))
				if x.Verdict.Chain != "" {
					e.String(unix.NFTA_VERDICT_CHAIN, x.Verdict.Chain)
				}
				return nil
			})
			return nil
		})
	case len(x.Data) > 0:
		e.Nested(unix.NFTA_SET_ELEM_DATA, value(x.Data))
	}
	return nil
}

// Conn sends transactions. It keeps its socket: when one that sent a transaction
// closes, the kernel waits until no packet can see the old state any more, which
// takes far longer than the transaction itself. It is not for concurrent use.
type Conn struct {
	netns int
	sock  *netlink.Conn // nil before the first transaction and after an error
}

// NewConn returns a connection to the network namespace that a file descriptor
// refers to, or the caller's for 0.
func NewConn(netns int) *Conn { return &Conn{netns: netns} }

// sendBuffer holds the largest transaction: the kernel takes one in one piece.
const sendBuffer = 256 << 20

func (c *Conn) dial() error {
	if c.sock != nil {
		return nil
	}
	sock, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: c.netns})
	if err != nil {
		return err
	}
	if err := sock.SetWriteBuffer(sendBuffer); err != nil {
		sock.Close()
		return err
	}
	c.sock = sock
	return nil
}

// Close frees the socket. The connection can be used again.
func (c *Conn) Close() error {
	if c.sock == nil {
		return nil
	}
	sock := c.sock
	c.sock = nil
	return sock.Close()
}

// Commit sends a transaction. An error means that nothing changed.
func (c *Conn) Commit(b *Batch) error {
	if b.err != nil || len(b.messages) == 0 {
		return b.err
	}
	if err := c.dial(); err != nil {
		return err
	}
	// The answer is the first error or, when there is none, this one acknowledgement.
	b.messages[len(b.messages)-1].Header.Flags |= netlink.Acknowledge
	mark := func(kind netlink.HeaderType) netlink.Message {
		return netlink.Message{Header: netlink.Header{Type: kind, Flags: netlink.Request},
			Data: []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES}}
	}
	all := make([]netlink.Message, 0, len(b.messages)+2)
	all = append(all, mark(unix.NFNL_MSG_BATCH_BEGIN))
	all = append(all, b.messages...)
	all = append(all, mark(unix.NFNL_MSG_BATCH_END))
	_, err := c.sock.SendMessages(all)
	if err == nil {
		_, err = c.sock.Receive()
	}
	if err != nil { // more errors may wait in the socket
		return errors.Join(err, c.Close())
	}
	return nil
}

// Commit sends the transaction over a connection of its own.
func (b *Batch) Commit(netns int) error {
	c := NewConn(netns)
	return errors.Join(c.Commit(b), c.Close())
}
