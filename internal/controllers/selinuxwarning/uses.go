package selinuxwarning

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"proa/internal/controllers"
)

// conflict is that pod and other want one volume differently.
type conflict struct {
	property         string // what differs: SELinuxLabel or SELinuxChangePolicy
	pod, other       controllers.Key
	value, otherwise string // of the property, for pod and for other
}

// message says what is wrong to those who may read events of the pod, who need
// not know of pods in other namespaces.
func (c conflict) message() string {
	const outcome = "If both pods land on the same node, only one of them may access the volume."
	if c.pod.Namespace == c.other.Namespace {
		return fmt.Sprintf("%s \"%s\" conflicts with pod %s that uses the same volume as this pod with %s \"%s\". %s", c.property, c.value, c.other.Name, c.property, c.otherwise, outcome)
	}
	return fmt.Sprintf("%s\"%s\" conflicts with another pod that uses the same volume as this pod with a different %s. %s", c.property, c.value, c.property, outcome)
}

// uses is how pods use volumes.
type uses struct {
	mu      sync.Mutex // guards what follows
	volumes map[string]*used
	pods    map[controllers.Key]map[string]bool // the volumes of each
}

// used is one volume.
type used struct {
	driver string // "" unless CSI
	by     map[controllers.Key]use
}

func newUses() *uses {
	return &uses{volumes: map[string]*used{}, pods: map[controllers.Key]map[string]bool{}}
}

// note keeps how a pod uses a volume, and returns the conflicts that this makes,
// from both sides, unless it was known.
func (s *uses) note(volume, driver string, pod controllers.Key, u use) []conflict {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.volumes[volume]
	if v == nil {
		v = &used{driver: driver, by: map[controllers.Key]use{}}
		s.volumes[volume] = v
	}
	if known, ok := v.by[pod]; ok && known == u {
		return nil
	}
	v.by[pod] = u
	if s.pods[pod] == nil {
		s.pods[pod] = map[string]bool{}
	}
	s.pods[pod][volume] = true
	return v.conflictsOf(pod)
}

// conflictsOf are those of one pod with the others, ordered by them.
func (v *used) conflictsOf(pod controllers.Key) []conflict {
	var all []conflict
	mine := v.by[pod]
	for _, other := range slices.SortedFunc(maps.Keys(v.by), compare) {
		theirs := v.by[other]
		add := func(property, value, otherwise string) {
			all = append(all, conflict{property, pod, other, value, otherwise}, conflict{property, other, pod, otherwise, value})
		}
		if mine.policy != theirs.policy {
			add("SELinuxChangePolicy", string(mine.policy), string(theirs.policy))
		}
		if conflicting(mine.label, theirs.label) {
			add("SELinuxLabel", mine.label, theirs.label)
		}
	}
	return all
}

func compare(a, b controllers.Key) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// drop forgets a pod.
func (s *uses) drop(pod controllers.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for volume := range s.pods[pod] {
		v := s.volumes[volume]
		delete(v.by, pod)
		if len(v.by) == 0 {
			delete(s.volumes, volume)
		}
	}
	delete(s.pods, pod)
}

// podsOf are those that use volumes of a CSI driver.
func (s *uses) podsOf(driver string) []controllers.Key {
	s.mu.Lock()
	defer s.mu.Unlock()
	var pods []controllers.Key
	for _, v := range s.volumes {
		if v.driver == driver {
			pods = slices.AppendSeq(pods, maps.Keys(v.by))
		}
	}
	return pods
}

var conflictDesc = prometheus.NewDesc("selinux_warning_controller_selinux_volume_conflict", "[ALPHA] Conflict between two Pods using the same volume",
	[]string{"property", "pod1_namespace", "pod1_name", "pod1_value", "pod2_namespace", "pod2_name", "pod2_value"}, nil)

// Describe implements prometheus.Collector.
func (s *uses) Describe(all chan<- *prometheus.Desc) { all <- conflictDesc }

// Collect implements prometheus.Collector: a series for every conflict there is.
func (s *uses) Collect(all chan<- prometheus.Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := map[conflict]bool{}
	for _, v := range s.volumes {
		for pod := range v.by {
			for _, c := range v.conflictsOf(pod) {
				if seen[c] {
					continue
				}
				seen[c] = true
				all <- prometheus.MustNewConstMetric(conflictDesc, prometheus.GaugeValue, 1,
					c.property, c.pod.Namespace, c.pod.Name, c.value, c.other.Namespace, c.other.Name, c.otherwise)
			}
		}
	}
}
