package datastore

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// save writes a snapshot of an etcd, as `etcdctl snapshot save` does.
func (e *etcd) save(t *testing.T) string {
	t.Helper()
	file := filepath.Join(e.dir, "snapshot")
	_, err := snapshot.NewV3(zap.NewNop()).Save(t.Context(), clientv3.Config{Endpoints: []string{e.url}}, file)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// restore starts an etcd that was killed with the data of a snapshot, as after
// `etcdutl snapshot restore`.
func (e *etcd) restore(t *testing.T, file string, bump uint64) {
	t.Helper()
	data := filepath.Join(e.dir, "data")
	if err := os.RemoveAll(data); err != nil {
		t.Fatal(err)
	}
	err := snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: file, Name: "default", OutputDataDir: data, PeerURLs: []string{e.peer},
		InitialCluster: "default=" + e.peer, InitialClusterToken: "restored", RevisionBump: bump, MarkCompacted: bump > 0,
	})
	if err != nil {
		t.Fatal(err)
	}
	e.start()
}

func TestASnapshotOfEtcdIsRestored(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		bump uint64
	}{
		{"with the revision bumped and marked as compacted", 1_000_000_000},
		{"as it was", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := startEtcd(t)
			s := startServer(t, "", "--etcd-servers", e.url)
			for _, name := range []string{"changed", "deleted"} {
				if _, err := s.configMaps().Create(t.Context(), configMap(name, "1"), metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			file := e.save(t)
			if _, err := s.configMaps().Update(t.Context(), configMap("changed", "2"), metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			if err := s.configMaps().Delete(t.Context(), "deleted", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			late, err := s.configMaps().Create(t.Context(), configMap("late", "1"), metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			w, err := s.configMaps().Watch(t.Context(), metav1.ListOptions{ResourceVersion: late.GetResourceVersion()})
			if err != nil {
				t.Fatal(err)
			}
			defer w.Stop()

			e.kill()
			e.restore(t, file, tt.bump)
			expired(t, w)
			eventually(t, "the objects are back", func(ctx context.Context) error {
				list, err := s.configMaps().List(ctx, metav1.ListOptions{})
				if err != nil {
					return err
				}
				got := strings.Join(texts(list), ",")
				if !strings.HasPrefix(got, "changed 1,deleted 1,") || strings.Contains(got, "late") {
					return fmt.Errorf("the list shows %s", got)
				}
				return nil
			})
			if tt.bump > 0 {
				path := "/api/v1/namespaces/default/configmaps?watch=true&resourceVersion=" + late.GetResourceVersion()
				if code := s.call(t, http.MethodGet, path, ""); code != http.StatusGone && code != http.StatusOK {
					t.Errorf("a watch from before gives %d", code)
				}
				again, err := s.configMaps().Watch(t.Context(), metav1.ListOptions{ResourceVersion: late.GetResourceVersion()})
				if err == nil {
					defer again.Stop()
					expired(t, again)
				} else if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
					t.Errorf("a watch from before: %v, want 410", err)
				}
			}
			for _, name := range []string{"changed", "late"} { // one that is there, one that was
				u, err := s.configMaps().Get(t.Context(), name, metav1.GetOptions{})
				if apierrors.IsNotFound(err) {
					u, err = s.configMaps().Create(t.Context(), configMap(name, "3"), metav1.CreateOptions{})
				} else if err == nil {
					u.Object["data"] = map[string]any{"text": "3"}
					u, err = s.configMaps().Update(t.Context(), u, metav1.UpdateOptions{})
				}
				if err != nil {
					t.Fatalf("%s is not written: %v", name, err)
				}
				if revision, _ := strconv.ParseUint(u.GetResourceVersion(), 10, 64); revision <= tt.bump {
					t.Errorf("%s is written at revision %d, want more than %d", name, revision, tt.bump)
				}
			}
		})
	}
}

// expired waits for a watch to be told that it has to list again.
func expired(t *testing.T, w watch.Interface) {
	t.Helper()
	late := time.After(patience)
	for {
		select {
		case event, ok := <-w.ResultChan():
			if !ok {
				t.Error("the watch ended without a word")
				return
			}
			if event.Type != watch.Error {
				continue
			}
			if err := apierrors.FromObject(event.Object); !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
				t.Errorf("the watch is told %v, want 410", err)
			}
			return
		case <-late:
			t.Error("the watch is told nothing")
			return
		}
	}
}
