// Package debian builds container images from Debian packages, for machines that reach a
// Debian mirror but no container registry. apt resolves and verifies the packages against an
// empty system; their files are laid out without running maintainer scripts, so a Spec adds
// the users, directories and files those scripts would have made.
package debian

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"proa/internal/images/pack"
)

// Spec describes an image. The directory "files" beside it is copied over the packages' files.
type Spec struct {
	// Names are the full references the image gets.
	Names []string `json:"names"`
	// Packages are installed with everything they depend on, except Without.
	Packages []string `json:"packages"`
	// Without names dependencies that the image works without, such as those that only
	// maintainer scripts use.
	Without []string `json:"without"`
	// Directories are made, or given their mode and owner.
	Directories []Directory `json:"directories"`
	// Links maps the path of each symbolic link to its target.
	Links map[string]string `json:"links"`
	// Remove lists shell patterns of files that the image does without.
	Remove []string `json:"remove"`
	// Config is the image's run configuration.
	Config v1.Config `json:"config"`
}

// Directory is a directory whose mode (octal, such as "0700") or owner matters.
type Directory struct {
	Path string `json:"path"`
	Mode string `json:"mode"`
	UID  int    `json:"uid"`
	GID  int    `json:"gid"`
}

// unneeded is what no container reads.
var unneeded = []string{
	"usr/share/doc", "usr/share/man", "usr/share/info", "usr/share/lintian", "usr/share/locale",
	"usr/share/bash-completion", "usr/share/bug", "usr/share/doc-base", "usr/share/perl*", "usr/share/menu",
	"var/cache", "etc/init.d", "etc/cron.*", "etc/logrotate.d", "lib/systemd", "usr/lib/systemd", "usr/share/initramfs-tools",
}

// ReadSpec reads the JSON file at path, refusing fields it does not know.
func ReadSpec(path string) (Spec, error) {
	f, err := os.Open(path)
	if err != nil {
		return Spec{}, err
	}
	defer f.Close()
	var spec Spec
	decoder := json.NewDecoder(f)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&spec); err != nil {
		return Spec{}, fmt.Errorf("read %s: %w", path, err)
	}
	return spec, nil
}

// Build makes the image that the file specPath describes and writes its OCI archive to out.
func Build(ctx context.Context, out, specPath string) error {
	spec, err := ReadSpec(specPath)
	if err != nil {
		return err
	}
	if out, err = filepath.Abs(out); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp(filepath.Dir(out), ".debian-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	root := filepath.Join(work, "root")
	if err := layout(root); err != nil {
		return err
	}
	archives, err := download(ctx, work, spec)
	if err != nil {
		return err
	}
	for _, archive := range archives {
		if err := shell(ctx, `dpkg-deb --fsys-tarfile "$1" | tar -x -C "$2" --keep-directory-symlink`, archive, root); err != nil {
			return fmt.Errorf("unpack %s: %w", filepath.Base(archive), err)
		}
	}
	if err := finish(ctx, root, filepath.Join(filepath.Dir(specPath), "files"), spec); err != nil {
		return err
	}
	return pack.WriteFile(out, pack.Image{Names: spec.Names, Root: root, Architecture: runtime.GOARCH, Config: spec.Config})
}

// layout makes the directories and links that Debian's base packages make on installation.
func layout(root string) error {
	for _, dir := range []string{"usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "etc", "dev", "proc", "sys", "run", "root", "home", "mnt", "opt", "srv", "var/lib", "var/log", "tmp", "var/tmp"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return err
		}
	}
	for _, dir := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.Symlink("usr/"+dir, filepath.Join(root, dir)); err != nil {
			return err
		}
	}
	for _, dir := range []string{"tmp", "var/tmp"} {
		if err := os.Chmod(filepath.Join(root, dir), fs.ModeSticky|0o777); err != nil {
			return err
		}
	}
	return os.Symlink("../run", filepath.Join(root, "var/run")) // relative: we follow it from outside
}

// download fetches the packages into work and returns their paths in order of name. apt sees
// a system with nothing installed, so it fetches the whole closure.
func download(ctx context.Context, work string, spec Spec) ([]string, error) {
	status, cache := filepath.Join(work, "status"), filepath.Join(work, "archives")
	if err := os.WriteFile(status, nil, 0o644); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(cache, "partial"), 0o755); err != nil {
		return nil, err
	}
	args := append([]string{"install", "--download-only", "--yes", "--quiet=2", "--no-install-recommends",
		"-o", "Dir::State::status=" + status,
		"-o", "Dir::Cache::archives=" + cache,
		"-o", "APT::Sandbox::User=root",
		"-o", "Debug::NoLocking=1"}, spec.Packages...)
	command := exec.CommandContext(ctx, "apt-get", args...)
	if out, err := command.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("apt-get install %s: %w: %s", strings.Join(spec.Packages, " "), err, out)
	}
	all, err := filepath.Glob(filepath.Join(cache, "*.deb"))
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("apt-get left no packages in %s", cache)
	}
	return slices.DeleteFunc(all, func(path string) bool {
		name, _, _ := strings.Cut(filepath.Base(path), "_")
		return slices.Contains(spec.Without, name)
	}), nil
}

// finish turns unpacked packages into the image's root file system.
func finish(ctx context.Context, root, files string, spec Spec) error {
	if _, err := os.Stat(files); err == nil {
		if err := shell(ctx, `tar -c -C "$1" --owner=0 --group=0 . | tar -x -C "$2" --keep-directory-symlink`, files, root); err != nil {
			return fmt.Errorf("copy %s: %w", files, err)
		}
	}
	if err := linkApplets(ctx, root); err != nil {
		return err
	}
	if err := arrange(root, spec); err != nil {
		return err
	}
	for _, pattern := range slices.Concat(unneeded, spec.Remove) {
		matches, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return fmt.Errorf("pattern %q: %w", pattern, err)
		}
		for _, path := range matches {
			if err := os.RemoveAll(path); err != nil {
				return err
			}
		}
	}
	return nil
}

// arrange makes the directories and links of spec.
func arrange(path string, spec Spec) error {
	root, err := os.OpenRoot(path)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, dir := range spec.Directories {
		if err := makeDirectory(root, dir); err != nil {
			return err
		}
	}
	for link, target := range spec.Links {
		if err := root.MkdirAll(filepath.Dir(link), 0o755); err != nil {
			return err
		}
		if err := root.RemoveAll(link); err != nil {
			return err
		}
		if err := root.Symlink(target, link); err != nil {
			return err
		}
	}
	return nil
}

// linkApplets gives every busybox applet its name, where no package brought a fuller program.
func linkApplets(ctx context.Context, root string) error {
	busybox := filepath.Join(root, "usr/bin/busybox")
	if _, err := os.Stat(busybox); err != nil {
		return nil // the image has no busybox
	}
	list, err := exec.CommandContext(ctx, busybox, "--list").Output()
	if err != nil {
		return fmt.Errorf("list applets: %w", err)
	}
	for _, applet := range strings.Fields(string(list)) {
		if _, err := os.Lstat(filepath.Join(root, "usr/sbin", applet)); err == nil {
			continue
		}
		err := os.Symlink("busybox", filepath.Join(root, "usr/bin", applet))
		if err != nil && !os.IsExist(err) {
			return err
		}
	}
	return nil
}

// makeDirectory stays below root, wherever a package's symbolic links may point.
func makeDirectory(root *os.Root, dir Directory) error {
	var mode uint32
	if _, err := fmt.Sscanf(dir.Mode, "%o", &mode); err != nil {
		return fmt.Errorf("directory %s: mode %q: %w", dir.Path, dir.Mode, err)
	}
	if err := root.MkdirAll(dir.Path, 0o755); err != nil {
		return err
	}
	if err := root.Lchown(dir.Path, dir.UID, dir.GID); err != nil {
		return err
	}
	return root.Chmod(dir.Path, fs.FileMode(mode&0o777)|sticky(mode))
}

func sticky(mode uint32) fs.FileMode {
	if mode&0o1000 != 0 {
		return fs.ModeSticky
	}
	return 0
}

func shell(ctx context.Context, script string, args ...string) error {
	command := exec.CommandContext(ctx, "bash", append([]string{"-o", "pipefail", "-ec", script, "bash"}, args...)...)
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}
