// Package logs reads and rotates the log files that the container runtime
// writes, one file per container in CRI's format.
package logs

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"k8s.io/utils/clock"
)

const (
	// stampFormat has a fixed width, unlike the runtime's.
	stampFormat = "2006-01-02T15:04:05.000000000Z07:00"
	checkPeriod = time.Second
	// maxEntry bounds what is held of a line that has no end: runtimes split
	// lines at 16 KiB.
	maxEntry = 1 << 20
)

// Options say what of a log to return. The zero value is all of it.
type Options struct {
	Follow     bool
	Timestamps bool
	Since      time.Time // zero: from the beginning
	Tail       *int64    // last lines of the file; nil: all
	LimitBytes *int64    // of output; nil: no limit
	Stream     Stream    // empty: both
}

// Request is one reading of a container's log.
type Request struct {
	Path string
	Options
	// Running says whether the container still runs: with Follow the log ends
	// when it does not. Required with Follow.
	Running func(context.Context) (bool, error)
}

// Reader reads logs. Followers share one inotify instance. It is safe for
// concurrent use.
type Reader struct {
	clock  clock.Clock
	notify notifier
}

// NewReader returns a Reader. A nil clock is the wall clock.
func NewReader(c clock.Clock) *Reader {
	if c == nil {
		c = clock.RealClock{}
	}
	return &Reader{clock: c}
}

// Read writes a log to w. With Follow it goes on until the container has ended
// and its log is read to the end, or the context ends; a rotated file is read to
// its end before the new one. The output of a missing file is empty.
func (r *Reader) Read(ctx context.Context, req Request, w io.Writer) error {
	o := newOutput(w, req.Options)
	if req.LimitBytes != nil && *req.LimitBytes <= 0 {
		return nil
	}
	var wake <-chan struct{}
	if req.Follow {
		ch, stop, err := r.notify.subscribe(filepath.Dir(req.Path))
		if err != nil {
			return err
		}
		defer stop()
		wake = ch
	}
	s := &source{path: req.Path}
	defer s.close()
	if err := s.open(req.Tail); err != nil && !(req.Follow && errors.Is(err, fs.ErrNotExist)) {
		return err
	}
	for {
		err := s.drain(ctx, o)
		if err == nil {
			err = o.flush()
		}
		if errors.Is(err, errLimit) {
			return o.flush()
		}
		if err != nil || !req.Follow {
			return err
		}
		more, err := r.await(ctx, s, req, wake)
		if err != nil || !more {
			return err
		}
	}
}

// await returns when there may be more to read. It returns false when the
// container has ended and the file has been read after that was known.
func (r *Reader) await(ctx context.Context, s *source, req Request, wake <-chan struct{}) (bool, error) {
	if s.ended {
		return false, nil
	}
	if s.rotated() {
		return true, s.next()
	}
	timer := r.clock.NewTimer(checkPeriod)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case <-wake:
		return true, nil
	case <-timer.C():
	}
	running, err := req.Running(ctx)
	if err != nil {
		return false, err
	}
	// What the container wrote last may have come after the last read.
	s.ended = !running
	return true, nil
}

// source is the log file that is being read.
type source struct {
	path    string
	file    *os.File
	reader  *bufio.Reader
	pending []byte // the beginning of a line whose end has not been written yet
	ended   bool
}

func (s *source) open(tail *int64) error {
	f, err := os.Open(s.path)
	if err != nil {
		return err
	}
	if tail != nil {
		if err := seekTail(f, *tail); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	s.file, s.reader, s.pending = f, bufio.NewReaderSize(f, 64<<10), nil
	return nil
}

func (s *source) close() {
	if s.file != nil {
		s.file.Close()
	}
}

// drain copies entries up to the present end of the file.
func (s *source) drain(ctx context.Context, o *output) error {
	if s.file == nil {
		if err := s.open(nil); errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil {
			return err
		}
	}
	for ctx.Err() == nil {
		part, err := s.reader.ReadSlice('\n')
		if err == nil && len(s.pending) == 0 {
			if err := o.entry(part); err != nil {
				return err
			}
			continue
		}
		if len(s.pending)+len(part) <= maxEntry {
			s.pending = append(s.pending, part...)
		}
		switch {
		case err == nil:
			line := s.pending
			s.pending = s.pending[:0]
			if err := o.entry(line); err != nil {
				return err
			}
		case errors.Is(err, io.EOF):
			return nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return err
		}
	}
	return ctx.Err()
}

// rotated says whether the path names another file than the open one.
func (s *source) rotated() bool {
	now, err := os.Stat(s.path)
	if err != nil {
		return false // in the middle of a rotation
	}
	if s.file == nil {
		return true
	}
	have, err := s.file.Stat()
	return err == nil && !os.SameFile(now, have)
}

// next turns to the new file once nothing is left in the old one.
func (s *source) next() error {
	if s.file != nil {
		here, err := s.file.Seek(0, io.SeekCurrent)
		if err != nil {
			return err
		}
		if info, err := s.file.Stat(); err == nil && info.Size() > here {
			return nil // written between the last read and the rotation
		}
		s.close()
		s.file = nil
	}
	err := s.open(nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func seekTail(f *os.File, lines int64) error {
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	offset, err := tailOffset(f, end, lines)
	if err != nil {
		return err
	}
	_, err = f.Seek(offset, io.SeekStart)
	return err
}

// tailOffset finds where the last n lines of the container begin, reading
// backwards. Entries of one line count once.
func tailOffset(r io.ReaderAt, end, n int64) (int64, error) {
	if n <= 0 {
		return end, nil
	}
	const block = 64 << 10
	var buf []byte // from base to the end of the last entry that was not counted yet
	base, seen, newest := end, int64(0), true
	ends := func(entry []byte) bool { // whether a line ends with entry; the newest may have no end yet
		yes := newest || full(entry)
		newest = false
		return yes
	}
	for base > 0 && len(buf) < maxEntry {
		size := min(block, base)
		grown := make([]byte, size, size+int64(len(buf)))
		if _, err := r.ReadAt(grown, base-size); err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		base -= size
		buf = append(grown, buf...)
		for {
			cut := bytes.LastIndexByte(trimNewline(buf), '\n')
			if cut < 0 {
				break
			}
			if ends(buf[cut+1:]) {
				if seen++; seen > n {
					return base + int64(len(buf)), nil
				}
			}
			buf = buf[:cut+1]
		}
	}
	if base == 0 && ends(buf) {
		if seen++; seen > n {
			return int64(len(buf)), nil
		}
	}
	return base, nil
}

func trimNewline(b []byte) []byte { return bytes.TrimSuffix(b, []byte{'\n'}) }

// full says whether a line ends here: an entry that cannot be parsed counts.
func full(line []byte) bool {
	e, err := Parse(line)
	return err != nil || !e.Partial
}

var errLimit = errors.New("limit reached")

// output formats entries for one request.
type output struct {
	w     *bufio.Writer
	opts  Options
	left  int64           // bytes that may still be written; negative: no limit
	inner map[Stream]bool // streams in the middle of a line
}

func newOutput(w io.Writer, opts Options) *output {
	o := &output{w: bufio.NewWriterSize(w, 32<<10), opts: opts, left: -1, inner: map[Stream]bool{}}
	if opts.LimitBytes != nil {
		o.left = *opts.LimitBytes
	}
	return o
}

func (o *output) entry(line []byte) error {
	e, err := Parse(line)
	if err != nil {
		return nil // the runtime's crash can leave a torn line; the rest is still worth reading
	}
	if o.opts.Stream != "" && e.Stream != o.opts.Stream {
		return nil
	}
	if e.Time.Before(o.opts.Since) {
		return nil
	}
	if o.opts.Timestamps && !o.inner[e.Stream] {
		stamp := e.Time.AppendFormat(make([]byte, 0, len(stampFormat)+1), stampFormat)
		if err := o.write(append(stamp, ' ')); err != nil {
			return err
		}
	}
	o.inner[e.Stream] = e.Partial
	if err := o.write(e.Content); err != nil || e.Partial {
		return err
	}
	return o.write([]byte{'\n'})
}

func (o *output) write(b []byte) error {
	if o.left >= 0 && int64(len(b)) >= o.left {
		b = b[:o.left]
	}
	if _, err := o.w.Write(b); err != nil {
		return err
	}
	if o.left >= 0 {
		if o.left -= int64(len(b)); o.left == 0 {
			return errLimit
		}
	}
	return nil
}

func (o *output) flush() error { return o.w.Flush() }

// Tail returns the end of a log, at most so many lines and bytes: the
// termination message of a container with FallbackToLogsOnError.
func (r *Reader) Tail(ctx context.Context, path string, lines int64, size int) (string, error) {
	var all bytes.Buffer
	if err := r.Read(ctx, Request{Path: path, Options: Options{Tail: &lines}}, &all); err != nil {
		return "", err
	}
	b := all.Bytes()
	if len(b) > size {
		b = b[len(b)-size:]
	}
	return string(b), nil
}
