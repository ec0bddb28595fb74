// Package kmstest is a KMS v2 plugin for tests: it answers on a socket as a real
// one does, and tells how often it was asked.
package kmstest

import (
	"bytes"
	"context"
	"errors"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	kmsapi "k8s.io/kms/apis/v2"
	"k8s.io/kms/pkg/service"
)

// Plugin is a key service whose key is its id.
type Plugin struct {
	Endpoint string // unix:///...

	socket string
	server *grpc.Server

	mu                 sync.Mutex // guards the rest
	keyID, encryptID   string
	healthz            string
	encrypts, decrypts int
}

// Start runs a plugin until the test ends.
func Start(t testing.TB) *Plugin {
	t.Helper()
	p := &Plugin{socket: filepath.Join(t.TempDir(), "kms.sock"), keyID: "key-1", healthz: "ok"}
	p.Endpoint = "unix://" + p.socket
	p.Serve(t)
	t.Cleanup(func() { p.Stop() })
	return p
}

// Serve answers again after Stop.
func (p *Plugin) Serve(t testing.TB) {
	t.Helper()
	ln, err := net.Listen("unix", p.socket)
	if err != nil {
		t.Fatal(err)
	}
	p.server = grpc.NewServer()
	kmsapi.RegisterKeyManagementServiceServer(p.server, service.NewGRPCService(p.socket, time.Second, p))
	go p.server.Serve(ln)
}

// Stop makes the plugin unreachable.
func (p *Plugin) Stop() { p.server.Stop() }

// UseKey makes the plugin encrypt with another key from now on.
func (p *Plugin) UseKey(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keyID = id
}

// EncryptAs makes the plugin encrypt with another key than it names; "" ends that.
func (p *Plugin) EncryptAs(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.encryptID = id
}

// Say makes the plugin answer this for its health, "ok" when it is well.
func (p *Plugin) Say(healthz string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.healthz = healthz
}

// Calls returns how often the plugin has encrypted and decrypted.
func (p *Plugin) Calls() (encrypts, decrypts int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.encrypts, p.decrypts
}

// Status implements service.Service.
func (p *Plugin) Status(context.Context) (*service.StatusResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return &service.StatusResponse{Version: "v2", Healthz: p.healthz, KeyID: p.keyID}, nil
}

// Encrypt implements service.Service.
func (p *Plugin) Encrypt(_ context.Context, _ string, data []byte) (*service.EncryptResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.encrypts++
	id := p.keyID
	if p.encryptID != "" {
		id = p.encryptID
	}
	return &service.EncryptResponse{Ciphertext: append([]byte(id+"\x00"), scramble(data, id)...), KeyID: id}, nil
}

// Decrypt implements service.Service.
func (p *Plugin) Decrypt(_ context.Context, _ string, r *service.DecryptRequest) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.decrypts++
	rest, ok := bytes.CutPrefix(r.Ciphertext, []byte(r.KeyID+"\x00"))
	if !ok {
		return nil, errors.New("not encrypted with this key")
	}
	return scramble(rest, r.KeyID), nil
}

func scramble(data []byte, key string) []byte {
	out := make([]byte, len(data))
	for i, b := range data {
		out[i] = b ^ key[i%len(key)]
	}
	return out
}
