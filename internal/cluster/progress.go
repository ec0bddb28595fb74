package cluster

import (
	"encoding/json"
	"io"
	"sync"
	"time"
)

// Progress is told how a start goes. A Step begins when Took is zero and is done
// when it is not; Ready says that the cluster can be used; Failed ends a start.
type Progress struct {
	Step   string        `json:"step,omitempty"`
	Took   time.Duration `json:"took,omitempty"`
	Ready  *Summary      `json:"ready,omitempty"`
	Failed string        `json:"failed,omitempty"`
}

// Summary is what a person needs to use a cluster that is ready.
type Summary struct {
	Server     string        `json:"server"`
	Node       string        `json:"node,omitempty"`
	Agent      bool          `json:"agent,omitempty"` // Server is elsewhere, Kubeconfig the node's own
	Kubeconfig string        `json:"kubeconfig"`
	Context    string        `json:"context,omitempty"` // in Merged
	Merged     string        `json:"merged,omitempty"`  // the user's own kubeconfig
	Current    bool          `json:"current,omitempty"` // Context is the current one
	Notice     string        `json:"notice,omitempty"`
	Took       time.Duration `json:"took,omitempty"`
}

// reporter times steps, which may overlap.
type reporter struct {
	mu    sync.Mutex // serialises tell
	tell  func(Progress)
	began time.Time
}

func newReporter(tell func(Progress)) *reporter {
	if tell == nil {
		tell = func(Progress) {}
	}
	return &reporter{tell: tell, began: time.Now()}
}

func (r *reporter) send(p Progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tell(p)
}

// step announces a step, runs it and announces its end unless it failed.
func (r *reporter) step(name string, run func() error) error {
	began := time.Now()
	r.send(Progress{Step: name})
	if err := run(); err != nil {
		return err
	}
	r.send(Progress{Step: name, Took: max(time.Since(began), 1)})
	return nil
}

func (r *reporter) ready(s Summary) {
	s.Took = time.Since(r.began)
	r.send(Progress{Ready: &s})
}

// WriteProgress returns a Progress consumer that writes JSON lines, as
// ReadProgress reads them: a detached start tells its parent that way.
func WriteProgress(w io.Writer) func(Progress) {
	enc := json.NewEncoder(w)
	return func(p Progress) { _ = enc.Encode(p) } // the parent may have gone: the start goes on
}

// ReadProgress hands every line to tell until the writer closes.
func ReadProgress(r io.Reader, tell func(Progress)) error {
	for dec := json.NewDecoder(r); ; {
		var p Progress
		if err := dec.Decode(&p); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		tell(p)
	}
}
