// Package verbosity is how much this process logs: klog's number, where 4 shows what
// is for debugging and more shows more. It can be changed while the process runs.
package verbosity

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"k8s.io/klog/v2"
)

var (
	level slog.LevelVar

	mu     sync.Mutex // guards number
	number int
)

// Level is what handlers of the log ask.
func Level() slog.Leveler { return &level }

// Number is the verbosity in force.
func Number() int {
	mu.Lock()
	defer mu.Unlock()
	return number
}

// Set changes the verbosity, of borrowed libraries as well.
func Set(text string) error {
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return err
	}
	mu.Lock()
	defer mu.Unlock()
	var borrowed klog.Level
	if err := borrowed.Set(text); err != nil {
		return err
	}
	number = int(n)
	level.Set(slog.LevelInfo - slog.Level(number))
	return nil
}

// Handler returns a handler of the log in upstream's formats, text and json.
func Handler(w io.Writer, format string) (slog.Handler, error) {
	options := &slog.HandlerOptions{Level: Level()}
	switch format {
	case "", "text":
		return slog.NewTextHandler(w, options), nil
	case "json":
		options.ReplaceAttr = upstreams
		return slog.NewJSONHandler(w, options), nil
	}
	return nil, fmt.Errorf("format: Invalid value: %q: Unsupported log format", format)
}

// upstreams gives the parts of a message the names and forms that they have in
// upstream's JSON: milliseconds, and a verbosity, which errors do not have.
func upstreams(groups []string, a slog.Attr) slog.Attr {
	if len(groups) > 0 {
		return a
	}
	switch a.Key {
	case slog.TimeKey:
		return slog.Float64("ts", float64(a.Value.Time().UnixMicro())/1000)
	case slog.LevelKey:
		l, _ := a.Value.Any().(slog.Level)
		if l >= slog.LevelError {
			return slog.Attr{}
		}
		return slog.Int("v", max(0, int(slog.LevelInfo-l)))
	}
	return a
}

// maxBody is how long a number may be.
const maxBody = 64

// ServeHTTP answers PUT /debug/flags/v as upstream's components do.
func ServeHTTP(w http.ResponseWriter, r *http.Request) {
	code, text := put(r)
	w.Header().Set("Content-Type", "text/plain")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, text) // a client that is gone needs no answer
}

func put(r *http.Request) (code int, text string) {
	if r.Method != http.MethodPut {
		return http.StatusNotAcceptable, "unsupported http method"
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody))
	if err != nil {
		return http.StatusBadRequest, "error reading request body: " + err.Error()
	}
	wanted := strings.TrimSpace(string(body))
	if err := Set(wanted); err != nil {
		return http.StatusBadRequest, err.Error()
	}
	return http.StatusOK, "successfully set klog.logging.verbosity to " + wanted
}
