package volumes

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// escapes are volumes prepared by a hostile container. "secret" lies outside.
func TestSubPathStaysInTheVolume(t *testing.T) {
	needRoot(t)
	tests := []struct {
		name    string
		prepare func(t *testing.T, volume, outside string)
		subPath string
	}{
		{"a link to an absolute path", func(t *testing.T, v, o string) { symlink(t, o, v+"/l") }, "l"},
		{"a link up", func(t *testing.T, v, o string) { symlink(t, "../outside", v+"/l") }, "l"},
		{"a link in the middle", func(t *testing.T, v, o string) { symlink(t, "..", v+"/l") }, "l/outside"},
		{"a link to the root of the host", func(t *testing.T, v, o string) { symlink(t, "/", v+"/l") }, "l" + "/etc"},
		{"a link to a magic link", func(t *testing.T, v, o string) { symlink(t, "/proc/self/root", v+"/l") }, "l"},
		{"a missing directory behind a link up", func(t *testing.T, v, o string) { symlink(t, "../outside", v+"/l") }, "l/new"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			base := t.TempDir()
			volume, outside := filepath.Join(base, "volume"), filepath.Join(base, "outside")
			mkdir(t, volume)
			mkdir(t, outside)
			write(t, filepath.Join(outside, "secret"), "s")
			tt.prepare(t, volume, outside)
			target := filepath.Join(base, "target", "0")
			t.Cleanup(func() { unmountBelow(base) })

			err := bindSubPath(volume, tt.subPath, target, false)

			if err == nil {
				for _, leak := range []string{"secret", "passwd", "outside"} {
					if _, err := os.Lstat(filepath.Join(target, leak)); err == nil {
						t.Errorf("the container sees %s", leak)
					}
				}
			}
			if _, err := os.Lstat(filepath.Join(outside, "new")); err == nil {
				t.Error("a directory was made outside the volume")
			}
		})
	}
}

func TestSubPathIsPinned(t *testing.T) {
	needRoot(t)
	base := t.TempDir()
	volume, target := filepath.Join(base, "volume"), filepath.Join(base, "t", "0")
	t.Cleanup(func() { unmountBelow(base) })
	if err := os.MkdirAll(filepath.Join(volume, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(volume, "sub", "f"), "first")
	if err := bindSubPath(volume, "sub", target, false); err != nil {
		t.Fatal(err)
	}
	// The container swaps the directory after it was checked.
	if err := os.Rename(filepath.Join(volume, "sub"), filepath.Join(volume, "old")); err != nil {
		t.Fatal(err)
	}
	symlink(t, "/etc", filepath.Join(volume, "sub"))
	if got := read(t, filepath.Join(target, "f")); got != "first" {
		t.Errorf("got %q", got)
	}
}

func TestSubPathMakesDirectoriesWithTheVolumesMode(t *testing.T) {
	needRoot(t)
	base := t.TempDir()
	volume := filepath.Join(base, "volume")
	mkdir(t, volume)
	if err := unix.Chmod(volume, 0o2777); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unmountBelow(base) })
	if err := bindSubPath(volume, "a/b", filepath.Join(base, "t", "0"), false); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(volume, "a", "b"), &st); err != nil || st.Mode&0o7777 != 0o2777 {
		t.Errorf("mode %o, err %v", st.Mode&0o7777, err)
	}
	if err := bindSubPath(volume, "c", filepath.Join(base, "t", "1"), true); err == nil {
		t.Error("a directory was made in a read-only volume")
	}
}

func TestSubPathFollowsReplacedFiles(t *testing.T) {
	needRoot(t)
	base := t.TempDir()
	volume, target := filepath.Join(base, "volume"), filepath.Join(base, "t", "0")
	mkdir(t, volume)
	t.Cleanup(func() { unmountBelow(base) })
	for _, content := range []string{"one", "two"} {
		path := filepath.Join(volume, "f")
		os.Remove(path)
		write(t, path, content)
		for range 2 { // the second call finds it bound
			if err := bindSubPath(volume, "f", target, false); err != nil {
				t.Fatal(err)
			}
		}
		if got := read(t, target); got != content {
			t.Errorf("got %q, want %q", got, content)
		}
	}
	os.Remove(filepath.Join(volume, "f"))
	mkdir(t, filepath.Join(volume, "f"))
	if err := bindSubPath(volume, "f", target, false); err != nil {
		t.Fatalf("a directory in place of the file: %v", err)
	}
	if below, _ := mountsBelow(base); len(below) != 1 {
		t.Errorf("mounts %v, want one", below)
	}
}

func TestRemoveTreeStopsAtMounts(t *testing.T) {
	needRoot(t)
	base := t.TempDir()
	outside, doomed := filepath.Join(base, "outside"), filepath.Join(base, "doomed")
	mkdir(t, outside)
	write(t, filepath.Join(outside, "precious"), "p")
	if err := os.MkdirAll(filepath.Join(doomed, "a", "m"), 0o700); err != nil {
		t.Fatal(err)
	}
	symlink(t, outside, filepath.Join(doomed, "link"))
	if err := unix.Mount(outside, filepath.Join(doomed, "a", "m"), "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unmountBelow(base) })
	if err := removeTree(doomed); err == nil {
		t.Error("removed across a mount point")
	}
	if err := unmountBelow(doomed); err != nil {
		t.Fatal(err)
	}
	if err := removeTree(doomed); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(doomed); !os.IsNotExist(err) {
		t.Errorf("still there: %v", err)
	}
	if got := read(t, filepath.Join(outside, "precious")); got != "p" {
		t.Errorf("content outside changed: %q", got)
	}
}

func mkdir(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
}

func symlink(t *testing.T, target, path string) {
	t.Helper()
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
