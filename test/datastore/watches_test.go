package datastore

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// watchers is how many watches etcd has.
func (e *etcd) watchers(t *testing.T) int {
	t.Helper()
	answer, err := e.client.Get(e.url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	const name = "etcd_debugging_mvcc_watcher_total "
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), name); ok {
			var n int
			if _, err := fmt.Sscan(value, &n); err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("etcd does not say how many watches it has")
	return 0
}

// However many watches there are of however many kinds, etcd sees one, and each of
// them sees a write.
func TestEtcdSeesOneWatchHoweverManyThereAre(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	s := startServer(t, "", "--etcd-servers", e.url)
	before := e.watchers(t)
	if before < 1 || before > 2 {
		t.Errorf("a server alone has %d watches", before)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var reading sync.WaitGroup
	seen := make(chan struct{}, 1000)
	for i := range cap(seen) {
		path := "/api/v1/namespaces/default/configmaps"
		if i%4 == 0 {
			path = "/api/v1/configmaps"
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.config.Host+path+"?watch=1&fieldSelector=metadata.name=seen", nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := s.http.Do(req)
		if err != nil || answer.StatusCode != http.StatusOK {
			t.Fatalf("watch %d: %v, %v", i, answer, err)
		}
		reading.Go(func() {
			defer answer.Body.Close()
			line, err := bufio.NewReader(answer.Body).ReadString('\n')
			if err == nil && strings.Contains(line, `"ADDED"`) && strings.Contains(line, `"name":"seen"`) {
				seen <- struct{}{}
			}
			_, _ = io.Copy(io.Discard, answer.Body)
		})
	}
	if now := e.watchers(t); now != before {
		t.Errorf("etcd has %d watches with 1000 here, %d without", now, before)
	}
	if _, err := s.configMaps().Create(ctx, configMap("seen", "x"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "every watch sees the write", func(context.Context) error {
		if len(seen) < cap(seen) {
			return fmt.Errorf("%d of %d do", len(seen), cap(seen))
		}
		return nil
	})
	cancel()
	reading.Wait()
}
