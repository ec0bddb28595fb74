// Package images loads, lists and removes the images of a node's containerd. Listing and
// removing go through CRI, so they work with any runtime; loading uses containerd's transfer
// service, as CRI has no call for it.
package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ErrNotFound is returned for an image that the node does not have.
var ErrNotFound = errors.New("image not found")

// Image is one image of the node.
type Image struct {
	ID      string   // digest of the configuration
	Names   []string // references with tags, sorted
	Digests []string // references with digests, sorted
	Size    uint64   // bytes of compressed content, as CRI counts it
	Pinned  bool     // never collected as garbage
}

// Store is a connection to the images of a node.
type Store struct {
	conn *grpc.ClientConn
	cri  runtimeapi.ImageServiceClient
}

// Dial prepares a connection to the runtime at endpoint (a unix:// URL). It is made on first
// use; calls fail while nothing listens there.
func Dial(endpoint string) (*Store, error) {
	conn, err := grpc.NewClient(endpoint,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1.6, MaxDelay: time.Second},
			MinConnectTimeout: 5 * time.Second,
		}))
	if err != nil {
		return nil, fmt.Errorf("container runtime at %s: %w", endpoint, err)
	}
	return &Store{conn: conn, cri: runtimeapi.NewImageServiceClient(conn)}, nil
}

// Close ends the connection.
func (s *Store) Close() error { return s.conn.Close() }

// List returns all images in order of name.
func (s *Store) List(ctx context.Context) ([]Image, error) {
	reply, err := s.cri.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	all := make([]Image, 0, len(reply.Images))
	for _, i := range reply.Images {
		all = append(all, imageOf(i))
	}
	slices.SortFunc(all, func(a, b Image) int {
		return cmp.Or(slices.Compare(a.Names, b.Names), cmp.Compare(a.ID, b.ID))
	})
	return all, nil
}

// Get returns the image that ref (a name, short or full, a digest or an ID) means.
func (s *Store) Get(ctx context.Context, ref string) (Image, error) {
	reply, err := s.cri.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
	if err != nil {
		return Image{}, fmt.Errorf("look up image %s: %w", ref, err)
	}
	if reply.Image == nil {
		return Image{}, fmt.Errorf("%s: %w", ref, ErrNotFound)
	}
	return imageOf(reply.Image), nil
}

// Remove removes the image that ref means, with all its names. Its content goes with the next
// garbage collection, and not before the containers that use it.
func (s *Store) Remove(ctx context.Context, ref string) error {
	image, err := s.Get(ctx, ref)
	if err != nil {
		return err
	}
	if image.Pinned {
		return fmt.Errorf("remove image %s: the node itself needs it", ref)
	}
	if _, err := s.cri.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: image.ID}}); err != nil {
		return fmt.Errorf("remove image %s: %w", ref, err)
	}
	return nil
}

func imageOf(i *runtimeapi.Image) Image {
	return Image{
		ID:      i.Id,
		Names:   slices.Sorted(slices.Values(i.RepoTags)),
		Digests: slices.Sorted(slices.Values(i.RepoDigests)),
		Size:    i.Size,
		Pinned:  i.Pinned,
	}
}
