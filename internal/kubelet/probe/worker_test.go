package probe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"proa/internal/kubelet/cri"
)

// bench is a manager whose exec probes answer from a script: one letter per
// probe, p pass, f fail, e error; the last letter repeats.
type bench struct {
	*Manager
	events *record.FakeRecorder
	asked  []time.Duration // since the start
	woken  int
}

func newBench(script string) *bench {
	b := &bench{events: record.NewFakeRecorder(100)}
	start := time.Now()
	b.Manager = New(Config{
		Recorder: b.events, Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler), HostIP: func() string { return "127.0.0.1" },
		Changed: func(types.UID) { b.woken++ },
		Exec: func(_ context.Context, _ string, cmd []string, _ time.Duration) ([]byte, int32, error) {
			if cmd[0] == "startup" {
				return nil, 0, nil
			}
			b.asked = append(b.asked, time.Since(start))
			c := script[0]
			if len(script) > 1 {
				script = script[1:]
			}
			switch c {
			case 'p':
				return nil, 0, nil
			case 'e':
				return nil, 0, errors.New("broken")
			}
			return []byte("no"), 1, nil
		},
	})
	return b
}

func execProbe(cmd string, initial, success, failure int32) *corev1.Probe {
	return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{cmd}}},
		InitialDelaySeconds: initial, PeriodSeconds: 10, SuccessThreshold: success, FailureThreshold: failure}
}

func runningPod(c corev1.Container) (*corev1.Pod, *cri.Pod) {
	c.Name = "c"
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{c}}}
	pod.UID = "u"
	return pod, &cri.Pod{Containers: []*cri.Container{{ID: "id", Name: "c", State: runtimeapi.ContainerState_CONTAINER_RUNNING, Started: time.Now()}}}
}

func TestThresholds(t *testing.T) {
	tests := []struct {
		name             string
		kind             Kind
		script           string
		initial          int32
		success, failure int32
		after            time.Duration
		want             Result
		asked            int
	}{
		{"one success makes ready", Readiness, "p", 0, 1, 3, time.Second, Success, 1},
		{"nothing is asked before the initial delay", Readiness, "p", 30, 1, 3, 29 * time.Second, Unknown, 0},
		{"and at once after it", Readiness, "p", 30, 1, 3, 31 * time.Second, Success, 1},
		{"failures below the threshold leave it undecided", Liveness, "f", 0, 1, 3, 15 * time.Second, Unknown, 2},
		{"the third failure decides and ends a liveness probe", Liveness, "f", 0, 1, 3, 100 * time.Second, Failure, 3},
		{"a success in between starts the count again", Liveness, "ffpffp", 0, 1, 3, 95 * time.Second, Success, 10},
		{"readiness goes on after failing", Readiness, "fp", 0, 1, 1, 15 * time.Second, Success, 2},
		{"several successes may be needed", Readiness, "p", 0, 3, 1, 15 * time.Second, Unknown, 2},
		{"an error is tried three times before it counts", Liveness, "eep", 0, 1, 1, time.Second, Success, 3},
		{"and then counts as a failure", Liveness, "e", 0, 1, 1, time.Second, Failure, 3},
		{"a startup probe ends with success", Startup, "fp", 0, 1, 30, 100 * time.Second, Success, 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(tt.script)
				ctx, cancel := context.WithCancel(t.Context())
				go b.Run(ctx)
				p := execProbe("x", tt.initial, tt.success, tt.failure)
				c := corev1.Container{}
				switch tt.kind {
				case Liveness:
					c.LivenessProbe = p
				case Readiness:
					c.ReadinessProbe = p
				case Startup:
					c.StartupProbe = p
				}
				b.Sync(runningPod(c))
				time.Sleep(tt.after)
				synctest.Wait()
				got, has := b.Result(tt.kind, "id")
				if !has || got != tt.want || len(b.asked) != tt.asked {
					t.Errorf("result %v (%v) after %v, want %v after %d probes", got, has, b.asked, tt.want, tt.asked)
				}
				cancel()
				synctest.Wait()
			})
		})
	}
}

func TestReadinessFollowsStartupAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench("p")
		ctx, cancel := context.WithCancel(t.Context())
		go b.Run(ctx)
		startup := execProbe("startup", 5, 1, 1)
		b.Sync(runningPod(corev1.Container{StartupProbe: startup, ReadinessProbe: execProbe("x", 0, 1, 1)}))
		time.Sleep(5*time.Second + time.Millisecond)
		synctest.Wait()
		if r, _ := b.Result(Readiness, "id"); r != Success {
			t.Errorf("readiness %v, asked at %v", r, b.asked)
		}
		cancel()
		synctest.Wait()
	})
}

func TestSyncEndsTheProbesOfEndedContainers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench("p")
		ctx, cancel := context.WithCancel(t.Context())
		go b.Run(ctx)
		pod, rt := runningPod(corev1.Container{ReadinessProbe: execProbe("x", 0, 1, 1), LivenessProbe: execProbe("x", 0, 1, 1)})
		b.Sync(pod, rt)
		synctest.Wait()
		deleted := pod.DeepCopy()
		deleted.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		b.Sync(deleted, rt)
		if _, has := b.Result(Liveness, "id"); has {
			t.Error("liveness outlives the pod's deletion")
		}
		if _, has := b.Result(Readiness, "id"); !has {
			t.Error("readiness ended with the pod's deletion")
		}
		b.Sync(pod, &cri.Pod{})
		if _, has := b.Result(Readiness, "id"); has {
			t.Error("readiness outlives its container")
		}
		cancel()
		synctest.Wait()
	})
}

func TestHTTP(t *testing.T) {
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/ok":
			if r.UserAgent() != userAgent || r.Header.Get("X") != "y" || r.Host != "named" {
				w.WriteHeader(http.StatusBadRequest)
			}
		case "/away":
			http.Redirect(w, r, "http://elsewhere.invalid/", http.StatusFound)
		case "/near":
			http.Redirect(w, r, "/missing", http.StatusFound)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer srv.Close()
	port := srv.Listener.Addr().(*net.TCPAddr).Port
	for path, want := range map[string]string{
		"ok":     "Success ",
		"/away":  "Warning Probe terminated redirects, Response body: ",
		"/near":  "Failure HTTP probe failed with statuscode: 404",
		"/other": "Failure HTTP probe failed with statuscode: 404",
	} {
		a := &corev1.HTTPGetAction{Path: path, Port: intstr.FromString("web"), Scheme: corev1.URISchemeHTTPS,
			HTTPHeaders: []corev1.HTTPHeader{{Name: "X", Value: "y"}, {Name: "Host", Value: "named"}}}
		spec := &corev1.Container{Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: int32(port)}}}
		o, out, err := askHTTP(t.Context(), target{spec: spec, host: "127.0.0.1"}, a, time.Minute)
		if got := fmt.Sprintf("%s %s", o, out); err != nil || !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q %v, want %q", path, got, err, want)
		}
	}
}

func TestGRPC(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv, h := grpc.NewServer(), health.NewServer()
	h.SetServingStatus("down", healthpb.HealthCheckResponse_NOT_SERVING)
	healthpb.RegisterHealthServer(srv, h)
	go srv.Serve(l)
	defer srv.Stop()
	for service, want := range map[string]string{
		"":        "Success ",
		"down":    `Failure service unhealthy (responded with "NOT_SERVING")`,
		"unknown": "Failure error: health rpc failed: ",
	} {
		o, out, err := askGRPC(t.Context(), l.Addr().String(), service, time.Minute)
		if got := fmt.Sprintf("%s %s", o, out); err != nil || !strings.HasPrefix(got, want) {
			t.Errorf("%q: %q %v, want %q", service, got, err, want)
		}
	}
}

func TestTCPAndExec(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port, _ := strconv.Atoi(l.Addr().String()[strings.LastIndex(l.Addr().String(), ":")+1:])
	if o, _, _ := askTCP(t.Context(), "127.0.0.1", port, time.Minute); o != pass {
		t.Errorf("open port: %s", o)
	}
	l.Close()
	if o, out, _ := askTCP(t.Context(), "127.0.0.1", port, time.Minute); o != fail || !strings.Contains(out, "connection refused") {
		t.Errorf("closed port: %s %s", o, out)
	}
	slow := func(context.Context, string, []string, time.Duration) ([]byte, int32, error) {
		return nil, 0, grpcstatus.Error(codes.DeadlineExceeded, "late")
	}
	if o, out, err := askExec(t.Context(), slow, "id", []string{"a", "b"}, time.Second); o != fail || err != nil || out != `command timed out: "a b" timed out after 1s` {
		t.Errorf("slow command: %s %q %v", o, out, err)
	}
}
