package etcd

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// mastersDir is where API servers that share an etcd, upstream's included, say where
// they are.
const mastersDir = "masterleases/"

// Announce keeps a value under a server's name until ttl, in whole seconds, has gone by
// without another call.
func (e *Engine) Announce(ctx context.Context, name string, value []byte, ttl time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	lease, err := e.client.Grant(ctx, int64(ttl/time.Second))
	if err != nil {
		return fmt.Errorf("announce %s in etcd: %w", name, storeError(err))
	}
	if _, err := e.client.Put(ctx, e.layout.root+mastersDir+name, string(value), clientv3.WithLease(lease.ID)); err != nil {
		return fmt.Errorf("announce %s in etcd: %w", name, storeError(err))
	}
	return nil
}

// Announced returns the values of the servers that are there, in the order of their names.
func (e *Engine) Announced(ctx context.Context) ([][]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	answer, err := e.client.Get(ctx, e.layout.root+mastersDir, clientv3.WithPrefix())
	if err != nil {
		return nil, fmt.Errorf("read the servers on etcd: %w", storeError(err))
	}
	values := make([][]byte, len(answer.Kvs))
	for i, kv := range answer.Kvs {
		values[i] = kv.Value
	}
	return values, nil
}

// Withdraw takes back what a server has announced.
func (e *Engine) Withdraw(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	if _, err := e.client.Delete(ctx, e.layout.root+mastersDir+name); err != nil {
		return fmt.Errorf("withdraw %s from etcd: %w", name, storeError(err))
	}
	return nil
}
