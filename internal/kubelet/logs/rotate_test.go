package logs

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	clocktesting "k8s.io/utils/clock/testing"
)

// oneContainer is a runtime that writes one log.
type oneContainer struct {
	path string
	err  error
}

func (o *oneContainer) ListContainers(context.Context, *runtimeapi.ListContainersRequest, ...grpc.CallOption) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{Containers: []*runtimeapi.Container{{Id: "c"}}}, nil
}

func (o *oneContainer) ContainerStatus(context.Context, *runtimeapi.ContainerStatusRequest, ...grpc.CallOption) (*runtimeapi.ContainerStatusResponse, error) {
	return &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{LogPath: o.path}}, nil
}

func (o *oneContainer) ReopenContainerLog(context.Context, *runtimeapi.ReopenContainerLogRequest, ...grpc.CallOption) (*runtimeapi.ReopenContainerLogResponse, error) {
	if o.err != nil {
		return nil, o.err
	}
	return nil, os.WriteFile(o.path, []byte("new"), 0o600)
}

func TestRotate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	clk := clocktesting.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	runtime := &oneContainer{path: path}
	r := NewRotator(RotatorConfig{Runtime: runtime, MaxSize: 4, MaxFiles: 3, Clock: clk})
	for range 5 {
		add(t, path, "long enough")
		if err := r.pass(t.Context()); err != nil {
			t.Fatal(err)
		}
		clk.Step(time.Minute)
	}
	files, err := filepath.Glob(path + "*")
	if err != nil {
		t.Fatal(err)
	}
	for i := range files {
		files[i] = strings.TrimPrefix(files[i], path)
	}
	if got := strings.Join(files, " "); got != " .20260101-000300.gz .20260101-000400" {
		t.Errorf("files %q", got)
	}
	if err := r.pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	if data, _ := os.ReadFile(path); string(data) != "new" {
		t.Errorf("a small log was rotated: %q", data)
	}
	if err := Remove(path); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(path + "*"); len(left) != 0 {
		t.Errorf("left %v", left)
	}
}

func TestRotateGivesTheNameBackWhenTheRuntimeFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	add(t, path, "long enough")
	r := NewRotator(RotatorConfig{Runtime: &oneContainer{path: path, err: errors.New("no")}, MaxSize: 4})
	if err := r.pass(t.Context()); err == nil {
		t.Error("no error")
	}
	if data, _ := os.ReadFile(path); string(data) != "long enough" {
		t.Errorf("got %q", data)
	}
}
