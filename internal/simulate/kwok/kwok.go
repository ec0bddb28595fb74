// Package kwok reads the documents that describe a simulation: the kinds of
// kwok.x-k8s.io/v1alpha1, as KWOK's own configuration files have them. It keeps
// what is written there and gives it no meaning.
package kwok

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	sigsyaml "sigs.k8s.io/yaml"
)

// APIVersion is that of every document.
const APIVersion = "kwok.x-k8s.io/v1alpha1"

// Documents are what a simulation is told. The zero value tells nothing.
type Documents struct {
	Stages        []Stage
	Usages        []Scoped[UsageSpec]
	Logs          []Scoped[LogsSpec]
	Execs         []Scoped[ExecSpec]
	Attaches      []Scoped[AttachSpec]
	PortForwards  []Scoped[PortForwardSpec]
	Metrics       []Document[MetricSpec]
	ClusterUsages []Scoped[UsageSpec]
	ClusterLogs   []Scoped[LogsSpec]
	ClusterExecs  []Scoped[ExecSpec]
	ClusterAttach []Scoped[AttachSpec]
	ClusterPorts  []Scoped[PortForwardSpec]
}

// Document is one of them.
type Document[S any] struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              S `json:"spec"`
}

// Scoped is a document about pods: about the one of its own name, or, of a
// Cluster kind, about all that its selector takes.
type Scoped[S any] = Document[S]

// Load reads files, of which each may hold several documents.
func Load(paths ...string) (*Documents, error) {
	d := &Documents{}
	for _, path := range paths {
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		err = d.read(file)
		file.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	return d, nil
}

// Parse reads documents of YAML or JSON.
func Parse(text string) (*Documents, error) {
	d := &Documents{}
	return d, d.read(strings.NewReader(text))
}

func (d *Documents) read(from io.Reader) error {
	docs := yaml.NewDocumentDecoder(io.NopCloser(from))
	for n := 1; ; n++ {
		data, err := readAll(docs)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = d.add(data)
		}
		if err != nil {
			return fmt.Errorf("document %d: %w", n, err)
		}
	}
}

const maxDocument = 4 << 20 // bytes

// readAll reads one document.
func readAll(docs io.Reader) ([]byte, error) {
	var all []byte
	part := make([]byte, 64<<10)
	for {
		n, err := docs.Read(part)
		all = append(all, part[:n]...)
		switch {
		case err == nil:
			return all, nil
		case !errors.Is(err, io.ErrShortBuffer):
			return all, err
		case len(all) > maxDocument:
			return nil, fmt.Errorf("longer than %d bytes", maxDocument)
		}
	}
}

// add takes in one document. What belongs to other programs is an error: it
// would have no effect.
func (d *Documents) add(data []byte) error {
	var meta metav1.TypeMeta
	if err := sigsyaml.Unmarshal(data, &meta); err != nil {
		return err
	}
	if meta == (metav1.TypeMeta{}) {
		return nil // a comment
	}
	if meta.APIVersion != APIVersion {
		return fmt.Errorf("apiVersion %q: want %s", meta.APIVersion, APIVersion)
	}
	switch meta.Kind {
	case "Stage":
		return decode(data, &d.Stages)
	case "ResourceUsage":
		return decode(data, &d.Usages)
	case "ClusterResourceUsage":
		return decode(data, &d.ClusterUsages)
	case "Logs":
		return decode(data, &d.Logs)
	case "ClusterLogs":
		return decode(data, &d.ClusterLogs)
	case "Exec":
		return decode(data, &d.Execs)
	case "ClusterExec":
		return decode(data, &d.ClusterExecs)
	case "Attach":
		return decode(data, &d.Attaches)
	case "ClusterAttach":
		return decode(data, &d.ClusterAttach)
	case "PortForward":
		return decode(data, &d.PortForwards)
	case "ClusterPortForward":
		return decode(data, &d.ClusterPorts)
	case "Metric":
		return decode(data, &d.Metrics)
	}
	return fmt.Errorf("there is no kind %s in %s", meta.Kind, APIVersion)
}

func decode[S any](data []byte, into *[]Document[S]) error {
	var doc Document[S]
	if err := sigsyaml.UnmarshalStrict(data, &doc); err != nil {
		return err
	}
	if doc.Name == "" {
		return errors.New("metadata.name: Required value")
	}
	*into = append(*into, doc)
	return nil
}
