package job

import (
	"math/rand"
	"slices"
	"testing"
)

func TestIndexesReadAndWriteAsIntervals(t *testing.T) {
	tests := []struct {
		name, text, want string
		total            int
	}{
		{"nothing", "", "", 0},
		{"single ones", "0,2,5", "0,2,5", 3},
		{"a range", "1-4", "1-4", 4},
		{"two in a row apart", "3,4", "3,4", 2},
		{"cut at the limit", "0,8-20", "0,8,9", 3},
		{"beyond the limit", "12-20", "", 0},
		{"up to what is no index", "1,x,3", "1", 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			set := parseIndexes(tt.text, 10)
			if got := set.String(); got != tt.want || set.total() != tt.total {
				t.Errorf("got %q with %d, want %q with %d", got, set.total(), tt.want, tt.total)
			}
		})
	}
}

func TestIndexesAreASet(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	for range 500 {
		model := map[int]bool{}
		var set indexes
		for range r.Intn(4) {
			var more []int
			for range r.Intn(20) {
				more = append(more, r.Intn(40))
			}
			for _, i := range more {
				model[i] = true
			}
			set = set.with(more)
		}
		if set.total() != len(model) {
			t.Fatalf("%v has %d, want %d", set, set.total(), len(model))
		}
		for i := range 41 {
			if set.has(i) != model[i] {
				t.Fatalf("%v has %d: %v", set, i, set.has(i))
			}
		}
		if again := parseIndexes(set.String(), 40); !slices.EqualFunc(again.flat(), set.flat(), func(a, b int) bool { return a == b }) {
			t.Fatalf("%v read back as %v", set, again)
		}
		if other := parseIndexes("5-9,30-35", 40); set.common(other) != overlap(model, other) {
			t.Fatalf("%v and %v have %d in common", set, other, set.common(other))
		}
	}
}

func (x indexes) flat() []int {
	var all []int
	for _, iv := range x {
		for i := iv.first; i <= iv.last; i++ {
			all = append(all, i)
		}
	}
	return all
}

func overlap(model map[int]bool, set indexes) (n int) {
	for _, i := range set.flat() {
		if model[i] {
			n++
		}
	}
	return n
}

func FuzzIndexes(f *testing.F) {
	f.Add("0,2-4", 10)
	f.Add("1-", 3)
	f.Add("-1", 3)
	f.Fuzz(func(t *testing.T, text string, limit int) {
		for _, iv := range parseIndexes(text, limit) {
			if iv.last >= limit || iv.last < iv.first {
				t.Errorf("%q below %d: %v", text, limit, iv)
			}
		}
	})
}
