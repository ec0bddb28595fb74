package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// contextName is the kubeconfig context of the cluster in the default data
// directory; other clusters add their id.
func (l Layout) contextName() string {
	if l.Data == DefaultDataDir {
		return "proa"
	}
	return "proa-" + l.ID
}

// DefaultDataDir is where a cluster lives unless --data-dir says otherwise.
const DefaultDataDir = "/var/lib/proa"

// mergeKubeconfig adds the cluster's context to the user's kubeconfig. Entries
// that are not this cluster's are left as they are, and so is the current
// context unless there is none. It reports the file, and whether the context is
// the current one.
func mergeKubeconfig(l Layout) (file string, current bool, err error) {
	file = userKubeconfig()
	if file == "" {
		return "", false, nil
	}
	ours, err := clientcmd.LoadFromFile(l.Kubeconfig())
	if err != nil {
		return file, false, err
	}
	theirs, err := clientcmd.LoadFromFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		theirs = clientcmdapi.NewConfig()
	} else if err != nil {
		return file, false, fmt.Errorf("%s: %w; it is left as it is", file, err)
	}
	name := l.contextName()
	if existing := theirs.Contexts[name]; existing != nil && existing.Cluster != name {
		return file, false, fmt.Errorf("%s already has a context %q of another cluster; it is left as it is", file, name)
	}
	theirs.Clusters[name] = ours.Clusters[name]
	theirs.AuthInfos[name] = ours.AuthInfos[name]
	theirs.Contexts[name] = ours.Contexts[name]
	if theirs.CurrentContext == "" {
		theirs.CurrentContext = name
	}
	return file, theirs.CurrentContext == name, writeConfig(file, theirs)
}

// removeFromKubeconfig takes the cluster's entries out of the user's kubeconfig again.
func removeFromKubeconfig(l Layout) error {
	file := userKubeconfig()
	config, err := clientcmd.LoadFromFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	name := l.contextName()
	if config.Contexts[name] == nil || config.Contexts[name].Cluster != name {
		return nil
	}
	delete(config.Clusters, name)
	delete(config.AuthInfos, name)
	delete(config.Contexts, name)
	if config.CurrentContext == name {
		config.CurrentContext = ""
	}
	return writeConfig(file, config)
}

// userKubeconfig is the file kubectl writes to: the first of $KUBECONFIG, else ~/.kube/config.
func userKubeconfig() string {
	if files := filepath.SplitList(os.Getenv("KUBECONFIG")); len(files) > 0 {
		return files[0]
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(home, ".kube", "config")
}

// writeConfig replaces file atomically, and only when its content changes.
func writeConfig(file string, config *clientcmdapi.Config) error {
	data, err := clientcmd.Write(*config)
	if err != nil {
		return err
	}
	if old, err := os.ReadFile(file); err == nil && bytes.Equal(old, data) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	return renameio.WriteFile(file, data, 0o600)
}
