// Command sample-apiserver is Kubernetes' own example of a server that extends the
// API (k8s.io/sample-apiserver, group wardle.example.com), with the etcd it needs
// in the same process. It is a module of its own, so that nothing of it gets into
// Proa.
package main

import (
	"fmt"
	"net/url"
	"os"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/component-base/cli"
	"k8s.io/sample-apiserver/pkg/cmd/server"
)

const etcdStart = time.Minute

func main() {
	etcd, err := startEtcd()
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
	options := server.NewWardleServerOptions(os.Stdout, os.Stderr)
	options.RecommendedOptions.Etcd.StorageConfig.Transport.ServerList = []string{etcd.Clients[0].Addr().String()}
	cmd := server.NewCommandStartWardleServer(genericapiserver.SetupSignalContext(), options, false)
	code := cli.Run(cmd)
	etcd.Close()
	os.Exit(code)
}

// startEtcd keeps its data in a directory that goes with the container.
func startEtcd() (*embed.Etcd, error) {
	dir, err := os.MkdirTemp("", "etcd-")
	if err != nil {
		return nil, err
	}
	loopback := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	c := embed.NewConfig()
	c.Dir, c.LogLevel, c.UnsafeNoFsync = dir, "error", true
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{loopback}, []url.URL{loopback}
	c.ListenPeerUrls = []url.URL{loopback}
	etcd, err := embed.StartEtcd(c)
	if err != nil {
		return nil, err
	}
	select {
	case <-etcd.Server.ReadyNotify():
		return etcd, nil
	case err := <-etcd.Err():
		return nil, err
	case <-time.After(etcdStart):
		etcd.Close()
		return nil, fmt.Errorf("etcd is not ready after %s", etcdStart)
	}
}
