package identity

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// large is how many Secrets of 1 MB are streamed. PROA_STREAMED_SECRETS chooses
// another number: 400 is KEP-3157's, and takes a minute.
var large = sizeFrom("PROA_STREAMED_SECRETS", 32)

// Sixteen clients that stream all Secrets make the server hold them once, not sixteen
// times.
func TestStreamedListsOfLargeSecretsTakeBoundedMemory(t *testing.T) { // alone: it measures
	const streams, size = 16, 1 << 20
	s := start(t, "--token-auth-file", file(t, "tokens.csv", pageTokens))
	secrets := s.admin(t).CoreV1().Secrets("kube-public")
	data := make([]byte, size-4096)
	for i := range large {
		rand.Read(data)
		if _, err := secrets.Create(t.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("large-%d", i)}, Data: map[string][]byte{"k": data},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// from here on the peak counts
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", s.cmd.Process.Pid), []byte("5"), 0); err != nil {
		t.Skip("the peak of memory cannot be set back:", err)
	}
	before := s.peak(t)
	url := fmt.Sprintf("https://127.0.0.1:%d/api/v1/namespaces/kube-public/secrets?watch=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan", s.port)
	var reading sync.WaitGroup
	for range streams {
		reading.Go(func() {
			if n, err := streamed(t.Context(), url); err != nil || n != large {
				t.Errorf("a stream has %d Secrets, want %d: %v", n, large, err)
			}
		})
	}
	reading.Wait()
	peak := s.peak(t)
	t.Logf("%d streams of %d MB: peak of %d MB, %d MB before", streams, large, peak>>20, before>>20)
	if bound := before + before/2 + 384<<20; peak > bound {
		t.Errorf("the server took %d MB, at most %d are its due: all streams together are %d MB", peak>>20, bound>>20, streams*large)
	}
}

// streamed reads a watch up to the end of the state that it begins with, and counts
// its objects.
func streamed(ctx context.Context, url string) (added int, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	req.Header.Set("Authorization", "Bearer a")
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	r := bufio.NewReaderSize(resp.Body, 64<<10)
	begins := true
	for {
		part, err := r.ReadSlice('\n')
		if begins {
			switch {
			case bytes.HasPrefix(part, []byte(`{"type":"ADDED"`)):
				added++
			case bytes.Contains(part, []byte("k8s.io/initial-events-end")):
				return added, nil
			default:
				return added, fmt.Errorf("an event begins with %.100s", part)
			}
		}
		begins = err == nil
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return added, err
		}
	}
}
