package allocate

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/google/uuid"

	"proa/internal/store"
)

var (
	addresses    = schema.GroupResource{Group: networkingv1.GroupName, Resource: "ipaddresses"}
	serviceCIDRs = schema.GroupResource{Group: networkingv1.GroupName, Resource: "servicecidrs"}

	errAllocated = errors.New("provided IP is already allocated")
	errFull      = errors.New("range is full")
)

// clusterIPs are the addresses that a Service holds.
func clusterIPs(svc *corev1.Service) []string {
	ips := svc.Spec.ClusterIPs
	if svc.Spec.Type == corev1.ServiceTypeExternalName || svc.Spec.ClusterIP == headless || len(ips) > 0 && ips[0] == headless {
		return nil
	}
	if len(ips) == 0 && svc.Spec.ClusterIP != "" {
		ips = []string{svc.Spec.ClusterIP}
	}
	return slices.DeleteFunc(slices.Clone(ips), func(ip string) bool { return ip == "" })
}

// assignIPs gives the Service a cluster IP of each of its families and takes back
// those that only before had.
func (s *Services) assignIPs(tx *store.Tx, svc, before *corev1.Service) error {
	var held []string
	if before != nil {
		held = clusterIPs(before)
	}
	if err := s.fillIPs(tx, svc, held); err != nil {
		return err
	}
	kept := clusterIPs(svc)
	for _, ip := range held {
		if !slices.Contains(kept, ip) {
			if err := s.releaseIP(tx, ip); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Services) fillIPs(tx *store.Tx, svc *corev1.Service, held []string) error {
	spec := &svc.Spec
	if spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	if spec.ClusterIP == headless {
		spec.ClusterIPs = []string{headless}
		return nil
	}
	if spec.ClusterIP != "" && len(spec.ClusterIPs) == 0 {
		spec.ClusterIPs = []string{spec.ClusterIP}
	}
	for i, family := range spec.IPFamilies {
		if i == len(spec.ClusterIPs) {
			spec.ClusterIPs = append(spec.ClusterIPs, "")
		}
		want := spec.ClusterIPs[i]
		if want != "" && (slices.Contains(held, want) || i < len(held)) {
			continue // held, or a change that validation refuses
		}
		ip, err := s.allocateIP(tx, svc, family, want)
		if err != nil {
			return err
		}
		spec.ClusterIPs[i] = ip
	}
	if len(spec.ClusterIPs) > 0 {
		spec.ClusterIP = spec.ClusterIPs[0]
	}
	return nil
}

// allocateIP takes the wanted address, or any free one when want is empty.
func (s *Services) allocateIP(tx *store.Tx, svc *corev1.Service, family corev1.IPFamily, want string) (string, error) {
	ranges := s.ranges(family)
	if want == "" {
		ip, err := s.anyIP(ranges)
		if err == nil {
			err = s.takeIP(tx, svc, ip)
		}
		s.measures.tookIP(tx, ranges, ip, dynamic, err)
		if err != nil {
			return "", apierrors.NewInternalError(fmt.Errorf("failed to allocate a serviceIP: %w", err))
		}
		return ip.String(), nil
	}
	ip, err := netip.ParseAddr(want)
	if err != nil {
		return want, nil // validation refuses it
	}
	if !slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return usable(p, ip) }) {
		err = fmt.Errorf("the provided network does not match the current range")
		if len(ranges) > 0 {
			err = fmt.Errorf("the provided IP (%v) is not in the valid range. The range of valid IPs is %s", ip, ranges[0])
		}
	} else {
		err = s.takeIP(tx, svc, ip)
	}
	s.measures.tookIP(tx, ranges, ip, static, err)
	if err != nil {
		return "", invalid(svc, field.Invalid(field.NewPath("spec", "clusterIPs"), svc.Spec.ClusterIPs,
			fmt.Sprintf("failed to allocate IP %v: %v", want, err)))
	}
	return want, nil
}

// ranges are the prefixes of one family: the configured one and those of ready
// ServiceCIDR objects (KEP-1880).
func (s *Services) ranges(family corev1.IPFamily) []netip.Prefix {
	var found []netip.Prefix
	for i, f := range s.families {
		if f == family {
			found = append(found, s.cidrs[i])
		}
	}
	s.store.Snapshot().Range(serviceCIDRs, "", store.Key{}, func(item *store.Item) bool {
		c, ok := item.Object.(*networkingv1.ServiceCIDR)
		if !ok || c.DeletionTimestamp != nil || !ready(c) {
			return true
		}
		for _, text := range c.Spec.CIDRs {
			p, err := netip.ParsePrefix(text)
			if err == nil && familyOf(p.Addr()) == family && !slices.Contains(found, p.Masked()) {
				found = append(found, p.Masked())
			}
		}
		return true
	})
	return found
}

func ready(c *networkingv1.ServiceCIDR) bool {
	for _, cond := range c.Status.Conditions {
		if cond.Type == networkingv1.ServiceCIDRConditionReady {
			return cond.Status == metav1.ConditionTrue
		}
	}
	return false
}

// usable leaves out a range's network address and, of IPv4, its broadcast address.
func usable(p netip.Prefix, ip netip.Addr) bool {
	if !p.Contains(ip) || ip == p.Addr() && !p.IsSingleIP() {
		return false
	}
	return !ip.Is4() || p.Bits() > 30 || p.Contains(ip.Next())
}

// randomTries is how many addresses are tried at random before a range is searched in order.
const randomTries = 32

// anyIP finds a free address. The lower band of a range is left to those who ask
// for an address, as long as there are others (KEP-3070).
func (s *Services) anyIP(ranges []netip.Prefix) (netip.Addr, error) {
	snapshot := s.store.Snapshot()
	free := func(p netip.Prefix, ip netip.Addr) bool {
		if !usable(p, ip) {
			return false
		}
		_, err := snapshot.Get(store.Key{Resource: addresses, Name: ip.String()})
		return errors.Is(err, store.ErrNotFound)
	}
	for _, p := range ranges {
		size := sizeOf(p)
		low := lowerBand(size)
		if low > 0 {
			low++ // the network's address is in no band
		}
		for range randomTries {
			if ip := offset(p, low+rand.Uint64N(size-low)); free(p, ip) {
				return ip, nil
			}
		}
		for _, band := range [2][2]uint64{{low, size}, {0, low}} {
			for n := band[0]; n < band[1]; n++ {
				if ip := offset(p, n); free(p, ip) {
					return ip, nil
				}
			}
		}
	}
	return netip.Addr{}, errFull
}

// maxOffset bounds how far into an IPv6 range addresses are given out.
const maxOffset = 1 << 16

func sizeOf(p netip.Prefix) uint64 {
	bits := p.Addr().BitLen() - p.Bits()
	if p.Addr().Is6() && bits > 16 {
		return maxOffset
	}
	return 1 << bits
}

// lowerBand is how many addresses of a range are left to those who ask for one.
func lowerBand(size uint64) uint64 {
	if size <= 16 {
		return 0
	}
	return min(max(16, size/16), 256)
}

func offset(p netip.Prefix, n uint64) netip.Addr {
	b := p.Addr().As16()
	for i := 15; n > 0 && i >= 0; i-- {
		n += uint64(b[i])
		b[i] = byte(n)
		n >>= 8
	}
	addr := netip.AddrFrom16(b)
	if p.Addr().Is4() {
		return addr.Unmap()
	}
	return addr
}

// manager is in the labels of the allocator's IPAddress objects.
const manager = "ipallocator.k8s.io"

// takeIP writes the IPAddress object that makes the address the Service's.
func (s *Services) takeIP(tx *store.Tx, svc *corev1.Service, ip netip.Addr) error {
	_, err := tx.Create(store.Key{Resource: addresses, Name: ip.String()}, &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{
			Name: ip.String(), UID: types.UID(uuid.NewString()), Generation: 1,
			CreationTimestamp: metav1.NewTime(s.clock.Now()).Rfc3339Copy(),
			Labels: map[string]string{
				networkingv1.LabelIPAddressFamily: string(familyOf(ip)),
				networkingv1.LabelManagedBy:       manager,
			},
		},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{
			Resource: "services", Namespace: svc.Namespace, Name: svc.Name,
		}},
	})
	if errors.Is(err, store.ErrExists) {
		return errAllocated
	}
	return err
}

func (s *Services) releaseIP(tx *store.Tx, ip string) error {
	addr, err := netip.ParseAddr(ip)
	if err != nil {
		return nil // never allocated
	}
	if err := tx.Delete(store.Key{Resource: addresses, Name: addr.String()}); !errors.Is(err, store.ErrNotFound) {
		return err
	}
	return nil
}
