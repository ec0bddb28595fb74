package deviceplugins

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"proa/internal/kubelet/checkpoint"
)

// state is what the file holds.
type state struct {
	Resources map[string][]string                        `json:"resources"` // devices by resource
	Given     map[types.UID]map[string]map[string]*grant `json:"given"`
}

// load takes over what is in the file. Its resources are gone until their plugins
// register again.
func (m *Manager) load() error {
	var s state
	if err := checkpoint.Load(m.file, &s); err != nil {
		return err
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
	return checkpoint.Save(m.file, s)
}
