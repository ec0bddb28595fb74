package containerd

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"text/template"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"proa/internal/payload"
)

//go:embed config.toml.tmpl
var settingsText string

var settingsTemplate = template.Must(template.New("config.toml").Funcs(template.FuncMap{"quote": strconv.Quote}).Parse(settingsText))

// settings renders containerd's configuration.
func (r *Runtime) settings() ([]byte, error) {
	snapshotter := r.config.Snapshotter
	if snapshotter == "" {
		snapshotter = "native"
		if overlayWorks(r.config.Root) {
			snapshotter = "overlayfs"
		}
	}
	var out bytes.Buffer
	err := settingsTemplate.Execute(&out, map[string]any{
		"OOMPrivilege": canLowerOOMScore(),
		"Root":         r.config.Root,
		"State":        r.state(),
		"Socket":       r.Socket(),
		"ShimSockets":  r.shimSockets(),
		"CNIConfDir":   r.CNIConfDir(),
		"RegistryDir":  r.RegistryDir(),
		"Programs":     r.config.Bin.Dir,
		"Shim":         r.config.Bin.Shim,
		"Runc":         r.config.Bin.Runc,
		"RuncRoot":     filepath.Join(r.config.RunDir, "runc"),
		"Snapshotter":  snapshotter,
		"Pause":        payload.PauseImage,
		"Platform":     "linux/" + runtime.GOARCH,
	})
	return out.Bytes(), err
}

// settingsPrefix begins the name of a configuration file; a digest of its content follows.
const settingsPrefix = "config-"

// writeSettings makes the directories and writes the configuration, returning its path.
// Configurations of earlier runs are removed.
func (r *Runtime) writeSettings(settings []byte) (string, error) {
	for _, dir := range []string{r.config.Root, r.CNIConfDir(), r.RegistryDir(), filepath.Dir(r.config.LogFile)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return "", err
		}
	}
	// The root file systems of containers are below: a container in a user
	// namespace is nobody on the host and has to find its own.
	for _, dir := range []string{r.config.RunDir, r.state()} {
		if err := errors.Join(os.MkdirAll(dir, 0o711), os.Chmod(dir, 0o711)); err != nil {
			return "", err
		}
	}
	sum := sha256.Sum256(settings)
	path := filepath.Join(r.config.Root, settingsPrefix+hex.EncodeToString(sum[:6])+".toml")
	old, err := filepath.Glob(filepath.Join(r.config.Root, settingsPrefix+"*.toml"))
	if err != nil {
		return "", err
	}
	for _, file := range old {
		if file != path {
			if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return "", err
			}
		}
	}
	if err := renameio.WriteFile(path, settings, 0o600); err != nil {
		return "", fmt.Errorf("write containerd's configuration: %w", err)
	}
	return path, nil
}

// overlayWorks tries an overlay mount below dir: some file systems cannot hold its upper layer.
func overlayWorks(dir string) bool {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return false
	}
	probe, err := os.MkdirTemp(dir, ".overlay-")
	if err != nil {
		return false
	}
	defer os.RemoveAll(probe)
	for _, name := range []string{"lower", "upper", "work", "merged"} {
		if err := os.Mkdir(filepath.Join(probe, name), 0o700); err != nil {
			return false
		}
	}
	options := fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", probe)
	merged := filepath.Join(probe, "merged")
	if err := unix.Mount("overlay", merged, "overlay", 0, options); err != nil {
		return false
	}
	return unix.Unmount(merged, unix.MNT_DETACH) == nil
}

// canLowerOOMScore tries whether this machine lets us spare processes from the out-of-memory
// killer. Inside many containers it does not, and then neither containerd nor pods can ask for it.
func canLowerOOMScore() bool {
	const path = "/proc/self/oom_score_adj"
	raw, err := os.ReadFile(path)
	if err != nil {
		return false
	}
	score, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil || score == -1000 {
		return err == nil
	}
	if os.WriteFile(path, []byte(strconv.Itoa(score-1)), 0) != nil {
		return false
	}
	return os.WriteFile(path, raw, 0) == nil
}
