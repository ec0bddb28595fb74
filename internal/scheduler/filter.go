package scheduler

import (
	"context"
	"slices"
	"sync"
	"time"

	"proa/internal/scheduler/framework"
	"proa/internal/scheduler/profile"
)

// Of a large cluster only a part is looked at: enough nodes that fit, beginning
// where the last search ended, so that all nodes get their turn.
const (
	minNodesToFind      = 100 // below that many nodes all are looked at
	minPercentageToFind = 5
)

func enough(percentage, nodes int) int {
	if nodes < minNodesToFind || percentage >= 100 {
		return nodes
	}
	if percentage == 0 {
		percentage = max(50-nodes/125, minPercentageToFind)
	}
	return max(nodes*percentage/100, minNodesToFind)
}

const (
	// filterChunk nodes are worth the start of a goroutine.
	filterChunk = 128
	// manyNodes are looked at together once it shows that few fit.
	manyNodes = 512
)

// filter returns nodes that fit, as many as are enough. When there is none, d
// says why. The result is valid until the next search.
func (s *Scheduler) filter(ctx context.Context, p *profile.Profile, state *framework.CycleState, pod *framework.PodInfo, nodes []*framework.NodeInfo, d *framework.Diagnosis) (found []*framework.NodeInfo, failed error) {
	want := enough(p.Percentage, len(nodes))
	start := 0
	if len(nodes) == len(s.snapshot.Nodes) {
		start = s.next % len(nodes)
	}
	check := p.FilterBy
	if s.queue.AnyNominated() {
		check = p.FilterWithNominated
	}
	fits, rejections := s.scratch.fits[:0], s.scratch.rejections[:0]
	looked, asked := 0, 0
	var rejected map[string]int // nodes, by plugin
	defer func(began time.Time) {
		p.Filtered(state, asked, rejected)
		p.FilterTook(began, framework.AsStatus(failed))
	}(s.clock.Now())
	for looked < len(nodes) && len(fits) < want {
		n := want - len(fits)
		if looked > 0 {
			n = max(n, manyNodes)
		}
		n = min(n, len(nodes)-looked)
		if len(s.scratch.answers) < n {
			s.scratch.answers = make([]answer, n)
		}
		answers := s.scratch.answers[:n]
		s.inParallel(filtering, n, func(i int) {
			plugin, status := check(ctx, state, pod, nodes[(start+looked+i)%len(nodes)])
			answers[i] = answer{plugin, status}
		})
		asked += n
		for i := range answers {
			if answers[i].status != nil {
				rejected = counted(rejected, answers[i].plugin)
			}
		}
		for i := 0; i < n && len(fits) < want; i++ {
			node, a := nodes[(start+looked)%len(nodes)], answers[i]
			looked++
			switch {
			case a.status == nil:
				fits = append(fits, node)
			case a.status.IsRejected():
				rejections = append(rejections, framework.Rejection{Node: node, Name: node.Name(), Plugin: a.plugin, Status: a.status})
				d.Blame(a.plugin, a.status)
			default:
				return nil, a.status.Err()
			}
		}
	}
	if len(nodes) == len(s.snapshot.Nodes) {
		s.next = (start + looked) % len(nodes)
	}
	s.scratch.fits, s.scratch.rejections = fits, rejections
	if len(fits) == 0 || len(s.extenders) > 0 {
		d.Rejections = slices.Clone(rejections)
	}
	return fits, nil
}

// counted adds one for a plugin.
func counted(rejected map[string]int, plugin string) map[string]int {
	if rejected == nil {
		rejected = map[string]int{}
	}
	rejected[plugin]++
	return rejected
}

// scratch is memory that every search uses again.
type scratch struct {
	fits       []*framework.NodeInfo
	rejections []framework.Rejection
	answers    []answer
}

type answer struct {
	plugin string
	status *framework.Status
}

// inParallel calls f for 0 to n-1 on as many goroutines as are worthwhile; metrics
// count them by the work that they do.
func (s *Scheduler) inParallel(work string, n int, f func(i int)) {
	workers := min(s.parallelism, n/filterChunk)
	if workers <= 1 {
		for i := range n {
			f(i)
		}
		return
	}
	running := s.metrics.goroutines.WithLabelValues(work)
	running.Add(float64(workers))
	defer running.Sub(float64(workers))
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := w * n / workers; i < (w+1)*n/workers; i++ {
				f(i)
			}
		})
	}
	wg.Wait()
}

// each is inParallel for scores, which can fail.
func (s *Scheduler) each(n int, f func(i int) error) error {
	var mu sync.Mutex
	var first error
	s.inParallel(scoring, n, func(i int) {
		if err := f(i); err != nil {
			mu.Lock()
			defer mu.Unlock()
			if first == nil {
				first = err
			}
		}
	})
	return first
}
