package encryption

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apiserver/pkg/storage/value/encrypt/envelope/kmsv2"
	"k8s.io/apiserver/pkg/storage/value/encrypt/envelope/metrics"
	kmsservice "k8s.io/kms/pkg/service"
	"k8s.io/utils/clock"

	"proa/internal/configfile"
)

// How a key service is followed, as upstream does: it is asked every minute, more
// often while it fails. Its last key seals for three minutes more, so that a
// migration can rely on a new key being used, or on writes failing, by then.
const (
	healthyInterval = time.Minute
	failingInterval = 10 * time.Second
	sealsFor        = 3 * time.Minute

	healthyAnswer = 20 * time.Second // how long a health check is remembered
	failingAnswer = 3 * time.Second
)

// keyService is a KMS v2 plugin. One seed of its making seals every value, each
// with a key derived from it, until the plugin names another key of its own.
type keyService struct {
	name    string
	timeout time.Duration
	service kmsservice.Service
	clock   clock.WithTicker
	rotated func()

	mu      sync.Mutex // guards the rest; held while the plugin is asked
	version string     // that the plugin named first
	err     error      // of the last probe
	probed  time.Time

	sealing   sync.RWMutex // guards key
	key       kmsv2.State
	keyIsMade bool
}

var errNoKey = errors.New("the key service has not named a key yet")

// state is the key that seals now. The transformer refuses to seal with one
// that has expired.
func (s *keyService) state() (kmsv2.State, error) {
	s.sealing.RLock()
	defer s.sealing.RUnlock()
	if !s.keyIsMade {
		return kmsv2.State{}, errNoKey
	}
	return s.key, nil
}

// check is the health check: a probe, unless the last one is fresh.
func (s *keyService) check(ctx context.Context) error {
	s.mu.Lock()
	fresh := healthyAnswer
	if s.err != nil {
		fresh = failingAnswer
	}
	if err := s.err; !s.probed.IsZero() && s.clock.Since(s.probed) < fresh {
		s.mu.Unlock()
		return err
	}
	s.mu.Unlock()
	return s.probe(ctx)
}

func (s *keyService) failing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err != nil
}

// probe asks for the plugin's status and makes a new seed when it names another key.
func (s *keyService) probe(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	expires := s.clock.Now().Add(sealsFor) // from before the calls: an upper bound
	status, err := s.service.Status(ctx)
	if err == nil {
		err = s.judgeLocked(ctx, status, expires)
	}
	if err != nil {
		err = fmt.Errorf("kmsv2 Provider %s is not healthy, error: %w", s.name, err)
	}
	s.err, s.probed = err, s.clock.Now()
	return err
}

func (s *keyService) judgeLocked(ctx context.Context, status *kmsservice.StatusResponse, expires time.Time) error {
	var errs []error
	if status.Healthz != "ok" {
		errs = append(errs, fmt.Errorf("got unexpected healthz status: %s", status.Healthz))
	}
	switch {
	case status.Version != kmsv2.KMSAPIVersionv2 && status.Version != kmsv2.KMSAPIVersionv2beta1:
		errs = append(errs, fmt.Errorf("expected KMSv2 API version %s, got %s", kmsv2.KMSAPIVersionv2, status.Version))
	case s.version == "":
		s.version = status.Version
	case s.version != status.Version:
		errs = append(errs, fmt.Errorf("KMSv2 API version should not change after the initial status response version %s, got %s", s.version, status.Version))
	}
	if code, err := kmsv2.ValidateKeyID(status.KeyID); err != nil {
		metrics.RecordInvalidKeyIDFromStatus(s.name, string(code))
		return errors.Join(append(errs, fmt.Errorf("got invalid KMSv2 KeyID hash %q: %w", kmsv2.GetHashIfNotEmpty(status.KeyID), err))...)
	}
	metrics.RecordKeyIDFromStatus(s.name, status.KeyID, configfile.ServerID())
	return errors.Join(append(errs, s.use(ctx, status.KeyID, expires))...)
}

// use makes the key that the plugin names the one that seals. On failure the last
// one stays until it expires.
func (s *keyService) use(ctx context.Context, keyID string, expires time.Time) error {
	current, err := s.state()
	if err == nil && current.EncryptedObjectKeyID == keyID {
		s.seal(func(k *kmsv2.State) { k.ExpirationTimestamp = expires })
		return nil
	}
	uid := string(uuid.NewUUID())
	transformer, made, cacheKey, err := kmsv2.GenerateTransformer(ctx, uid, s.service, true)
	if err != nil {
		return fmt.Errorf("failed to rotate DEK uid=%q: %w", uid, err)
	}
	if made.KeyID != keyID {
		return fmt.Errorf("failed to rotate DEK uid=%q: status names key %q, encrypt used %q",
			uid, kmsv2.GetHashIfNotEmpty(keyID), kmsv2.GetHashIfNotEmpty(made.KeyID))
	}
	s.seal(func(k *kmsv2.State) {
		*k = kmsv2.State{
			Transformer: transformer, UID: uid, CacheKey: cacheKey, ExpirationTimestamp: expires, KMSProviderName: s.name,
			EncryptedObjectKeyID: made.KeyID, EncryptedObjectEncryptedDEKSource: made.EncryptedDEKSource,
			EncryptedObjectAnnotations: made.Annotations, EncryptedObjectEncryptedDEKSourceType: made.EncryptedDEKSourceType,
		}
	})
	s.rotated()
	return nil
}

func (s *keyService) seal(change func(*kmsv2.State)) {
	s.sealing.Lock()
	defer s.sealing.Unlock()
	change(&s.key)
	s.keyIsMade = true
}
