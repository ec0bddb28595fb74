package etcd

import (
	"context"
	"net"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"

	"proa/internal/store"
	"proa/internal/store/storetest"
)

func TestAnEndpointWithTLSIsTrustedThroughItsAuthority(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	server := &server{t: t, dir: t.TempDir()}
	t.Cleanup(server.stop)
	server.start(func(c *embed.Config) {
		client := url.URL{Scheme: "https", Host: address}
		c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
		c.ClientAutoTLS, c.SelfSignedCertValidity = true, 1
		server.endpoint = client.String()
	})
	authority := filepath.Join(server.dir, "data", "fixtures", "client", "cert.pem")
	e, err := Open(Config{Endpoints: []string{server.endpoint}, Resources: resources, CAFile: authority})
	if err != nil {
		t.Fatal(err)
	}
	s := storetest.Open(t, store.Config{Engine: e})
	apply(t, s, "a", "1")

	stranger := openEngine(t, server.endpoint)
	defer stranger.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := stranger.Load(ctx, 0, func(store.Record) error { return nil }); err == nil {
		t.Error("a certificate of nobody is trusted")
	}
	if _, err := Open(Config{Endpoints: []string{server.endpoint}, CAFile: "missing"}); err == nil {
		t.Error("a missing authority is ignored")
	}
}
