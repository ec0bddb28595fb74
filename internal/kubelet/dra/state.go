package dra

import (
	"cmp"
	"slices"
	"sync"

	"proa/internal/kubelet/checkpoint"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// claim is one that pods of this node use. Its fields change only with work and
// Manager.mu held, so that either suffices to read them.
type claim struct {
	work sync.Mutex // held while the drivers are asked
	gone bool

	UID       types.UID   `json:"uid"`
	Namespace string      `json:"namespace"`
	Name      string      `json:"name"`
	Pods      []types.UID `json:"pods"`
	Drivers   []string    `json:"drivers"` // that were asked to prepare
	Prepared  bool        `json:"prepared"`
	Devices   []device    `json:"devices,omitempty"`
}

// identity of a device in the cluster.
type identity struct {
	Driver string `json:"driver"`
	Pool   string `json:"pool"`
	Device string `json:"device"`
}

// device that is prepared for a claim.
type device struct {
	identity
	Requests []string `json:"requests,omitempty"` // none: it is for all
	CDI      []string `json:"cdi,omitempty"`
}

// isFor tells whether a container that names a request of the claim, or none, gets the device.
func (d *device) isFor(request string) bool {
	return request == "" || len(d.Requests) == 0 || slices.ContainsFunc(d.Requests, func(r string) bool {
		return resourceclaim.BaseRequestRef(r) == request
	})
}

// hold locks the claim of an object for work.
func (m *Manager) hold(obj *resourcev1.ResourceClaim) *claim {
	for {
		m.mu.Lock()
		c := m.claims[obj.UID]
		if c == nil {
			c = &claim{UID: obj.UID, Namespace: obj.Namespace, Name: obj.Name}
			m.claims[obj.UID] = c
		}
		m.mu.Unlock()
		c.work.Lock()
		if !c.gone {
			return c
		}
		c.work.Unlock()
	}
}

// held locks a claim for work; nil when there is none.
func (m *Manager) held(uid types.UID) *claim {
	m.mu.Lock()
	c := m.claims[uid]
	m.mu.Unlock()
	if c == nil {
		return nil
	}
	c.work.Lock()
	if c.gone {
		c.work.Unlock()
		return nil
	}
	return c
}

// used are the claims that a pod has on this node.
func (m *Manager) used(pod types.UID) []types.UID {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []types.UID
	for uid, c := range m.claims {
		if slices.Contains(c.Pods, pod) {
			out = append(out, uid)
		}
	}
	slices.Sort(out)
	return out
}

// Pods are those that have claims on this node.
func (m *Manager) Pods() []types.UID {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := sets.New[types.UID]()
	for _, c := range m.claims {
		all.Insert(c.Pods...)
	}
	return sets.List(all)
}

func (m *Manager) findLocked(pod *corev1.Pod, name string) *claim {
	for _, c := range m.claims {
		if c.Name == name && c.Namespace == pod.Namespace && slices.Contains(c.Pods, pod.UID) {
			return c
		}
	}
	return nil
}

func (m *Manager) use(c *claim, pod types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !slices.Contains(c.Pods, pod) {
		c.Pods = append(c.Pods, pod)
	}
}

func (m *Manager) attempt(c *claim, driver string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !slices.Contains(c.Drivers, driver) {
		c.Drivers = append(c.Drivers, driver)
	}
}

func (m *Manager) settle(c *claim, devices []device) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !c.Prepared {
		c.Prepared, c.Devices = true, devices
	}
}

// drop takes a pod off a claim, and the claim away with its last pod.
func (m *Manager) drop(c *claim, pod types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c.Pods = slices.DeleteFunc(c.Pods, func(uid types.UID) bool { return uid == pod })
	if len(c.Pods) == 0 {
		c.gone = true
		delete(m.claims, c.UID)
	}
}

func (m *Manager) load() error {
	m.claims = map[types.UID]*claim{}
	var list []*claim
	if err := checkpoint.Load(m.file, &list); err != nil {
		return err
	}
	for _, c := range list {
		m.claims[c.UID] = c
	}
	return nil
}

func (m *Manager) save() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := make([]*claim, 0, len(m.claims))
	for _, c := range m.claims {
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b *claim) int { return cmp.Compare(a.UID, b.UID) })
	return checkpoint.Save(m.file, list)
}
