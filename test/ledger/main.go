// Command ledger holds test/features.yaml against the tree: every row has a
// known status, every test it names exists, and docs/compatibility.md says what
// the rows say, and what the suites of other projects gave. With -write it generates that page; without, it fails when the
// page is out of date. Run it from the repository's root.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"

	"sigs.k8s.io/yaml"
)

const (
	ledgerFile = "test/features.yaml"
	pageFile   = "docs/compatibility.md"
)

// Row is one promise of the product.
type Row struct {
	ID     string `json:"id"`
	Area   string `json:"area"`
	Title  string `json:"title,omitempty"`
	Status string `json:"status"`
	Test   string `json:"test,omitempty"` // <package dir>.<TestName>, several separated by spaces
	Note   string `json:"note,omitempty"`
}

// Controller is one of upstream's controllers.
type Controller struct {
	Name   string `json:"name"`
	Status string `json:"status"`         // runs, missing or external
	Room   string `json:"room,omitempty"` // the package that is it
	Note   string `json:"note,omitempty"`
}

// Ledger is the whole file.
type Ledger struct {
	Features    []Row        `json:"features"`
	Conformance []Row        `json:"conformance"`
	Controllers []Controller `json:"controllers"`

	suites []Suite
}

var statuses = []string{"works", "partial", "vm", "refused", "missing"}

func main() {
	write := flag.Bool("write", false, "generate "+pageFile)
	flag.Parse()
	if err := run(*write); err != nil {
		fmt.Fprintln(os.Stderr, "ledger:", err)
		os.Exit(1)
	}
}

func run(write bool) error {
	ledger, err := read()
	if err != nil {
		return err
	}
	if problems := ledger.check(); len(problems) > 0 {
		return fmt.Errorf("%d problems in %s:\n  %s", len(problems), ledgerFile, strings.Join(problems, "\n  "))
	}
	page := ledger.page()
	if write {
		if err := os.WriteFile(pageFile, page, 0o644); err != nil {
			return err
		}
	} else if current, err := os.ReadFile(pageFile); err != nil || !bytes.Equal(current, page) {
		return fmt.Errorf("%s is out of date: go run ./test/ledger -write", pageFile)
	}
	printCounts("features", ledger.Features)
	printCounts("conformance", ledger.Conformance)
	return nil
}

func read() (*Ledger, error) {
	data, err := os.ReadFile(ledgerFile)
	if err != nil {
		return nil, err
	}
	var ledger Ledger
	if err := yaml.UnmarshalStrict(data, &ledger); err != nil {
		return nil, fmt.Errorf("%s: %w", ledgerFile, err)
	}
	if ledger.suites, err = readSuites(); err != nil {
		return nil, err
	}
	return &ledger, nil
}

func (l *Ledger) check() []string {
	var problems []string
	seen := map[string]bool{}
	for _, row := range append(append([]Row(nil), l.Features...), l.Conformance...) {
		if seen[row.ID] {
			problems = append(problems, row.ID+": listed twice")
		}
		seen[row.ID] = true
		problems = append(problems, row.check()...)
	}
	for _, s := range l.suites {
		if s.Specs.Failed+s.Tests.Failed > 0 || s.Specs.Passed+s.Tests.Passed == 0 {
			problems = append(problems, s.Suite+": it does not pass")
		}
	}
	for _, c := range l.Controllers {
		if _, err := os.Stat(c.Room); c.Status == "runs" && err != nil {
			problems = append(problems, fmt.Sprintf("%s: runs, but %v", c.Name, err))
		}
	}
	return append(problems, missingIDs(seen)...)
}

func (r Row) check() []string {
	var problems []string
	proven := r.Status == "works" || r.Status == "partial" || r.Status == "vm"
	switch {
	case !slices.Contains(statuses, r.Status):
		problems = append(problems, fmt.Sprintf("%s: status %q", r.ID, r.Status))
	case proven && r.Test == "":
		problems = append(problems, r.ID+": "+r.Status+" without a test")
	case (r.Status == "partial" || r.Status == "refused") && r.Note == "":
		problems = append(problems, r.ID+": "+r.Status+" without a note")
	}
	for _, name := range strings.Fields(r.Test) {
		if !testExists(name) {
			problems = append(problems, r.ID+": no test "+name)
		}
	}
	return problems
}

// testExists finds func <TestName>( in the test files of <package dir>.
func testExists(name string) bool {
	dot := strings.LastIndex(name, ".")
	if dot < 0 {
		return false
	}
	declared := regexp.MustCompile(`(?m)^func ` + regexp.QuoteMeta(name[dot+1:]) + `\(`)
	files, _ := filepath.Glob(filepath.Join(name[:dot], "*_test.go"))
	for _, file := range files {
		if data, err := os.ReadFile(file); err == nil && declared.Match(data) {
			return true
		}
	}
	return false
}

var definedID = regexp.MustCompile("(?m)^(?:\\| `([a-z0-9.-]+)` \\||- `([a-z0-9.-]+)` \\()")

// missingIDs compares with the inventory and the checklist where they lie beside
// the repository, as they do for the project's own builds.
func missingIDs(have map[string]bool) []string {
	var problems []string
	for _, file := range []string{"../shared/FEATURES.md", "../shared/CONFORMANCE.md"} {
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for _, m := range definedID.FindAllSubmatch(data, -1) {
			if id := string(m[1]) + string(m[2]); !have[id] && id != "id" {
				problems = append(problems, id+": in "+filepath.Base(file)+" and not here")
			}
		}
	}
	return problems
}

func printCounts(name string, rows []Row) {
	count := map[string]int{}
	for _, r := range rows {
		count[r.Status]++
	}
	parts := make([]string, len(statuses))
	for i, s := range statuses {
		parts[i] = fmt.Sprintf("%s %d", s, count[s])
	}
	fmt.Printf("%-12s %d rows: %s\n", name, len(rows), strings.Join(parts, ", "))
}

func (l *Ledger) page() []byte {
	var b bytes.Buffer
	b.WriteString(`# Compatibility

Generated from test/features.yaml and test/suites/results.yaml by ` + "`go run ./test/ledger -write`" + `; change those, not this page.
*works* is proven by the named test; *partial* says what is missing in its note; *vm* is proven in a virtual
machine; *refused* is answered with a clear error; *missing* is not built. Kinds that are stored while nothing acts
on them yet answer a create with a warning that says so.

`)
	writeSummary(&b, "Features", l.Features)
	writeSummary(&b, "Conformance checklist (upstream 1.37)", l.Conformance)
	writeSuites(&b, l.suites)
	writeControllers(&b, l.Controllers)
	writeRows(&b, "Features", l.Features)
	writeRows(&b, "Conformance", l.Conformance)
	return b.Bytes()
}

func writeSummary(b *bytes.Buffer, title string, rows []Row) {
	areas, byArea := group(rows)
	fmt.Fprintf(b, "## %s\n\n| area | works | partial | vm | refused | missing |\n|---|---|---|---|---|---|\n", title)
	for _, area := range areas {
		count := map[string]int{}
		for _, r := range byArea[area] {
			count[r.Status]++
		}
		fmt.Fprintf(b, "| %s | %d | %d | %d | %d | %d |\n", area, count["works"], count["partial"], count["vm"], count["refused"], count["missing"])
	}
	b.WriteString("\n")
}

func writeControllers(b *bytes.Buffer, controllers []Controller) {
	b.WriteString("## Controllers\n\nUpstream's, by its names. *external* ones are run by others against the same API.\n\n| controller | here | in | note |\n|---|---|---|---|\n")
	for _, c := range controllers {
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", c.Name, c.Status, c.Room, c.Note)
	}
	b.WriteString("\n")
}

func group(rows []Row) (areas []string, byArea map[string][]Row) {
	byArea = map[string][]Row{}
	for _, r := range rows {
		if byArea[r.Area] == nil {
			areas = append(areas, r.Area)
		}
		byArea[r.Area] = append(byArea[r.Area], r)
	}
	return areas, byArea
}

// writeRows lists what is proven or refused in full and what is missing by name.
func writeRows(b *bytes.Buffer, title string, rows []Row) {
	areas, byArea := group(rows)
	for _, area := range areas {
		fmt.Fprintf(b, "### %s: %s\n\n", title, area)
		var missing []string
		table := false
		for _, r := range byArea[area] {
			if r.Status == "missing" {
				missing = append(missing, "`"+r.ID+"`")
				continue
			}
			if !table {
				b.WriteString("| id | status | test | note |\n|---|---|---|---|\n")
				table = true
			}
			fmt.Fprintf(b, "| `%s` %s | %s | %s | %s |\n", r.ID, r.Title, r.Status, r.Test, r.Note)
		}
		sort.Strings(missing)
		if len(missing) > 0 {
			fmt.Fprintf(b, "\nMissing: %s.\n", strings.Join(missing, ", "))
		}
		b.WriteString("\n")
	}
}
