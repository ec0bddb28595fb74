package images

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"proa/internal/kubelet/cri"
)

// shelf is a runtime with images and containers.
type shelf struct {
	runtimeapi.RuntimeServiceClient
	runtimeapi.ImageServiceClient
	images  []*runtimeapi.Image
	running []string // images of containers
}

func (s *shelf) ListImages(context.Context, *runtimeapi.ListImagesRequest, ...grpc.CallOption) (*runtimeapi.ListImagesResponse, error) {
	return &runtimeapi.ListImagesResponse{Images: slices.Clone(s.images)}, nil
}

func (s *shelf) ListContainers(context.Context, *runtimeapi.ListContainersRequest, ...grpc.CallOption) (*runtimeapi.ListContainersResponse, error) {
	out := &runtimeapi.ListContainersResponse{}
	for _, image := range s.running {
		out.Containers = append(out.Containers, &runtimeapi.Container{ImageRef: image, Image: &runtimeapi.ImageSpec{Image: image}})
	}
	return out, nil
}

func (s *shelf) RemoveImage(_ context.Context, r *runtimeapi.RemoveImageRequest, _ ...grpc.CallOption) (*runtimeapi.RemoveImageResponse, error) {
	s.images = slices.DeleteFunc(s.images, func(i *runtimeapi.Image) bool { return i.Id == r.Image.Image })
	return &runtimeapi.RemoveImageResponse{}, nil
}

func (s *shelf) put(id string, pinned bool) {
	s.images = append(s.images, &runtimeapi.Image{Id: id, RepoTags: []string{"docker.io/library/" + id + ":latest"}, Size: 1, Pinned: pinned})
}

func (s *shelf) left() string {
	var ids []string
	for _, i := range s.images {
		ids = append(ids, i.Id)
	}
	return strings.Join(ids, " ")
}

func TestUnusedImagesAreRemovedWhenRoomIsNeeded(t *testing.T) {
	s := &shelf{running: []string{"running"}}
	for _, id := range []string{"old", "running", "volume"} {
		s.put(id, false)
	}
	s.put("pinned", true)
	clk := clocktesting.NewFakeClock(time.Unix(1000, 0))
	g := &Collector{
		Runtime: &cri.Runtime{RuntimeServiceClient: s, Images: s}, Wanted: func() []string { return []string{"volume"} },
		Clock: clk, Log: slog.New(slog.DiscardHandler),
	}
	if _, err := g.detect(t.Context()); err != nil { // as Run does when it starts
		t.Fatal(err)
	}
	s.put("fresh", false)
	for _, step := range []struct {
		name  string
		after time.Duration
		want  string
	}{
		{"what was there before the agent goes, what has just come stays", 0, "running volume pinned fresh"},
		{"for two minutes", 119 * time.Second, "running volume pinned fresh"},
		{"and no longer", time.Second, "running volume pinned"},
	} {
		clk.Step(step.after)
		if err := g.RemoveUnused(t.Context()); err != nil || s.left() != step.want {
			t.Errorf("%s: %q left, want %q (%v)", step.name, s.left(), step.want, err)
		}
	}
	s.running, g.Wanted = nil, nil
	if err := g.RemoveUnused(t.Context()); err != nil || s.left() != "pinned" {
		t.Errorf("after all have ended: %q left (%v)", s.left(), err)
	}
}
