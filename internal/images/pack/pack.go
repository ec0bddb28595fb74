// Package pack turns a file tree into an OCI archive: one layer, one configuration, one
// tar file that containerd, docker and podman load. Equal trees give equal bytes: entries
// are sorted, times are the Unix epoch, and nothing of the building machine gets in.
package pack

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// containerdName is the index annotation from which containerd and nerdctl take an image's
// full name; the OCI reference annotation holds only its tag.
const (
	containerdName = "io.containerd.image.name"
	referenceName  = "org.opencontainers.image.ref.name"
)

// Image describes what to pack.
type Image struct {
	// Names are full references, such as docker.io/library/nginx:1.22.
	Names []string
	// Root is the directory that becomes the image's root file system. Owners and modes
	// are kept.
	Root string
	// Architecture is a GOARCH value.
	Architecture string
	// Config is the image's run configuration: environment, entrypoint, user, ports.
	Config v1.Config
}

// Build makes the image, with its layer spooled to a file under dir, which must outlive it.
func Build(img Image, dir string) (v1.Image, error) {
	layerPath := filepath.Join(dir, "layer.tar")
	f, err := os.Create(layerPath)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := writeTree(f, img.Root); err != nil {
		return nil, fmt.Errorf("pack %s: %w", img.Root, err)
	}
	layer, err := tarball.LayerFromFile(layerPath, tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(6))
	if err != nil {
		return nil, fmt.Errorf("compress layer of %s: %w", img.Root, err)
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	out, err := mutate.AppendLayers(base, layer)
	if err != nil {
		return nil, err
	}
	config, err := out.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Config = "linux", img.Architecture, img.Config
	return mutate.ConfigFile(out, config)
}

// WriteFile builds the image and writes its OCI archive to path, which appears whole or not
// at all.
func WriteFile(path string, img Image) (err error) {
	dir, err := os.MkdirTemp(filepath.Dir(path), ".pack-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	built, err := Build(img, dir)
	if err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(dir, "image.tar"))
	if err != nil {
		return err
	}
	if err := Write(f, built, img.Names); err != nil {
		f.Close()
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// Write writes img as an OCI layout in a tar stream, listed once in its index per name.
func Write(w io.Writer, img v1.Image, names []string) error {
	tw := tar.NewWriter(w)
	if err := writeEntry(tw, "oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
		return err
	}
	index, err := indexOf(img, names)
	if err != nil {
		return err
	}
	if err := writeEntry(tw, "index.json", index); err != nil {
		return err
	}
	manifest, err := img.RawManifest()
	if err != nil {
		return err
	}
	digest, err := img.Digest()
	if err != nil {
		return err
	}
	if err := writeEntry(tw, blobPath(digest), manifest); err != nil {
		return err
	}
	config, err := img.RawConfigFile()
	if err != nil {
		return err
	}
	configName, err := img.ConfigName()
	if err != nil {
		return err
	}
	if err := writeEntry(tw, blobPath(configName), config); err != nil {
		return err
	}
	layers, err := img.Layers()
	if err != nil {
		return err
	}
	for _, layer := range layers {
		if err := writeLayer(tw, layer); err != nil {
			return err
		}
	}
	return tw.Close()
}

func indexOf(img v1.Image, names []string) ([]byte, error) {
	digest, err := img.Digest()
	if err != nil {
		return nil, err
	}
	size, err := img.Size()
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	index := v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex}
	for _, name := range names {
		index.Manifests = append(index.Manifests, v1.Descriptor{
			MediaType:   types.OCIManifestSchema1,
			Digest:      digest,
			Size:        size,
			Platform:    &v1.Platform{OS: config.OS, Architecture: config.Architecture},
			Annotations: map[string]string{containerdName: name, referenceName: tagOf(name)},
		})
	}
	return json.Marshal(index)
}

func writeLayer(tw *tar.Writer, layer v1.Layer) error {
	digest, err := layer.Digest()
	if err != nil {
		return err
	}
	size, err := layer.Size()
	if err != nil {
		return err
	}
	r, err := layer.Compressed()
	if err != nil {
		return err
	}
	defer r.Close()
	if err := tw.WriteHeader(header(blobPath(digest), size)); err != nil {
		return err
	}
	_, err = io.Copy(tw, r)
	return err
}

func writeEntry(tw *tar.Writer, name string, content []byte) error {
	if err := tw.WriteHeader(header(name, int64(len(content)))); err != nil {
		return err
	}
	_, err := io.Copy(tw, bytes.NewReader(content))
	return err
}

func header(name string, size int64) *tar.Header {
	return &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: size, Format: tar.FormatPAX}
}

func blobPath(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }

// tagOf is the part of a reference after its last colon, unless that colon belongs to a port.
func tagOf(name string) string {
	for i := len(name) - 1; i >= 0; i-- {
		switch name[i] {
		case ':':
			return name[i+1:]
		case '/':
			return "latest"
		}
	}
	return "latest"
}
