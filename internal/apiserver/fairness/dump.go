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

	"k8s.io/apimachinery/pkg/runtime/schema"
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
		d := requestDump{start: f.start, details: r.URL.Query().Get("includeRequestDetails") != ""}
		rows = f.dump(d.columns(), d.ofLocked)
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
		"PriorityLevelName", "Index", "PendingRequests", "ExecutingRequests", "SeatsInUse", "NextDispatchR",
		"InitialSeatsSum", "MaxSeatsSum", "TotalWorkSum",
	}
	requestColumns = []string{
		"PriorityLevelName", "FlowSchemaName", "QueueIndex", "RequestIndexInQueue", "FlowDistingsher", "ArriveTime",
		"InitialSeats", "FinalSeats", "AdditionalLatency", "StartTime",
	}
	detailColumns = []string{"UserName", "Verb", "APIPath", "Namespace", "Name", "APIVersion", "Resource", "SubResource"}
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
		first, most := 0, 0
		for w := q.first; w != nil; w = w.next {
			first, most = first+w.ticket.width.Seats, most+w.ticket.width.most()
		}
		rows = append(rows, []string{
			l.name, strconv.Itoa(q.index), strconv.Itoa(q.length), strconv.Itoa(q.executing), strconv.Itoa(q.seats), seatSeconds(q.virtual),
			strconv.Itoa(first), strconv.Itoa(most), seatSeconds(q.work),
		})
	}
	return rows
}

func seatSeconds(n int64) string { return strconv.FormatFloat(float64(n)/1e9, 'f', 8, 64) + "ss" }

// requestDump shows requests: those that wait in their places, and those that are
// answered at place -1.
type requestDump struct {
	start   time.Time
	details bool // whose they are, and what for
}

func (d requestDump) columns() []string {
	if d.details {
		return slices.Concat(requestColumns, detailColumns)
	}
	return requestColumns
}

func (d requestDump) ofLocked(l *level) (rows [][]string) {
	for _, q := range l.queues {
		i := 0
		for w := q.first; w != nil; w = w.next {
			rows = append(rows, d.row(l, w.class, w.ticket.width, q.index, i, w.arrived, time.Time{}))
			i++
		}
		for _, r := range l.running {
			if r.queue == q {
				rows = append(rows, d.row(l, r.class, r.width, q.index, -1, r.arrived, d.start.Add(r.started)))
			}
		}
	}
	for _, r := range l.running {
		if r.queue == nil && r.class.schema != nil {
			rows = append(rows, d.row(l, r.class, r.width, -1, -1, r.arrived, d.start.Add(r.started)))
		}
	}
	return rows
}

func (d requestDump) row(l *level, c Class, w Width, queue, place int, arrived time.Duration, started time.Time) []string {
	row := []string{
		l.name, c.schema.name, strconv.Itoa(queue), strconv.Itoa(place), c.by, d.start.Add(arrived).UTC().Format(time.RFC3339Nano),
		strconv.Itoa(w.Seats), strconv.Itoa(w.After), w.Linger.String(), started.UTC().Format(time.RFC3339Nano),
	}
	if !d.details || c.info == nil {
		return row
	}
	version := schema.GroupVersion{Group: c.info.Group, Version: c.info.Version}.String()
	return append(row, c.user.GetName(), c.info.Verb, c.info.Path, c.info.Namespace, c.info.Name, version, c.info.Resource, c.info.Subresource)
}
