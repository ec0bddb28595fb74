package profile

import (
	"context"
	"testing"

	"proa/internal/scheduler/framework"
)

// shy skips the pods of one name, and remembers what it is asked.
type shy struct {
	sorter
	binder
	skips bool
	asked []string
}

func (*shy) Name() string { return "Shy" }

func (s *shy) answer() *framework.Status {
	if s.skips {
		return framework.NewStatus(framework.Skip)
	}
	return nil
}

func (s *shy) PreFilter(context.Context, *framework.CycleState, *framework.PodInfo) (*framework.PreFilterResult, *framework.Status) {
	s.asked = append(s.asked, "PreFilter")
	return nil, s.answer()
}

func (s *shy) Filter(context.Context, *framework.CycleState, *framework.PodInfo, *framework.NodeInfo) *framework.Status {
	s.asked = append(s.asked, "Filter")
	return nil
}

func (s *shy) PreScore(context.Context, *framework.CycleState, *framework.PodInfo, []*framework.NodeInfo) *framework.Status {
	s.asked = append(s.asked, "PreScore")
	return s.answer()
}

func (s *shy) Score(context.Context, *framework.CycleState, *framework.PodInfo, *framework.NodeInfo) (int64, *framework.Status) {
	s.asked = append(s.asked, "Score")
	return 0, nil
}

func TestAPluginThatSkipsIsNotAskedAboutNodes(t *testing.T) {
	for _, c := range []struct {
		skips bool
		want  int
	}{{false, 4}, {true, 2}} {
		s := &shy{skips: c.skips}
		p, err := New(Config{Plugins: []Enabled{{Name: "Shy"}}}, map[string]Factory{
			"Shy": func(*framework.Handle) (framework.Plugin, error) { return s, nil },
		}, framework.Handle{})
		if err != nil {
			t.Fatal(err)
		}
		state, pod, node := &framework.CycleState{}, &framework.PodInfo{}, &framework.NodeInfo{}
		p.PreFilter(t.Context(), state, pod, &framework.Diagnosis{})
		if status := p.Filter(t.Context(), state, pod, node); status != nil {
			t.Error(status.Message())
		}
		each := func(n int, f func(int) error) error { return f(0) }
		if _, err := p.Score(t.Context(), state, pod, []*framework.NodeInfo{node}, each); err != nil {
			t.Error(err)
		}
		if len(s.asked) != c.want {
			t.Errorf("skips %v: asked %v", c.skips, s.asked)
		}
	}
}
