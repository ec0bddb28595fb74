package payload

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// tree writes files (path to content; those under bin/ executable) below a new directory.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for path, content := range files {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		mode := os.FileMode(0o644)
		if strings.Contains(path, "/bin/") {
			mode = 0o755
		}
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func archive(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := Pack(&out, tree(t, files)); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func content(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

var first = map[string]string{"bin/containerd": "one", "images/pause.tar": "image"}

func TestArchiveRoundTrip(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	if err := extract(context.Background(), archive(t, first), dir); err != nil {
		t.Fatal(err)
	}
	for path, want := range first {
		if got := content(t, filepath.Join(dir, path)); got != want {
			t.Errorf("%s holds %q, want %q", path, got, want)
		}
	}
	info, err := os.Stat(filepath.Join(dir, "bin/containerd"))
	if err != nil || info.Mode() != 0o755 {
		t.Errorf("mode of a program is %v (%v), want 0755", info.Mode(), err)
	}
	left, _ := filepath.Glob(filepath.Join(dir, stagePrefix+"*"))
	if len(left) > 0 {
		t.Errorf("staging directories left: %v", left)
	}
}

func TestEqualTreesPackToEqualBytes(t *testing.T) {
	if !bytes.Equal(archive(t, first), archive(t, first)) {
		t.Error("two archives of the same tree differ")
	}
}

func TestExtractLeavesAnIntactCopyAlone(t *testing.T) {
	dir, packed := t.TempDir(), archive(t, first)
	if err := extract(context.Background(), packed, dir); err != nil {
		t.Fatal(err)
	}
	before, _ := os.Stat(filepath.Join(dir, "bin/containerd"))
	if err := extract(context.Background(), packed, dir); err != nil {
		t.Fatal(err)
	}
	if after, _ := os.Stat(filepath.Join(dir, "bin/containerd")); !os.SameFile(before, after) {
		t.Error("an intact program was replaced")
	}
}

func TestExtractMendsWhatChanged(t *testing.T) {
	tests := []struct {
		name  string
		spoil func(dir string) error
	}{
		{"a missing file", func(dir string) error { return os.Remove(filepath.Join(dir, "bin/containerd")) }},
		{"a cut file", func(dir string) error { return os.Truncate(filepath.Join(dir, "bin/containerd"), 1) }},
		{"a lost executable bit", func(dir string) error { return os.Chmod(filepath.Join(dir, "bin/containerd"), 0o644) }},
		{"an unfinished installation", func(dir string) error { return os.Remove(filepath.Join(dir, manifestName)) }},
		{"an abandoned staging directory", func(dir string) error {
			if err := os.Remove(filepath.Join(dir, manifestName)); err != nil {
				return err
			}
			return os.MkdirAll(filepath.Join(dir, stagePrefix+"1", "bin"), 0o755)
		}},
		{"another version", func(dir string) error {
			return extract(context.Background(), archive(t, map[string]string{"bin/containerd": "two"}), dir)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir, packed := t.TempDir(), archive(t, first)
			if err := extract(context.Background(), packed, dir); err != nil {
				t.Fatal(err)
			}
			if err := tt.spoil(dir); err != nil {
				t.Fatal(err)
			}
			if err := extract(context.Background(), packed, dir); err != nil {
				t.Fatal(err)
			}
			if got := content(t, filepath.Join(dir, "bin/containerd")); got != "one" {
				t.Errorf("program holds %q, want %q", got, "one")
			}
			if left, _ := filepath.Glob(filepath.Join(dir, stagePrefix+"*")); len(left) > 0 {
				t.Errorf("staging directories left: %v", left)
			}
		})
	}
}

func TestConcurrentExtractions(t *testing.T) {
	dir, packed := t.TempDir(), archive(t, first)
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			if err := extract(context.Background(), packed, dir); err != nil {
				t.Error(err)
			}
			if got, err := os.ReadFile(filepath.Join(dir, "bin/containerd")); err != nil || string(got) != "one" {
				t.Errorf("after extract the program holds %q (%v)", got, err)
			}
		})
	}
	wait.Wait()
}

func TestLockWaitEndsWithItsContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := lock(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := lock(ctx, path); err != context.Canceled {
		t.Errorf("lock held by another returned %v, want context.Canceled", err)
	}
}

// entry is one file of a hand-made archive.
type entry struct {
	header  tar.Header
	content string
}

func forge(t *testing.T, manifest string, entries ...entry) []byte {
	t.Helper()
	var out bytes.Buffer
	compressed, err := zstd.NewWriter(&out)
	if err != nil {
		t.Fatal(err)
	}
	tw := tar.NewWriter(compressed)
	entries = append([]entry{{tar.Header{Name: manifestName}, manifest}}, entries...)
	for _, e := range entries {
		e.header.Size, e.header.Mode = int64(len(e.content)), 0o644
		if err := tw.WriteHeader(&e.header); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write([]byte(e.content)); err != nil {
			t.Fatal(err)
		}
	}
	tw.Close()
	compressed.Close()
	return out.Bytes()
}

func line(path, content string) string {
	sum := sha256.Sum256([]byte(content))
	return file{digest: hex.EncodeToString(sum[:]), mode: 0o644, size: int64(len(content)), path: path}.String()
}

func TestExtractRefuses(t *testing.T) {
	tests := []struct {
		name    string
		archive []byte
		want    string
	}{
		{"a path above the payload", forge(t, line("../evil", "x"), entry{tar.Header{Name: "../evil"}, "x"}), "not a path inside"},
		{"an absolute path", forge(t, line("/evil", "x"), entry{tar.Header{Name: "/evil"}, "x"}), "not a path inside"},
		{"a path that is not clean", forge(t, line("a/../b", "x"), entry{tar.Header{Name: "a/../b"}, "x"}), "not a path inside"},
		{"a second manifest", forge(t, line("manifest", "x"), entry{tar.Header{Name: "manifest"}, "x"}), "not a path inside"},
		{"content that differs from its digest", forge(t, line("a", "x"), entry{tar.Header{Name: "a"}, "y"}), "digest is"},
		{"a symbolic link", forge(t, line("a", ""), entry{tar.Header{Name: "a", Typeflag: tar.TypeSymlink, Linkname: "/etc"}, ""}), "archive holds"},
		{"a file that is not listed", forge(t, "", entry{tar.Header{Name: "a"}, "x"}), "more than its manifest"},
		{"a file that is missing", forge(t, line("a", "x")), "EOF"},
		{"a file listed twice", forge(t, line("a", "x")+line("a", "x"), entry{tar.Header{Name: "a"}, "x"}), "twice"},
		{"no archive at all", []byte("nonsense"), "magic"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			parent := t.TempDir()
			err := extract(context.Background(), tt.archive, filepath.Join(parent, "dir"))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error is %v, want one with %q", err, tt.want)
			}
			for _, path := range []string{"evil", "dir/a", "dir/manifest"} {
				if _, err := os.Lstat(filepath.Join(parent, path)); err == nil {
					t.Errorf("%s was written", path)
				}
			}
		})
	}
}

func FuzzParseManifest(f *testing.F) {
	f.Add([]byte(line("bin/runc", "x")))
	f.Add([]byte("../x"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		files, err := parseManifest(raw)
		if err != nil {
			return
		}
		for _, f := range files {
			if !filepath.IsLocal(f.path) {
				t.Errorf("accepted %q", f.path)
			}
		}
	})
}
