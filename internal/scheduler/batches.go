package scheduler

import (
	"encoding/binary"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"proa/internal/scheduler/framework"
	"proa/internal/scheduler/profile"
)

// batches are the most recently used ones, by signature.
type batches struct {
	bySignature map[string]*batch
	clock       int64
	buffer      []byte
}

const (
	// fewBatches are kept in any case; more as long as their orders, of every node
	// each, have no more than maxRanked entries together.
	fewBatches = 8
	maxRanked  = 1 << 19
)

// worthwhile is how many pods with a signature there must be for a full order: with
// fewer, searches would ask about fewer nodes than it does. It is made for the second
// pod at the earliest.
func worthwhile(percentage, nodes int) int { return max(2, nodes/enough(percentage, nodes)) }

// of returns the batch of pods like this one, and keeps at most so many; evicted are
// those with an order that had to go.
func (bs *batches) of(p *profile.Profile, pod *framework.PodInfo, most int) (b *batch, evicted int) {
	bs.clock++
	bs.buffer = appendSignature(bs.buffer[:0], pod)
	own := len(bs.buffer)
	bs.buffer = p.Sign(bs.buffer, pod)
	b = bs.bySignature[string(bs.buffer)]
	if b == nil {
		if bs.bySignature == nil {
			bs.bySignature = map[string]*batch{}
		}
		for len(bs.bySignature) >= most {
			evicted += bs.evict()
		}
		b = &batch{signed: len(bs.buffer) > own}
		bs.bySignature[string(bs.buffer)] = b
	}
	b.used = bs.clock
	return b, evicted
}

// evict drops the batch that was not used for longest, and returns 1 if it had an order.
func (bs *batches) evict() (ordered int) {
	oldest, used := "", bs.clock
	for signature, b := range bs.bySignature {
		if b.used < used {
			oldest, used = signature, b.used
		}
	}
	if b := bs.bySignature[oldest]; b != nil && b.state != nil {
		ordered = 1
	}
	delete(bs.bySignature, oldest)
	return ordered
}

// appendSignature writes all that local plugins look at in a pod.
func appendSignature(to []byte, pod *framework.PodInfo) []byte {
	text := func(s string) {
		to = binary.AppendUvarint(to, uint64(len(s)))
		to = append(to, s...)
	}
	number := func(n int64) { to = binary.AppendVarint(to, n) }
	spec := &pod.Pod.Spec
	text(spec.SchedulerName)
	r := &pod.Requests
	for _, n := range []int64{r.MilliCPU, r.Memory, r.EphemeralStorage, pod.CountedMilliCPU, pod.CountedMemory} {
		number(n)
	}
	number(int64(len(r.Scalar)))
	for _, scalar := range r.Scalar {
		text(string(scalar.Name))
		number(scalar.Value)
	}
	number(int64(len(spec.InitContainers)))
	number(int64(len(spec.Containers)))
	for _, list := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			text(list[i].Image)
		}
	}
	number(int64(len(pod.HostPorts)))
	for _, hp := range pod.HostPorts {
		text(hp.IP)
		text(string(hp.Protocol))
		number(int64(hp.Port))
	}
	number(int64(len(spec.NodeSelector)))
	for _, key := range slices.Sorted(maps.Keys(spec.NodeSelector)) {
		text(key)
		text(spec.NodeSelector[key])
	}
	number(int64(len(spec.Tolerations)))
	for i := range spec.Tolerations {
		t := &spec.Tolerations[i]
		text(t.Key)
		text(string(t.Operator))
		text(t.Value)
		text(string(t.Effect))
	}
	if spec.Affinity != nil && spec.Affinity.NodeAffinity != nil {
		affinity, size := spec.Affinity.NodeAffinity, spec.Affinity.NodeAffinity.Size()
		number(int64(size))
		to = append(to, make([]byte, size)...)
		_, _ = affinity.MarshalToSizedBuffer(to[len(to)-size:]) // it fails for other sizes only
	}
	for i := range spec.Volumes {
		if v := &spec.Volumes[i]; v.GCEPersistentDisk != nil || v.AWSElasticBlockStore != nil || v.RBD != nil || v.ISCSI != nil {
			text(v.String())
		}
	}
	return to
}
