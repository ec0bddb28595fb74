// Package devices is the scheduler's picture of devices (KEP-4381), shared by its
// profiles: what drivers publish, with the taints of DeviceTaintRules put on; which
// devices claims have, or are about to have; and which classes stand for extended
// resources. It decides nothing.
package devices

import (
	"maps"
	"strings"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"

	"proa/internal/client"
)

// Inventory is safe for concurrent use, except where a method says otherwise.
type Inventory struct {
	Measures

	Claims  *client.Informer[*resourcev1.ResourceClaim]
	slices  *client.Informer[*resourcev1.ResourceSlice]
	classes *client.Informer[*resourcev1.DeviceClass]
	rules   *client.Informer[*resourcev1.DeviceTaintRule]

	byResource atomic.Pointer[map[corev1.ResourceName]string] // classes, by extended resource

	mu       sync.Mutex                                 // guards what follows
	written  map[types.UID]*resourcev1.AllocationResult // of claims, as the API has it
	inFlight map[types.UID]*resourcev1.AllocationResult // chosen, and not written yet
	changed  map[types.UID]struct{}                     // claims to be counted anew
	outdated bool                                       // slices, rules or classes have changed
	moved    chan struct{}                              // closed at the next change of a claim; nil: nobody waits
	turns    map[types.UID]*turn

	// What follows belongs to the scheduling loop.
	counted   map[types.UID]*resourcev1.AllocationResult // in allocated
	allocated structured.AllocatedState
	published []*resourcev1.ResourceSlice
	places    places
}

// New returns an inventory that is kept current by the cache, which must not run yet.
func New(c *client.Cache) *Inventory {
	i := &Inventory{
		Measures: newMeasures(),
		Claims:   client.Shared[*resourcev1.ResourceClaim](c),
		slices:   client.Shared[*resourcev1.ResourceSlice](c),
		classes:  client.Shared[*resourcev1.DeviceClass](c),
		rules:    client.Shared[*resourcev1.DeviceTaintRule](c),
		written:  map[types.UID]*resourcev1.AllocationResult{},
		inFlight: map[types.UID]*resourcev1.AllocationResult{},
		changed:  map[types.UID]struct{}{},
		turns:    map[types.UID]*turn{},
		counted:  map[types.UID]*resourcev1.AllocationResult{},
		allocated: structured.AllocatedState{
			AllocatedDevices:         sets.New[structured.DeviceID](),
			AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
			AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
		},
	}
	i.byResource.Store(&map[corev1.ResourceName]string{})
	i.Claims.OnChange(i.claimChanged)
	i.slices.OnChange(func(_, _ *resourcev1.ResourceSlice) { i.outdate() })
	i.rules.OnChange(func(_, _ *resourcev1.DeviceTaintRule) { i.outdate() })
	i.classes.OnChange(func(_, _ *resourcev1.DeviceClass) {
		i.mapClasses()
		i.outdate()
	})
	return i
}

func (i *Inventory) outdate() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.outdated = true
}

func (i *Inventory) claimChanged(old, claim *resourcev1.ResourceClaim) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if old != nil && (claim == nil || claim.UID != old.UID) {
		i.setLocked(i.written, old.UID, nil)
	}
	if claim != nil {
		i.setLocked(i.written, claim.UID, claim.Status.Allocation)
	}
	if i.moved != nil {
		close(i.moved)
		i.moved = nil
	}
}

func (i *Inventory) setLocked(in map[types.UID]*resourcev1.AllocationResult, claim types.UID, a *resourcev1.AllocationResult) {
	if in[claim] == a {
		return
	}
	if a == nil {
		delete(in, claim)
	} else {
		in[claim] = a
	}
	i.changed[claim] = struct{}{}
}

// Moved returns a channel that is closed when a claim changes next.
func (i *Inventory) Moved() <-chan struct{} {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.moved == nil {
		i.moved = make(chan struct{})
	}
	return i.moved
}

// Take keeps devices for a claim until its allocation is written, or Release.
func (i *Inventory) Take(claim types.UID, a *resourcev1.AllocationResult) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.setLocked(i.inFlight, claim, a)
}

// Release ends what Take began.
func (i *Inventory) Release(claim types.UID) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.setLocked(i.inFlight, claim, nil)
}

// Taken tells whether devices are kept for a claim.
func (i *Inventory) Taken(claim types.UID) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.inFlight[claim] != nil
}

// Turn waits until nobody else writes to a claim; the caller does, until it calls
// done.
func (i *Inventory) Turn(claim types.UID) (done func()) {
	i.mu.Lock()
	t := i.turns[claim]
	if t == nil {
		t = &turn{}
		i.turns[claim] = t
	}
	t.users++
	i.mu.Unlock()
	t.mu.Lock()
	return func() {
		t.mu.Unlock()
		i.mu.Lock()
		defer i.mu.Unlock()
		if t.users--; t.users == 0 {
			delete(i.turns, claim)
		}
	}
}

// turn is a claim that is written to.
type turn struct {
	mu    sync.Mutex // held by the writer
	users int        // the writer and those that wait
}

// Allocated is what claims have. Only the scheduling loop may ask, and what it
// gets is good until it asks again: only the changes since are counted.
func (i *Inventory) Allocated() structured.AllocatedState {
	i.mu.Lock()
	defer i.mu.Unlock()
	for claim := range i.changed {
		is := i.written[claim]
		if is == nil {
			is = i.inFlight[claim]
		}
		if was := i.counted[claim]; was != nil && is != was {
			i.count(was, false)
			delete(i.counted, claim)
		}
	}
	for claim := range i.changed { // after all that goes: a device may have changed hands
		is := i.written[claim]
		if is == nil {
			is = i.inFlight[claim]
		}
		if is != nil && i.counted[claim] != is {
			i.count(is, true)
			i.counted[claim] = is
		}
	}
	clear(i.changed)
	return i.allocated
}

// count adds or takes off the devices of an allocation. Those for an administrator
// are not used up (KEP-5018), shared ones by their capacity (KEP-5075).
func (i *Inventory) count(a *resourcev1.AllocationResult, add bool) {
	for j := range a.Devices.Results {
		r := &a.Devices.Results[j]
		if r.AdminAccess != nil && *r.AdminAccess {
			continue
		}
		i.places.used(r.Driver, r.Pool)
		id := structured.MakeDeviceID(r.Driver, r.Pool, r.Device)
		if r.ShareID == nil {
			set(i.allocated.AllocatedDevices, id, add)
			continue
		}
		set(i.allocated.AllocatedSharedDeviceIDs, structured.MakeSharedDeviceID(id, r.ShareID), add)
		if r.ConsumedCapacity == nil {
			continue
		}
		if capacity := structured.NewDeviceConsumedCapacity(id, r.ConsumedCapacity); add {
			i.allocated.AggregatedCapacity.Insert(capacity)
		} else {
			i.allocated.AggregatedCapacity.Remove(capacity)
		}
	}
}

func set[T comparable](in sets.Set[T], v T, add bool) {
	if add {
		in.Insert(v)
	} else {
		in.Delete(v)
	}
}

// Published are all slices, with the taints of rules. Only the scheduling loop
// may ask; the result is not to be changed.
func (i *Inventory) Published() []*resourcev1.ResourceSlice {
	i.mu.Lock()
	outdated := i.outdated || i.published == nil
	i.outdated = false
	i.mu.Unlock()
	if outdated {
		rules := i.rules.Select("", labels.Everything())
		all := i.slices.Select("", labels.Everything())
		for j, slice := range all {
			all[j] = tainted(slice, rules)
		}
		i.published = all
		i.places.publish(all)
	}
	return i.published
}

// tainted is the slice, or a copy of it with more taints.
func tainted(slice *resourcev1.ResourceSlice, rules []*resourcev1.DeviceTaintRule) *resourcev1.ResourceSlice {
	patched := slice
	for _, rule := range rules {
		for j := range slice.Spec.Devices {
			if !Selects(rule, slice.Spec.Driver, slice.Spec.Pool.Name, slice.Spec.Devices[j].Name) {
				continue
			}
			if patched == slice {
				patched = slice.DeepCopy()
			}
			d := &patched.Spec.Devices[j]
			d.Taints = append(d.Taints, rule.Spec.Taint)
		}
	}
	return patched
}

// Selects tells whether a rule is about a device (KEP-5055).
func Selects(rule *resourcev1.DeviceTaintRule, driver, pool, device string) bool {
	s := rule.Spec.DeviceSelector
	same := func(want *string, is string) bool { return want == nil || *want == is }
	return s != nil && same(s.Driver, driver) && same(s.Pool, pool) && same(s.Device, device)
}

// mapClasses finds the class of every extended resource. When several classes have
// the same name for theirs, the newest has it, then the first by name.
func (i *Inventory) mapClasses() {
	all := i.classes.Select("", labels.Everything())
	found, newest := map[corev1.ResourceName]string{}, map[corev1.ResourceName]*resourcev1.DeviceClass{}
	for _, class := range all {
		found[corev1.ResourceName(resourcev1.ResourceDeviceClassPrefix+class.Name)] = class.Name
		if class.Spec.ExtendedResourceName == nil {
			continue
		}
		name := corev1.ResourceName(*class.Spec.ExtendedResourceName)
		if rival := newest[name]; rival == nil || rival.CreationTimestamp.Before(&class.CreationTimestamp) {
			newest[name], found[name] = class, class.Name
		}
	}
	if !maps.Equal(found, *i.byResource.Load()) {
		i.byResource.Store(&found)
	}
}

// ClassOf returns the class that stands for an extended resource (KEP-5004).
func (i *Inventory) ClassOf(name corev1.ResourceName) (class string, ok bool) {
	if i == nil || !strings.Contains(string(name), "/") {
		return "", false
	}
	class, ok = (*i.byResource.Load())[name]
	return class, ok
}
