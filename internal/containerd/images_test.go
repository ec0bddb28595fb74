package containerd

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"proa/internal/images"
	"proa/internal/images/pack"
	"proa/internal/payload"
	"proa/test/registry"
)

// tiny builds an image with one file.
func tiny(t *testing.T, content string) v1.Image {
	t.Helper()
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "file"), []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	image, err := pack.Build(pack.Image{Root: root, Architecture: "amd64", Config: v1.Config{Cmd: []string{"/file"}}}, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return image
}

func ociArchive(t *testing.T, image v1.Image, names ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := pack.Write(&out, image, names); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func dockerArchive(t *testing.T, image v1.Image, names ...string) []byte {
	t.Helper()
	tagged := map[name.Tag]v1.Image{}
	for _, n := range names {
		tag, err := name.NewTag(n)
		if err != nil {
			t.Fatal(err)
		}
		tagged[tag] = image
	}
	var out bytes.Buffer
	if err := tarball.MultiWrite(tagged, &out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func zipped(t *testing.T, raw []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(raw); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestLoadListAndRemoveImages(t *testing.T) {
	n := up(t, testConfig(t))
	image := tiny(t, "one")
	broken := errors.New("the disk is broken")
	oci := ociArchive(t, image, "docker.io/library/tiny:1", "example.com/team/tiny:2")
	tests := []struct {
		name    string
		archive io.Reader
		want    []string
		fails   string
	}{
		{"an OCI layout, under each of its names", bytes.NewReader(oci), []string{"docker.io/library/tiny:1", "example.com/team/tiny:2"}, ""},
		{"a compressed archive", bytes.NewReader(zipped(t, ociArchive(t, tiny(t, "two"), "example.com/zipped:1"))), []string{"example.com/zipped:1"}, ""},
		{"what docker save writes", bytes.NewReader(dockerArchive(t, tiny(t, "three"), "saved:1", "example.com/saved:2")), []string{"docker.io/library/saved:1", "example.com/saved:2"}, ""},
		{"the same image again", bytes.NewReader(oci), []string{"docker.io/library/tiny:1", "example.com/team/tiny:2"}, ""},
		{"no archive", strings.NewReader("nonsense"), nil, "load images"},
		{"nothing", strings.NewReader(""), nil, "load images"},
		{"an archive that ends early", bytes.NewReader(ociArchive(t, tiny(t, "cut"), "example.com/cut:1")[:1500]), nil, "load images"},
		{"an archive that cannot be read to its end", io.MultiReader(bytes.NewReader(oci[:1024]), iotest.ErrReader(broken)), nil, broken.Error()},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := n.images.Load(t.Context(), tt.archive)
			if !slices.Equal(got, tt.want) {
				t.Errorf("loaded %v, want %v", got, tt.want)
			}
			if (err != nil) != (tt.fails != "") || err != nil && !strings.Contains(err.Error(), tt.fails) {
				t.Errorf("error is %v, want %q", err, tt.fails)
			}
		})
	}

	names := func() (all []string) {
		list, err := n.images.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, image := range list {
			all = append(all, image.Names...)
		}
		slices.Sort(all)
		return all
	}
	want := []string{"docker.io/library/saved:1", "docker.io/library/tiny:1", "example.com/saved:2", "example.com/team/tiny:2", "example.com/zipped:1", payload.PauseImage}
	if got := names(); !slices.Equal(got, want) {
		t.Errorf("images are %v, want %v", got, want)
	}
	if err := n.images.Remove(t.Context(), "tiny:1"); err != nil {
		t.Error(err)
	}
	if err := n.images.Remove(t.Context(), "tiny:1"); !errors.Is(err, images.ErrNotFound) {
		t.Errorf("removing what is gone: %v, want not found", err)
	}
	if err := n.images.Remove(t.Context(), payload.PauseImage); err == nil {
		t.Error("the pause image was removed")
	}
	want = slices.DeleteFunc(want, func(s string) bool { return strings.Contains(s, "tiny") })
	if got := names(); !slices.Equal(got, want) {
		t.Errorf("images are %v after removal, want %v", got, want)
	}
}

func TestPullFromARegistryThatAsksForCredentials(t *testing.T) {
	n := up(t, testConfig(t))
	private, err := registry.Start(registry.Config{Username: "sailor", Password: "outrigger"})
	if err != nil {
		t.Fatal(err)
	}
	defer private.Close()
	archive := filepath.Join(t.TempDir(), "image.tar")
	if err := os.WriteFile(archive, ociArchive(t, tiny(t, "private"), "x:1"), 0o644); err != nil {
		t.Fatal(err)
	}
	ref, err := private.Push(t.Context(), archive, "team/app:1")
	if err != nil {
		t.Fatal(err)
	}
	client := runtimeapi.NewImageServiceClient(n.dial(t))
	for _, tt := range []struct {
		name string
		auth *runtimeapi.AuthConfig
		ok   bool
	}{
		{"no credentials", nil, false},
		{"a wrong password", &runtimeapi.AuthConfig{Username: "sailor", Password: "anchor"}, false},
		{"the right ones", &runtimeapi.AuthConfig{Username: "sailor", Password: "outrigger"}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := client.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}, Auth: tt.auth})
			if (err == nil) != tt.ok {
				t.Errorf("pull: %v", err)
			}
			if _, err := n.images.Get(t.Context(), ref); (err == nil) != tt.ok {
				t.Errorf("image after pull: %v", err)
			}
		})
	}
}
