package allocate

import (
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/store"
)

// NodePorts is the key of the bitmap of node ports in use.
var NodePorts = store.Key{Resource: schema.GroupResource{Resource: "rangeallocations"}, Name: "servicenodeports"}

var errPortTaken = errors.New("provided port is already allocated")

// portMap is the set of node ports in use, as one transaction sees it.
type portMap struct {
	ports  utilnet.PortRange
	bits   *big.Int
	exists bool
	dirty  bool

	tx       *store.Tx
	measures *measures
}

func (s *Services) openPorts(tx *store.Tx) (*portMap, error) {
	m := &portMap{ports: s.ports, bits: new(big.Int), tx: tx, measures: s.measures}
	item, err := tx.Get(NodePorts)
	if errors.Is(err, store.ErrNotFound) {
		return m, nil
	}
	if err != nil {
		return nil, err
	}
	m.exists = true
	stored := item.Object.(*corev1.RangeAllocation)
	m.bits.SetBytes(stored.Data)
	if r, err := utilnet.ParsePortRange(stored.Range); err == nil && *r != m.ports {
		m.bits = moved(m.bits, *r, m.ports)
		m.dirty = true
	}
	return m, nil
}

// moved carries the bitmap of one range over to another.
func moved(bits *big.Int, from, to utilnet.PortRange) *big.Int {
	out := new(big.Int)
	for i := range from.Size {
		if port := from.Base + i; bits.Bit(i) == 1 && to.Contains(port) {
			out.SetBit(out, port-to.Base, 1)
		}
	}
	return out
}

func (m *portMap) save(tx *store.Tx) error {
	if !m.dirty {
		return nil
	}
	obj := &corev1.RangeAllocation{ObjectMeta: metav1.ObjectMeta{Name: NodePorts.Name}, Range: m.ports.String(), Data: m.bits.Bytes()}
	write := tx.Create
	if m.exists {
		write = tx.Put
	}
	_, err := write(NodePorts, obj)
	return err
}

// ask takes a port that a Service names.
func (m *portMap) ask(port int) error {
	err := m.take(port)
	m.measures.tookPort(m.tx, static, err)
	return err
}

// next takes any free port.
func (m *portMap) next() (int, error) {
	port, err := m.free()
	if err == nil {
		err = m.take(port)
	}
	m.measures.tookPort(m.tx, dynamic, err)
	return port, err
}

func (m *portMap) take(port int) error {
	if !m.ports.Contains(port) {
		return fmt.Errorf("provided port is not in the valid range. The range of valid ports is %s", m.ports.String())
	}
	if m.bits.Bit(port-m.ports.Base) == 1 {
		return errPortTaken
	}
	m.bits.SetBit(m.bits, port-m.ports.Base, 1)
	m.dirty = true
	return nil
}

// free finds any free port, of the upper band of the range while it lasts (KEP-3668).
func (m *portMap) free() (int, error) {
	low := portBand(m.ports.Size)
	for _, band := range [2][2]int{{low, m.ports.Size}, {0, low}} {
		size := band[1] - band[0]
		if size == 0 {
			continue
		}
		start := rand.IntN(size)
		for n := range size {
			port := m.ports.Base + band[0] + (start+n)%size
			if m.bits.Bit(port-m.ports.Base) == 0 {
				return port, nil
			}
		}
	}
	return 0, errFull
}

// portBand is the size of the band left to those who ask for a port.
func portBand(size int) int {
	if size <= 16 {
		return 0
	}
	return min(max(16, size/32), 128)
}

func (m *portMap) release(port int) {
	if m.ports.Contains(port) && m.bits.Bit(port-m.ports.Base) == 1 {
		m.bits.SetBit(m.bits, port-m.ports.Base, 0)
		m.dirty = true
	}
}

// heldPorts are the distinct ports of the node port range that a Service holds.
func heldPorts(svc *corev1.Service) []int {
	var held []int
	add := func(port int32) {
		if port != 0 && !slices.Contains(held, int(port)) {
			held = append(held, int(port))
		}
	}
	for i := range svc.Spec.Ports {
		add(svc.Spec.Ports[i].NodePort)
	}
	add(svc.Spec.HealthCheckNodePort)
	return held
}

func takesPorts(svc *corev1.Service) bool {
	return svc.Spec.Type == corev1.ServiceTypeNodePort || svc.Spec.Type == corev1.ServiceTypeLoadBalancer
}

// wantsPorts says whether ports without a node port get one.
func wantsPorts(svc *corev1.Service) bool {
	alloc := svc.Spec.AllocateLoadBalancerNodePorts
	return svc.Spec.Type == corev1.ServiceTypeNodePort ||
		svc.Spec.Type == corev1.ServiceTypeLoadBalancer && (alloc == nil || *alloc)
}

func needsHealthPort(svc *corev1.Service) bool {
	return svc.Spec.Type == corev1.ServiceTypeLoadBalancer &&
		svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// assignPorts takes the ports that the Service asks for or needs and releases
// those that only before had.
func (s *Services) assignPorts(tx *store.Tx, svc, before *corev1.Service) error {
	held := heldPorts(before)
	if !takesPorts(svc) && len(held) == 0 {
		return nil
	}
	m, err := s.openPorts(tx)
	if err != nil {
		return err
	}
	if takesPorts(svc) {
		if err := m.assign(svc, held); err != nil {
			return err
		}
	}
	if err := m.assignHealth(svc, before); err != nil {
		return err
	}
	kept := heldPorts(svc)
	for _, port := range held {
		if !slices.Contains(kept, port) {
			m.release(port)
		}
	}
	return m.save(tx)
}

// assign gives each port its node port. Ports with the same number (of different
// protocols) share one unless they ask for different ones.
func (m *portMap) assign(svc *corev1.Service, held []int) error {
	mine := slices.Clone(held)
	byPort := map[int32]int32{}
	for i := range svc.Spec.Ports {
		p := &svc.Spec.Ports[i]
		if p.NodePort == 0 && !wantsPorts(svc) {
			continue
		}
		if p.NodePort == 0 {
			p.NodePort = byPort[p.Port]
		}
		if p.NodePort == 0 {
			p.NodePort = requested(p.Port, svc.Spec.Ports[i+1:])
		}
		if p.NodePort == 0 {
			port, err := m.next()
			if err != nil {
				return apierrors.NewInternalError(fmt.Errorf("failed to allocate a nodePort: %w", err))
			}
			p.NodePort = int32(port)
		} else if !slices.Contains(mine, int(p.NodePort)) {
			if err := m.ask(int(p.NodePort)); err != nil {
				return invalid(svc, field.Invalid(field.NewPath("spec", "ports").Index(i).Child("nodePort"), p.NodePort, err.Error()))
			}
		}
		mine = append(mine, int(p.NodePort))
		if byPort[p.Port] == 0 {
			byPort[p.Port] = p.NodePort
		}
	}
	return nil
}

// requested is the node port that a later port with the same number asks for.
func requested(port int32, later []corev1.ServicePort) int32 {
	for _, p := range later {
		if p.Port == port && p.NodePort != 0 {
			return p.NodePort
		}
	}
	return 0
}

// assignHealth allocates spec.healthCheckNodePort where the Service begins to need
// one. Validation refuses another, and one that is not needed.
func (m *portMap) assignHealth(svc, before *corev1.Service) error {
	port := &svc.Spec.HealthCheckNodePort
	if !needsHealthPort(svc) || needsHealthPort(before) {
		return nil
	}
	if *port == 0 {
		next, err := m.next()
		if err != nil {
			return apierrors.NewInternalError(fmt.Errorf("failed to allocate a HealthCheck NodePort %v: %w", *port, err))
		}
		*port = int32(next)
		return nil
	}
	if slices.Contains(heldPorts(before), int(*port)) {
		return nil
	}
	if err := m.ask(int(*port)); err != nil {
		return apierrors.NewInternalError(fmt.Errorf("failed to allocate requested HealthCheck NodePort %v: %w", *port, err))
	}
	return nil
}
