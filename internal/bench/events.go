package bench

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"strconv"
	"time"
)

// readEvents reads a number of events from a watch and returns how long ago each
// of them was sent.
func readEvents(from io.Reader, media string, count int) ([]time.Duration, error) {
	cut, mark := cutLine, stampMark
	if media == mediaProtobuf {
		cut, mark = cutFrame, protobufMark
	}
	times := make([]time.Duration, 0, count)
	buf := make([]byte, 32<<10)
	kept := 0 // bytes of an event that is not there whole
	for {
		if kept == len(buf) {
			buf = append(buf, make([]byte, len(buf))...)
		}
		n, err := from.Read(buf[kept:])
		now := time.Now()
		rest := buf[:kept+n]
		for {
			event, after, ok := cut(rest)
			if !ok {
				break
			}
			rest = after
			sent, ok := stampAfter(event, mark)
			if !ok {
				return times, fmt.Errorf("an event without a time: %.200q", event)
			}
			if times = append(times, now.Sub(sent)); len(times) == count {
				return times, nil
			}
		}
		if err != nil {
			return times, fmt.Errorf("a watch ended after %d of %d events: %w", len(times), count, err)
		}
		kept = copy(buf, rest)
	}
}

// cutLine takes a line of JSON.
func cutLine(b []byte) (event, rest []byte, ok bool) { return bytes.Cut(b, []byte{'\n'}) }

// cutFrame takes a protobuf frame, which has its length in front.
func cutFrame(b []byte) (event, rest []byte, ok bool) {
	if len(b) < 4 {
		return nil, b, false
	}
	end := 4 + int64(binary.BigEndian.Uint32(b))
	if int64(len(b)) < end {
		return nil, b, false
	}
	return b[4:end], b[end:], true
}

// protobufMark precedes the time in protobuf: the key of a map's entry and the
// head of its value.
var protobufMark = append(append([]byte{0x0a, byte(len(sentAnnotation))}, sentAnnotation...), 0x12, stampDigits)

// stampAfter reads the time after a mark.
func stampAfter(b, mark []byte) (time.Time, bool) {
	at := bytes.Index(b, mark)
	if at < 0 || len(b) < at+len(mark)+stampDigits {
		return time.Time{}, false
	}
	n, err := strconv.ParseInt(string(b[at+len(mark):][:stampDigits]), 10, 64)
	return time.Unix(0, n), err == nil
}
