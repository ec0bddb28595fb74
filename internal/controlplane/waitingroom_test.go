package controlplane

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"sync"
	"testing"

	"proa/internal/auth/pki"
)

// Whoever connects while the server starts is answered, by the waiting room or by the
// server that takes the port over.
func TestNobodyIsLostWhenTheServerTakesThePort(t *testing.T) {
	authority, err := pki.InMemory(nil)
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := authority.Server([]string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	secure := &tls.Config{Certificates: []tls.Certificate{pair}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	leave, empty := openWaitingRoom(l, secure, nil)
	const clients = 300
	some := make(chan struct{}, clients)
	var asking sync.WaitGroup
	codes := make([]int, clients)
	for i := range clients {
		asking.Go(func() {
			defer func() { some <- struct{}{} }()
			var err error
			if codes[i], err = askOnce(t.Context(), l.Addr().String()); err != nil {
				t.Error(err)
			}
		})
	}
	for range clients / 10 {
		<-some
	}
	leave()
	server := &http.Server{TLSConfig: secure, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "served") })}
	done := make(chan error, 1)
	go func() { done <- server.ServeTLS(l, "", "") }()
	asking.Wait()
	empty()
	server.Close()
	<-done
	early := 0
	for _, code := range codes {
		switch code {
		case http.StatusTooManyRequests:
			early++
		case http.StatusOK:
		default:
			t.Errorf("an answer of %d", code)
		}
	}
	if early < clients/10 {
		t.Errorf("%d clients were told to come again", early)
	}
}

func askOnce(ctx context.Context, address string) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/api/v1/pods", nil)
	if err != nil {
		return 0, err
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return 0, err
	}
	resp.Body.Close()
	if resp.StatusCode == http.StatusTooManyRequests && resp.Header.Get("Retry-After") != "1" {
		return 0, fmt.Errorf("Retry-After is %q", resp.Header.Get("Retry-After"))
	}
	return resp.StatusCode, nil
}
