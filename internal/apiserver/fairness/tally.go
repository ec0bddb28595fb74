package fairness

// tally counts the requests of one flow schema at one level. The level's mutex
// guards it.
type tally struct {
	dispatched, noRoom uint64
	refused            map[string]uint64 // by reason
	executing, seats   int
	waiting, wanted    int // requests, and the seats they want

	waits   histogram // seconds, of those that were served
	gaveUp  histogram // seconds, of those that were not
	times   histogram // seconds that they took
	widths  histogram // seats
	lengths histogram // of the queue, once joined
	watches histogram // that a write is seen by
}

// levelCounts are what the dump of levels shows.
type levelCounts struct {
	dispatched, refused, timedOut, cancelled uint64
}

func newTally() *tally {
	return &tally{
		refused: map[string]uint64{},
		waits:   newHistogram(secondBounds), gaveUp: newHistogram(secondBounds), times: newHistogram(secondBounds),
		widths: newHistogram(widthBounds), lengths: newHistogram(lengthBounds), watches: newHistogram(watchBounds),
	}
}

var (
	secondBounds = []float64{0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30}
	lengthBounds = []float64{0, 10, 25, 50, 100, 250, 500, 1000}
	widthBounds  = []float64{1, 2, 4, 8, 16, 32, 64, 100}
	watchBounds  = []float64{0, 1, 10, 100, 1000, 10000}
)

// histogram counts values by upper bounds.
type histogram struct {
	bounds []float64
	counts []uint64 // one more than bounds
	sum    float64
	total  uint64
}

func newHistogram(bounds []float64) histogram {
	return histogram{bounds: bounds, counts: make([]uint64, len(bounds)+1)}
}

func (h *histogram) observe(v float64) {
	i := 0
	for i < len(h.bounds) && v > h.bounds[i] {
		i++
	}
	h.counts[i]++
	h.sum += v
	h.total++
}

// buckets are the counts as Prometheus wants them: those up to each bound.
func (h *histogram) buckets() map[float64]uint64 {
	buckets := make(map[float64]uint64, len(h.bounds))
	sum := uint64(0)
	for i, bound := range h.bounds {
		sum += h.counts[i]
		buckets[bound] = sum
	}
	return buckets
}
