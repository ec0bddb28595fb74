// Package encryption keeps values unreadable for whoever gets hold of the disk:
// the providers of upstream's EncryptionConfiguration, with upstream's format of
// values (k8s:enc:<provider>:<version>:<key>:), on every engine. Ciphers are
// upstream's; a key service is asked through KMS v2 (KEP-3299).
package encryption

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/envelope/metrics"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	"k8s.io/utils/clock"

	"proa/internal/configfile"
	"proa/internal/store"
)

// Config says what is encrypted, and how.
type Config struct {
	// File holds an EncryptionConfiguration.
	File string
	// Reload follows the file's changes.
	Reload bool
	// Path says where upstream keeps an object; its value is bound to that place.
	Path func(store.Key) string
	// Patience is how long Open waits for key services; 30 s by default.
	Patience time.Duration

	Clock clock.WithTicker
	Log   *slog.Logger
}

// Encryption is a store's Cipher.
type Encryption struct {
	config Config
	data   []byte // of the file, as it is in force

	current    atomic.Pointer[providers]
	generation atomic.Int32

	lifetime context.Context // of connections to key services
	end      context.CancelFunc
	retiring sync.WaitGroup
}

var _ store.Cipher = (*Encryption)(nil)

// Parse reads an EncryptionConfiguration.
func Parse(data []byte, reload bool) (*apiserver.EncryptionConfiguration, error) {
	c, err := configfile.Decode[*apiserver.EncryptionConfiguration](data)
	if err != nil {
		return nil, err
	}
	return c, validation.ValidateEncryptionConfiguration(c, reload).ToAggregate()
}

// Validate says what is wrong with the file.
func (c Config) Validate() error {
	data, err := configfile.Read(c.File)
	if err == nil {
		_, err = Parse(data, c.Reload)
	}
	if err != nil {
		return fmt.Errorf("encryption configuration %s: %w", c.File, err)
	}
	return nil
}

// Open reads the configuration and waits until its key services answer: nothing
// can be read without them. Close releases it.
func Open(ctx context.Context, c Config) (*Encryption, error) {
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Patience == 0 {
		c.Patience = 30 * time.Second
	}
	value.RegisterMetrics()
	metrics.RegisterMetrics()
	e := &Encryption{config: c}
	var err error
	if e.data, err = configfile.Read(c.File); err != nil {
		return nil, err
	}
	e.lifetime, e.end = context.WithCancel(context.WithoutCancel(ctx))
	first, err := e.providers(e.data)
	if err == nil {
		err = e.await(ctx, first)
	}
	if err != nil {
		e.end()
		return nil, fmt.Errorf("encryption configuration %s: %w", c.File, err)
	}
	e.generation.Store(1)
	e.current.Store(first)
	return e, nil
}

// Close ends the connections to key services.
func (e *Encryption) Close() {
	e.end()
	e.retiring.Wait()
}

// Run keeps asking key services which key they use, and follows the file, until
// ctx ends.
func (e *Encryption) Run(ctx context.Context) error {
	var g sync.WaitGroup
	defer g.Wait()
	if e.config.Reload {
		f := &configfile.Follower{
			Path: e.config.File, Loaded: e.data, Clock: e.config.Clock, Log: e.config.Log,
			Reloads: configfile.NewReloads("encryption"), Apply: e.replace,
		}
		g.Go(func() { f.Run(ctx) })
	}
	for {
		current := e.current.Load()
		select {
		case <-ctx.Done():
			return nil
		case <-current.ended:
		case <-e.config.Clock.After(current.pause()):
			current.poll(ctx)
		}
	}
}

func (e *Encryption) replace(ctx context.Context, data []byte) error {
	next, err := e.providers(data)
	if err == nil {
		if err = e.await(ctx, next); err != nil {
			next.end()
		}
	}
	if err != nil {
		return err
	}
	old := e.current.Swap(next)
	e.generation.Add(1) // after the swap: what is sealed in between is sealed again
	close(old.ended)
	e.retiring.Go(func() {
		select {
		case <-e.lifetime.Done():
		case <-e.config.Clock.After(2 * old.timeouts()): // for what is being opened
		}
		old.end()
	})
	return nil
}

// await returns when every key service has told its key.
func (e *Encryption) await(ctx context.Context, p *providers) error {
	const pace = 200 * time.Millisecond
	limit := e.config.Clock.NewTimer(e.config.Patience)
	defer limit.Stop()
	for {
		err := p.poll(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-limit.C():
			return err
		case <-e.config.Clock.After(pace):
		}
	}
}

// Generation implements store.Cipher.
func (e *Encryption) Generation() int32 { return e.generation.Load() }

// Seal implements store.Cipher.
func (e *Encryption) Seal(key store.Key, plain []byte) ([]byte, int32, error) {
	generation := e.generation.Load() // before the providers: it may be too old, never too new
	sealed, err := e.current.Load().of(key.Resource).TransformToStorage(e.lifetime, plain, e.place(key))
	return sealed, generation, err
}

// Open implements store.Cipher.
func (e *Encryption) Open(key store.Key, sealed []byte) ([]byte, int32, error) {
	generation := e.generation.Load()
	plain, stale, err := e.current.Load().of(key.Resource).TransformFromStorage(e.lifetime, sealed, e.place(key))
	if stale {
		generation = 0
	}
	return plain, generation, err
}

func (e *Encryption) place(key store.Key) value.Context {
	return value.DefaultContext(e.config.Path(key))
}

// Check is one health check.
type Check struct {
	Name  string
	Check func(context.Context) error
}

// Checks are those of upstream's health endpoints: one for all key services, also
// without any where the configuration may gain them.
func (e *Encryption) Checks() []Check {
	if !e.config.Reload && len(e.current.Load().services) == 0 {
		return nil
	}
	return []Check{{"kms-providers", func(ctx context.Context) error { return e.current.Load().healthy(ctx) }}}
}

// providers are those of one configuration.
type providers struct {
	transformers map[schema.GroupResource]value.Transformer
	services     []*keyService
	ended        chan struct{} // closed when others took their place
	end          context.CancelFunc
}

var plain = identity.NewEncryptCheckTransformer()

// of returns what seals a resource's values: what is said about the resource, its
// group, or everything.
func (p *providers) of(gr schema.GroupResource) value.Transformer {
	for _, rule := range []schema.GroupResource{gr, {Group: gr.Group, Resource: "*"}, {Group: "*", Resource: "*"}} {
		if t := p.transformers[rule]; t != nil {
			return t
		}
	}
	return plain
}

// poll asks every key service for its key.
func (p *providers) poll(ctx context.Context) error {
	var errs []error
	for _, s := range p.services {
		errs = append(errs, s.probe(ctx))
	}
	return errors.Join(errs...)
}

func (p *providers) healthy(ctx context.Context) error {
	var errs []error
	for _, s := range p.services {
		errs = append(errs, s.check(ctx))
	}
	return errors.Join(errs...)
}

// pause is until the next poll.
func (p *providers) pause() time.Duration {
	pause := healthyInterval
	for _, s := range p.services {
		if s.failing() {
			pause = failingInterval
		}
	}
	return pause
}

func (p *providers) timeouts() (sum time.Duration) {
	for _, s := range p.services {
		sum += s.timeout
	}
	return sum
}

// providers makes what a file says. Nobody has been asked for a key yet.
func (e *Encryption) providers(data []byte) (*providers, error) {
	config, err := Parse(data, e.config.Reload)
	if err != nil {
		return nil, err
	}
	ctx, end := context.WithCancel(e.lifetime)
	b := &builder{ctx: ctx, clock: e.config.Clock, rotated: func() { e.generation.Add(1) }}
	p := &providers{transformers: map[schema.GroupResource]value.Transformer{}, ended: make(chan struct{}), end: end}
	if err := b.build(config, p); err != nil {
		end()
		return nil, err
	}
	return p, nil
}
