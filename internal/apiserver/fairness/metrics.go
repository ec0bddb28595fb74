package fairness

import (
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	perSchema = []string{"priority_level", "flow_schema"}
	perLevel  = []string{"priority_level"}
)

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("apiserver_flowcontrol_"+name, help, labels, nil)
}

// The metrics, under upstream's names.
var (
	rejected   = describe("rejected_requests_total", "[BETA] Requests refused, by reason.", append(perSchema[:2:2], "reason")...)
	dispatched = describe("dispatched_requests_total", "[BETA] Requests that got their seats.", perSchema...)
	inQueue    = describe("current_inqueue_requests", "[BETA] Requests that wait now.", perSchema...)
	seatsQueue = describe("current_inqueue_seats", "[ALPHA] Seats that are waited for now.", perSchema...)
	executing  = describe("current_executing_requests", "[BETA] Requests being answered now; of watches, those that begin.", perSchema...)
	seatsInUse = describe("current_executing_seats", "[BETA] Seats in use now.", perSchema...)
	queueLong  = describe("request_queue_length_after_enqueue", "[ALPHA] Requests in the queue that one has joined, itself among them.", perSchema...)
	waitTime   = describe("request_wait_duration_seconds", "[BETA] Time that requests waited for their seats.", append(perSchema[:2:2], "execute")...)
	execTime   = describe("request_execution_seconds", "[ALPHA] Time that requests held their seats.", append(perSchema[:2:2], "type")...)
	estimated  = describe("work_estimated_seats", "[ALPHA] Seats that requests were taken to need.", perSchema...)
	watchCount = describe("watch_count_samples", "[ALPHA] Watches that see a write.", perSchema...)
	noRoom     = describe("request_dispatch_no_accommodation_total", "[ALPHA] Times that the next request found too few seats.", perSchema...)

	nominalSeats = describe("nominal_limit_seats", "[BETA] Seats configured for a level.", perLevel...)
	lowerSeats   = describe("lower_limit_seats", "[ALPHA] Seats that a level keeps, whatever it lends.", perLevel...)
	upperSeats   = describe("upper_limit_seats", "[ALPHA] Seats that a level may have, with what it borrows.", perLevel...)
	currentSeats = describe("current_limit_seats", "[ALPHA] Seats that a level may use now.", perLevel...)
	highDemand   = describe("demand_seats_high_watermark", "[ALPHA] Most seats wanted in the last period of adjustment.", perLevel...)
	meanDemand   = describe("demand_seats_average", "[ALPHA] Seats wanted in the last period, averaged over time.", perLevel...)
	stdevDemand  = describe("demand_seats_stdev", "[ALPHA] Standard deviation of the seats wanted in the last period.", perLevel...)
	smoothDemand = describe("demand_seats_smoothed", "[ALPHA] Seats wanted, smoothed.", perLevel...)
	targetSeats  = describe("target_seats", "[ALPHA] Seats that a level asked for.", perLevel...)
	currentR     = describe("current_r", "[ALPHA] Virtual time of a level.", perLevel...)
	requestUse   = describe("priority_level_request_utilization", "[ALPHA] Requests that wait, or are answered, as a part of what may, at the end of every nanosecond.", "phase", "priority_level")
	seatUse      = prometheus.NewDesc("apiserver_flowcontrol_priority_level_seat_utilization", "[ALPHA] Seats in use as a part of those configured, at the end of every nanosecond.", perLevel, prometheus.Labels{"phase": "executing"})
	readWrite    = describe("read_vs_write_current_requests", "[ALPHA] Requests that wait, or are answered, as a part of what the whole server may, at the end of every nanosecond.", "phase", "request_kind")
	fairFrac     = describe("seat_fair_frac", "[ALPHA] Seats given for each seat that was asked for.")
)

// Describe is prometheus.Collector's.
func (f *Fairness) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		rejected, dispatched, inQueue, seatsQueue, executing, seatsInUse, queueLong, waitTime, execTime, estimated, watchCount, noRoom,
		nominalSeats, lowerSeats, upperSeats, currentSeats, highDemand, meanDemand, stdevDemand, smoothDemand, targetSeats, currentR, fairFrac,
		requestUse, seatUse, readWrite,
	} {
		ch <- d
	}
}

// Collect is prometheus.Collector's.
func (f *Fairness) Collect(ch chan<- prometheus.Metric) {
	f.mu.Lock()
	defer f.mu.Unlock()
	ch <- prometheus.MustNewConstMetric(fairFrac, prometheus.GaugeValue, f.fair)
	f.server.collect(ch, f.now())
	for _, name := range slices.Sorted(maps.Keys(f.levels)) {
		l := f.levels[name]
		l.mu.Lock()
		l.collectLocked(ch)
		now := l.now()
		l.usage.waiting.collect(ch, now, requestUse, phaseNames[phaseWaiting], name)
		l.usage.executing.collect(ch, now, requestUse, phaseNames[phaseExecuting], name)
		l.usage.seats.collect(ch, now, seatUse, name)
		for _, schema := range slices.Sorted(maps.Keys(l.tallies)) {
			l.tallies[schema].collect(ch, l.exempt, name, schema)
		}
		l.mu.Unlock()
	}
}

func (l *level) collectLocked(ch chan<- prometheus.Metric) {
	for d, v := range map[*prometheus.Desc]float64{
		nominalSeats: float64(l.nominal), lowerSeats: float64(l.least), upperSeats: float64(l.most), currentSeats: float64(l.limit),
		highDemand: l.last.highest, meanDemand: l.last.average, stdevDemand: l.last.deviation, smoothDemand: l.smoothed, targetSeats: l.target,
		currentR: float64(l.virtual) / 1e9,
	} {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, l.name)
	}
}

func (t *tally) collect(ch chan<- prometheus.Metric, exempt bool, labels ...string) {
	for d, v := range map[*prometheus.Desc]uint64{dispatched: t.dispatched, noRoom: t.noRoom} {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	for reason, n := range t.refused {
		ch <- prometheus.MustNewConstMetric(rejected, prometheus.CounterValue, float64(n), append(labels, reason)...)
	}
	for d, v := range map[*prometheus.Desc]int{inQueue: t.waiting, seatsQueue: t.wanted, executing: t.executing, seatsInUse: t.seats} {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	emit := func(d *prometheus.Desc, h *histogram, labels ...string) {
		if h.total > 0 {
			ch <- prometheus.MustNewConstHistogram(d, h.total, h.sum, h.buckets(), labels...)
		}
	}
	emit(execTime, &t.times, append(labels, "regular")...)
	emit(estimated, &t.widths, labels...)
	emit(watchCount, &t.watches, labels...)
	if exempt {
		return
	}
	emit(queueLong, &t.lengths, labels...)
	emit(waitTime, &t.waits, append(labels, "true")...)
	emit(waitTime, &t.gaveUp, append(labels, "false")...)
}
