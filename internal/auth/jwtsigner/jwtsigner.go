// Package jwtsigner lets another process sign service account tokens: the one that
// listens on --service-account-signing-endpoint (KEP-740). The keys that check its
// signatures are fetched from it, as often as it asks to be asked, and when a token
// names one that is not known.
package jwtsigner

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	externaljwt "k8s.io/externaljwt/apis/v1"
	"k8s.io/utils/clock"

	"proa/internal/auth/token"
)

const (
	// minLife is the shortest life of tokens that a signer has to be able to sign.
	minLife = 10 * time.Minute

	fetchTimeout    = 60 * time.Second
	metadataTimeout = 10 * time.Second
	retryAfter      = 10 * time.Second // after a fetch that failed
	maxKeyID        = 1024             // bytes
)

// Signer is a connection to the signing process.
type Signer struct {
	conn    *grpc.ClientConn
	client  externaljwt.ExternalJWTSignerClient
	clock   clock.WithTicker
	maxLife time.Duration

	fetching singleflight.Group
	keys     atomic.Pointer[keySet]
}

var _ token.Signer = (*Signer)(nil)

// keySet is what one fetch returned.
type keySet struct {
	keys []token.Key
	next time.Time // when to fetch again
}

// Open connects to a socket, a path or @name in the abstract namespace, and waits
// until the process behind it has told its keys. Close releases it.
func Open(ctx context.Context, socket string, c clock.WithTicker) (*Signer, error) {
	if c == nil {
		c = clock.RealClock{}
	}
	conn, err := grpc.NewClient("passthrough:///"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}),
		grpc.WithChainUnaryInterceptor(measure),
	)
	if err != nil {
		return nil, fmt.Errorf("while dialing grpc socket at %q: %w", socket, err)
	}
	s := &Signer{conn: conn, client: externaljwt.NewExternalJWTSignerClient(conn), clock: c}
	s.keys.Store(&keySet{})
	if err := s.begin(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return s, nil
}

// begin learns what has to be known before anything is signed.
func (s *Signer) begin(ctx context.Context) error {
	if err := s.fetch(ctx); err != nil {
		return fmt.Errorf("while setting up external-jwt-signer: while initially filling key cache: while performing initial cache fill: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, metadataTimeout)
	defer cancel()
	metadata, err := s.client.Metadata(ctx, &externaljwt.MetadataRequest{})
	if err != nil {
		return fmt.Errorf("while setting up external-jwt-signer: %w", err)
	}
	s.maxLife = time.Duration(metadata.MaxTokenExpirationSeconds) * time.Second
	if s.maxLife < minLife {
		return fmt.Errorf("max token life supported by external-jwt-signer (%ds) is less than acceptable (min %ds)",
			metadata.MaxTokenExpirationSeconds, int(minLife.Seconds()))
	}
	return nil
}

// MaxLife is the longest life of tokens that the process signs.
func (s *Signer) MaxLife() time.Duration { return s.maxLife }

// Close ends the connection.
func (s *Signer) Close() error { return s.conn.Close() }

// Run fetches the keys as often as the process asks for it, until ctx ends.
func (s *Signer) Run(ctx context.Context) error {
	pause := s.MaxAge()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.clock.After(pause):
		}
		pause = retryAfter
		if err := s.fetch(ctx); err == nil {
			pause = s.MaxAge()
		} else if ctx.Err() == nil {
			slog.Error("Fetch the keys of service account tokens; the last ones stay good", "err", err)
		}
	}
}

// MaxAge implements token.Signer.
func (s *Signer) MaxAge() time.Duration {
	return max(0, s.keys.Load().next.Sub(s.clock.Now()))
}

// Keys implements token.Signer. An id that is not known is asked for.
func (s *Signer) Keys(ctx context.Context, kid string) []token.Key {
	if keys := s.known(kid); len(keys) > 0 {
		return keys
	}
	if err := s.fetch(ctx); err != nil {
		slog.Error("Fetch the key of a service account token", "kid", kid, "err", err)
		return nil
	}
	return s.known(kid)
}

func (s *Signer) known(kid string) []token.Key {
	all := s.keys.Load().keys
	if kid == "" {
		return all
	}
	var found []token.Key
	for _, key := range all {
		if key.KeyID == kid {
			found = append(found, key)
		}
	}
	return found
}

// fetch replaces the keys. Who comes while a fetch is under way waits for it.
func (s *Signer) fetch(ctx context.Context) error {
	_, err, _ := s.fetching.Do("", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fetchTimeout)
		defer cancel()
		set, dated, err := s.read(ctx)
		fetched(err)
		if err != nil {
			return nil, fmt.Errorf("while fetching token verification keys: %w", err)
		}
		s.keys.Store(set)
		counts().dated.Set(float64(dated.UnixNano()) / float64(time.Second))
		return nil, nil
	})
	return err
}

func (s *Signer) read(ctx context.Context) (set *keySet, dated time.Time, err error) {
	answer, err := s.client.FetchKeys(ctx, &externaljwt.FetchKeysRequest{})
	switch {
	case err != nil:
		return nil, dated, fmt.Errorf("while getting externally supported jwt signing keys: %w", err)
	case answer.RefreshHintSeconds <= 0:
		return nil, dated, fmt.Errorf("found invalid refresh hint (%ds)", answer.RefreshHintSeconds)
	case len(answer.Keys) == 0:
		return nil, dated, errors.New("found no keys")
	}
	if err := answer.DataTimestamp.CheckValid(); err != nil {
		return nil, dated, fmt.Errorf("invalid data timestamp: %w", err)
	}
	set = &keySet{next: s.clock.Now().Add(time.Duration(answer.RefreshHintSeconds) * time.Second)}
	for _, k := range answer.Keys {
		key, err := publicKey(k)
		if err != nil {
			return nil, dated, err
		}
		set.keys = append(set.keys, key)
	}
	return set, answer.DataTimestamp.AsTime(), nil
}

func publicKey(k *externaljwt.Key) (token.Key, error) {
	switch {
	case k == nil:
		return token.Key{}, errors.New("found nil public key")
	case len(k.KeyId) == 0 || len(k.KeyId) > maxKeyID:
		return token.Key{}, fmt.Errorf("found invalid public key id %q", k.KeyId)
	case len(k.Key) == 0:
		return token.Key{}, errors.New("found empty public key")
	}
	public, err := x509.ParsePKIXPublicKey(k.Key)
	if err != nil {
		return token.Key{}, fmt.Errorf("while parsing external public keys: %w", err)
	}
	key, err := token.NewKey(k.KeyId, public)
	key.Unpublished = k.ExcludeFromOidcDiscovery
	return key, err
}

// Sign implements token.Signer.
func (s *Signer) Sign(ctx context.Context, payload []byte) (string, error) {
	signed, err := s.sign(ctx, base64.RawURLEncoding.EncodeToString(payload))
	counts().signed.WithLabelValues(codeOf(err)).Inc()
	return signed, err
}

func (s *Signer) sign(ctx context.Context, payload string) (string, error) {
	answer, err := s.client.Sign(ctx, &externaljwt.SignJWTRequest{Claims: payload})
	if err != nil {
		return "", fmt.Errorf("while signing jwt: %w", err)
	}
	if err := s.checkHeader(ctx, answer.Header); err != nil {
		return "", fmt.Errorf("while validating header: %w", err)
	}
	if answer.Signature == "" {
		return "", errors.New("empty signature returned")
	}
	return answer.Header + "." + payload + "." + answer.Signature, nil
}

// checkHeader lets no token out that nobody could check.
func (s *Signer) checkHeader(ctx context.Context, encoded string) error {
	text, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil {
		return fmt.Errorf("while unwrapping header: %w", err)
	}
	var header struct {
		Algorithm string `json:"alg"`
		KeyID     string `json:"kid"`
		Type      string `json:"typ"`
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&header); err != nil {
		return fmt.Errorf("while parsing header JSON: %w", err)
	}
	switch {
	case header.Type != "JWT":
		return errors.New("bad type")
	case header.KeyID == "":
		return errors.New("key id missing")
	case len(header.KeyID) > maxKeyID:
		return errors.New("key id longer than 1 kb")
	}
	switch header.Algorithm {
	case "RS256", "ES256", "ES384", "ES512":
	default:
		return fmt.Errorf("bad signing algorithm %q", header.Algorithm)
	}
	for _, key := range s.Keys(ctx, header.KeyID) {
		if key.Unpublished {
			return fmt.Errorf("key used for signing JWT (kid: %s) is excluded from OIDC discovery docs", header.KeyID)
		}
	}
	return nil
}
