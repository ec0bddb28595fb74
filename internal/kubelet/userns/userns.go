// Package userns gives pods with hostUsers: false (KEP-127) ranges of host ids
// that no other pod of the node has. A range is recorded in the pod's directory
// before it is used, so it outlives this process.
package userns

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"proa/internal/kubelet/criconfig"
)

// DefaultLength is how many ids a pod has unless the node says otherwise.
const DefaultLength = 65536

const file = "userns"

// Allocator hands out ranges.
type Allocator struct {
	podsDir string
	length  uint32 // of a range, and the first: the host's own ids lie below

	mu   sync.Mutex
	used map[uint32]types.UID // guarded by mu: first host id of a range -> its pod
}

// record is the file's content, in the form the kubelet writes.
type record struct {
	UIDMappings []mapping `json:"uidMappings"`
	GIDMappings []mapping `json:"gidMappings"`
}

type mapping struct {
	HostID      uint32 `json:"hostId"`
	ContainerID uint32 `json:"containerId"`
	Length      uint32 `json:"length"`
}

// New reads the ranges in use from the pods' directories; each has so many ids.
func New(podsDir string, length uint32) (*Allocator, error) {
	a := &Allocator{podsDir: podsDir, length: length, used: map[uint32]types.UID{}}
	entries, err := os.ReadDir(podsDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read user namespaces: %w", err)
	}
	for _, e := range entries {
		uid := types.UID(e.Name())
		if id, ok, err := a.read(uid); err != nil {
			return nil, err
		} else if ok {
			a.used[id] = uid
		}
	}
	return a, nil
}

func (a *Allocator) path(uid types.UID) string { return filepath.Join(a.podsDir, string(uid), file) }

func (a *Allocator) read(uid types.UID) (id uint32, ok bool, err error) {
	b, err := os.ReadFile(a.path(uid))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("read user namespace: %w", err)
	}
	var r record
	if err := json.Unmarshal(b, &r); err != nil {
		return 0, false, fmt.Errorf("user namespace of pod %s: %w", uid, err)
	}
	if len(r.UIDMappings) != 1 || r.UIDMappings[0].Length != a.length {
		return 0, false, fmt.Errorf("user namespace of pod %s has another size than %d", uid, a.length)
	}
	return r.UIDMappings[0].HostID, true, nil
}

// For returns the pod's range, allocating it the first time.
func (a *Allocator) For(pod *corev1.Pod) (*criconfig.UserNamespace, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for id, uid := range a.used {
		if uid == pod.UID {
			return &criconfig.UserNamespace{HostID: id, Length: a.length}, nil
		}
	}
	step := uint64(a.length)
	for id := step; id+2*step <= 1<<32; id += step {
		if _, taken := a.used[uint32(id)]; taken {
			continue
		}
		if err := a.write(pod.UID, uint32(id)); err != nil {
			return nil, err
		}
		a.used[uint32(id)] = pod.UID
		return &criconfig.UserNamespace{HostID: uint32(id), Length: a.length}, nil
	}
	return nil, errors.New("no range of user ids is left for another user namespace")
}

func (a *Allocator) write(uid types.UID, id uint32) error {
	m := []mapping{{HostID: id, Length: a.length}}
	b, err := json.Marshal(record{UIDMappings: m, GIDMappings: m})
	if err != nil {
		return fmt.Errorf("record user namespace: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(a.path(uid)), 0o750); err != nil {
		return fmt.Errorf("record user namespace: %w", err)
	}
	if err := os.WriteFile(a.path(uid), b, 0o640); err != nil {
		return fmt.Errorf("record user namespace: %w", err)
	}
	return nil
}

// Release frees the range of a pod that is gone.
func (a *Allocator) Release(uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for id, owner := range a.used {
		if owner == uid {
			delete(a.used, id)
		}
	}
}
