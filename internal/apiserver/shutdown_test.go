package apiserver

import (
	"bufio"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
)

// ends tells the server to stop, and returns what waits until it has.
func (w *world) ends() (wait func()) {
	done := make(chan struct{})
	go func() { w.shutdown(); close(done) }()
	return func() { <-done }
}

// First /readyz tells load balancers, then, after the delay, watches end and new
// requests are sent elsewhere, and what is in flight is answered.
func TestAServerEndsInOrder(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	g := gate{make(chan struct{}), make(chan struct{})}
	w := newWorld(t, func(c *Config) {
		c.Clock, c.ShutdownDelay, c.ShutdownRetryAfter = clock, time.Minute, true
		c.Authorizer = authorizer.AuthorizerFunc(g.authorize)
	})
	w.namespace("default")
	w.configMap("a")
	resp, end := w.open("/api/v1/configmaps?watch=1&resourceVersion=1&allowWatchBookmarks=true", "application/json")
	defer end()
	events := bufio.NewScanner(resp.Body)
	events.Scan() // the watch has begun
	inFlight := make(chan int)
	go func() {
		resp, _ := w.do("GET", "/version", "")
		inFlight <- resp.StatusCode
	}()
	<-g.entered

	gone := w.ends()
	w.until("/readyz fails", func() bool {
		resp, body := w.do("GET", "/readyz", "")
		return resp.StatusCode == http.StatusInternalServerError && strings.Contains(body, "[-]shutdown failed")
	})
	if resp, _ := w.do("GET", "/livez", ""); resp.StatusCode != http.StatusOK {
		t.Errorf("/livez: %d", resp.StatusCode)
	}
	w.configMap("b") // as before
	if !events.Scan() || !strings.Contains(events.Text(), `"name":"b"`) {
		t.Errorf("a watch during the delay: %s", events.Text())
	}

	w.until("the delay has begun", clock.HasWaiters)
	clock.Step(time.Minute)
	if !events.Scan() || !strings.Contains(events.Text(), `"BOOKMARK"`) || events.Scan() {
		t.Errorf("a watch ends with %s", events.Text())
	}
	w.until("new requests are refused", func() bool {
		resp, body := w.do("GET", "/api/v1/configmaps", "")
		return resp.StatusCode == http.StatusTooManyRequests && resp.Header.Get("Retry-After") == "5" &&
			body == "The apiserver is shutting down, please try again later.\n"
	})
	if resp, _ := w.do("GET", "/livez", ""); resp.StatusCode != http.StatusOK {
		t.Errorf("/livez: %d", resp.StatusCode)
	}
	g.leave <- struct{}{}
	if code := <-inFlight; code != http.StatusOK {
		t.Errorf("the request in flight gets %d", code)
	}
	gone()
}

// Without the flag the port is closed at once, and what is in flight is answered all
// the same.
func TestWhatIsInFlightIsAnswered(t *testing.T) {
	g := gate{make(chan struct{}), make(chan struct{})}
	w := newWorld(t, func(c *Config) { c.Authorizer = authorizer.AuthorizerFunc(g.authorize) })
	inFlight := make(chan int)
	go func() {
		resp, _ := w.do("GET", "/version", "")
		inFlight <- resp.StatusCode
	}()
	<-g.entered
	gone := w.ends()
	w.until("the port is closed", func() bool {
		config := rest.CopyConfig(w.config)
		config.Timeout = 5 * time.Second
		config.UserAgent = "another connection"
		transport, err := rest.TLSConfigFor(config)
		if err != nil {
			t.Fatal(err)
		}
		client := http.Client{Transport: &http.Transport{TLSClientConfig: transport, DisableKeepAlives: true}}
		resp, err := client.Get(config.Host + "/healthz")
		if err == nil {
			resp.Body.Close()
		}
		return err != nil
	})
	g.leave <- struct{}{}
	if code := <-inFlight; code != http.StatusOK {
		t.Errorf("the request in flight gets %d", code)
	}
	gone()
}

func TestSomeClientsConnectAnew(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.GoawayChance = 1 })
	client, err := rest.HTTPClientFor(w.config)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 { // each over a connection of its own: none fails
		resp, err := client.Get(w.config.Host + "/healthz")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK || resp.ProtoMajor != 2 {
			t.Errorf("%s %d", resp.Proto, resp.StatusCode)
		}
	}
}

// With a grace period the watches end one after the other, so that their clients do
// not all come back at once.
func TestWatchesEndOneAfterTheOther(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	w := newWorld(t, func(c *Config) { c.Clock, c.ShutdownWatchGrace = clock, time.Minute })
	ended := make(chan struct{}, 3)
	for range cap(ended) {
		resp, end := w.open("/api/v1/configmaps?watch=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan", "application/json")
		defer end()
		events := bufio.NewScanner(resp.Body)
		for events.Scan() && !strings.Contains(events.Text(), "initial-events-end") {
		}
		go func() {
			for events.Scan() {
			}
			ended <- struct{}{}
		}()
	}
	gone := w.ends()
	for left := cap(ended); left > 0; left-- {
		w.until("the others wait", func() bool { return clock.Waiters() == left })
		if len(ended) > 0 {
			t.Error("a watch has ended before its turn")
		}
		clock.Step(time.Second / leastEnds)
		<-ended
	}
	gone()
}
