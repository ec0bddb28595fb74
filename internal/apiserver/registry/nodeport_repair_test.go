package registry

import (
	"fmt"
	"math/big"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"

	"proa/internal/apiserver/allocate"
	"proa/internal/store"
)

// held are the node ports in use as the server remembers them.
func (w *world) held() []int {
	w.t.Helper()
	item, err := w.store.Get(allocate.NodePorts)
	if err != nil {
		return nil
	}
	bits := new(big.Int).SetBytes(item.Object.(*corev1.RangeAllocation).Data)
	var ports []int
	for i := range bits.BitLen() {
		if bits.Bit(i) == 1 {
			ports = append(ports, 30000+i)
		}
	}
	return ports
}

// remember writes what another server would have left.
func (w *world) remember(ports ...int) {
	w.t.Helper()
	bits := new(big.Int)
	for _, port := range ports {
		bits.SetBit(bits, port-30000, 1)
	}
	w.rewrite(allocate.NodePorts, &corev1.RangeAllocation{
		ObjectMeta: metav1.ObjectMeta{Name: allocate.NodePorts.Name}, Range: "30000-32767", Data: bits.Bytes(),
	})
}

// rewrite puts an object into the store, past the server.
func (w *world) rewrite(key store.Key, obj store.Object) {
	w.t.Helper()
	_, err := w.store.Update(w.ctx, func(tx *store.Tx) error {
		_, err := tx.Put(key, obj)
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) portRepair() (repair func() []string) {
	events := record.NewFakeRecorder(100)
	r := allocate.NewPortRepair(allocate.PortRepairConfig{Services: w.Allocations(), Events: events, Clock: w.clock})
	return func() (said []string) {
		if err := r.Repair(w.ctx); err != nil {
			w.t.Fatal(err)
		}
		for len(events.Events) > 0 {
			said = append(said, <-events.Events)
		}
		return said
	}
}

func expectPorts(t *testing.T, w *world, want ...int) {
	t.Helper()
	if got := w.held(); !slices.Equal(got, want) {
		t.Errorf("ports in use %v, want %v", got, want)
	}
}

func TestAPortThatIsNotRememberedIsTakenAgain(t *testing.T) {
	w := newWorld(t)
	w.create(services, service("a", nodePort(30001)))
	w.create(services, service("b", nodePort(30002)))
	repair := w.portRepair()
	if said := repair(); len(said) > 0 {
		t.Errorf("of sound ports: %v", said)
	}
	w.remember(30002)
	if said, want := repair(), "Warning PortNotAllocated Port 30001 is not allocated; repairing"; !slices.Equal(said, []string{want}) {
		t.Errorf("%v, want %s", said, want)
	}
	expectPorts(t, w, 30001, 30002)
}

func TestALeakedPortIsFreeWhenItWasFoundThreeTimes(t *testing.T) {
	w := newWorld(t)
	w.create(services, service("a", nodePort(30001)))
	w.remember(30001, 30009)
	repair := w.portRepair()
	repair()
	repair()
	expectPorts(t, w, 30001, 30009)
	repair()
	expectPorts(t, w, 30001)
}

func TestAPortThatIsTakenMeanwhileHasNotLeaked(t *testing.T) {
	w := newWorld(t)
	w.create(services, service("a", nodePort(30001)))
	w.remember(30001, 30009)
	repair := w.portRepair()
	repair()
	repair()
	w.remember(30001)
	w.create(services, service("b", nodePort(30009)))
	repair()
	expectPorts(t, w, 30001, 30009)
}

func TestPortsThatOnlyAUserCanMendAreTold(t *testing.T) {
	w := newWorld(t)
	for i, port := range []int32{30001, 30002, 30003} {
		w.create(services, service(fmt.Sprint("s", i), nodePort(port)))
	}
	change := func(name string, port int32) {
		item, err := w.store.Get(store.Key{Resource: services.GroupResource(), Namespace: "default", Name: name})
		if err != nil {
			t.Fatal(err)
		}
		svc := item.Object.(*corev1.Service).DeepCopy()
		svc.Spec.Ports[0].NodePort = port
		w.rewrite(item.Key, svc)
	}
	change("s1", 30001)
	change("s2", 99)
	want := []string{
		"Warning PortAlreadyAllocated Port 30001 was assigned to multiple services; please recreate service",
		"Warning PortOutOfRange Port 99 is not within the port range 30000-32767; please recreate service",
	}
	if said := w.portRepair()(); !slices.Equal(said, want) {
		t.Errorf("%q, want %q", said, want)
	}
}
