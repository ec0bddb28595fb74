package dynamicresources

import (
	"encoding/json"
	"slices"
	"sync"

	resourcev1 "k8s.io/api/resource/v1"

	"proa/internal/scheduler/devices"
	"proa/internal/scheduler/framework"
)

// memo keeps what the allocator has said about nodes, for the next pods that ask
// for the same: of many pods of one template, only the node that the last one went
// to has to be asked again.
type memo struct {
	mu     sync.Mutex
	shapes map[string]map[string]answer // by what the claims ask for, and node
}

// answer is good as long as the node's version is this one.
type answer struct {
	version devices.Version
	results []resourcev1.AllocationResult
	status  *framework.Status
}

// shapesKept is how many kinds of claims are remembered. The memo is dropped when
// there are more.
const shapesKept = 32

// shape is what claims ask for, in a form that is equal when they ask for the same.
func shape(claims []*resourcev1.ResourceClaim) string {
	asked := make([]*resourcev1.DeviceClaim, len(claims))
	for i, claim := range claims {
		asked[i] = &claim.Spec.Devices
	}
	b, err := json.Marshal(asked)
	if err != nil {
		return "" // of an opaque parameter that is no JSON; such claims are not remembered
	}
	return string(b)
}

func (m *memo) get(shape, node string, version devices.Version) (answer, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a, ok := m.shapes[shape][node]
	return a, ok && a.version == version
}

// put remembers an answer, unless it is good for one use only: the identity of a
// share (KEP-5075) is made with each allocation.
func (m *memo) put(shape, node string, a answer) {
	for i := range a.results {
		if slices.ContainsFunc(a.results[i].Devices.Results, func(r resourcev1.DeviceRequestAllocationResult) bool { return r.ShareID != nil }) {
			return
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	of := m.shapes[shape]
	if of == nil {
		if m.shapes == nil || len(m.shapes) >= shapesKept {
			m.shapes = map[string]map[string]answer{}
		}
		of = map[string]answer{}
		m.shapes[shape] = of
	}
	of[node] = a
}
