package cgroups

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Memory is what all pods take together, in bytes.
type Memory struct {
	Usage, WorkingSet uint64
	Limit             uint64 // 0: none
}

// noLimit is what cgroup v1 shows where nothing limits memory, but for rounding.
const noLimit = 1 << 62

// Memory reads what all pods take of the node's memory. It needs Init.
func (t *Tree) Memory() (Memory, error) {
	t.mu.Lock()
	dir := t.root
	t.mu.Unlock()
	if dir == "" {
		return Memory{}, errors.New("the cgroup of all pods has not been made")
	}
	files := [...]string{"memory.usage_in_bytes", "memory.limit_in_bytes", "total_inactive_file"}
	if Version() == 2 {
		files = [...]string{"memory.current", "memory.max", "inactive_file"}
	}
	var m Memory
	var err error
	if m.Usage, err = readNumber(filepath.Join(dir, files[0])); err != nil {
		return m, err
	}
	if m.Limit, err = readNumber(filepath.Join(dir, files[1])); err != nil {
		return m, err
	}
	if m.Limit >= noLimit {
		m.Limit = 0
	}
	stat, err := os.ReadFile(filepath.Join(dir, "memory.stat"))
	if err != nil {
		return m, err
	}
	m.WorkingSet = m.Usage - min(m.Usage, statValue(string(stat), files[2]))
	return m, nil
}

// readNumber reads a file with one number; max stands for none, which is 0.
func readNumber(path string) (uint64, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("the cgroup of all pods: %w", err)
	}
	if err != nil {
		return 0, err
	}
	text := strings.TrimSpace(string(b))
	if text == "max" {
		return 0, nil
	}
	return strconv.ParseUint(text, 10, 64)
}

// statValue finds the number behind a name in lines of "name number".
func statValue(stat, name string) uint64 {
	for line := range strings.Lines(stat) {
		if text, ok := strings.CutPrefix(line, name+" "); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 64)
			if err == nil {
				return n
			}
		}
	}
	return 0
}
