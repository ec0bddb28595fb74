package job

import (
	"slices"
	"strconv"
	"strings"
)

// indexes is a set of completion indexes as sorted, disjoint intervals; its text
// is that of status.completedIndexes, such as "0,2-4".
type indexes []interval

type interval struct{ first, last int }

// parseIndexes reads a set below limit. Text that is no set is read as far as it is one.
func parseIndexes(text string, limit int) indexes {
	var set indexes
	if text == "" {
		return nil
	}
	for part := range strings.SplitSeq(text, ",") {
		low, high, isRange := strings.Cut(part, "-")
		if !isRange {
			high = low
		}
		first, err := strconv.Atoi(low)
		if err != nil {
			return set
		}
		last, err := strconv.Atoi(high)
		if err != nil || first >= limit || last < first {
			return set
		}
		set = append(set, interval{first, min(last, limit-1)})
	}
	return set
}

func (x indexes) String() string {
	var b strings.Builder
	for i, iv := range x {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(iv.first))
		if iv.last > iv.first {
			sep := byte('-')
			if iv.last == iv.first+1 {
				sep = ',' // two in a row are written apart
			}
			b.WriteByte(sep)
			b.WriteString(strconv.Itoa(iv.last))
		}
	}
	return b.String()
}

func (x indexes) total() int {
	n := 0
	for _, iv := range x {
		n += iv.last - iv.first + 1
	}
	return n
}

func (x indexes) has(i int) bool {
	_, found := slices.BinarySearchFunc(x, i, func(iv interval, i int) int {
		switch {
		case iv.last < i:
			return -1
		case iv.first > i:
			return 1
		}
		return 0
	})
	return found
}

// with returns the union with some single indexes.
func (x indexes) with(more []int) indexes {
	if len(more) == 0 {
		return x
	}
	all := slices.Clone(x)
	for _, i := range more {
		all = append(all, interval{i, i})
	}
	slices.SortFunc(all, func(a, b interval) int { return a.first - b.first })
	union := all[:1]
	for _, iv := range all[1:] {
		if top := &union[len(union)-1]; iv.first <= top.last+1 {
			top.last = max(top.last, iv.last)
		} else {
			union = append(union, iv)
		}
	}
	return union
}

// common counts what two sets share.
func (x indexes) common(y indexes) int {
	n := 0
	for i, j := 0, 0; i < len(x) && j < len(y); {
		if first, last := max(x[i].first, y[j].first), min(x[i].last, y[j].last); first <= last {
			n += last - first + 1
		}
		if x[i].last < y[j].last {
			i++
		} else {
			j++
		}
	}
	return n
}
