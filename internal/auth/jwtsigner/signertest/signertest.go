// Package signertest is a process that signs service account tokens, for tests: it
// answers on a socket as a real one does.
package signertest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"
	externaljwt "k8s.io/externaljwt/apis/v1"
)

// Signer answers. Its fields are changed between calls with Set.
type Signer struct {
	externaljwt.UnimplementedExternalJWTSignerServer
	Socket string

	mu sync.Mutex // guards the rest
	State
	private map[string]*ecdsa.PrivateKey
}

// State is what the answers are made of.
type State struct {
	Keys        []string       // ids; the first signs
	Unpublished string         // id of the key that is not to be published
	MaxLife     int64          // seconds
	Refresh     int64          // seconds
	Header      map[string]any // replaces that of tokens
	Fail        bool
	Fetched     int // how often keys were fetched
}

// Start runs a signer until the test ends.
func Start(t testing.TB) *Signer {
	t.Helper()
	s := &Signer{
		Socket:  filepath.Join(t.TempDir(), "signer.sock"),
		State:   State{Keys: []string{"key-1"}, MaxLife: 86400, Refresh: 3600},
		private: map[string]*ecdsa.PrivateKey{},
	}
	ln, err := net.Listen("unix", s.Socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	externaljwt.RegisterExternalJWTSignerServer(server, s)
	go server.Serve(ln)
	t.Cleanup(server.Stop)
	return s
}

// Set changes what is answered from now on.
func (s *Signer) Set(change func(*State)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.State)
}

func (s *Signer) keyLocked(id string) (*ecdsa.PrivateKey, error) {
	if s.private[id] == nil {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, err
		}
		s.private[id] = key
	}
	return s.private[id], nil
}

// Sign implements the service.
func (s *Signer) Sign(_ context.Context, req *externaljwt.SignJWTRequest) (*externaljwt.SignJWTResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Fail {
		return nil, errors.New("out of ink")
	}
	key, err := s.keyLocked(s.Keys[0])
	if err != nil {
		return nil, err
	}
	header := s.Header
	if header == nil {
		header = map[string]any{"alg": "ES256", "kid": s.Keys[0], "typ": "JWT"}
	}
	text, err := json.Marshal(header)
	if err != nil {
		return nil, err
	}
	answer := &externaljwt.SignJWTResponse{Header: base64.RawURLEncoding.EncodeToString(text)}
	digest := sha256.Sum256([]byte(answer.Header + "." + req.Claims))
	r, v, err := ecdsa.Sign(rand.Reader, key, digest[:])
	if err != nil {
		return nil, err
	}
	signature := make([]byte, 64)
	r.FillBytes(signature[:32])
	v.FillBytes(signature[32:])
	answer.Signature = base64.RawURLEncoding.EncodeToString(signature)
	return answer, nil
}

// FetchKeys implements the service.
func (s *Signer) FetchKeys(context.Context, *externaljwt.FetchKeysRequest) (*externaljwt.FetchKeysResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Fail {
		return nil, errors.New("keys fetch error")
	}
	s.Fetched++
	answer := &externaljwt.FetchKeysResponse{DataTimestamp: timestamppb.Now(), RefreshHintSeconds: s.Refresh}
	for _, id := range s.Keys {
		key, err := s.keyLocked(id)
		if err != nil {
			return nil, err
		}
		der, err := x509.MarshalPKIXPublicKey(key.Public())
		if err != nil {
			return nil, err
		}
		answer.Keys = append(answer.Keys, &externaljwt.Key{KeyId: id, Key: der, ExcludeFromOidcDiscovery: id == s.Unpublished})
	}
	return answer, nil
}

// Metadata implements the service.
func (s *Signer) Metadata(context.Context, *externaljwt.MetadataRequest) (*externaljwt.MetadataResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &externaljwt.MetadataResponse{MaxTokenExpirationSeconds: s.MaxLife}, nil
}
