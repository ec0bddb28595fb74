package eviction

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Signal is something that a node can run out of.
type Signal string

// The signals, by the names that thresholds are configured with. nodefs holds the
// pods' directories and logs, imagefs the images, containerfs the writable layers.
const (
	MemoryAvailable       Signal = "memory.available"
	AllocatableMemory     Signal = "allocatableMemory.available"
	NodeFsAvailable       Signal = "nodefs.available"
	NodeFsInodesFree      Signal = "nodefs.inodesFree"
	ImageFsAvailable      Signal = "imagefs.available"
	ImageFsInodesFree     Signal = "imagefs.inodesFree"
	ContainerFsAvailable  Signal = "containerfs.available"
	ContainerFsInodesFree Signal = "containerfs.inodesFree"
	PIDAvailable          Signal = "pid.available"
)

// Resources that only eviction knows.
const (
	inodes corev1.ResourceName = "inodes"
	pids   corev1.ResourceName = "pids"
)

// scarce is what a signal is about.
type scarce struct {
	resource  corev1.ResourceName
	condition corev1.NodeConditionType
}

var signals = map[Signal]scarce{
	MemoryAvailable:       {corev1.ResourceMemory, corev1.NodeMemoryPressure},
	AllocatableMemory:     {corev1.ResourceMemory, corev1.NodeMemoryPressure},
	NodeFsAvailable:       {corev1.ResourceEphemeralStorage, corev1.NodeDiskPressure},
	NodeFsInodesFree:      {inodes, corev1.NodeDiskPressure},
	ImageFsAvailable:      {corev1.ResourceEphemeralStorage, corev1.NodeDiskPressure},
	ImageFsInodesFree:     {inodes, corev1.NodeDiskPressure},
	ContainerFsAvailable:  {corev1.ResourceEphemeralStorage, corev1.NodeDiskPressure},
	ContainerFsInodesFree: {inodes, corev1.NodeDiskPressure},
	PIDAvailable:          {pids, corev1.NodePIDPressure},
}

// Value is an amount, or the part of a capacity where the amount is nil.
type Value struct {
	Quantity   *resource.Quantity
	Percentage float32 // 0.1 is a tenth
}

// of is the amount that a value means of a capacity.
func (v Value) of(capacity resource.Quantity) resource.Quantity {
	if v.Quantity != nil {
		return v.Quantity.DeepCopy()
	}
	return *resource.NewQuantity(int64(float64(capacity.Value())*float64(v.Percentage)), resource.BinarySI)
}

// Threshold is crossed while less of a signal is left than Value.
type Threshold struct {
	Signal      Signal
	Value       Value
	GracePeriod time.Duration // 0: a hard threshold
	MinReclaim  *Value        // once crossed, so much more than Value has to be free
}

func (t Threshold) hard() bool { return t.GracePeriod == 0 }

// Settings are thresholds as KubeletConfiguration has them: amounts, percentages
// and durations by signal.
type Settings struct {
	Hard, Soft      map[string]string
	SoftGracePeriod map[string]string
	MinimumReclaim  map[string]string
	// PodsLimited says that all pods together are held to what the node may give
	// them, so that they can run short of memory before the node does.
	PodsLimited bool
}

// Parse reads thresholds, hard ones first, each group by signal. 0% and 100% switch
// a signal off.
func Parse(s Settings) ([]Threshold, error) {
	hard, err := parseValues(s.Hard)
	if err != nil {
		return nil, err
	}
	soft, err := parseValues(s.Soft)
	if err != nil {
		return nil, err
	}
	grace, err := parseGracePeriods(s.SoftGracePeriod)
	if err != nil {
		return nil, err
	}
	reclaim, err := parseReclaims(s.MinimumReclaim)
	if err != nil {
		return nil, err
	}
	for i := range soft {
		period, found := grace[soft[i].Signal]
		if !found {
			return nil, fmt.Errorf("grace period must be specified for the soft eviction threshold %v", soft[i].Signal)
		}
		soft[i].GracePeriod = period
	}
	all := append(hard, soft...)
	for i := range all {
		if v, set := reclaim[all[i].Signal]; set {
			all[i].MinReclaim = &v
		}
	}
	if s.PodsLimited {
		for _, t := range all {
			if t.Signal == MemoryAvailable && t.hard() {
				t.Signal = AllocatableMemory
				all = append(all, t)
			}
		}
	}
	return all, nil
}

func unsupported(signal string) error { return fmt.Errorf("unsupported eviction signal %v", signal) }

func known(signal string) error {
	if _, ok := signals[Signal(signal)]; !ok {
		return unsupported(signal)
	}
	return nil
}

func parseValues(statements map[string]string) ([]Threshold, error) {
	var out []Threshold
	for _, signal := range slices.Sorted(maps.Keys(statements)) {
		if err := known(signal); err != nil {
			return nil, err
		}
		text := statements[signal]
		if text == "0%" || text == "100%" {
			continue
		}
		v, err := parseValue(signal, text)
		if err != nil {
			return nil, err
		}
		out = append(out, Threshold{Signal: Signal(signal), Value: v})
	}
	return out, nil
}

func parseValue(signal, text string) (Value, error) {
	if strings.HasSuffix(text, "%") {
		part, err := parsePercentage(text)
		switch {
		case err != nil:
			return Value{}, err
		case part < 0:
			return Value{}, fmt.Errorf("eviction percentage threshold %v must be >= 0%%: %s", signal, text)
		case part > 1:
			return Value{}, fmt.Errorf("eviction percentage threshold %v must be <= 100%%: %s", signal, text)
		}
		return Value{Percentage: part}, nil
	}
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return Value{}, err
	}
	if q.Sign() <= 0 {
		return Value{}, fmt.Errorf("eviction threshold %v must be positive: %s", signal, &q)
	}
	return Value{Quantity: &q}, nil
}

func parsePercentage(text string) (float32, error) {
	v, err := strconv.ParseFloat(strings.TrimRight(text, "%"), 32)
	return float32(v) / 100, err
}

func parseGracePeriods(statements map[string]string) (map[Signal]time.Duration, error) {
	out := map[Signal]time.Duration{}
	for _, signal := range slices.Sorted(maps.Keys(statements)) {
		if err := known(signal); err != nil {
			return nil, err
		}
		period, err := time.ParseDuration(statements[signal])
		if err != nil {
			return nil, err
		}
		if period < 0 {
			return nil, fmt.Errorf("invalid eviction grace period specified: %v, must be a positive value", statements[signal])
		}
		out[Signal(signal)] = period
	}
	return out, nil
}

func parseReclaims(statements map[string]string) (map[Signal]Value, error) {
	out := map[Signal]Value{}
	for _, signal := range slices.Sorted(maps.Keys(statements)) {
		if err := known(signal); err != nil {
			return nil, err
		}
		text := statements[signal]
		if strings.HasSuffix(text, "%") {
			part, err := parsePercentage(text)
			if err != nil {
				return nil, err
			}
			if part <= 0 {
				return nil, fmt.Errorf("eviction percentage minimum reclaim %v must be positive: %s", signal, text)
			}
			out[Signal(signal)] = Value{Percentage: part}
			continue
		}
		q, err := resource.ParseQuantity(text)
		if err != nil {
			return nil, err
		}
		if q.Sign() < 0 {
			return nil, fmt.Errorf("negative eviction minimum reclaim specified for %v", signal)
		}
		out[Signal(signal)] = Value{Quantity: &q}
	}
	return out, nil
}

// Disks is how the runtime's file systems lie.
type Disks struct {
	Images     bool // images have a file system of their own, apart from the node's
	Containers bool // writable layers have another one than images
}

// withContainerFs gives writable layers the thresholds of the file system they lie
// on: the node's, or that of the images where layers lie there. What was configured
// for containerfs itself does not count, and is told of.
func withContainerFs(thresholds []Threshold, d Disks) (out []Threshold, ignored error) {
	like := map[Signal]Signal{NodeFsAvailable: ContainerFsAvailable, NodeFsInodesFree: ContainerFsInodesFree}
	if d.Images && !d.Containers {
		like = map[Signal]Signal{ImageFsAvailable: ContainerFsAvailable, ImageFsInodesFree: ContainerFsInodesFree}
	}
	var errs []error
	for _, t := range thresholds {
		if t.Signal != ContainerFsAvailable && t.Signal != ContainerFsInodesFree {
			out = append(out, t)
			continue
		}
		kind := "soft"
		if t.hard() {
			kind = "hard"
		}
		errs = append(errs, fmt.Errorf("found %s for %s eviction. ignoring", t.Signal, kind))
	}
	for _, t := range slices.Clone(out) {
		if as, ok := like[t.Signal]; ok {
			t.Signal = as
			out = append(out, t)
		}
	}
	return out, errors.Join(errs...)
}

// Reserved is what hard thresholds keep free of a node's capacity, which pods cannot
// be given.
func Reserved(thresholds []Threshold, capacity corev1.ResourceList) corev1.ResourceList {
	out := corev1.ResourceList{}
	for _, t := range thresholds {
		switch t.Signal {
		case MemoryAvailable, NodeFsAvailable:
			name := signals[t.Signal].resource
			if total, have := capacity[name]; have && t.hard() {
				out[name] = t.Value.of(total)
			}
		}
	}
	return out
}
