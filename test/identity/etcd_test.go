package identity

import (
	"fmt"
	"os/exec"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// startEtcd runs an etcd until the test ends, and returns its URL.
func startEtcd(t *testing.T) (url string) {
	t.Helper()
	url = fmt.Sprintf("http://127.0.0.1:%d", freePort(t))
	etcd := exec.Command(binary, "etcd", "--data-dir", t.TempDir(), "--unsafe-no-fsync", "--log-level=error",
		"--listen-client-urls", url, "--advertise-client-urls", url, "--listen-peer-urls", fmt.Sprintf("http://127.0.0.1:%d", freePort(t)))
	if err := etcd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		etcd.Process.Signal(syscall.SIGTERM)
		etcd.Wait()
	})
	return url
}

// etcdValue is what etcd holds at a key.
func etcdValue(t *testing.T, url, key string) string {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{url}, DialTimeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r, err := c.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Kvs) != 1 {
		t.Fatalf("%s has %d values", key, len(r.Kvs))
	}
	return string(r.Kvs[0].Value)
}
