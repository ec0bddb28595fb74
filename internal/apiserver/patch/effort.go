package patch

import (
	"bytes"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// The libraries that apply patches do work that grows with the square of what a
// client sends. A patch over these bounds, far from anything that is of use, would
// keep a processor busy for minutes with no deadline to end it.
const (
	// mostRead is how many bytes a JSON patch may have the library read: each level
	// that values or paths go down reads all that is below it again.
	mostRead = 256 << 20
	// mostCompared is how many pairs of elements a strategic merge patch may compare:
	// each one of a list in the patch is looked for among those that are there.
	mostCompared = 10_000_000
)

// reasonable refuses a JSON patch that is too deep for its size and that of the
// document. The error is a 413 Status.
func reasonable(doc, data []byte) error {
	levels := max(depth(data), depth(doc), longestPath(data))
	if levels*(len(doc)+len(data)) <= mostRead {
		return nil
	}
	return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("a JSON patch of %d bytes to an object of %d bytes goes %d levels deep", len(data), len(doc), levels))
}

// depth is how far brackets are nested in JSON. Those within strings are not told
// apart: it takes many to matter.
func depth(doc []byte) int {
	open, deepest := 0, 0
	for _, c := range doc {
		switch c {
		case '{', '[':
			open++
			deepest = max(deepest, open)
		case '}', ']':
			open--
		}
	}
	return deepest
}

// longestPath is the most slashes in one string of a JSON document.
func longestPath(doc []byte) int {
	longest := 0
	for text := range bytes.SplitSeq(doc, []byte{'"'}) {
		longest = max(longest, bytes.Count(text, []byte{'/'}))
	}
	return longest
}

// mergeable refuses a strategic merge patch whose lists are too long to be merged
// into those that are there. The error is a 413 Status.
func mergeable(current, changes map[string]any) error {
	n := longestList(changes)
	if m := longestList(current); n*(n+m) > mostCompared {
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("a strategic merge patch of a list of %d elements into one of %d", n, m))
	}
	return nil
}

func longestList(value any) int {
	longest := 0
	switch value := value.(type) {
	case map[string]any:
		for _, v := range value {
			longest = max(longest, longestList(v))
		}
	case []any:
		longest = len(value)
		for _, v := range value {
			longest = max(longest, longestList(v))
		}
	}
	return longest
}
