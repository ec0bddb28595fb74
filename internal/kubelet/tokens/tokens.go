// Package tokens asks the API server for service account tokens and keeps them
// until they are due for renewal: at 80% of their life, or after 24 hours when
// that comes first. Projected volumes and image pulls share one Cache.
package tokens

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"proa/internal/client"
)

const (
	maxAge    = 24 * time.Hour
	maxJitter = 10 * time.Second
)

// Config of a Cache. API is required.
type Config struct {
	API   client.API
	Clock clock.PassiveClock // default: the wall clock
	// Jitter spreads renewals of tokens that were issued together. Default: up
	// to ten seconds, at random.
	Jitter func() time.Duration
}

// Cache of tokens, keyed by everything a TokenRequest says. It is safe for
// concurrent use.
type Cache struct {
	api    client.API
	clock  clock.PassiveClock
	jitter func() time.Duration

	mu     sync.Mutex // guards tokens
	tokens map[string]*authenticationv1.TokenRequest
}

// New returns an empty cache.
func New(c Config) *Cache {
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Jitter == nil {
		c.Jitter = func() time.Duration { return rand.N(maxJitter) }
	}
	return &Cache{api: c.API, clock: c.Clock, jitter: c.Jitter, tokens: map[string]*authenticationv1.TokenRequest{}}
}

// Token returns a token for a service account as tr.Spec asks. A cached token
// whose renewal fails is returned for as long as it is valid. The result is
// shared and read-only.
func (c *Cache) Token(ctx context.Context, namespace, serviceAccount string, tr *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	key, err := cacheKey(namespace, serviceAccount, tr)
	if err != nil {
		return nil, err
	}
	cached := c.get(key)
	if cached != nil && !c.due(cached) {
		return cached, nil
	}
	fresh, err := c.request(ctx, namespace, serviceAccount, tr)
	if err != nil {
		if cached != nil && c.clock.Now().Before(cached.Status.ExpirationTimestamp.Time) {
			return cached, nil
		}
		return nil, fmt.Errorf("failed to fetch token: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropExpiredLocked()
	c.tokens[key] = fresh
	return fresh, nil
}

// Forget drops the tokens bound to a pod.
func (c *Cache) Forget(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, tr := range c.tokens {
		if ref := tr.Spec.BoundObjectRef; ref != nil && ref.UID == uid {
			delete(c.tokens, key)
		}
	}
}

func (c *Cache) get(key string) *authenticationv1.TokenRequest {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tokens[key]
}

func (c *Cache) request(ctx context.Context, namespace, name string, tr *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	ref := client.Ref{
		Resource:  corev1.SchemeGroupVersion.WithResource("serviceaccounts"),
		Namespace: namespace, Name: name, Subresource: "token",
	}
	obj, err := c.api.Create(ctx, ref, tr.DeepCopy(), metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	got, ok := obj.(*authenticationv1.TokenRequest)
	if !ok {
		return nil, fmt.Errorf("token of %s/%s: unexpected %T", namespace, name, obj)
	}
	return got, nil
}

// due says whether a token is to be renewed: it has less than 20% of its life
// left, or is older than a day.
func (c *Cache) due(tr *authenticationv1.TokenRequest) bool {
	if tr.Spec.ExpirationSeconds == nil {
		return false
	}
	now := c.clock.Now()
	life := time.Duration(*tr.Spec.ExpirationSeconds) * time.Second
	expires := tr.Status.ExpirationTimestamp.Time
	issued := expires.Add(-life)
	jitter := c.jitter()
	return now.After(issued.Add(maxAge-jitter)) || now.After(expires.Add(-life/5-jitter))
}

func (c *Cache) dropExpiredLocked() {
	now := c.clock.Now()
	for key, tr := range c.tokens {
		if now.After(tr.Status.ExpirationTimestamp.Time) {
			delete(c.tokens, key)
		}
	}
}

func cacheKey(namespace, name string, tr *authenticationv1.TokenRequest) (string, error) {
	spec, err := json.Marshal(tr.Spec)
	if err != nil {
		return "", fmt.Errorf("token request of %s/%s: %w", namespace, name, err)
	}
	return namespace + "/" + name + "/" + string(spec), nil
}
