package apply

import "sigs.k8s.io/structured-merge-diff/v6/fieldpath"

// identities are the identities of a list's items, each of them once.
type identities struct {
	all   []fieldpath.PathElement
	names map[string]int // of long lists
}

// elements collects identities. It answers false when an item has none or one that
// an earlier item has.
func elements(count int, of func(int) (fieldpath.PathElement, bool)) (identities, bool) {
	x := identities{all: make([]fieldpath.PathElement, 0, count)}
	if count > shortList {
		x.names = make(map[string]int, count)
	}
	for i := range count {
		e, ok := of(i)
		if !ok || x.find(e) >= 0 {
			return x, false
		}
		if x.names != nil {
			x.names[e.String()] = i
		}
		x.all = append(x.all, e)
	}
	return x, true
}

// find returns the place of an identity, -1 if it is not among them.
func (x *identities) find(e fieldpath.PathElement) int {
	if x.names != nil {
		if i, ok := x.names[e.String()]; ok {
			return i
		}
		return -1
	}
	for i := range x.all {
		if x.all[i].Equals(e) {
			return i
		}
	}
	return -1
}

// pair is an item of a merged list: its places in the object's list and in the
// configuration's, -1 where it is not in one.
type pair struct{ left, right int }

// interleave orders the items of two lists that are merged: those of the
// configuration in its own order, and each of the others behind what it followed
// in the object, as far as both can be.
func interleave(left, right identities) []pair {
	inRight, inLeft := places(left, right), places(right, left)
	order := make([]pair, 0, max(len(inRight), len(inLeft)))
	next := followShared(inLeft, -1) // the next of the right items that the left has too
	l, r := 0, 0
	for l < len(inRight) || r < len(inLeft) {
		switch {
		case l < len(inRight) && r < len(inLeft) && inRight[l] == r:
			order = append(order, pair{l, r})
			l, r = l+1, r+1
			next = followShared(inLeft, next)
			continue
		case l < len(inRight) && r < len(inLeft) && inRight[l] >= 0 && next < len(inLeft) && inRight[l] != next:
			l++ // shared, but its turn comes later or is over
			continue
		case l < len(inRight) && inRight[l] < 0:
			order = append(order, pair{l, -1})
			l++
			continue
		}
		if l < len(inRight) && inRight[l] < r {
			l++ // merged already
		}
		if r < len(inLeft) {
			order = append(order, pair{inLeft[r], r})
			if r == next {
				next = followShared(inLeft, next)
			}
			r++
		}
	}
	return order
}

// places tells for each item of a where it is in b.
func places(a, b identities) []int {
	all := make([]int, len(a.all))
	for i, e := range a.all {
		all[i] = b.find(e)
	}
	return all
}

// followShared returns the next place after one whose item the other list has too.
func followShared(inOther []int, after int) int {
	for after++; after < len(inOther) && inOther[after] < 0; after++ {
	}
	return after
}
