package logs

import (
	"bytes"
	"errors"
	"fmt"
	"time"
)

// Stream is where a container wrote a line.
type Stream string

const (
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
)

// Entry is one line of a log file in CRI's format:
//
//	2016-10-06T00:17:09.669794202Z stdout P part of a line
//
// A line of the container that is long, or that has no end yet, takes several
// entries, all but the last of them Partial.
type Entry struct {
	Time    time.Time
	Stream  Stream
	Partial bool
	Content []byte // without the newline
}

var errMalformed = errors.New("malformed log line")

// Parse reads an entry from a line, with or without its newline. Content shares
// the line's memory.
func Parse(line []byte) (Entry, error) {
	line = bytes.TrimSuffix(line, []byte{'\n'})
	stamp, rest, ok := bytes.Cut(line, []byte{' '})
	if !ok {
		return Entry{}, fmt.Errorf("%w: no timestamp", errMalformed)
	}
	at, err := time.Parse(time.RFC3339Nano, string(stamp))
	if err != nil {
		return Entry{}, fmt.Errorf("%w: %w", errMalformed, err)
	}
	stream, rest, ok := bytes.Cut(rest, []byte{' '})
	if !ok {
		return Entry{}, fmt.Errorf("%w: no stream", errMalformed)
	}
	e := Entry{Time: at, Stream: Stream(stream)}
	if e.Stream != Stdout && e.Stream != Stderr {
		return Entry{}, fmt.Errorf("%w: unknown stream %q", errMalformed, stream)
	}
	// Tags are separated by colons; the first is P or F.
	tags, content, ok := bytes.Cut(rest, []byte{' '})
	if !ok {
		return Entry{}, fmt.Errorf("%w: no tag", errMalformed)
	}
	tag, _, _ := bytes.Cut(tags, []byte{':'})
	e.Partial = string(tag) == "P"
	e.Content = content
	return e, nil
}
