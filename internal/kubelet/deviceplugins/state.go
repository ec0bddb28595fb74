package deviceplugins

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// state is what the file holds.
type state struct {
	Resources map[string][]string                        `json:"resources"` // devices by resource
	Given     map[types.UID]map[string]map[string]*grant `json:"given"`
}

// load takes over what is in the file. Its resources are gone until their plugins
// register again.
func (m *Manager) load() error {
	data, err := os.ReadFile(m.file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var s state
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("read %s: %w", m.file, err)
	}
	for name, ids := range s.Resources {
		p := &plugin{name: name, devices: map[string]*pluginapi.Device{}, gone: m.c.Clock.Now()}
		for _, id := range ids {
			p.devices[id] = &pluginapi.Device{ID: id, Health: pluginapi.Unhealthy}
		}
		m.resources[name] = p
	}
	if s.Given != nil {
		m.given = s.Given
	}
	return nil
}

// save writes the file, all of it or nothing.
func (m *Manager) save() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := state{Resources: map[string][]string{}, Given: m.given}
	for name, p := range m.resources {
		for id := range p.devices {
			s.Resources[name] = append(s.Resources[name], id)
		}
		slices.Sort(s.Resources[name])
	}
	data, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("save devices: %w", err)
	}
	next := m.file + ".new"
	if err := os.WriteFile(next, data, 0o600); err != nil {
		return fmt.Errorf("save devices: %w", err)
	}
	if err := os.Rename(next, m.file); err != nil {
		return fmt.Errorf("save devices: %w", err)
	}
	return nil
}
