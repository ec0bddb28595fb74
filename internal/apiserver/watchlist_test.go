package apiserver

import (
	"bufio"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// However many clients stream a collection, and however slowly, what the server
// holds for each is a small part of it.
func TestStreamingListsTakeBoundedMemory(t *testing.T) {
	w := newWorld(t)
	w.namespace("default")
	const objects, size, clients = 100, 200 << 10, 16
	maps := w.client().CoreV1().ConfigMaps("default")
	for i := range objects {
		if _, err := maps.Create(t.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("c", i)}, Data: map[string]string{"k": strings.Repeat("x", size)},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	var streams []*bufio.Scanner
	for range clients {
		conn := w.dial("http/1.1")
		fmt.Fprintf(conn, "GET /api/v1/configmaps?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true HTTP/1.1\r\n%s\r\n", asAdmin)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%+v, %v", resp, err)
		}
		lines := bufio.NewScanner(resp.Body)
		lines.Buffer(nil, 2*size)
		if !lines.Scan() || !strings.HasPrefix(lines.Text(), `{"type":"ADDED"`) {
			t.Fatalf("%.100s", lines.Text())
		}
		streams = append(streams, lines)
	}
	const once, each = objects * size, 3 << 20 // what is kept of the encoded objects for all; a client here holds a part, too
	if grown := heap() - before; grown > once+clients*each {
		t.Errorf("%d clients that stream %d bytes take %d", clients, objects*size, grown)
	}
	for n := 1; ; n++ {
		if !streams[0].Scan() {
			t.Fatalf("the stream ends after %d events", n)
		}
		if strings.HasPrefix(streams[0].Text(), `{"type":"BOOKMARK"`) {
			if n != objects || !strings.Contains(streams[0].Text(), `"k8s.io/initial-events-end":"true"`) {
				t.Errorf("after %d events: %s", n, streams[0].Text())
			}
			return
		}
	}
}

func TestTablesTellTheEndOfTheInitialList(t *testing.T) {
	w := newWorld(t)
	resp, end := w.open("/api/v1/configmaps?watch=1&timeoutSeconds=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
		"application/json;as=Table;v=v1;g=meta.k8s.io")
	defer end()
	events := bufio.NewScanner(resp.Body)
	for events.Scan() {
		if strings.HasPrefix(events.Text(), `{"type":"BOOKMARK"`) && strings.Contains(events.Text(), `"k8s.io/initial-events-end":"true"`) {
			return
		}
	}
	t.Error("no row says that the list is complete")
}
