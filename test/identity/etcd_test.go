package identity

import (
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

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
