package framework

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/storage/ephemeral"
)

// PodInfo is a pod with what plugins ask about it, computed once. It is
// immutable: an assumed pod is the same PodInfo, held by a node.
type PodInfo struct {
	Pod      *corev1.Pod
	Priority int32
	Requests Resources // with overhead and sidecars
	// Counted requests: as Requests, with defaults for containers without any.
	CountedMilliCPU, CountedMemory int64

	RequiredAffinity, RequiredAntiAffinity   []AffinityTerm
	PreferredAffinity, PreferredAntiAffinity []WeightedAffinityTerm
	HostPorts                                []HostPort
	Claims                                   []string // names of the claims of its volumes
	Disks                                    int      // volumes that it describes itself and that may be attached to its node
}

// AffinityTerm is a parsed corev1.PodAffinityTerm.
type AffinityTerm struct {
	Namespaces        map[string]struct{}
	NamespaceSelector labels.Selector // matches nothing when the term has none
	Selector          labels.Selector
	TopologyKey       string

	selectsNamespaces bool
	key               string
}

// SelectsNamespaces tells whether the term chooses namespaces by their labels.
func (t *AffinityTerm) SelectsNamespaces() bool { return t.selectsNamespaces }

// In returns the term with its namespaces listed by name.
func (t *AffinityTerm) In(namespaces map[string]struct{}) AffinityTerm {
	resolved := AffinityTerm{Namespaces: namespaces, NamespaceSelector: labels.Nothing(), Selector: t.Selector, TopologyKey: t.TopologyKey}
	resolved.setKey()
	return resolved
}

// Key identifies what the term selects and over which domains.
func (t *AffinityTerm) Key() string { return t.key }

func (t *AffinityTerm) setKey() {
	t.key = t.TopologyKey + "|" + strings.Join(slices.Sorted(maps.Keys(t.Namespaces)), ",") + "|" + t.Selector.String()
	if t.selectsNamespaces {
		t.key += "|" + t.NamespaceSelector.String()
	}
}

// WeightedAffinityTerm is a preference of weight 1 to 100.
type WeightedAffinityTerm struct {
	AffinityTerm
	Weight int64
}

// Matches tells whether the term selects pod, whose namespace has the given labels.
func (t *AffinityTerm) Matches(pod *corev1.Pod, namespace labels.Set) bool {
	if _, ok := t.Namespaces[pod.Namespace]; !ok && !t.NamespaceSelector.Matches(namespace) {
		return false
	}
	return t.Selector.Matches(labels.Set(pod.Labels))
}

// HostPort is a port of the node that a pod takes. IP "0.0.0.0" means all.
type HostPort struct {
	IP       string
	Protocol corev1.Protocol
	Port     int32
}

// NewPodInfo digests a pod. The error names an affinity selector that does not parse.
func NewPodInfo(pod *corev1.Pod) (*PodInfo, error) {
	p := &PodInfo{Pod: pod}
	if pod.Spec.Priority != nil {
		p.Priority = *pod.Spec.Priority
	}
	p.Requests, p.CountedMilliCPU, p.CountedMemory = podRequests(pod)
	p.HostPorts = HostPortsOf(pod)
	for i := range pod.Spec.Volumes {
		switch v := &pod.Spec.Volumes[i]; {
		case v.PersistentVolumeClaim != nil:
			p.Claims = append(p.Claims, v.PersistentVolumeClaim.ClaimName)
		case v.Ephemeral != nil:
			p.Claims = append(p.Claims, ephemeral.VolumeClaimName(pod, v))
		case v.AWSElasticBlockStore != nil || v.AzureDisk != nil || v.Cinder != nil || v.GCEPersistentDisk != nil || v.PortworxVolume != nil:
			p.Disks++
		}
	}
	return p, p.parseAffinity()
}

func (p *PodInfo) parseAffinity() (err error) {
	a := p.Pod.Spec.Affinity
	if a == nil {
		return nil
	}
	if pa := a.PodAffinity; pa != nil {
		if p.RequiredAffinity, err = parseTerms(p.Pod, pa.RequiredDuringSchedulingIgnoredDuringExecution); err != nil {
			return fmt.Errorf("pod affinity: %w", err)
		}
		if p.PreferredAffinity, err = parseWeighted(p.Pod, pa.PreferredDuringSchedulingIgnoredDuringExecution); err != nil {
			return fmt.Errorf("pod affinity: %w", err)
		}
	}
	if pa := a.PodAntiAffinity; pa != nil {
		if p.RequiredAntiAffinity, err = parseTerms(p.Pod, pa.RequiredDuringSchedulingIgnoredDuringExecution); err != nil {
			return fmt.Errorf("pod anti-affinity: %w", err)
		}
		if p.PreferredAntiAffinity, err = parseWeighted(p.Pod, pa.PreferredDuringSchedulingIgnoredDuringExecution); err != nil {
			return fmt.Errorf("pod anti-affinity: %w", err)
		}
	}
	return nil
}

// HasAffinity tells whether the pod has any pod (anti-)affinity term.
func (p *PodInfo) HasAffinity() bool {
	return len(p.RequiredAffinity)+len(p.RequiredAntiAffinity)+len(p.PreferredAffinity)+len(p.PreferredAntiAffinity) > 0
}

// SameDemand tells whether q, a later version of p on the same node, means the
// same to other pods.
func (p *PodInfo) SameDemand(q *PodInfo) bool {
	return p.CountedMilliCPU == q.CountedMilliCPU && p.CountedMemory == q.CountedMemory &&
		p.Requests.Equal(&q.Requests) && maps.Equal(p.Pod.Labels, q.Pod.Labels) &&
		(p.Pod.DeletionTimestamp == nil) == (q.Pod.DeletionTimestamp == nil)
}

func parseTerms(pod *corev1.Pod, terms []corev1.PodAffinityTerm) ([]AffinityTerm, error) {
	if len(terms) == 0 {
		return nil, nil
	}
	parsed := make([]AffinityTerm, len(terms))
	for i := range terms {
		var err error
		if parsed[i], err = parseTerm(pod, &terms[i]); err != nil {
			return nil, err
		}
	}
	return parsed, nil
}

func parseWeighted(pod *corev1.Pod, terms []corev1.WeightedPodAffinityTerm) ([]WeightedAffinityTerm, error) {
	if len(terms) == 0 {
		return nil, nil
	}
	parsed := make([]WeightedAffinityTerm, len(terms))
	for i := range terms {
		term, err := parseTerm(pod, &terms[i].PodAffinityTerm)
		if err != nil {
			return nil, err
		}
		parsed[i] = WeightedAffinityTerm{AffinityTerm: term, Weight: int64(terms[i].Weight)}
	}
	return parsed, nil
}

func parseTerm(pod *corev1.Pod, t *corev1.PodAffinityTerm) (AffinityTerm, error) {
	selector, err := metav1.LabelSelectorAsSelector(t.LabelSelector)
	if err != nil {
		return AffinityTerm{}, err
	}
	namespaces, err := metav1.LabelSelectorAsSelector(t.NamespaceSelector)
	if err != nil {
		return AffinityTerm{}, err
	}
	parsed := AffinityTerm{
		Namespaces: map[string]struct{}{}, NamespaceSelector: namespaces, Selector: selector, TopologyKey: t.TopologyKey,
		selectsNamespaces: t.NamespaceSelector != nil,
	}
	for _, ns := range t.Namespaces {
		parsed.Namespaces[ns] = struct{}{}
	}
	if len(t.Namespaces) == 0 && t.NamespaceSelector == nil {
		parsed.Namespaces[pod.Namespace] = struct{}{}
	}
	parsed.setKey()
	return parsed, nil
}

// HostPortsOf returns the ports of ordinary containers and sidecars.
func HostPortsOf(pod *corev1.Pod) []HostPort {
	var found []HostPort
	take := func(c *corev1.Container) {
		for _, p := range c.Ports {
			if p.HostPort <= 0 {
				continue
			}
			hp := HostPort{IP: p.HostIP, Protocol: p.Protocol, Port: p.HostPort}
			if hp.IP == "" {
				hp.IP = allAddresses
			}
			if hp.Protocol == "" {
				hp.Protocol = corev1.ProtocolTCP
			}
			found = append(found, hp)
		}
	}
	for i := range pod.Spec.Containers {
		take(&pod.Spec.Containers[i])
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			take(c)
		}
	}
	return found
}

// QueuedPodInfo is a pod on its way to a node. It belongs to the queue, or to
// the cycle that took it from there.
type QueuedPodInfo struct {
	*PodInfo
	Seq          int64     // order of first arrival
	Added        time.Time // when it came into the queue this time
	FirstAttempt time.Time
	Attempts     int
	Errors       int       // cycles in a row that failed for no plugin's rejection
	RejectedBy   []string  // plugins, of the last attempt
	PendingOn    []string  // those of them that need no backoff
	GatedBy      string    // the PreEnqueue plugin that keeps it out
	Expires      time.Time // of its backoff
	Flushed      bool      // came back from a long wait without any event
}
