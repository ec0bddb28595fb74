package cluster

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
)

// Layout says where a cluster keeps what on this host. Everything is under Data
// except sockets and the pid file, which live under Run: a socket's path may
// have 107 bytes at most, however long Data is.
type Layout struct {
	Data string // absolute
	Run  string
	ID   string // eight hex digits, from Data; names bridges, nft tables and cgroups
}

const (
	runRoot      = "/run/proa"
	announcement = "cluster.json"
)

// NewLayout returns the layout for a data directory.
func NewLayout(dataDir string) (Layout, error) {
	data, err := filepath.Abs(dataDir)
	if err != nil {
		return Layout{}, fmt.Errorf("data dir %q: %w", dataDir, err)
	}
	if resolved, err := filepath.EvalSymlinks(data); err == nil {
		data = resolved
	}
	sum := sha256.Sum256([]byte(data))
	id := hex.EncodeToString(sum[:4])
	run := filepath.Join(runRoot, id)
	if os.Geteuid() != 0 {
		run = filepath.Join(data, "run")
	}
	return Layout{Data: data, Run: run, ID: id}, nil
}

func (l Layout) Kubeconfig() string     { return filepath.Join(l.Data, "kubeconfig") }
func (l Layout) PKI() string            { return filepath.Join(l.Data, "pki") }
func (l Layout) Store() string          { return filepath.Join(l.Data, "store") }
func (l Layout) Payload() string        { return filepath.Join(l.Data, "bin") }
func (l Layout) Containerd() string     { return filepath.Join(l.Data, "containerd") }
func (l Layout) CNI() string            { return filepath.Join(l.Data, "cni") }
func (l Layout) CNIState() string       { return filepath.Join(l.Run, "cni") }
func (l Layout) Kubelet() string        { return filepath.Join(l.Data, "kubelet") }
func (l Layout) LocalPath() string      { return filepath.Join(l.Kubelet(), "local-path") }
func (l Layout) Logs() string           { return filepath.Join(l.Data, "logs") }
func (l Layout) LogFile() string        { return filepath.Join(l.Logs(), "proa.log") }
func (l Layout) Manifests() string      { return filepath.Join(l.Data, "manifests") }
func (l Layout) SettingsFile() string   { return filepath.Join(l.Data, "cluster.json") }
func (l Layout) Announcement() string   { return filepath.Join(l.Run, announcement) }
func (l Layout) PIDFile() string        { return filepath.Join(l.Run, "proa.pid") }
func (l Layout) LockFile() string       { return filepath.Join(l.Run, "proa.lock") }
func (l Layout) CgroupRoot() string     { return "/proa-" + l.ID }
func (l Layout) Bridge() string         { return "proa" + l.ID }
func (l Layout) NFTable() string        { return "proa-" + l.ID }
func (l Layout) ContainerdRun() string  { return filepath.Join(l.Run, "containerd") }
func (l Layout) ContainerdSock() string { return filepath.Join(l.ContainerdRun(), "containerd.sock") }

// Make creates the directories that must exist before anything starts. For a
// node it says first that it takes root: the directories do, too.
func (l Layout) Make(node bool) error {
	if node {
		if err := Problems([]Check{root()}); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(l.Data, 0o700); err != nil {
		return err
	}
	// A container in a user namespace passes through here to its root file system.
	if err := os.MkdirAll(l.Run, 0o711); err != nil {
		return err
	}
	return os.MkdirAll(l.Logs(), 0o755)
}
