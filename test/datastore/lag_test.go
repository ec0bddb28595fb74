package datastore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// slowWatch stands before an etcd. It passes everything on, but what watches are told,
// or all that is answered, only while it is open.
type slowWatch struct {
	url  string
	etcd *grpc.ClientConn
	all  bool // holds more than watches

	mu   sync.Mutex // guards open
	open chan struct{}
}

func startSlowWatch(t *testing.T, e *etcd) *slowWatch {
	t.Helper()
	conn, err := grpc.NewClient(strings.TrimPrefix(e.url, "http://"), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(asItIs{})))
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &slowWatch{url: "http://" + l.Addr().String(), etcd: conn, open: make(chan struct{})}
	p.release()
	server := grpc.NewServer(grpc.ForceServerCodec(asItIs{}), grpc.UnknownServiceHandler(p.pass))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
		conn.Close()
	})
	return p
}

func (p *slowWatch) release() { close(p.gate()) }

func (p *slowWatch) hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open = make(chan struct{})
}

func (p *slowWatch) gate() chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open
}

// message is one of gRPC's, whatever it says.
type message struct{ data []byte }

// asItIs is a codec that does not look into messages.
type asItIs struct{}

func (asItIs) Name() string { return "proto" }

func (asItIs) Marshal(v any) ([]byte, error) { return v.(*message).data, nil }

func (asItIs) Unmarshal(data []byte, v any) error {
	v.(*message).data = data
	return nil
}

// pass passes on one call.
func (p *slowWatch) pass(_ any, in grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(in)
	head, _ := metadata.FromIncomingContext(in.Context())
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(in.Context(), head))
	defer cancel()
	out, err := p.etcd.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return err
	}
	go func() { // ends with the call
		for {
			var m message
			if in.RecvMsg(&m) != nil || out.SendMsg(&m) != nil {
				_ = out.CloseSend()
				return
			}
		}
	}()
	for {
		var m message
		if err := out.RecvMsg(&m); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if p.all || strings.HasSuffix(method, "/Watch") {
			select {
			case <-p.gate():
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if err := in.SendMsg(&m); err != nil {
			return err
		}
	}
}

func TestReadsAreNewWhileTheWatchOfEtcdLags(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	slow := startSlowWatch(t, e)
	writer := startServer(t, "", "--etcd-servers", e.url)
	reader := startServer(t, writer.dir, "--etcd-servers", slow.url)
	labelled := func(name, text, app string) *unstructured.Unstructured {
		u := configMap(name, text)
		u.SetLabels(map[string]string{"app": app})
		return u
	}
	for _, name := range []string{"lag-a", "lag-b", "lag-c"} {
		if _, err := writer.configMaps().Create(t.Context(), labelled(name, "old", "x"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	old, err := reader.configMaps().List(t.Context(), metav1.ListOptions{LabelSelector: "app=x"})
	if err != nil || len(old.Items) != 3 {
		t.Fatalf("before: %v, %v", old, err)
	}

	slow.hold()
	defer slow.release()
	changed, err := writer.configMaps().Update(t.Context(), labelled("lag-a", "new", "x"), metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := writer.configMaps().Delete(t.Context(), "lag-b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, app := range []string{"x", "y"} {
		if _, err := writer.configMaps().Create(t.Context(), labelled("lag-d-"+app, "new", app), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}

	var reads sync.WaitGroup
	reads.Go(func() {
		list, err := reader.configMaps().List(t.Context(), metav1.ListOptions{LabelSelector: "app=x"})
		if err != nil {
			t.Error(err)
			return
		}
		if got, want := texts(list), []string{"lag-a new", "lag-c old", "lag-d-x new"}; !slices.Equal(got, want) {
			t.Errorf("the list shows %v, want %v", got, want)
		}
	})
	reads.Go(func() {
		var got []string
		opts := metav1.ListOptions{LabelSelector: "app=x", Limit: 1}
		for {
			list, err := reader.configMaps().List(t.Context(), opts)
			if err != nil {
				t.Error(err)
				return
			}
			got = append(got, texts(list)...)
			if opts.Continue = list.GetContinue(); opts.Continue == "" {
				break
			}
		}
		if want := []string{"lag-a new", "lag-c old", "lag-d-x new"}; !slices.Equal(got, want) {
			t.Errorf("the pages show %v, want %v", got, want)
		}
	})
	reads.Go(func() {
		u, err := reader.configMaps().Get(t.Context(), "lag-a", metav1.GetOptions{})
		if err != nil || u.GetResourceVersion() != changed.GetResourceVersion() {
			t.Errorf("a get shows %v, %v, want resourceVersion %s", u, err, changed.GetResourceVersion())
		}
	})
	reads.Go(func() { // old state is still to be had at once
		list, err := reader.configMaps().List(t.Context(), metav1.ListOptions{LabelSelector: "app=x", ResourceVersion: "0"})
		if err != nil || list.GetResourceVersion() == "" || len(list.Items) != 3 || texts(list)[0] != "lag-a old" {
			t.Errorf("a list of any state shows %v, %v", list, err)
		}
	})
	reads.Wait()
	for _, want := range []string{
		`{fallback="true",group="",resource="configmaps",success="true"} `, // of both lists: a second page is none
	} {
		if got := reader.metric(t, "apiserver_watch_cache_consistent_read_total"+want); got < 2 {
			t.Errorf("%s counts %v", want, got)
		}
	}
	if got := reader.metric(t, `apiserver_watch_cache_consistent_read_total{fallback="false",group="",resource="configmaps",success="true"} `); got < 1 {
		t.Errorf("lists from memory: %v", got)
	}
}

// While what etcd holds is read, nobody hangs: all are told to come again.
func TestClientsOfAServerThatReadsItsEtcdComeAgain(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	first := startServer(t, "", "--etcd-servers", e.url)
	if _, err := first.configMaps().Create(t.Context(), configMap("there", "1"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	slow := startSlowWatch(t, e)
	slow.all = true
	slow.hold()
	released := sync.OnceFunc(slow.release)
	defer released()
	s := prepareServer(t, first.dir, "--etcd-servers", slow.url)
	ask := func(path string) (int, string) {
		var code int
		var again string
		eventually(t, "the port is open", func(ctx context.Context) error {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://127.0.0.1:"+s.port+path, nil)
			if err != nil {
				return err
			}
			answer, err := first.http.Do(req)
			if err != nil {
				return err
			}
			defer answer.Body.Close()
			code, again = answer.StatusCode, answer.Header.Get("Retry-After")
			return nil
		})
		return code, again
	}
	for path, want := range map[string]int{
		"/livez": http.StatusOK, "/readyz": http.StatusInternalServerError,
		"/api/v1/namespaces/default/configmaps":              http.StatusTooManyRequests,
		"/api/v1/namespaces/default/configmaps?watch=true":   http.StatusTooManyRequests,
		"/api/v1/namespaces/default/configmaps?limit=1":      http.StatusTooManyRequests,
		"/api/v1/namespaces/default/configmaps/there":        http.StatusTooManyRequests,
		"/apis/apps/v1/deployments?labelSelector=app%3Dnone": http.StatusTooManyRequests,
	} {
		code, again := ask(path)
		if code != want || want == http.StatusTooManyRequests && again != "1" {
			t.Errorf("%s: %d, Retry-After %q, want %d", path, code, again, want)
		}
	}
	released()
	if _, err := s.waitReady(t).configMaps().Get(t.Context(), "there", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

// texts are the names and the texts of ConfigMaps.
func texts(list *unstructured.UnstructuredList) []string {
	all := make([]string, len(list.Items))
	for i, u := range list.Items {
		text, _, _ := unstructured.NestedString(u.Object, "data", "text")
		all[i] = u.GetName() + " " + text
	}
	return all
}

// metric reads the series of /metrics that begins with a text, 0 for none.
func (s *server) metric(t *testing.T, series string) (value float64) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.config.Host+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := s.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(body)) {
		if rest, ok := strings.CutPrefix(line, series); ok {
			if _, err := fmt.Sscan(rest, &value); err != nil {
				t.Fatal(err)
			}
		}
	}
	return value
}
