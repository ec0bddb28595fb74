package kwok

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"
)

// ObjectSelector takes pods by namespace and name; an empty list takes all.
type ObjectSelector struct {
	MatchNamespaces []string `json:"matchNamespaces,omitempty"`
	MatchNames      []string `json:"matchNames,omitempty"`
}

// Matches tells whether a pod is taken.
func (s *ObjectSelector) Matches(namespace, name string) bool {
	return s == nil || (len(s.MatchNamespaces) == 0 || slices.Contains(s.MatchNamespaces, namespace)) &&
		(len(s.MatchNames) == 0 || slices.Contains(s.MatchNames, name))
}

// Containers names containers; empty: all.
type Containers []string

// Take tells whether a container is meant.
func (c Containers) Take(name string) bool { return len(c) == 0 || slices.Contains(c, name) }

// UsageSpec says what containers use.
type UsageSpec struct {
	Selector *ObjectSelector `json:"selector,omitempty"`
	Usages   []Usage         `json:"usages,omitempty"`
}

// Usage by resource: cpu in cores, memory in bytes.
type Usage struct {
	Containers Containers            `json:"containers,omitempty"`
	Usage      map[string]UsageValue `json:"usage,omitempty"`
}

// UsageValue is a quantity, or a CEL expression of one.
type UsageValue struct {
	Value      *resource.Quantity `json:"value,omitempty"`
	Expression *string            `json:"expression,omitempty"`
}

// LogsSpec says what containers have logged.
type LogsSpec struct {
	Selector *ObjectSelector `json:"selector,omitempty"`
	Logs     []Log           `json:"logs"`
}

// Log is a file in the format of the CRI.
type Log struct {
	Containers       Containers `json:"containers,omitempty"`
	LogsFile         *string    `json:"logsFile,omitempty"`
	PreviousLogsFile *string    `json:"previousLogsFile,omitempty"`
	Follow           *bool      `json:"follow,omitempty"`
}

// ExecSpec says how commands are answered.
type ExecSpec struct {
	Selector *ObjectSelector `json:"selector,omitempty"`
	Execs    []ExecTarget    `json:"execs"`
}

// ExecTarget runs commands on the simulator's own machine.
type ExecTarget struct {
	Containers Containers `json:"containers,omitempty"`
	Local      *Local     `json:"local,omitempty"`
}

// Local is how a command is run on this machine.
type Local struct {
	WorkDir         string           `json:"workDir,omitempty"`
	Envs            []Env            `json:"envs,omitempty"`
	SecurityContext *SecurityContext `json:"securityContext,omitempty"`
}

// Env is a variable of a command's environment.
type Env struct {
	Name  string `json:"name"`
	Value string `json:"value,omitempty"`
}

// SecurityContext is whom a command runs as.
type SecurityContext struct {
	RunAsUser  *int64 `json:"runAsUser,omitempty"`
	RunAsGroup *int64 `json:"runAsGroup,omitempty"`
}

// AttachSpec says what one sees who attaches to containers.
type AttachSpec struct {
	Selector *ObjectSelector `json:"selector,omitempty"`
	Attaches []Attach        `json:"attaches"`
}

// Attach shows a log as it grows.
type Attach struct {
	Containers Containers `json:"containers,omitempty"`
	LogsFile   *string    `json:"logsFile,omitempty"`
}

// PortForwardSpec says what answers at the ports of pods.
type PortForwardSpec struct {
	Selector *ObjectSelector `json:"selector,omitempty"`
	Forwards []Forward       `json:"forwards"`
}

// Forward leads ports (none: all) to an address or to a command's input and output.
type Forward struct {
	Ports   []int32        `json:"ports,omitempty"`
	Target  *ForwardTarget `json:"target,omitempty"`
	Command []string       `json:"command,omitempty"`
}

// ForwardTarget is where a port leads to.
type ForwardTarget struct {
	Port    int32  `json:"port"`
	Address string `json:"address"`
}

// MetricSpec is a page of metrics, at a path with {nodeName} in it.
type MetricSpec struct {
	Path    string   `json:"path"`
	Metrics []Metric `json:"metrics"`
}

// Metric of every node, pod or container (its dimension), in CEL over node, pod
// and container.
type Metric struct {
	Name      string   `json:"name"`
	Help      string   `json:"help,omitempty"`
	Kind      string   `json:"kind"` // counter, gauge or histogram
	Labels    []Label  `json:"labels,omitempty"`
	Value     string   `json:"value,omitempty"`
	Buckets   []Bucket `json:"buckets,omitempty"`
	Dimension string   `json:"dimension,omitempty"` // node, pod or container
}

// Label of a metric.
type Label struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Bucket of a histogram; a hidden one counts in the larger ones only.
type Bucket struct {
	Le     float64 `json:"le"`
	Value  string  `json:"value"`
	Hidden bool    `json:"hidden,omitempty"`
}
