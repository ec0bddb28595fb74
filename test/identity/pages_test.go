package identity

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// daemon is one of upstream's programs, beside a server.
type daemon struct {
	url string
	log string
}

// startDaemon runs the binary under another name against a server, until the test ends.
func startDaemon(t *testing.T, s *server, name string, flags ...string) *daemon {
	t.Helper()
	dir, port := t.TempDir(), freePort(t)
	d := &daemon{url: fmt.Sprintf("https://127.0.0.1:%d", port), log: filepath.Join(dir, "log")}
	program, err := filepath.Abs(binary)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(program, filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
	out, err := os.Create(d.log)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd := exec.Command(filepath.Join(dir, name), append([]string{
		"--kubeconfig", filepath.Join(s.dir, "kubeconfig"), "--bind-address=127.0.0.1", "--secure-port", fmt.Sprint(port), "--cert-dir", dir,
	}, flags...)...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
		if t.Failed() {
			text, _ := os.ReadFile(d.log)
			t.Logf("%s:\n%s", name, text[max(0, len(text)-3000):])
		}
	})
	eventually(t, func() error {
		if code, text, _ := ask(t, http.MethodGet, d.url+"/healthz", "", "", ""); code != http.StatusOK {
			return fmt.Errorf("%d %s", code, text)
		}
		return nil
	})
	return d
}

// ask makes one request; code 0 says that nobody has answered.
func ask(t *testing.T, method, url, token, accept, body string) (code int, text string, header http.Header) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return 0, err.Error(), nil
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error(), nil
	}
	return resp.StatusCode, string(out), resp.Header
}

const pageTokens = "m,monitor,1,\"system:monitoring\"\nj,jane,2,\"readers\"\na,anna,3,\"system:masters\"\n"

// pages starts a server and what may stand beside it, and returns their addresses by
// the names that they give themselves.
func pages(t *testing.T, flags ...string) (s *server, all map[string]*daemon) {
	t.Helper()
	s = start(t, append([]string{"--token-auth-file", file(t, "tokens.csv", pageTokens)}, flags...)...)
	return s, map[string]*daemon{
		"apiserver":               {url: fmt.Sprintf("https://127.0.0.1:%d", s.port), log: filepath.Join(s.dir, "logs", "proa.log")},
		"kube-scheduler":          startDaemon(t, s, "kube-scheduler", append([]string{"--leader-elect-resource-name=spare", "--v=3"}, flags...)...),
		"kube-controller-manager": startDaemon(t, s, "kube-controller-manager", append([]string{"--controllers=ttl", "--leader-elect-resource-name=idle", "--v=3", "--logging-format=json"}, flags...)...),
	}
}

func TestComponentsTellWhatTheyAre(t *testing.T) {
	t.Parallel()
	s, all := pages(t, "--allow-metric-labels", "rest_client_requests_total,method=GET")
	for name, d := range all {
		for token, want := range map[string]int{"m": http.StatusOK, "j": http.StatusForbidden} {
			if code, text, _ := ask(t, http.MethodGet, d.url+"/statusz", token, "", ""); code != want {
				t.Errorf("%s: /statusz with token %s gives %d %s", name, token, code, text)
			}
		}
		code, text, header := ask(t, http.MethodGet, d.url+"/statusz", "m", "", "")
		if code != http.StatusOK || header.Get("Content-Type") != "text/plain; charset=utf-8" {
			t.Errorf("%s: %d %v", name, code, header)
		}
		for _, part := range []string{"\n" + name + " statusz\n", "\nStarted: ", "\nUp: 0 hr 0", "\nGo version: go", "\nBinary version: 1.37.", "\nEmulation version: 1.37\n", "/metrics"} {
			if !strings.Contains(text, part) {
				t.Errorf("%s: no %q in %s", name, part, text)
			}
		}
		const statusz = "application/json;as=Statusz;v=v1beta1;g=config.k8s.io"
		var object struct {
			Kind     string
			Metadata struct{ Name string }
			Paths    []string
		}
		_, text, _ = ask(t, http.MethodGet, d.url+"/statusz", "m", statusz, "")
		if err := json.Unmarshal([]byte(text), &object); err != nil || object.Kind != "Statusz" || object.Metadata.Name != name || len(object.Paths) == 0 {
			t.Errorf("%s: %s, %v", name, text, err)
		}
		for _, page := range []string{"/statusz", "/flagz"} {
			if code, _, _ := ask(t, http.MethodGet, d.url+page, "m", "application/json", ""); code != http.StatusNotAcceptable {
				t.Errorf("%s: %s as plain JSON gives %d", name, page, code)
			}
		}
		_, text, _ = ask(t, http.MethodGet, d.url+"/flagz", "m", "", "")
		if name != "apiserver" && (!strings.Contains(text, "\nv=3\n") || !strings.Contains(text, "\nbind-address=127.0.0.1\n")) {
			t.Errorf("%s: %s", name, text)
		}
		ask(t, http.MethodGet, d.url+"/livez", "a", "", "")
		_, text, _ = ask(t, http.MethodGet, d.url+"/metrics/slis", "m", "", "")
		for _, line := range []string{`kubernetes_healthcheck{name="ping",type="livez"} 1`, `kubernetes_healthchecks_total{name="ping",status="success",type="livez"} `} {
			if !strings.Contains(text, line) {
				t.Errorf("%s: no %s in %s", name, line, text)
			}
		}
	}

	// What is not listed is unexpected, in every component.
	if _, err := s.admin(t).CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"kube-scheduler", "kube-controller-manager"} {
		_, text, _ := ask(t, http.MethodGet, all[name].url+"/metrics", "m", "", "")
		if !strings.Contains(text, `method="GET"`) || !strings.Contains(text, `method="unexpected"`) || strings.Contains(text, `rest_client_requests_total{code="201",host="127.0.0.1`+`",method="POST"`) {
			t.Errorf("%s shows other methods than GET:\n%s", name, lines(text, "rest_client_requests_total"))
		}
		if got := lines(text, "cardinality_enforcement_unexpected_categorizations_total"); got == "" || strings.HasSuffix(got, " 0\n") {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestMetricLabelsAreLimited(t *testing.T) {
	t.Parallel()
	manifest := file(t, "labels.yaml", "allowListMapping:\n  \"apiserver_request_total,verb\": \"GET\"\n")
	for name, flags := range map[string][]string{
		"by a flag": {"--allow-metric-labels", "apiserver_request_total,verb=GET"},
		"by a file": {"--allow-metric-labels-manifest", manifest},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, flags...)
			if _, err := s.admin(t).CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			all := s.metrics(t, "apiserver_request_total")
			for _, verb := range []string{"POST", "LIST", "PUT"} {
				if strings.Contains(all, `verb="`+verb+`"`) {
					t.Errorf("%s is shown", verb)
				}
			}
			unexpected := lines(all, "apiserver_request_total{code=\"201\"")
			if !strings.Contains(all, `verb="GET"`) || !strings.Contains(unexpected, `resource="configmaps"`) || !strings.Contains(unexpected, `verb="unexpected"`) {
				t.Errorf("%s", all)
			}
			if got := s.metrics(t, "cardinality_enforcement_unexpected_categorizations_total "); got == "" || strings.HasSuffix(got, " 0\n") {
				t.Errorf("%q", got)
			}
		})
	}
}

// lines are those of a text that begin with a prefix.
func lines(text, prefix string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, prefix) {
			out.WriteString(line)
		}
	}
	return out.String()
}

func TestTheLogLevelIsChangedWhileComponentsRun(t *testing.T) {
	t.Parallel()
	_, all := pages(t)
	for name, d := range all {
		url := d.url + "/debug/flags/v"
		for _, tt := range []struct {
			token, method, body string
			code                int
			want                string
		}{
			{"", http.MethodPut, "5", 0, ""}, // 401, or 403 where strangers have a name
			{"j", http.MethodPut, "5", http.StatusForbidden, ""},
			{"a", http.MethodGet, "", http.StatusNotAcceptable, "unsupported http method"},
			{"a", http.MethodPut, "loud", http.StatusBadRequest, "invalid syntax"},
			{"a", http.MethodPut, "9", http.StatusOK, "successfully set klog.logging.verbosity to 9"},
		} {
			code, text, _ := ask(t, tt.method, url, tt.token, "", tt.body)
			if tt.code != 0 && code != tt.code || tt.code == 0 && code != http.StatusUnauthorized && code != http.StatusForbidden || !strings.Contains(text, tt.want) {
				t.Errorf("%s: %s %q with token %q gives %d %s, want %d %s", name, tt.method, tt.body, tt.token, code, text, tt.code, tt.want)
			}
		}
		if name == "apiserver" {
			continue // it asks nobody, and has nothing to tell of that
		}
		verbose := func() int {
			data, err := os.ReadFile(d.log)
			if err != nil {
				t.Fatal(err)
			}
			return bytes.Count(data, []byte("Response"))
		}
		eventually(t, func() error {
			if verbose() == 0 {
				return fmt.Errorf("%s logs nothing verbose", name)
			}
			return nil
		})
		if code, _, _ := ask(t, http.MethodPut, url, "a", "", "2"); code != http.StatusOK {
			t.Errorf("%s: back to 2: %d", name, code)
		}
		before := verbose()
		for range 5 { // each asks the API server about the token
			ask(t, http.MethodGet, d.url+"/statusz", "m", "", "")
		}
		if after := verbose(); after != before {
			t.Errorf("%s goes on: %d lines, then %d", name, before, after)
		}
	}
	data, err := os.ReadFile(all["kube-controller-manager"].log)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		var message struct {
			TS  float64
			V   int
			Msg string
		}
		if err := json.Unmarshal([]byte(line), &message); err != nil || message.TS == 0 || message.Msg == "" {
			t.Fatalf("no JSON as upstream's: %s, %v", line, err)
		}
	}
	s := start(t, "--token-auth-file", file(t, "tokens.csv", pageTokens))
	quiet := startDaemon(t, s, "kube-scheduler", "--profiling=false", "--leader-elect-resource-name=spare")
	if code, _, _ := ask(t, http.MethodPut, quiet.url+"/debug/flags/v", "a", "", "5"); code != http.StatusNotFound {
		t.Errorf("without profiling it answers %d", code)
	}
}
