package controlplane

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/plugin/pkg/audit/buffered"
	"k8s.io/apiserver/plugin/pkg/audit/truncate"

	"proa/internal/apiserver/audit"
)

// auditFlags say what is written down of requests.
type auditFlags struct {
	policy       fileName
	path         fileName
	log          audit.Log
	webhook      audit.Webhook
	kubeconfig   fileName
	logTruncate  truncation
	hookTruncate truncation
	versions     [2]string
}

// fileName is a file's name, made absolute: a server may be started again from
// elsewhere. "-" stays.
type fileName string

func (f *fileName) String() string { return string(*f) }
func (f *fileName) Type() string   { return "string" }

func (f *fileName) Set(text string) (err error) {
	if text != "" && text != "-" {
		text, err = filepath.Abs(text)
	}
	*f = fileName(text)
	return err
}

// truncation shortens events that are too large for a backend.
type truncation struct {
	enabled bool
	config  truncate.Config
}

func (f *auditFlags) add(fs *pflag.FlagSet) {
	fs.Var(&f.policy, "audit-policy-file", "file with the audit Policy: which requests are written down; none: no request is")
	fs.Var(&f.path, "audit-log-path", "file for audit events, one on each line; -: standard output")
	fs.StringVar(&f.log.Format, "audit-log-format", "json", "form of the lines: json or legacy")
	fs.IntVar(&f.log.MaxAge, "audit-log-maxage", 0, "days that old audit files are kept; 0: for ever")
	fs.IntVar(&f.log.MaxBackups, "audit-log-maxbackup", 0, "old audit files that are kept; 0: all")
	fs.IntVar(&f.log.MaxSize, "audit-log-maxsize", 0, "megabytes above which a new audit file is begun; 0: never")
	fs.BoolVar(&f.log.Compress, "audit-log-compress", false, "compress old audit files")
	f.addDelivery(fs, "log", &f.log.Delivery, &f.logTruncate, audit.Blocking, buffered.BatchConfig{BufferSize: 10000, MaxBatchSize: 1})
	fs.Var(&f.kubeconfig, "audit-webhook-config-file", "kubeconfig of a webhook that gets audit events")
	fs.DurationVar(&f.webhook.Backoff, "audit-webhook-initial-backoff", 10*time.Second, "time before a failed delivery is repeated")
	f.addDelivery(fs, "webhook", &f.webhook.Delivery, &f.hookTruncate, audit.Batch, buffered.BatchConfig{
		BufferSize: 10000, MaxBatchSize: 400, MaxBatchWait: 30 * time.Second, ThrottleEnable: true, ThrottleQPS: 10, ThrottleBurst: 15, AsyncDelegate: true,
	})
	for i, name := range []string{"log", "webhook"} {
		fs.StringVar(&f.versions[i], "audit-"+name+"-version", auditv1.SchemeGroupVersion.String(), "version of the events")
	}
}

func (f *auditFlags) addDelivery(fs *pflag.FlagSet, name string, d *audit.Delivery, t *truncation, mode string, batch buffered.BatchConfig) {
	of := "audit-" + name + "-"
	d.Batch = batch
	b := &d.Batch
	fs.StringVar(&d.Mode, of+"mode", mode, "how events are delivered: batch, blocking, or blocking-strict, which fails requests whose event is lost")
	fs.IntVar(&b.BufferSize, of+"batch-buffer-size", b.BufferSize, "events that wait for delivery, in batch mode")
	fs.IntVar(&b.MaxBatchSize, of+"batch-max-size", b.MaxBatchSize, "events of one batch")
	fs.DurationVar(&b.MaxBatchWait, of+"batch-max-wait", b.MaxBatchWait, "time after which a batch is delivered, full or not")
	fs.BoolVar(&b.ThrottleEnable, of+"batch-throttle-enable", b.ThrottleEnable, "bound the batches per second")
	fs.Float32Var(&b.ThrottleQPS, of+"batch-throttle-qps", b.ThrottleQPS, "batches per second")
	fs.IntVar(&b.ThrottleBurst, of+"batch-throttle-burst", b.ThrottleBurst, "batches at once")
	fs.BoolVar(&t.enabled, of+"truncate-enabled", false, "shorten events that are too large")
	fs.Int64Var(&t.config.MaxBatchSize, of+"truncate-max-batch-size", 10<<20, "bytes of one batch")
	fs.Int64Var(&t.config.MaxEventSize, of+"truncate-max-event-size", 100<<10, "bytes of one event")
}

func (f *auditFlags) config() (c audit.Config, err error) {
	c.Log, c.Webhook = f.log, f.webhook
	c.Log.Path, c.Webhook.Kubeconfig = string(f.path), string(f.kubeconfig)
	for _, v := range f.versions {
		if v != auditv1.SchemeGroupVersion.String() {
			return c, fmt.Errorf("audit version %q: only %s is served", v, auditv1.SchemeGroupVersion)
		}
	}
	if f.logTruncate.enabled {
		c.Log.Truncate = &f.logTruncate.config
	}
	if f.hookTruncate.enabled {
		c.Webhook.Truncate = &f.hookTruncate.config
	}
	if f.policy != "" {
		if c.Policy, err = audit.ReadPolicy(string(f.policy)); err != nil {
			return c, err
		}
	}
	return c, c.Validate()
}
