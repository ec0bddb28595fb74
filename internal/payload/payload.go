// Package payload holds the programs a node runs besides Proa itself: containerd, its shim,
// runc, the CNI plugins, and the pause image. A distribution build (tag dist) carries them
// compressed inside the executable and unpacks them once; any other build uses the ones that
// `make payload` left beside it, in place.
//
// The archive is a zstd-compressed tar whose first entry is a manifest: per file its SHA-256,
// mode, size and path. An unpacked directory ends with a copy of the manifest, written last,
// so its presence means that every file was checked and put in place.
package payload

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// PauseImage is the name of the sandbox image that Bin.PauseArchive contains.
const PauseImage = "proa.dev/pause:1"

// Environment is the variable that points at a payload directory (holding bin/ and images/),
// ahead of every other place.
const Environment = "PROA_PAYLOAD"

// Bin says where the payload's programs are.
type Bin struct {
	Dir          string // of all executables, and so of the CNI plugins
	Containerd   string
	Shim         string // containerd-shim-runc-v2
	Runc         string
	PauseArchive string // OCI archive of PauseImage
}

// Unpack makes the payload usable and says where it is. With a carried payload that is under
// dir, where it is written unless an intact copy of the same version is there already; callers
// in several processes may do so at once. Without one, Unpack looks for a payload directory
// and leaves dir alone.
func Unpack(ctx context.Context, dir string) (Bin, error) {
	if path := os.Getenv(Environment); path != "" {
		return open(path)
	}
	if len(embedded) == 0 {
		return find()
	}
	if err := extract(ctx, embedded, dir); err != nil {
		return Bin{}, fmt.Errorf("unpack payload into %s: %w", dir, err)
	}
	return open(dir)
}

// find looks beside the executable: where an installation keeps the payload, then where a
// build tree has it.
func find() (Bin, error) {
	executable, err := os.Executable()
	if err != nil {
		return Bin{}, err
	}
	if executable, err = filepath.EvalSymlinks(executable); err != nil {
		return Bin{}, err
	}
	home := filepath.Dir(executable)
	var failures []error
	for _, dir := range []string{filepath.Join(home, "payload"), filepath.Join(home, "..", "build", "payload")} {
		bin, err := open(dir)
		if err == nil {
			return bin, nil
		}
		failures = append(failures, err)
	}
	return Bin{}, fmt.Errorf("no container runtime found: build it with `make payload` or set %s: %w",
		Environment, errors.Join(failures...))
}

// open names the programs under dir, all of which must exist.
func open(dir string) (Bin, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return Bin{}, err
	}
	programs := filepath.Join(dir, "bin")
	bin := Bin{
		Dir:          programs,
		Containerd:   filepath.Join(programs, "containerd"),
		Shim:         filepath.Join(programs, "containerd-shim-runc-v2"),
		Runc:         filepath.Join(programs, "runc"),
		PauseArchive: filepath.Join(dir, "images", "pause.tar"),
	}
	needed := []string{bin.Containerd, bin.Shim, bin.Runc, bin.PauseArchive}
	for _, plugin := range []string{"bridge", "host-local", "loopback"} {
		needed = append(needed, filepath.Join(programs, plugin))
	}
	for _, path := range needed {
		if _, err := os.Stat(path); err != nil {
			return Bin{}, err
		}
	}
	return bin, nil
}
