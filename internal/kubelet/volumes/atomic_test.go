package volumes

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	got := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if len(e.Name()) > 1 && e.Name()[:2] == ".." {
			continue
		}
		root, err := filepath.EvalSymlinks(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			data, err := os.ReadFile(path)
			rel, _ := filepath.Rel(root, path)
			got[filepath.Join(e.Name(), rel)] = string(data)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return got
}

func TestWritePayload(t *testing.T) {
	text := func(s string) file { return file{Data: []byte(s), Mode: 0o644} }
	steps := []struct {
		name string
		p    payload
	}{
		{"writes files and nested paths", payload{"a": text("1"), "d/e/f": text("2")}},
		{"changes content", payload{"a": text("one"), "d/e/f": text("2")}},
		{"removes what is gone", payload{"a": text("one")}},
		{"replaces a file by a directory of the same name", payload{"a/b": text("x")}},
		{"allows names that begin with one dot", payload{".hidden": text("h")}},
		{"empties", payload{}},
	}
	dir := t.TempDir()
	for _, s := range steps {
		t.Run(s.name, func(t *testing.T) {
			if err := writePayload(dir, s.p, epoch, nil); err != nil {
				t.Fatal(err)
			}
			got := files(t, dir)
			if len(got) != len(s.p) {
				t.Fatalf("got files %v, want %d", got, len(s.p))
			}
			for path, f := range s.p {
				if have := got[path]; have != string(f.Data) && got[path+"/."] != string(f.Data) && got[filepath.Clean(path)] != string(f.Data) {
					t.Errorf("%s: got %q, want %q", path, have, f.Data)
				}
			}
		})
	}
}

func TestWritePayloadKeepsAnUnchangedDirectory(t *testing.T) {
	dir := t.TempDir()
	p := payload{"a": {Data: []byte("1"), Mode: 0o400}}
	if err := writePayload(dir, p, epoch, nil); err != nil {
		t.Fatal(err)
	}
	before, err := os.Readlink(filepath.Join(dir, dataDir))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "a")); err != nil {
		t.Fatal(err)
	}
	if err := writePayload(dir, p, epoch.Add(time.Hour), nil); err != nil {
		t.Fatal(err)
	}
	after, err := os.Readlink(filepath.Join(dir, dataDir))
	if err != nil || before != after {
		t.Errorf("..data moved from %s to %s (%v)", before, after, err)
	}
	info, err := os.Stat(filepath.Join(dir, "a"))
	if err != nil {
		t.Fatal("the link a crash left out was not made again:", err)
	}
	if info.Mode().Perm() != 0o400 {
		t.Errorf("mode %v, want 0400", info.Mode())
	}
}

func TestValidatePath(t *testing.T) {
	for path, ok := range map[string]bool{
		"a": true, "a/b": true, ".a": true, "a/..b": true, "a..": true,
		"": false, "/a": false, "..": false, "a/../b": false, "..a": false, "a//b": false, "./a": false, "a/": false,
	} {
		if err := validatePath(path); (err == nil) != ok {
			t.Errorf("validatePath(%q) = %v", path, err)
		}
	}
}

// A reader that resolves ..data once must see one generation only, whatever the
// writer does meanwhile: every file of generation n says n.
func TestReadersNeverSeeAMix(t *testing.T) {
	dir := t.TempDir()
	generation := func(n int) payload {
		p := payload{}
		for i := range 8 {
			p[fmt.Sprintf("f%d", i)] = file{Data: fmt.Append(nil, n), Mode: 0o644}
		}
		return p
	}
	if err := writePayload(dir, generation(0), epoch, nil); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if _, err := os.Readlink(filepath.Join(dir, dataDir)); err != nil {
					t.Errorf("..data is gone: %v", err)
					return
				}
				// Holding the directory open is what one resolution means.
				d, err := os.OpenRoot(filepath.Join(dir, dataDir))
				if errors.Is(err, fs.ErrNotExist) {
					continue // swept between reading the link and following it
				}
				if err != nil {
					t.Errorf("..data cannot be resolved: %v", err)
					return
				}
				want := ""
				for i := range 8 {
					data, err := d.ReadFile(fmt.Sprintf("f%d", i))
					if err != nil {
						break // this generation was swept away as a whole
					}
					if want == "" {
						want = string(data)
					}
					if string(data) != want {
						t.Errorf("read generation %s after %s", data, want)
					}
				}
				d.Close()
			}
		})
	}
	r := rand.New(rand.NewSource(1))
	for range 80 {
		if err := writePayload(dir, generation(r.Intn(1000)), epoch, nil); err != nil {
			t.Fatal(err)
		}
	}
	close(done)
	wg.Wait()
}
