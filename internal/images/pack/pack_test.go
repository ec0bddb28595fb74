package pack

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// tree makes a file tree whose times are those of the call.
func tree(t *testing.T, modified time.Time) string {
	t.Helper()
	root := t.TempDir()
	for path, content := range map[string]string{"bin/program": "run", "etc/passwd": "root"} {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, modified, modified); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/run", filepath.Join(root, "var")); err != nil {
		t.Fatal(err)
	}
	return root
}

func archive(t *testing.T, modified time.Time) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image.tar")
	image := Image{Names: []string{"example.com:5000/team/app:2", "docker.io/library/app:latest"}, Root: tree(t, modified), Architecture: "arm64",
		Config: v1.Config{Cmd: []string{"/bin/program"}, User: "7"}}
	if err := WriteFile(path, image); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".pack-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	return raw
}

func TestEqualTreesGiveEqualArchives(t *testing.T) {
	if !bytes.Equal(archive(t, time.Unix(1e9, 0)), archive(t, time.Unix(2e9, 0))) {
		t.Error("the archive depends on the files' times")
	}
}

func TestArchiveHoldsWhatItsIndexNames(t *testing.T) {
	blobs := map[string][]byte{}
	for tr := tar.NewReader(bytes.NewReader(archive(t, time.Now()))); ; {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if blobs[h.Name], err = io.ReadAll(tr); err != nil {
			t.Fatal(err)
		}
	}
	var index v1.IndexManifest
	if err := json.Unmarshal(blobs["index.json"], &index); err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct{ name, tag string }{{"example.com:5000/team/app:2", "2"}, {"docker.io/library/app:latest", "latest"}} {
		got := index.Manifests[i].Annotations
		if got[containerdName] != want.name || got[referenceName] != want.tag {
			t.Errorf("index names %v, want %v", got, want)
		}
	}
	var manifest v1.Manifest
	if err := json.Unmarshal(blobs[blobPath(index.Manifests[0].Digest)], &manifest); err != nil {
		t.Fatal(err)
	}
	var config v1.ConfigFile
	if err := json.Unmarshal(blobs[blobPath(manifest.Config.Digest)], &config); err != nil {
		t.Fatal(err)
	}
	if config.OS != "linux" || config.Architecture != "arm64" || config.Config.User != "7" || len(config.RootFS.DiffIDs) != 1 {
		t.Errorf("configuration is %+v", config)
	}
	if layer := blobs[blobPath(manifest.Layers[0].Digest)]; int64(len(layer)) != manifest.Layers[0].Size {
		t.Errorf("layer has %d bytes, the manifest says %d", len(layer), manifest.Layers[0].Size)
	}
}

func TestTagOf(t *testing.T) {
	for name, want := range map[string]string{
		"docker.io/library/nginx:1.22": "1.22",
		"localhost:5000/app":           "latest",
		"app":                          "latest",
	} {
		if got := tagOf(name); got != want {
			t.Errorf("tag of %s is %s, want %s", name, got, want)
		}
	}
}
