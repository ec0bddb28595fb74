// Package token issues and verifies service account tokens: JSON Web Tokens
// bound to a service account and, mostly, to a pod, a secret or a node.
//
// A token is good while its signature, its time and every object it names are.
// Signatures never change, so a verified one is remembered; the objects are
// looked up in the store on every use, so a deleted pod ends its tokens at once.
package token

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/go-jose/go-jose/v4"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"proa/internal/auth/pki"
	"proa/internal/store"
)

const (
	// DefaultIssuer is the iss claim and the audience where none is configured.
	DefaultIssuer = "https://kubernetes.default.svc.cluster.local"
	legacyIssuer  = "kubernetes/serviceaccount"

	verifiedTokens = 8192  // remembered signatures
	maxTokenBytes  = 16384 // longer ones are not parsed
)

// Config describes a Service. Store, and Key or Signer, are required.
type Config struct {
	Store *store.Store
	Clock clock.PassiveClock

	// Issuers are the iss claims of tokens that are good here; the first is that of
	// new ones. Default DefaultIssuer.
	Issuers   []string
	Audiences []string // of this server; default the issuers
	JWKSURI   string   // default <Issuer>/openid/v1/jwks

	Key              crypto.Signer      // ECDSA or RSA
	VerificationKeys []crypto.PublicKey // accepted and published besides Key's own
	Signer           Signer             // instead of both

	MaxLife time.Duration // caps what clients ask for; 0: no cap
	// ExactLives lets no token of a pod live longer than was asked for.
	ExactLives bool
}

// Service issues and verifies the tokens of one cluster.
type Service struct {
	store      *store.Store
	clock      clock.PassiveClock
	issuers    []string
	audiences  authenticator.Audiences
	jwksURI    string
	maxLife    time.Duration
	exactLives bool

	signer   Signer
	verified *lru.Cache // sha256 of token -> *verified
}

// New returns a service that signs with c.Key or c.Signer.
func New(c Config) (*Service, error) {
	if c.Key == nil && c.Signer == nil {
		return nil, errors.New("service account tokens: no signing key")
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if len(c.Issuers) == 0 {
		c.Issuers = []string{DefaultIssuer}
	}
	if len(c.Audiences) == 0 {
		c.Audiences = c.Issuers
	}
	if c.JWKSURI == "" {
		c.JWKSURI = c.Issuers[0] + "/openid/v1/jwks"
	}
	s := &Service{
		store: c.Store, clock: c.Clock, issuers: c.Issuers, audiences: c.Audiences, maxLife: c.MaxLife, exactLives: c.ExactLives,
		jwksURI: c.JWKSURI, signer: c.Signer, verified: lru.New(verifiedTokens),
	}
	if s.signer != nil {
		return s, nil
	}
	var err error
	s.signer, err = newKeyring(c.Key, c.VerificationKeys...)
	return s, err
}

func publicKey(public crypto.PublicKey) (Key, error) {
	id, err := pki.KeyID(public)
	if err != nil {
		return Key{}, err
	}
	return NewKey(id, public)
}

func algorithm(public crypto.PublicKey) (jose.SignatureAlgorithm, error) {
	switch key := public.(type) {
	case *rsa.PublicKey:
		return jose.RS256, nil
	case *ecdsa.PublicKey:
		switch key.Curve {
		case elliptic.P256():
			return jose.ES256, nil
		case elliptic.P384():
			return jose.ES384, nil
		case elliptic.P521():
			return jose.ES512, nil
		}
	}
	return "", fmt.Errorf("unusable key type %T, must be RSA or ECDSA on P-256, P-384 or P-521", public)
}

// Issuers are the iss claims of this server's tokens.
func (s *Service) Issuers() []string { return s.issuers }

// Audiences are those this server answers to.
func (s *Service) Audiences() authenticator.Audiences { return s.audiences }

func (s *Service) sign(ctx context.Context, claims any) (string, error) {
	payload, err := json.Marshal(claims)
	if err != nil {
		return "", err
	}
	return s.signer.Sign(ctx, payload)
}

// Legacy returns the token that belongs into a Secret of type
// kubernetes.io/service-account-token. It has no end but that of the Secret and
// the service account.
func (s *Service) Legacy(sa *corev1.ServiceAccount, secret *corev1.Secret) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return s.sign(ctx, legacy{
		Issuer: legacyIssuer, Subject: serviceaccount.MakeUsername(sa.Namespace, sa.Name),
		Namespace: sa.Namespace, Secret: secret.Name, Account: sa.Name, UID: string(sa.UID),
	})
}

// LegacyIssuer is Service.Legacy for a process that holds a key and serves nothing.
func LegacyIssuer(key crypto.Signer) (func(*corev1.ServiceAccount, *corev1.Secret) (string, error), error) {
	ring, err := newKeyring(key)
	return (&Service{signer: ring}).Legacy, err
}

// published are the keys that everybody may know.
func (s *Service) published() []jose.JSONWebKey {
	var keys []jose.JSONWebKey
	for _, key := range s.signer.Keys(context.Background(), "") {
		if !key.Unpublished {
			keys = append(keys, key.JSONWebKey)
		}
	}
	return keys
}

// JWKS is the document at /openid/v1/jwks, and how long it may be taken for
// current.
func (s *Service) JWKS() (document []byte, maxAge time.Duration) {
	document, err := json.Marshal(jose.JSONWebKeySet{Keys: s.published()})
	if err != nil {
		return nil, 0
	}
	return document, s.signer.MaxAge()
}

// Discovery is the document at /.well-known/openid-configuration, likewise.
func (s *Service) Discovery() (document []byte, maxAge time.Duration) {
	algs := sets.New[string]()
	for _, key := range s.published() {
		algs.Insert(key.Algorithm)
	}
	document, err := json.Marshal(struct {
		Issuer        string   `json:"issuer"`
		JWKSURI       string   `json:"jwks_uri"`
		ResponseTypes []string `json:"response_types_supported"`
		SubjectTypes  []string `json:"subject_types_supported"`
		Algorithms    []string `json:"id_token_signing_alg_values_supported"`
	}{s.issuers[0], s.jwksURI, []string{"id_token"}, []string{"public"}, sets.List(algs)})
	if err != nil {
		return nil, 0
	}
	return document, s.signer.MaxAge()
}
