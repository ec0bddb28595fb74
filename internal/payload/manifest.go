package payload

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// manifestName is the archive's first entry and the unpacked directory's last.
const manifestName = "manifest"

// file is one line of a manifest.
type file struct {
	digest string // SHA-256, hex
	mode   fs.FileMode
	size   int64
	path   string // slash-separated, inside the payload
}

func (f file) String() string {
	return fmt.Sprintf("%s %04o %d %s\n", f.digest, f.mode, f.size, f.path)
}

// parseManifest reads what file.String wrote. It refuses paths that would leave the payload
// and files listed twice.
func parseManifest(raw []byte) ([]file, error) {
	var files []file
	seen := map[string]bool{}
	lines := bufio.NewScanner(bytes.NewReader(raw))
	for lines.Scan() {
		var f file
		if n, err := fmt.Sscanf(lines.Text(), "%64s %o %d %s", &f.digest, &f.mode, &f.size, &f.path); n != 4 {
			return nil, fmt.Errorf("manifest line %q: %w", lines.Text(), err)
		}
		if sum, err := hex.DecodeString(f.digest); err != nil || len(sum) != 32 {
			return nil, fmt.Errorf("manifest line %q: not a SHA-256 digest", lines.Text())
		}
		if !filepath.IsLocal(f.path) || strings.ContainsRune(f.path, '\\') || filepath.ToSlash(filepath.Clean(f.path)) != f.path || f.path == manifestName || f.path == "." {
			return nil, fmt.Errorf("manifest names %q, which is not a path inside the payload", f.path)
		}
		if f.size < 0 || f.mode&^0o755 != 0 {
			return nil, fmt.Errorf("manifest line %q: bad size or mode", lines.Text())
		}
		if seen[f.path] {
			return nil, fmt.Errorf("manifest names %q twice", f.path)
		}
		seen[f.path] = true
		files = append(files, f)
	}
	return files, lines.Err()
}

// intact reports whether dir holds the payload that manifest describes: the same manifest,
// and every file with its size and mode. Digests were checked when the manifest was written.
func intact(dir string, manifest []byte) bool {
	have, err := os.ReadFile(filepath.Join(dir, manifestName))
	if err != nil || !bytes.Equal(have, manifest) {
		return false
	}
	files, err := parseManifest(manifest)
	if err != nil {
		return false
	}
	for _, f := range files {
		info, err := os.Lstat(filepath.Join(dir, filepath.FromSlash(f.path)))
		if err != nil || info.Mode() != f.mode || info.Size() != f.size {
			return false
		}
	}
	return true
}
