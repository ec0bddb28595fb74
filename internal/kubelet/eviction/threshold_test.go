package eviction

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// text is a list of thresholds as sentences.
func text(list []Threshold) string {
	var out []string
	for _, t := range list {
		s := string(t.Signal) + "<" + valueText(t.Value)
		if !t.hard() {
			s += fmt.Sprintf(" for %v", t.GracePeriod)
		}
		if t.MinReclaim != nil {
			s += " reclaim " + valueText(*t.MinReclaim)
		}
		out = append(out, s)
	}
	return strings.Join(out, "; ")
}

func valueText(v Value) string {
	if v.Quantity != nil {
		return v.Quantity.String()
	}
	return fmt.Sprintf("%.4g%%", v.Percentage*100)
}

type statements = map[string]string

func TestParse(t *testing.T) {
	for _, tt := range []struct {
		name     string
		settings Settings
		want     string
	}{
		{"nothing", Settings{}, ""},
		{"amounts and percentages, by signal", Settings{Hard: statements{"nodefs.available": "10%", "memory.available": "100Mi"}}, "memory.available<100Mi; nodefs.available<10%"},
		{"0% and 100% are off", Settings{Hard: statements{"nodefs.available": "0%", "imagefs.available": "100%", "pid.available": "5"}}, "pid.available<5"},
		{"soft after hard", Settings{Hard: statements{"nodefs.available": "5%"}, Soft: statements{"memory.available": "1Gi"}, SoftGracePeriod: statements{"memory.available": "30s"}},
			"nodefs.available<5%; memory.available<1Gi for 30s"},
		{"what is to be reclaimed", Settings{Hard: statements{"memory.available": "1Gi", "imagefs.available": "15%"}, MinimumReclaim: statements{"memory.available": "0", "imagefs.available": "2%"}},
			"imagefs.available<15% reclaim 2%; memory.available<1Gi reclaim 0"},
		{"memory of the pods together, hard only", Settings{Hard: statements{"memory.available": "1Gi"}, Soft: statements{"memory.available": "2Gi"},
			SoftGracePeriod: statements{"memory.available": "1m"}, PodsLimited: true}, "memory.available<1Gi; memory.available<2Gi for 1m0s; allocatableMemory.available<1Gi"},
	} {
		got, err := Parse(tt.settings)
		if err != nil || text(got) != tt.want {
			t.Errorf("%s: %q, %v; want %q", tt.name, text(got), err, tt.want)
		}
	}
}

func TestParseRefusals(t *testing.T) {
	soft := statements{"memory.available": "1Gi"}
	for _, tt := range []struct {
		settings Settings
		want     string
	}{
		{Settings{Hard: statements{"mem.available": "1Gi"}}, "unsupported eviction signal mem.available"},
		{Settings{Soft: statements{"cpu": "1"}}, "unsupported eviction signal cpu"},
		{Settings{SoftGracePeriod: statements{"cpu": "1s"}}, "unsupported eviction signal cpu"},
		{Settings{MinimumReclaim: statements{"cpu": "1"}}, "unsupported eviction signal cpu"},
		{Settings{Hard: statements{"memory.available": "-1%"}}, "eviction percentage threshold memory.available must be >= 0%: -1%"},
		{Settings{Hard: statements{"memory.available": "101%"}}, "eviction percentage threshold memory.available must be <= 100%: 101%"},
		{Settings{Hard: statements{"memory.available": "x%"}}, `strconv.ParseFloat: parsing "x": invalid syntax`},
		{Settings{Hard: statements{"memory.available": "-1Gi"}}, "eviction threshold memory.available must be positive: -1Gi"},
		{Settings{Hard: statements{"memory.available": "0"}}, "eviction threshold memory.available must be positive: 0"},
		{Settings{Hard: statements{"memory.available": "much"}}, resource.ErrFormatWrong.Error()},
		{Settings{Soft: soft}, "grace period must be specified for the soft eviction threshold memory.available"},
		{Settings{Soft: soft, SoftGracePeriod: statements{"memory.available": "-1s"}}, "invalid eviction grace period specified: -1s, must be a positive value"},
		{Settings{Soft: soft, SoftGracePeriod: statements{"memory.available": "soon"}}, `time: invalid duration "soon"`},
		{Settings{MinimumReclaim: statements{"memory.available": "0%"}}, "eviction percentage minimum reclaim memory.available must be positive: 0%"},
		{Settings{MinimumReclaim: statements{"memory.available": "-1Mi"}}, "negative eviction minimum reclaim specified for memory.available"},
	} {
		if _, err := Parse(tt.settings); err == nil || err.Error() != tt.want {
			t.Errorf("%+v: %v; want %s", tt.settings, err, tt.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("memory.available", "10%", "1s", "5%")
	f.Add("nodefs.inodesFree", "1Gi", "-1s", "0")
	f.Fuzz(func(t *testing.T, signal, value, grace, reclaim string) {
		list, err := Parse(Settings{Hard: statements{signal: value}, Soft: statements{signal: value}, SoftGracePeriod: statements{signal: grace}, MinimumReclaim: statements{signal: reclaim}, PodsLimited: true})
		if err != nil {
			return
		}
		for _, th := range list {
			if q := th.Value.of(resource.MustParse("1Gi")); q.Sign() < 0 || th.GracePeriod < 0 {
				t.Errorf("%s", text(list))
			}
		}
	})
}

func TestLayersHaveTheThresholdsOfTheirFileSystem(t *testing.T) {
	all, err := Parse(Settings{Hard: statements{"nodefs.available": "10%", "imagefs.available": "15%", "imagefs.inodesFree": "5%", "containerfs.available": "50%"},
		Soft: statements{"nodefs.available": "20%"}, SoftGracePeriod: statements{"nodefs.available": "1m"}})
	if err != nil {
		t.Fatal(err)
	}
	const base = "imagefs.available<15%; imagefs.inodesFree<5%; nodefs.available<10%; nodefs.available<20% for 1m0s; "
	for _, tt := range []struct {
		name  string
		disks Disks
		want  string
	}{
		{"one file system", Disks{}, base + "containerfs.available<10%; containerfs.available<20% for 1m0s"},
		{"layers with the images", Disks{Images: true}, base + "containerfs.available<15%; containerfs.inodesFree<5%"},
		{"layers with the node", Disks{Images: true, Containers: true}, base + "containerfs.available<10%; containerfs.available<20% for 1m0s"},
	} {
		got, ignored := withContainerFs(all, tt.disks)
		if text(got) != tt.want {
			t.Errorf("%s: %s\nwant %s", tt.name, text(got), tt.want)
		}
		if ignored == nil || ignored.Error() != "found containerfs.available for hard eviction. ignoring" {
			t.Errorf("%s: ignored %v", tt.name, ignored)
		}
	}
}

func TestHardThresholdsAreReserved(t *testing.T) {
	list, err := Parse(Settings{Hard: statements{"memory.available": "100Mi", "nodefs.available": "10%", "imagefs.available": "15%"},
		Soft: statements{"memory.available": "1Gi"}, SoftGracePeriod: statements{"memory.available": "1m"}, PodsLimited: true})
	if err != nil {
		t.Fatal(err)
	}
	capacity := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("4Gi"), corev1.ResourceEphemeralStorage: resource.MustParse("100G"), corev1.ResourceCPU: resource.MustParse("2")}
	got := Reserved(list, capacity)
	if memory, disk := got[corev1.ResourceMemory], got[corev1.ResourceEphemeralStorage]; len(got) != 2 || memory.String() != "100Mi" || disk.Value() != 10_000_000_149 {
		t.Errorf("reserved %v", got)
	}
	delete(capacity, corev1.ResourceEphemeralStorage)
	if got := Reserved(list, capacity); len(got) != 1 {
		t.Errorf("reserved of what the node does not count: %v", got)
	}
}

func TestConditionsAndGracePeriods(t *testing.T) {
	list, err := Parse(Settings{Hard: statements{"memory.available": "100Mi"}, Soft: statements{"nodefs.available": "20%"},
		SoftGracePeriod: statements{"nodefs.available": "30s"}, MinimumReclaim: statements{"memory.available": "50Mi"}})
	if err != nil {
		t.Fatal(err)
	}
	s, at := newState(list), time.Unix(1000, 0)
	quantity := func(text string) resource.Quantity { return resource.MustParse(text) }
	for _, step := range []struct {
		name         string
		after        time.Duration
		memory, disk string
		conditions   string
		due          string
	}{
		{"enough of all", 0, "1Gi", "50Gi", "[]", ""},
		{"exactly the threshold is enough", 10, "100Mi", "50Gi", "[]", ""},
		{"a hard threshold is due at once", 10, "99Mi", "50Gi", "[MemoryPressure]", "memory.available<100Mi reclaim 50Mi"},
		{"what was reclaimed is too little", 10, "120Mi", "50Gi", "[MemoryPressure]", "memory.available<100Mi reclaim 50Mi"},
		{"what was reclaimed is enough", 10, "150Mi", "50Gi", "[MemoryPressure]", ""},
		{"less is enough after that", 10, "120Mi", "50Gi", "[MemoryPressure]", ""},
		{"a soft threshold waits", 10, "1Gi", "10Gi", "[DiskPressure MemoryPressure]", ""},
		{"and waits", 29, "1Gi", "10Gi", "[DiskPressure MemoryPressure]", ""},
		{"until its grace period is over", 1, "1Gi", "10Gi", "[DiskPressure MemoryPressure]", "nodefs.available<20% for 30s"},
		{"memory comes first", 0, "1Mi", "10Gi", "[DiskPressure MemoryPressure]", "memory.available<100Mi reclaim 50Mi; nodefs.available<20% for 30s"},
		{"conditions stay for the transition period", 299, "1Gi", "50Gi", "[DiskPressure MemoryPressure]", ""},
		{"and no longer", 1, "1Gi", "50Gi", "[]", ""},
		{"a grace period begins anew", 0, "1Gi", "10Gi", "[DiskPressure]", ""},
	} {
		at = at.Add(step.after * time.Second)
		seen := map[Signal]observation{
			MemoryAvailable: {quantity(step.memory), quantity("4Gi")}, NodeFsAvailable: {quantity(step.disk), quantity("100Gi")}}
		conditions, due := s.note(seen, 5*time.Minute, at)
		if fmt.Sprint(conditions) != step.conditions || text(due) != step.due {
			t.Errorf("%s: %v %q, want %s %q", step.name, conditions, text(due), step.conditions, step.due)
		}
	}
}

func TestWhatIsNotObservedIsNotCrossed(t *testing.T) {
	s := newState([]Threshold{{Signal: PIDAvailable, Value: Value{Percentage: 0.5}}})
	if conditions, due := s.note(nil, time.Minute, time.Unix(1, 0)); len(conditions)+len(due) > 0 || !s.relieved(nil) {
		t.Errorf("%v %v", conditions, due)
	}
}
