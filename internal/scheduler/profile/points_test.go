package profile

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"proa/internal/scheduler/framework"
)

type scorer struct{ name string }

func (s scorer) Name() string { return s.name }

func (scorer) Score(context.Context, *framework.CycleState, *framework.PodInfo, *framework.NodeInfo) (int64, *framework.Status) {
	return 0, nil
}

type sorter struct{ scorer }

func (sorter) Less(_, _ *framework.QueuedPodInfo) bool { return false }

type binder struct{ name string }

func (b binder) Name() string { return b.name }

func (binder) Bind(context.Context, *framework.CycleState, *framework.PodInfo, string) *framework.Status {
	return nil
}

func TestPluginsOfAPoint(t *testing.T) {
	factories := map[string]Factory{}
	for _, p := range []framework.Plugin{sorter{scorer{"S"}}, scorer{"A"}, scorer{"B"}, scorer{"C"}, binder{"Bind"}} {
		factories[p.Name()] = func(*framework.Handle) (framework.Plugin, error) { return p, nil }
	}
	base := []Enabled{{Name: "S"}, {Name: "A", Weight: 2}, {Name: "B"}, {Name: "Bind"}}
	for _, c := range []struct {
		name    string
		plugins []Enabled
		score   Set
		want    string // scores, or the end of the error
	}{
		{"all that have the interface take part", base, Set{}, "S1 A2 B1"},
		{"one can be left out", base, Set{Disabled: []string{"A"}}, "S1 B1"},
		{"all can be left out but those named", base, Set{Disabled: []string{"*"}, Enabled: []Enabled{{Name: "C", Weight: 9}}}, "C9"},
		{"one that is named again goes first, with its new weight", base, Set{Enabled: []Enabled{{Name: "B", Weight: 4}}}, "B4 S1 A2"},
		{"one that is named here only goes last", base, Set{Enabled: []Enabled{{Name: "C", Weight: 3}, {Name: "B", Weight: 4}}}, "B4 S1 A2 C3"},
		{"one that does not exist", base, Set{Enabled: []Enabled{{Name: "X"}}}, `ScorePlugin "X" does not exist`},
		{"one that cannot", base, Set{Enabled: []Enabled{{Name: "Bind"}}}, `plugin "Bind" does not extend ScorePlugin plugin`},
		{"one twice", base, Set{Enabled: []Enabled{{Name: "C"}, {Name: "C"}}}, `plugin "C" already registered as "ScorePlugin"`},
		{"one twice at large", append(base[:4:4], Enabled{Name: "A"}), Set{}, `plugin "A" already registered as "ScorePlugin"`},
		{"weights that overflow", base, Set{Enabled: []Enabled{{Name: "C", Weight: 1 << 60}}}, "total score of Score plugins could overflow"},
		{"two orders", append(base[:4:4], Enabled{Name: "Q"}), Set{}, `only one queue sort plugin required for profile with scheduler name "s", but got 2`},
	} {
		t.Run(c.name, func(t *testing.T) {
			factories["Q"] = func(*framework.Handle) (framework.Plugin, error) { return sorter{scorer{"Q"}}, nil }
			p, err := New(Config{SchedulerName: "s", Plugins: c.plugins, Points: map[Point]Set{Score: c.score}}, factories, framework.Handle{})
			if err != nil {
				if !strings.HasSuffix(err.Error(), c.want) {
					t.Errorf("error %v, want %s", err, c.want)
				}
				return
			}
			var got []string
			for _, x := range p.score {
				got = append(got, fmt.Sprint(x.plugin.Name(), x.weight))
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("got %v, want %s", got, c.want)
			}
		})
	}
}
