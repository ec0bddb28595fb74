// Package token issues and verifies service account tokens: JSON Web Tokens
// bound to a service account and, mostly, to a pod, a secret or a node.
//
// A token is good while its signature, its time and every object it names are.
// Signatures never change, so a verified one is remembered; the objects are
// looked up in the store on every use, so a deleted pod ends its tokens at once.
package token

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	corev1 "k8s.io/api/core/v1"
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

// Config describes a Service. Store and Key are required.
type Config struct {
	Store *store.Store
	Clock clock.PassiveClock

	Issuer    string   // default DefaultIssuer
	Audiences []string // of this server; default the issuer
	JWKSURI   string   // default <Issuer>/openid/v1/jwks

	Key              crypto.Signer      // ECDSA P-256 or RSA
	VerificationKeys []crypto.PublicKey // accepted and published besides Key's own

	MaxLife time.Duration // caps what clients ask for; 0: no cap
}

// Service issues and verifies the tokens of one cluster.
type Service struct {
	store     *store.Store
	clock     clock.PassiveClock
	issuer    string
	audiences authenticator.Audiences
	maxLife   time.Duration

	signer    jose.Signer
	keys      map[string]jose.JSONWebKey // by kid
	algs      []jose.SignatureAlgorithm
	discovery []byte
	jwks      []byte

	verified *lru.Cache // sha256 of token -> *claims
}

// New returns a service that signs with c.Key.
func New(c Config) (*Service, error) {
	if c.Key == nil {
		return nil, errors.New("service account tokens: no signing key")
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Issuer == "" {
		c.Issuer = DefaultIssuer
	}
	if len(c.Audiences) == 0 {
		c.Audiences = []string{c.Issuer}
	}
	if c.JWKSURI == "" {
		c.JWKSURI = c.Issuer + "/openid/v1/jwks"
	}
	s := &Service{
		store: c.Store, clock: c.Clock, issuer: c.Issuer, audiences: c.Audiences, maxLife: c.MaxLife,
		keys: map[string]jose.JSONWebKey{}, verified: lru.New(verifiedTokens),
	}
	if err := s.addKeys(c); err != nil {
		return nil, err
	}
	return s, s.publish(c.JWKSURI)
}

func (s *Service) addKeys(c Config) error {
	signing, err := publicJWK(c.Key.Public())
	if err != nil {
		return fmt.Errorf("service account signing key: %w", err)
	}
	s.keys[signing.KeyID] = signing
	for _, public := range c.VerificationKeys {
		key, err := publicJWK(public)
		if err != nil {
			return fmt.Errorf("service account verification key: %w", err)
		}
		s.keys[key.KeyID] = key
	}
	seen := map[string]bool{}
	for _, key := range s.keys {
		if !seen[key.Algorithm] {
			seen[key.Algorithm] = true
			s.algs = append(s.algs, jose.SignatureAlgorithm(key.Algorithm))
		}
	}
	s.signer, err = newSigner(c.Key, signing)
	return err
}

// newSigner signs with key, whose public half is as published.
func newSigner(key crypto.Signer, public jose.JSONWebKey) (jose.Signer, error) {
	private := jose.JSONWebKey{Key: key, KeyID: public.KeyID, Algorithm: public.Algorithm}
	return jose.NewSigner(jose.SigningKey{Algorithm: jose.SignatureAlgorithm(public.Algorithm), Key: private}, nil)
}

func publicJWK(public crypto.PublicKey) (jose.JSONWebKey, error) {
	id, err := pki.KeyID(public)
	if err != nil {
		return jose.JSONWebKey{}, err
	}
	alg, err := algorithm(public)
	return jose.JSONWebKey{Key: public, KeyID: id, Algorithm: string(alg), Use: "sig"}, err
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

// Issuer is the iss claim of this server's tokens.
func (s *Service) Issuer() string { return s.issuer }

// Audiences are those this server answers to.
func (s *Service) Audiences() authenticator.Audiences { return s.audiences }

func (s *Service) sign(claims any) (string, error) {
	return jwt.Signed(s.signer).Claims(claims).Serialize()
}

// Legacy returns the token that belongs into a Secret of type
// kubernetes.io/service-account-token. It has no end but that of the Secret and
// the service account.
func (s *Service) Legacy(sa *corev1.ServiceAccount, secret *corev1.Secret) (string, error) {
	return s.sign(legacy{
		Issuer: legacyIssuer, Subject: serviceaccount.MakeUsername(sa.Namespace, sa.Name),
		Namespace: sa.Namespace, Secret: secret.Name, Account: sa.Name, UID: string(sa.UID),
	})
}

// LegacyIssuer is Service.Legacy for a process that holds a key and serves nothing.
func LegacyIssuer(key crypto.Signer) (func(*corev1.ServiceAccount, *corev1.Secret) (string, error), error) {
	public, err := publicJWK(key.Public())
	if err != nil {
		return nil, fmt.Errorf("service account signing key: %w", err)
	}
	s := &Service{}
	s.signer, err = newSigner(key, public)
	return s.Legacy, err
}

// Discovery is the document at /.well-known/openid-configuration.
func (s *Service) Discovery() []byte { return s.discovery }

// JWKS is the document at /openid/v1/jwks.
func (s *Service) JWKS() []byte { return s.jwks }

func (s *Service) publish(jwksURI string) error {
	algs := make([]string, 0, len(s.algs))
	for _, a := range s.algs {
		algs = append(algs, string(a))
	}
	set := jose.JSONWebKeySet{Keys: sortedKeys(s.keys)}
	var err error
	if s.jwks, err = json.Marshal(set); err != nil {
		return err
	}
	s.discovery, err = json.Marshal(struct {
		Issuer        string   `json:"issuer"`
		JWKSURI       string   `json:"jwks_uri"`
		ResponseTypes []string `json:"response_types_supported"`
		SubjectTypes  []string `json:"subject_types_supported"`
		Algorithms    []string `json:"id_token_signing_alg_values_supported"`
	}{s.issuer, jwksURI, []string{"id_token"}, []string{"public"}, sorted(algs)})
	return err
}
