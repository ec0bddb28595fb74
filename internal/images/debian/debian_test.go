package debian

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadSpecRefusesUnknownFields(t *testing.T) {
	path := filepath.Join(t.TempDir(), "image.json")
	if err := os.WriteFile(path, []byte(`{"names": ["a:1"], "package": ["misspelt"]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadSpec(path); err == nil || !strings.Contains(err.Error(), `unknown field "package"`) {
		t.Errorf("error is %v", err)
	}
}

func TestSpecsOfTheTreeAreReadable(t *testing.T) {
	specs, err := filepath.Glob("../../../test/images/*/image.json")
	if err != nil || len(specs) == 0 {
		t.Fatalf("specs: %v (%v)", specs, err)
	}
	for _, path := range specs {
		spec, err := ReadSpec(path)
		if err != nil {
			t.Error(err)
		}
		if len(spec.Names) == 0 || len(spec.Config.Entrypoint)+len(spec.Config.Cmd) == 0 {
			t.Errorf("%s: an image needs a name and a command", path)
		}
	}
}

func TestArrangeStaysInsideTheImage(t *testing.T) {
	outside := t.TempDir()
	root := t.TempDir()
	if err := os.Symlink(outside, filepath.Join(root, "escape")); err != nil {
		t.Fatal(err)
	}
	for name, spec := range map[string]Spec{
		"a directory through an absolute link": {Directories: []Directory{{Path: "escape/made", Mode: "0755"}}},
		"a link through an absolute link":      {Links: map[string]string{"escape/made": "target"}},
		"a directory above the root":           {Directories: []Directory{{Path: "../made", Mode: "0755"}}},
	} {
		if err := arrange(root, spec); err == nil {
			t.Errorf("%s was made", name)
		}
	}
	if left, _ := os.ReadDir(outside); len(left) > 0 {
		t.Errorf("%v was made outside", left)
	}
}

func TestArrangeMakesDirectoriesAndLinks(t *testing.T) {
	root := t.TempDir()
	if err := layout(filepath.Join(root, "image")); err != nil {
		t.Fatal(err)
	}
	root = filepath.Join(root, "image")
	spec := Spec{
		Directories: []Directory{{Path: "var/run/app", Mode: "0770", UID: os.Geteuid(), GID: os.Getegid()}, {Path: "shared", Mode: "1777", UID: os.Geteuid(), GID: os.Getegid()}},
		Links:       map[string]string{"var/log/app/access.log": "/dev/stdout"},
	}
	if err := arrange(root, spec); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(root, "run/app"))
	if err != nil || info.Mode().Perm() != 0o770 {
		t.Errorf("run/app: %v (%v), want it inside the image with mode 0770", info, err)
	}
	if info, err := os.Stat(filepath.Join(root, "shared")); err != nil || info.Mode()&os.ModeSticky == 0 {
		t.Errorf("shared: %v (%v), want it sticky", info, err)
	}
	if target, err := os.Readlink(filepath.Join(root, "var/log/app/access.log")); err != nil || target != "/dev/stdout" {
		t.Errorf("link to %q (%v)", target, err)
	}
}
