// Package registry is a container registry for tests: it listens on loopback, keeps images in
// memory, and asks for a name and password if it is given one.
package registry

import (
	"archive/tar"
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// Config says who may use the registry. Without a Username everyone may.
type Config struct {
	Username, Password string
}

// Registry is a running registry.
type Registry struct {
	config   Config
	listener net.Listener
	server   *http.Server
	served   chan struct{}
	requests atomic.Int64
}

// Start listens on a free port of the loopback interface.
func Start(config Config) (*Registry, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &Registry{config: config, listener: listener, served: make(chan struct{})}
	store := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	r.server = &http.Server{Handler: r.guard(store), ReadHeaderTimeout: 10 * time.Second}
	go func() {
		defer close(r.served)
		r.server.Serve(listener) //nolint:errcheck // it ends when Close closes the listener
	}()
	return r, nil
}

// Host is the registry's part of image names, such as 127.0.0.1:41234.
func (r *Registry) Host() string { return r.listener.Addr().String() }

// Requests counts the requests so far, refused ones included.
func (r *Registry) Requests() int64 { return r.requests.Load() }

// Close ends the registry and forgets its images.
func (r *Registry) Close() error {
	err := r.server.Close()
	<-r.served
	return err
}

func (r *Registry) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.requests.Add(1)
		user, password, _ := req.BasicAuth()
		if r.config.Username != "" && (!same(user, r.config.Username) || !same(password, r.config.Password)) {
			w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnauthorized)
			io.WriteString(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`) //nolint:errcheck // the client has gone
			return
		}
		next.ServeHTTP(w, req)
	})
}

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// Push stores the image of the OCI archive at path as repository (such as team/app:1) and
// returns its full name.
func (r *Registry) Push(ctx context.Context, path, repository string) (string, error) {
	dir, err := os.MkdirTemp("", "registry-push-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	image, err := open(path, dir)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	full := r.Host() + "/" + repository
	ref, err := name.ParseReference(full, name.Insecure)
	if err != nil {
		return "", err
	}
	auth := remote.WithAuth(authn.Anonymous)
	if r.config.Username != "" {
		auth = remote.WithAuth(&authn.Basic{Username: r.config.Username, Password: r.config.Password})
	}
	if err := remote.Write(ref, image, remote.WithContext(ctx), auth); err != nil {
		return "", fmt.Errorf("push %s: %w", full, err)
	}
	return full, nil
}

// open unpacks an OCI archive into dir, which the image reads from, and returns its first image.
func open(path, dir string) (v1.Image, error) {
	if err := unpack(path, dir); err != nil {
		return nil, err
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	if len(manifest.Manifests) == 0 {
		return nil, errors.New("the archive holds no image")
	}
	return index.Image(manifest.Manifests[0].Digest)
}

func unpack(path, dir string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for tr := tar.NewReader(f); ; {
		h, err := tr.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if err := root.MkdirAll(filepath.Dir(h.Name), 0o755); err != nil {
			return err
		}
		out, err := root.Create(h.Name)
		if err != nil {
			return err
		}
		_, err = io.Copy(out, tr)
		if err := errors.Join(err, out.Close()); err != nil {
			return err
		}
	}
}
