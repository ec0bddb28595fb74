package images

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"time"

	streamingapi "github.com/containerd/containerd/api/services/streaming/v1"
	transferapi "github.com/containerd/containerd/api/services/transfer/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/api/types/transfer"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

const (
	// namespace is the one in containerd that CRI uses.
	namespace = "k8s.io"
	// unnamed is the repository of images whose archive gives them a tag but no name.
	unnamed = "localhost/loaded"
	// chunk is the size of the largest piece of an archive sent at once.
	chunk = 32 << 10
	// visible is how long containerd's CRI service may take to learn of a loaded image.
	visible = 10 * time.Second
)

// Load reads an archive (an OCI layout or what docker save writes, plain or compressed),
// unpacks the images in it that suit this machine, and returns their names, sorted.
func (s *Store) Load(ctx context.Context, archive io.Reader) ([]string, error) {
	names, err := s.transfer(ctx, archive)
	if err != nil {
		return nil, fmt.Errorf("load images: %w", err)
	}
	if len(names) == 0 {
		return nil, errors.New("load images: the archive names no image")
	}
	ctx, cancel := context.WithTimeout(ctx, visible)
	defer cancel()
	for _, name := range names {
		if err := s.awaitVisible(ctx, name); err != nil {
			return nil, fmt.Errorf("load images: %w", err)
		}
	}
	return names, nil
}

// transfer streams the archive into containerd and collects the names it reports.
func (s *Store) transfer(ctx context.Context, archive io.Reader) ([]string, error) {
	ctx, cancel := context.WithCancelCause(metadata.AppendToOutgoingContext(ctx, "containerd-namespace", namespace))
	defer cancel(nil)
	upload, err := s.open(ctx, "import")
	if err != nil {
		return nil, err
	}
	progress, err := s.open(ctx, "progress")
	if err != nil {
		return nil, err
	}
	request, err := importRequest(upload.id, progress.id)
	if err != nil {
		return nil, err
	}
	sent, saved := make(chan error, 1), make(chan []string, 1)
	go func() {
		err := upload.send(ctx, archive)
		if err != nil {
			cancel(err)
		}
		sent <- err
	}()
	go func() { saved <- progress.saved() }()

	_, err = transferapi.NewTransferClient(s.conn).Transfer(ctx, request)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause // why the archive could not be read, rather than that the call was cancelled
	}
	if err != nil {
		cancel(err)
	}
	names := <-saved
	cancel(nil) // containerd may be content before the archive's end
	<-sent
	if err != nil {
		return nil, err
	}
	return names, nil
}

func importRequest(upload, progress string) (*transferapi.TransferRequest, error) {
	source, err := pack(&transfer.ImageImportStream{Stream: upload})
	if err != nil {
		return nil, err
	}
	platform := &types.Platform{OS: "linux", Architecture: runtime.GOARCH}
	destination, err := pack(&transfer.ImageStore{
		ExtraReferences: []*transfer.ImageReference{{Name: unnamed, IsPrefix: true, AllowOverwrite: true}},
		Platforms:       []*types.Platform{platform},
		Unpacks:         []*transfer.UnpackConfiguration{{Platform: platform}},
	})
	if err != nil {
		return nil, err
	}
	return &transferapi.TransferRequest{
		Source: source, Destination: destination,
		Options: &transferapi.TransferOptions{ProgressStream: progress},
	}, nil
}

// awaitVisible waits until CRI knows the image: containerd tells its CRI service by an event.
func (s *Store) awaitVisible(ctx context.Context, name string) error {
	for {
		image, err := s.Get(ctx, name)
		if err == nil && slices.Contains(image.Names, name) {
			return nil
		}
		if err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is loaded, but CRI does not show it: %w", name, ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// stream is one of containerd's bidirectional streams. A receiver grants a window of bytes
// and the sender keeps within it; closing the sending side ends the data.
type stream struct {
	id   string
	grpc streamingapi.Streaming_StreamClient
}

// open registers a stream under a new name that a transfer request can refer to.
func (s *Store) open(ctx context.Context, purpose string) (*stream, error) {
	raw, err := streamingapi.NewStreamingClient(s.conn).Stream(ctx)
	if err != nil {
		return nil, err
	}
	st := &stream{id: purpose + "-" + rand.Text(), grpc: raw}
	hello, err := pack(&streamingapi.StreamInit{ID: st.id})
	if err != nil {
		return nil, err
	}
	if err := raw.Send(hello); err != nil {
		return nil, err
	}
	_, err = raw.Recv() // containerd acknowledges the name
	return st, err
}

// send sends all of r, as fast as the receiver grants.
func (st *stream) send(ctx context.Context, r io.Reader) error {
	granted := make(chan int32)
	go st.grants(ctx, granted)
	defer st.grpc.CloseSend() //nolint:errcheck // it always returns nil
	buffer := make([]byte, chunk)
	window := int32(0)
	for {
		for window <= 0 {
			select {
			case more, open := <-granted:
				if !open {
					return nil // the receiver has what it needs, or its call tells why not
				}
				window += more
			case <-ctx.Done():
				return nil
			}
		}
		n, readErr := r.Read(buffer[:min(window, chunk)])
		if n > 0 {
			window -= int32(n)
			data, err := pack(&transfer.Data{Data: buffer[:n]})
			if err != nil {
				return err
			}
			if err := st.grpc.Send(data); err != nil {
				return nil // as above
			}
		}
		if readErr == io.EOF {
			return nil
		}
		if readErr != nil {
			return fmt.Errorf("read archive: %w", readErr)
		}
	}
}

// grants passes on the receiver's window updates until the stream ends.
func (st *stream) grants(ctx context.Context, granted chan<- int32) {
	defer close(granted)
	for {
		message, err := st.grpc.Recv()
		if err != nil {
			return
		}
		var update transfer.WindowUpdate
		if unpack(message, &update) != nil {
			continue
		}
		select {
		case granted <- update.Update:
		case <-ctx.Done():
			return
		}
	}
}

// saved reads a progress stream to its end and returns the names of the images it reports as
// stored.
func (st *stream) saved() []string {
	var names []string
	for {
		message, err := st.grpc.Recv()
		if err != nil {
			slices.Sort(names)
			return slices.Compact(names)
		}
		var progress transfer.Progress
		if unpack(message, &progress) == nil && progress.Event == "saved" {
			names = append(names, progress.Name)
		}
	}
}

// pack wraps a message the way containerd does: its type's full name alone is the URL.
func pack(m proto.Message) (*anypb.Any, error) {
	raw, err := proto.Marshal(m)
	return &anypb.Any{TypeUrl: string(m.ProtoReflect().Descriptor().FullName()), Value: raw}, err
}

func unpack(a *anypb.Any, into proto.Message) error {
	if name := string(into.ProtoReflect().Descriptor().FullName()); a.TypeUrl != name {
		return fmt.Errorf("message is %s, want %s", a.TypeUrl, name)
	}
	return proto.Unmarshal(a.Value, into)
}
