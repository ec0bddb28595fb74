package payload

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// maxManifest bounds the manifest of an archive, in bytes.
const maxManifest = 1 << 20

// Pack writes the regular files under dir as a payload archive. Equal trees give equal bytes.
func Pack(w io.Writer, dir string) error {
	files, err := survey(dir)
	if err != nil {
		return err
	}
	var manifest bytes.Buffer
	for _, f := range files {
		manifest.WriteString(f.String())
	}
	compressed, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedBestCompression))
	if err != nil {
		return err
	}
	tw := tar.NewWriter(compressed)
	if err := writeFile(tw, file{mode: 0o644, size: int64(manifest.Len()), path: manifestName}, &manifest); err != nil {
		return err
	}
	for _, f := range files {
		content, err := os.Open(filepath.Join(dir, filepath.FromSlash(f.path)))
		if err != nil {
			return err
		}
		err = writeFile(tw, f, content)
		content.Close()
		if err != nil {
			return err
		}
	}
	if err := tw.Close(); err != nil {
		return err
	}
	return compressed.Close()
}

// survey lists the files under dir in order of path.
func survey(dir string) ([]file, error) {
	var files []file
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if !d.Type().IsRegular() {
			return fmt.Errorf("%s is not a regular file", path)
		}
		f, err := describe(dir, path)
		files = append(files, f)
		return err
	})
	return files, err
}

func describe(dir, path string) (file, error) {
	name, err := filepath.Rel(dir, path)
	if err != nil {
		return file{}, err
	}
	content, err := os.Open(path)
	if err != nil {
		return file{}, err
	}
	defer content.Close()
	info, err := content.Stat()
	if err != nil {
		return file{}, err
	}
	sum := sha256.New()
	size, err := io.Copy(sum, content)
	mode := fs.FileMode(0o644)
	if info.Mode()&0o100 != 0 {
		mode = 0o755
	}
	return file{digest: hex.EncodeToString(sum.Sum(nil)), mode: mode, size: size, path: filepath.ToSlash(name)}, err
}

func writeFile(tw *tar.Writer, f file, content io.Reader) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: f.path, Mode: int64(f.mode), Size: f.size, ModTime: time.Unix(0, 0), Format: tar.FormatPAX}
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	_, err := io.Copy(tw, content)
	return err
}

// extract makes dir hold the payload in archive. It stages and checks every file beside its
// destination, withdraws the old manifest, renames file by file (so programs that run keep
// their paths), and writes the new manifest last: whoever finds it intact finds all of it.
func extract(ctx context.Context, archive []byte, dir string) error {
	decompressed, err := zstd.NewReader(bytes.NewReader(archive))
	if err != nil {
		return err
	}
	defer decompressed.Close()
	tr := tar.NewReader(decompressed)
	manifest, err := readManifest(tr)
	if err != nil {
		return err
	}
	if intact(dir, manifest) {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	unlock, err := lock(ctx, filepath.Join(dir, ".lock"))
	if err != nil {
		return err
	}
	defer unlock()
	if intact(dir, manifest) { // another process was faster
		return nil
	}
	return stage(ctx, tr, manifest, dir)
}

func readManifest(tr *tar.Reader) ([]byte, error) {
	h, err := tr.Next()
	if err != nil {
		return nil, err
	}
	if h.Name != manifestName || h.Size > maxManifest {
		return nil, errors.New("archive does not begin with a manifest")
	}
	return io.ReadAll(tr)
}

func stage(ctx context.Context, tr *tar.Reader, manifest []byte, dir string) error {
	files, err := parseManifest(manifest)
	if err != nil {
		return err
	}
	if err := removeStale(dir); err != nil {
		return err
	}
	temporary, err := os.MkdirTemp(dir, stagePrefix)
	if err != nil {
		return err
	}
	defer os.RemoveAll(temporary)
	root, err := os.OpenRoot(temporary)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, f := range files {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := stageFile(tr, root, f); err != nil {
			return fmt.Errorf("%s: %w", f.path, err)
		}
	}
	if _, err := tr.Next(); err != io.EOF {
		return errors.New("archive holds more than its manifest lists")
	}
	if err := writeSynced(root, manifestName, 0o644, bytes.NewReader(manifest)); err != nil {
		return err
	}
	return install(temporary, dir, files)
}

// stagePrefix begins the names of staging directories.
const stagePrefix = ".unpack-"

// removeStale removes what an unpacking that was killed left behind.
func removeStale(dir string) error {
	stale, err := filepath.Glob(filepath.Join(dir, stagePrefix+"*"))
	if err != nil {
		return err
	}
	for _, path := range stale {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	return nil
}

// stageFile writes the archive's next entry, which must be f to the byte.
func stageFile(tr *tar.Reader, root *os.Root, f file) error {
	h, err := tr.Next()
	if err != nil {
		return err
	}
	if h.Typeflag != tar.TypeReg || h.Name != f.path || h.Size != f.size {
		return fmt.Errorf("archive holds %q here", h.Name)
	}
	if err := root.MkdirAll(filepath.Dir(f.path), 0o755); err != nil {
		return err
	}
	sum := sha256.New()
	if err := writeSynced(root, f.path, f.mode, io.TeeReader(tr, sum)); err != nil {
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != f.digest {
		return fmt.Errorf("digest is %s, the manifest says %s", got, f.digest)
	}
	return nil
}

func writeSynced(root *os.Root, name string, mode fs.FileMode, content io.Reader) error {
	out, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	defer out.Close()
	if _, err := io.Copy(out, content); err != nil {
		return err
	}
	if err := out.Chmod(mode); err != nil { // the umask may have taken bits
		return err
	}
	if err := out.Sync(); err != nil {
		return err
	}
	return out.Close()
}

func install(from, dir string, files []file) error {
	if err := os.Remove(filepath.Join(dir, manifestName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, f := range files {
		target := filepath.Join(dir, filepath.FromSlash(f.path))
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		if err := os.Rename(filepath.Join(from, filepath.FromSlash(f.path)), target); err != nil {
			return err
		}
	}
	return os.Rename(filepath.Join(from, manifestName), filepath.Join(dir, manifestName))
}

// lockPoll is how often a waiting process tries the lock again.
const lockPoll = 20 * time.Millisecond

// lock takes an advisory lock that the kernel releases when its holder dies.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		case <-time.After(lockPoll):
		}
	}
}
