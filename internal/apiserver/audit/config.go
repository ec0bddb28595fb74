// Package audit writes down who asked for what and what came of it, as the audit
// policy says: to a log file, to a webhook, or both. Policies, events and the
// backends are upstream's own; this package decides when they are used. A server
// without a policy has no Trail, and its requests no cost.
package audit

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gopkg.in/natefinch/lumberjack.v2"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	audits "k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/plugin/pkg/audit/buffered"
	pluginlog "k8s.io/apiserver/plugin/pkg/audit/log"
	"k8s.io/apiserver/plugin/pkg/audit/truncate"
	pluginwebhook "k8s.io/apiserver/plugin/pkg/audit/webhook"
)

// Config says what is audited and where to. Its zero value: nothing is.
type Config struct {
	// Policy says which requests are of interest, and how much of them.
	Policy  *audit.Policy
	Log     Log
	Webhook Webhook

	backend audits.Backend // of tests
}

// Log is a file of events, one on each line.
type Log struct {
	Path       string // "-": standard output; empty: no log
	Format     string // json (default) or legacy
	MaxAge     int    // days that old files are kept; 0: for ever
	MaxBackups int    // old files; 0: all
	MaxSize    int    // megabytes, above which a new file is begun; 0: never
	Compress   bool   // old files
	Delivery
}

// Webhook gets lists of events.
type Webhook struct {
	Kubeconfig string           // empty: no webhook
	Backoff    time.Duration    // before the first repetition; default 10 s
	Dial       utilnet.DialFunc // nil: directly
	Delivery
}

// Delivery is how events come to a backend.
type Delivery struct {
	Mode     string // batch, blocking or blocking-strict
	Batch    buffered.BatchConfig
	Truncate *truncate.Config // nil: events are delivered whole
}

// The modes. A request waits for blocking ones; when the strict one cannot keep
// an event, the request fails.
const (
	Batch          = "batch"
	Blocking       = "blocking"
	BlockingStrict = "blocking-strict"
)

// Enabled reports whether there is anything to do.
func (c Config) Enabled() bool {
	return c.Policy != nil && (c.Log.Path != "" || c.Webhook.Kubeconfig != "" || c.backend != nil)
}

// ReadPolicy reads a policy file.
func ReadPolicy(file string) (*audit.Policy, error) {
	p, err := policy.LoadPolicyFromFile(file)
	if err != nil {
		return nil, fmt.Errorf("audit policy: %w", err)
	}
	return p, nil
}

// Validate reports what cannot work.
func (c Config) Validate() error {
	var errs []error
	if l := c.Log; l.Path != "" {
		if l.Format != "" && !slices.Contains(pluginlog.AllowedFormats, l.Format) {
			errs = append(errs, fmt.Errorf("invalid audit log format %s, allowed formats are %q", l.Format, strings.Join(pluginlog.AllowedFormats, ",")))
		}
		for name, n := range map[string]int{"maxage": l.MaxAge, "maxbackup": l.MaxBackups, "maxsize": l.MaxSize} {
			if n < 0 {
				errs = append(errs, fmt.Errorf("--audit-log-%s %v can't be a negative number", name, n))
			}
		}
		errs = append(errs, l.validate("log"))
	}
	if c.Webhook.Kubeconfig != "" {
		errs = append(errs, c.Webhook.validate("webhook"))
	}
	return errors.Join(errs...)
}

func (d Delivery) validate(of string) error {
	modes := []string{"", Batch, Blocking, BlockingStrict}
	if !slices.Contains(modes, d.Mode) {
		return fmt.Errorf("invalid audit %s mode %s, allowed modes are %q", of, d.Mode, strings.Join(modes[1:], ","))
	}
	if d.Mode == Batch && (d.Batch.BufferSize <= 0 || d.Batch.MaxBatchSize <= 0) {
		return fmt.Errorf("invalid audit batch %s buffer size %d or batch size %d, must be positive numbers", of, d.Batch.BufferSize, d.Batch.MaxBatchSize)
	}
	return nil
}

func (l Log) open() (audits.Backend, error) {
	out, err := l.writer()
	if err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	format := l.Format
	if format == "" {
		format = pluginlog.FormatJson
	}
	return l.wrap(pluginlog.NewBackend(out, format, auditv1.SchemeGroupVersion)), nil
}

func (l Log) writer() (io.Writer, error) {
	if l.Path == "-" {
		return os.Stdout, nil
	}
	if err := os.MkdirAll(filepath.Dir(l.Path), 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(l.Path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil || l.MaxSize == 0 {
		return f, err
	}
	if err := f.Close(); err != nil {
		return nil, err
	}
	return &lumberjack.Logger{Filename: l.Path, MaxAge: l.MaxAge, MaxBackups: l.MaxBackups, MaxSize: l.MaxSize, Compress: l.Compress}, nil
}

// triesOfWebhook is how often a batch is sent before it is lost.
const triesOfWebhook = 5

func (w Webhook) open() (audits.Backend, error) {
	first := w.Backoff
	if first == 0 {
		first = 10 * time.Second
	}
	b, err := pluginwebhook.NewBackend(w.Kubeconfig, auditv1.SchemeGroupVersion, wait.Backoff{Duration: first, Factor: 1.5, Jitter: 0.2, Steps: triesOfWebhook}, w.Dial)
	if err != nil {
		return nil, fmt.Errorf("audit webhook: %w", err)
	}
	return w.wrap(b), nil
}

func (d Delivery) wrap(b audits.Backend) audits.Backend {
	switch d.Mode {
	case Batch:
		b = buffered.NewBackend(b, d.Batch)
	case BlockingStrict:
	default:
		b = lenient{b}
	}
	if d.Truncate != nil {
		b = truncate.NewBackend(b, *d.Truncate, schema.GroupVersion(auditv1.SchemeGroupVersion))
	}
	return b
}

// lenient lets a request pass whose event was not kept.
type lenient struct{ audits.Backend }

func (l lenient) ProcessEvents(events ...*audit.Event) bool {
	l.Backend.ProcessEvents(events...)
	return true
}
