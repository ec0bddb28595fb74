package extract

import (
	"fmt"
	"io/fs"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// sources are the modules whose types the API serves, and where in them.
var sources = map[string][]string{
	"k8s.io/api":                     {"."},
	"k8s.io/apimachinery":            {"pkg/apis/meta/v1"},
	"k8s.io/apiextensions-apiserver": {"pkg/apis/apiextensions/v1"},
	"k8s.io/kube-aggregator":         {"pkg/apis/apiregistration/v1"},
}

// unserved are folders of k8s.io/api that no server of this version serves.
var unserved = []string{
	"admission/v1beta1", "apps/v1beta1", "apps/v1beta2", "authentication/v1alpha1", "authentication/v1beta1", "authorization/v1beta1",
	"batch/v1beta1", "discovery/v1beta1", "events/v1beta1", "extensions/v1beta1", "flowcontrol/v1beta1", "flowcontrol/v1beta2",
	"flowcontrol/v1beta3", "imagepolicy/v1alpha1", "node/v1alpha1", "node/v1beta1", "policy/v1beta1", "rbac/v1alpha1", "rbac/v1beta1",
}

// Modules returns the table of every served package, from the source that the
// go command finds for this module.
func Modules() (string, error) {
	out := &strings.Builder{}
	modules := make([]string, 0, len(sources))
	for m := range sources {
		modules = append(modules, m)
	}
	slices.Sort(modules)
	for _, m := range modules {
		dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", m).Output()
		if err != nil {
			return "", fmt.Errorf("find the source of %s: %w", m, err)
		}
		root := strings.TrimSpace(string(dir))
		for _, below := range sources[m] {
			if err := tree(out, m, root, below); err != nil {
				return "", err
			}
		}
	}
	return out.String(), nil
}

func tree(out *strings.Builder, module, root, below string) error {
	return filepath.WalkDir(filepath.Join(root, below), func(dir string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(root, dir)
		if d.Name() == "testdata" || slices.Contains(unserved, filepath.ToSlash(rel)) {
			return filepath.SkipDir
		}
		return Package(out, dir, path.Join(module, filepath.ToSlash(rel)))
	})
}
