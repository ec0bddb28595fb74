package fairness

import (
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// DumpPath is where the dumps are served.
const DumpPath = "/debug/api_priority_and_fairness/"

// ServeDump answers the paths below DumpPath; false for one that there is not.
func (f *Fairness) ServeDump(w http.ResponseWriter, r *http.Request) bool {
	var rows [][]string
	switch strings.TrimPrefix(r.URL.Path, DumpPath) {
	case "dump_priority_levels":
		rows = f.dump(levelColumns, (*level).dumpLevelLocked)
	case "dump_queues":
		rows = f.dump(queueColumns, (*level).dumpQueuesLocked)
	case "dump_requests":
		rows = f.dump(requestColumns, func(l *level) [][]string { return l.dumpRequestsLocked(f.start) })
	default:
		return false
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	writeTable(w, rows)
	return true
}

func writeTable(w io.Writer, rows [][]string) {
	aligned := tabwriter.NewWriter(w, 8, 0, 1, ' ', 0)
	for _, row := range rows {
		io.WriteString(aligned, strings.Join(row, ",\t")+"\n")
	}
	aligned.Flush() // a client that is gone needs no answer
}

var (
	levelColumns = []string{
		"PriorityLevelName", "ActiveQueues", "IsIdle", "IsQuiescing", "WaitingRequests", "ExecutingRequests",
		"DispatchedRequests", "RejectedRequests", "TimedoutRequests", "CancelledRequests",
	}
	queueColumns = []string{
		"PriorityLevelName", "Index", "PendingRequests", "SeatsInUse", "NextDispatchR", "TotalWorkSum",
	}
	requestColumns = []string{
		"PriorityLevelName", "FlowSchemaName", "QueueIndex", "RequestIndexInQueue", "FlowDistingsher", "ArriveTime",
		"InitialSeats", "FinalSeats", "AdditionalLatency",
	}
)

// dump collects rows of every level, by name.
func (f *Fairness) dump(header []string, of func(*level) [][]string) [][]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	rows := [][]string{header}
	for _, name := range slices.Sorted(maps.Keys(f.levels)) {
		l := f.levels[name]
		l.mu.Lock()
		rows = append(rows, of(l)...)
		l.mu.Unlock()
	}
	return rows
}

func (l *level) dumpLevelLocked() [][]string {
	row := []string{
		l.name, strconv.Itoa(len(l.backlog)), strconv.FormatBool(l.idleLocked()), strconv.FormatBool(l.draining),
		strconv.Itoa(l.waiting), strconv.Itoa(l.executing),
	}
	for _, n := range []uint64{l.counts.dispatched, l.counts.refused, l.counts.timedOut, l.counts.cancelled} {
		row = append(row, strconv.FormatUint(n, 10))
	}
	return [][]string{row}
}

func (l *level) dumpQueuesLocked() (rows [][]string) {
	for _, q := range l.queues {
		rows = append(rows, []string{
			l.name, strconv.Itoa(q.index), strconv.Itoa(q.length), strconv.Itoa(q.seats), seatSeconds(q.virtual), seatSeconds(q.work),
		})
	}
	return rows
}

func seatSeconds(n int64) string { return strconv.FormatFloat(float64(n)/1e9, 'f', 8, 64) + "ss" }

func (l *level) dumpRequestsLocked(start time.Time) (rows [][]string) {
	for _, q := range l.backlog {
		i := 0
		for w := q.first; w != nil; w = w.next {
			width := w.ticket.width
			rows = append(rows, []string{
				l.name, w.class.schema.name, strconv.Itoa(q.index), strconv.Itoa(i), w.class.by,
				start.Add(w.arrived).UTC().Format(time.RFC3339Nano), strconv.Itoa(width.Seats), strconv.Itoa(width.After), width.Linger.String(),
			})
			i++
		}
	}
	return rows
}
