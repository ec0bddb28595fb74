package bench

import (
	"fmt"
	"io"
	"strconv"
)

// Table prints figures as lines of a table, each as soon as it is found.
func Table(w io.Writer) Report {
	const line = "%-20s %-26s %7s %9s %9s %9s %9s %10s %9s %7s\n"
	head := false
	return func(f Figure) {
		if !head {
			head = true
			fmt.Fprintf(w, line, "TASK", "HOW", "COUNT", "SECONDS", "PER S", "P50", "P99", "CPU EACH", "BYTES", "MEMORY")
		}
		count := number(float64(f.Count), 0, "")
		if f.Failed > 0 {
			count += fmt.Sprintf("(-%d)", f.Failed)
		}
		how := f.How
		if f.Rates != nil {
			how += fmt.Sprintf(" (per s p50 %.0f p90 %.0f p99 %.0f)", f.Rates.P50, f.Rates.P90, f.Rates.P99)
		}
		if f.Floor > 0 {
			how += fmt.Sprintf(", floor %.0f: %.1fx", f.Floor, f.PerSecond/f.Floor)
		}
		fmt.Fprintf(w, line, f.Task, how, count, number(f.Seconds, 2, ""), number(f.PerSecond, 0, ""),
			number(f.P50, 2, "ms"), number(f.P99, 2, "ms"), number(f.CPU, 3, "ms"), size(f.Bytes), size(f.Memory))
	}
}

// number leaves out what is not there.
func number(n float64, digits int, unit string) string {
	if n == 0 {
		return "-"
	}
	return strconv.FormatFloat(n, 'f', digits, 64) + unit
}

func size(bytes int64) string {
	switch {
	case bytes == 0:
		return "-"
	case bytes < 10<<10:
		return strconv.FormatInt(bytes, 10) + "B"
	case bytes < 10<<20:
		return strconv.FormatInt(bytes>>10, 10) + "KiB"
	}
	return strconv.FormatInt(bytes>>20, 10) + "MiB"
}
