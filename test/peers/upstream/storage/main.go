// Command storage is upstream's storage layer by itself: it creates, reads and
// rewrites the objects that it is given in etcd as a kube-apiserver does, without
// its API. Tests hold what Proa writes and reads there against it.
//
//	storage --etcd URL create|read|touch < objects.json
//
// It prints one JSON line per object: where it lies, its resourceVersion and what
// upstream reads there. A touch rewrites an object without a change, which
// upstream does only when its own encoding differs from the bytes in etcd.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
)

// eventTTL is how long upstream keeps events, in seconds.
const eventTTL = 3600

func main() {
	etcd := flag.String("etcd", "http://127.0.0.1:2379", "client URL of etcd")
	prefix := flag.String("prefix", "/registry", "what all keys begin with")
	flag.Parse()
	if err := run(context.Background(), *etcd, *prefix, flag.Arg(0), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

// line is what is printed of an object.
type line struct {
	Path            string          `json:"path"`
	ResourceVersion string          `json:"resourceVersion"`
	Object          json.RawMessage `json:"object"`
}

func run(ctx context.Context, etcd, prefix, verb string, in io.Reader, out io.Writer) error {
	decoder, encoder := json.NewDecoder(in), json.NewEncoder(out)
	for {
		u := &unstructured.Unstructured{}
		if err := decoder.Decode(u); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		k, err := kindOf(u)
		if err != nil {
			return err
		}
		l, err := k.do(ctx, etcd, prefix, verb, u)
		if err != nil {
			return fmt.Errorf("%s %s %s/%s: %w", verb, u.GetKind(), u.GetNamespace(), u.GetName(), err)
		}
		if err := encoder.Encode(l); err != nil {
			return err
		}
	}
}

// do works on one object with a storage of its own.
func (k *kind) do(ctx context.Context, etcd, prefix, verb string, u *unstructured.Unstructured) (*line, error) {
	config := storagebackend.NewDefaultConfig(prefix, k.codec)
	config.Transport.ServerList = []string{etcd}
	config.CompactionInterval = 0
	s, destroy, err := factory.Create(*config.ForResource(k.resource), k.newObject, nil, "/"+k.prefix)
	if err != nil {
		return nil, err
	}
	defer destroy()
	key := "/" + k.prefix + "/" + u.GetName()
	if ns := u.GetNamespace(); ns != "" {
		key = "/" + k.prefix + "/" + ns + "/" + u.GetName()
	}
	obj := k.newObject()
	switch verb {
	case "create":
		var given runtime.Object
		if given, err = k.decode(u); err == nil {
			err = s.Create(ctx, key, given, obj, k.ttl)
		}
	case "read":
		err = s.Get(ctx, key, storage.GetOptions{}, obj)
	case "touch":
		err = s.GuaranteedUpdate(ctx, key, obj, false, nil, func(current runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
			ttl := k.ttl
			return current, &ttl, nil
		}, nil)
	default:
		err = errors.New("not a verb: create, read and touch are")
	}
	if err != nil {
		return nil, err
	}
	accessor, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	data, err := k.show(obj)
	return &line{prefix + key, accessor.GetResourceVersion(), data}, err
}
