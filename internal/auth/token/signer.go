package token

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/rsa"
	"fmt"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// Signer makes signatures and knows the keys that check them. It is used from
// many goroutines at once.
type Signer interface {
	// Sign returns the token that carries a JSON payload.
	Sign(ctx context.Context, payload []byte) (string, error)

	// Keys returns the public keys of an id, or all of them for "", in order.
	Keys(ctx context.Context, kid string) []Key

	// MaxAge is how long who has read the keys may take them for current.
	MaxAge() time.Duration
}

// Key checks signatures. One that is not published signs no new tokens.
type Key struct {
	jose.JSONWebKey
	Unpublished bool
}

// NewKey describes a public key by its id.
func NewKey(id string, public crypto.PublicKey) (Key, error) {
	alg, err := algorithm(public)
	return Key{JSONWebKey: jose.JSONWebKey{Key: public, KeyID: id, Algorithm: string(alg), Use: "sig"}}, err
}

// same reports whether two keys check the same signatures.
func (k Key) same(other Key) bool {
	switch public := k.Key.(type) {
	case *rsa.PublicKey:
		return public.Equal(other.Key)
	case *ecdsa.PublicKey:
		return public.Equal(other.Key)
	}
	return false
}

// algorithms are those that tokens may be signed with.
var algorithms = []jose.SignatureAlgorithm{jose.RS256, jose.ES256, jose.ES384, jose.ES512}

// keyring signs with a key of this process.
type keyring struct {
	signer jose.Signer
	keys   []Key // by id
}

// newKeyring signs with key; tokens that others signed are good here too.
func newKeyring(key crypto.Signer, others ...crypto.PublicKey) (*keyring, error) {
	own, err := publicKey(key.Public())
	if err != nil {
		return nil, fmt.Errorf("service account signing key: %w", err)
	}
	byID := map[string]Key{own.KeyID: own}
	for _, public := range others {
		k, err := publicKey(public)
		if err != nil {
			return nil, fmt.Errorf("service account verification key: %w", err)
		}
		byID[k.KeyID] = k
	}
	private := jose.JSONWebKey{Key: key, KeyID: own.KeyID, Algorithm: own.Algorithm}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.SignatureAlgorithm(own.Algorithm), Key: private}, nil)
	return &keyring{signer: signer, keys: sortedKeys(byID)}, err
}

func (k *keyring) Sign(_ context.Context, payload []byte) (string, error) {
	signed, err := k.signer.Sign(payload)
	if err != nil {
		return "", err
	}
	return signed.CompactSerialize()
}

func (k *keyring) Keys(_ context.Context, kid string) []Key {
	if kid == "" {
		return k.keys
	}
	for i := range k.keys {
		if k.keys[i].KeyID == kid {
			return k.keys[i : i+1]
		}
	}
	return nil
}

func (k *keyring) MaxAge() time.Duration { return time.Hour }
