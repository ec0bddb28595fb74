package config

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"
)

// dropIn ends the names of files in a drop-in directory; others are skipped.
const dropIn = ".conf"

// maxSize bounds a configuration file, in bytes.
const maxSize = 1 << 20

// Load reads a configuration file and lays the drop-ins of a directory and of its
// subdirectories over it, in the order of their names: a value replaces one, maps
// are merged by key, lists are replaced whole. Either may be empty. What no file
// says is not set; Default completes it. Relative paths of the file are taken from
// its directory.
func Load(file, dir string) (*Configuration, error) {
	merged := []byte("{}")
	if file != "" {
		c, err := readFile(file)
		if err != nil {
			return nil, fmt.Errorf("failed to load kubelet config file, path: %s, error: %w", file, err)
		}
		merged = c
	}
	if dir != "" {
		var err error
		if merged, err = mergeDropIns(merged, dir); err != nil {
			return nil, fmt.Errorf("failed to merge kubelet configs: %w", err)
		}
	}
	c := &Configuration{}
	if err := yaml.UnmarshalStrict(merged, c); err != nil {
		return nil, err
	}
	if file != "" {
		if err := absolute(c, file); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func mergeDropIns(base []byte, dir string) ([]byte, error) {
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		if filepath.Ext(path) != dropIn {
			slog.Info("Skipped file in drop-in directory (does not have .conf extension)", "file", path)
			return nil
		}
		over, err := readFile(path)
		if err != nil {
			return fmt.Errorf("failed to load kubelet dropin file, path: %s, error: %w", path, err)
		}
		base, err = jsonpatch.MergePatch(base, over)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("failed to walk through kubelet dropin directory %q: %w", dir, err)
	}
	return base, nil
}

// readFile returns a file's document as JSON, once it is known to be one of this
// kind that says nothing unknown.
func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxSize {
		return nil, fmt.Errorf("it has %d bytes, at most %d are read", info.Size(), maxSize)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if len(data) == 0 {
		return nil, fmt.Errorf("kubelet config file %q was empty", path)
	}
	c := &Configuration{}
	if err := yaml.UnmarshalStrict(data, c); err != nil {
		return nil, fmt.Errorf("failed to decode: %w", err)
	}
	kind := schema.FromAPIVersionAndKind(c.APIVersion, c.Kind)
	if kind.Empty() {
		return nil, errors.New("no apiVersion/kind")
	}
	if want := kubeletv1beta1.SchemeGroupVersion.WithKind(Kind); kind != want {
		return nil, fmt.Errorf("unknown apiVersion/kind: %v", kind)
	}
	return yaml.YAMLToJSON(data)
}

// absolute makes the paths of a file independent of where the agent starts.
func absolute(c *Configuration, file string) error {
	dir, err := filepath.Abs(filepath.Dir(file))
	if err != nil {
		return err
	}
	paths := []*string{
		&c.StaticPodPath, &c.Authentication.X509.ClientCAFile, &c.TLSCertFile, &c.TLSPrivateKeyFile,
		c.ResolverConfig, &c.VolumePluginDir, &c.PodLogsDir,
	}
	for _, p := range paths {
		if p != nil && *p != "" && !filepath.IsAbs(*p) {
			*p = filepath.Join(dir, *p)
		}
	}
	return nil
}
