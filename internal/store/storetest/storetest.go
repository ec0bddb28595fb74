// Package storetest is the suite that every store engine passes, and what tests
// of the store share: a codec, objects and a model.
package storetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/store"
)

// The resources that tests use.
var (
	ConfigMaps = schema.GroupResource{Resource: "configmaps"}
	Pods       = schema.GroupResource{Resource: "pods"}
)

// Codec keeps pods and config maps as JSON.
type Codec struct{}

func (Codec) Encode(_ store.Key, obj store.Object) ([]byte, error) {
	if obj.GetResourceVersion() != "" {
		return nil, errors.New("the store must not encode a resourceVersion")
	}
	return json.Marshal(obj)
}

func (Codec) Decode(key store.Key, value []byte) (store.Object, error) {
	var obj store.Object = &corev1.ConfigMap{}
	if key.Resource == Pods {
		obj = &corev1.Pod{}
	}
	return obj, json.Unmarshal(value, obj)
}

// Proto keeps pods and config maps as protobuf, without upstream's frame.
type Proto struct{}

type protoMessage interface {
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}

func (Proto) Encode(_ store.Key, obj store.Object) ([]byte, error) {
	return obj.(protoMessage).Marshal()
}

func (Proto) Decode(key store.Key, value []byte) (store.Object, error) {
	var obj store.Object = &corev1.ConfigMap{}
	if key.Resource == Pods {
		obj = &corev1.Pod{}
	}
	return obj, obj.(protoMessage).Unmarshal(value)
}

// ConfigMap returns a config map that holds one text, and its key.
func ConfigMap(namespace, name, text string) (store.Key, *corev1.ConfigMap) {
	return store.Key{Resource: ConfigMaps, Namespace: namespace, Name: name}, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Data:       map[string]string{"text": text},
	}
}

// Text is what ConfigMap put in.
func Text(item *store.Item) string { return item.Object.(*corev1.ConfigMap).Data["text"] }

// Apply creates or replaces a config map.
func Apply(ctx context.Context, s *store.Store, namespace, name, text string) (int64, error) {
	return s.Update(ctx, func(tx *store.Tx) error { return ApplyIn(tx, namespace, name, text) })
}

// ApplyIn creates or replaces a config map in a transaction.
func ApplyIn(tx *store.Tx, namespace, name, text string) error {
	key, obj := ConfigMap(namespace, name, text)
	_, err := tx.Create(key, obj)
	if errors.Is(err, store.ErrExists) {
		_, err = tx.Put(key, obj)
	}
	return err
}

// Remove deletes a config map.
func Remove(ctx context.Context, s *store.Store, namespace, name string) (int64, error) {
	return s.Update(ctx, func(tx *store.Tx) error {
		key, _ := ConfigMap(namespace, name, "")
		return tx.Delete(key)
	})
}

// Dump is the texts of all config maps of a snapshot by "namespace/name".
func Dump(sn *store.Snapshot) map[string]string {
	out := map[string]string{}
	sn.Range(ConfigMaps, "", store.Key{}, func(item *store.Item) bool {
		out[item.Key.Namespace+"/"+item.Key.Name] = Text(item)
		return true
	})
	return out
}

// Open opens a store for a test and closes it after it.
func Open(t testing.TB, c store.Config) *store.Store {
	t.Helper()
	if c.Codec == nil {
		c.Codec = Codec{}
	}
	s, err := store.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func wantErr(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error %v, want %v", err, want)
	}
}

func eventString(e store.Event) string {
	kind := map[store.EventType]string{store.Created: "created", store.Updated: "updated", store.Deleted: "deleted"}[e.Type]
	prev := "nothing"
	if e.Prev != nil {
		prev = fmt.Sprintf("%q@%d", Text(e.Prev), e.Prev.Revision)
	}
	return fmt.Sprintf("%s %s/%s %q@%d was %s", kind, e.Item.Key.Namespace, e.Item.Key.Name, Text(e.Item), e.Item.Revision, prev)
}
