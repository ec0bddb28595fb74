package suites

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const resultsFile = "results.yaml"

// result is what one suite gave. Tests are those of Go with their subtests, specs
// those of Ginkgo.
type result struct {
	Suite   string    `json:"suite"`
	Module  string    `json:"module"`
	Version string    `json:"version"`
	Package string    `json:"package"`
	Specs   tally     `json:"specs,omitzero"`
	Tests   tally     `json:"tests"`
	Left    []skipped `json:"left,omitempty"` // tests that are not run
	Note    string    `json:"note,omitempty"` // what is special about how it runs
}

// tally are tests by their end. The skipped ones skip themselves, or are marked as
// pending by their authors.
type tally struct {
	Passed  int `json:"passed"`
	Failed  int `json:"failed,omitempty"`
	Skipped int `json:"skipped,omitempty"`
}

func (r result) String() string {
	return fmt.Sprintf("specs %+v, tests %+v", r.Specs, r.Tests)
}

// result adds to what was counted what it is about.
func (s suite) result(counted result) result {
	counted.Suite, counted.Package, counted.Left, counted.Note = s.name, s.dir, s.skips, s.note
	counted.Module, counted.Version, _ = strings.Cut(s.module, "@")
	return counted
}

type results []result

func readResults() (results, error) {
	data, err := os.ReadFile(resultsFile)
	if err != nil {
		return nil, err
	}
	var known results
	if err := yaml.UnmarshalStrict(data, &known); err != nil {
		return nil, fmt.Errorf("%s: %w", resultsFile, err)
	}
	return known, nil
}

// compare fails the test when a suite gave something else than before, or writes
// it down where that is to be recorded.
func (r *results) compare(t *testing.T, got result) {
	t.Helper()
	i := slices.IndexFunc(*r, func(known result) bool { return known.Suite == got.Suite })
	if *record && !t.Failed() {
		if i >= 0 {
			*r = slices.Delete(*r, i, i+1)
		}
		*r = append(*r, got)
		if err := r.write(); err != nil {
			t.Error(err)
		}
		return
	}
	if i < 0 {
		t.Errorf("%s has no line in %s: run it with -record", got.Suite, resultsFile)
	} else if known := (*r)[i]; !reflect.DeepEqual(known, got) {
		t.Errorf("%+v, where %s has\n%+v", got, resultsFile, known)
	}
}

// write keeps the order of the suites, and none that is not a suite any more.
func (r *results) write() error {
	order := func(name string) int { return slices.IndexFunc(all, func(s suite) bool { return s.name == name }) }
	*r = slices.DeleteFunc(*r, func(x result) bool { return order(x.Suite) < 0 })
	slices.SortFunc(*r, func(a, b result) int { return order(a.Suite) - order(b.Suite) })
	data, err := yaml.Marshal(*r)
	if err != nil {
		return err
	}
	head := "# What suites of other projects gave: written by `make test-suites RECORD=1`, rendered by test/ledger.\n"
	return os.WriteFile(resultsFile, append([]byte(head), data...), 0o644)
}

// counted is what the output of a test binary says.
type counted struct {
	result
	failures []string
}

var (
	ginkgo = regexp.MustCompile(`-- (\d+) Passed \| (\d+) Failed \| (?:\d+ Flaked \| )?(\d+) Pending \| (\d+) Skipped`)
	failed = regexp.MustCompile(`^\s*\[FAIL\] (.*)`)
	ended  = regexp.MustCompile(`\x16\s*--- (PASS|FAIL|SKIP): (\S+)`) // marked by -test.v=test2json
	colour = regexp.MustCompile(`\x1b\[[0-9;]*m`)
)

// count reads what a test binary said: Ginkgo's sum, and every test of Go.
func count(out []byte) counted {
	var c counted
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		line := colour.ReplaceAllString(lines.Text(), "")
		if m := ginkgo.FindStringSubmatch(line); m != nil {
			c.Specs.Passed, c.Specs.Failed, c.Specs.Skipped = number(m[1]), number(m[2]), number(m[3])+number(m[4])
		} else if m := failed.FindStringSubmatch(line); m != nil {
			c.failures = append(c.failures, strings.TrimSpace(m[1]))
		}
		for _, m := range ended.FindAllStringSubmatch(line, -1) {
			switch m[1] {
			case "PASS":
				c.Tests.Passed++
			case "SKIP":
				c.Tests.Skipped++
			default:
				c.Tests.Failed++
				c.failures = append(c.failures, m[2])
			}
		}
	}
	return c
}

func number(digits string) int {
	n, _ := strconv.Atoi(digits)
	return n
}

func TestCountsAreRead(t *testing.T) {
	tests := []struct {
		name, output string
		specs, tests tally
		failures     string
	}{
		{"Ginkgo's sum", "  [FAIL] Client [It] should x\nRan 3 of 5 Specs in 1 seconds\nFAIL! -- 2 Passed | 1 Failed | 1 Pending | 1 Skipped\n\x16--- FAIL: TestClient (1s)\n",
			tally{2, 1, 2}, tally{0, 1, 0}, "Client [It] should x,TestClient"},
		{"specs that passed at last", "SUCCESS! -- 2 Passed | 0 Failed | 1 Flaked | 0 Pending | 0 Skipped\n\x16--- PASS: TestClient (1s)\n",
			tally{2, 0, 0}, tally{1, 0, 0}, ""},
		{"tests and subtests", "\x16--- PASS: TestA (0.0s)\n    \x16--- PASS: TestA/b (0s)\nout\x16--- FAIL: TestC (0s)\n\x16--- SKIP: TestD (0s)\n--- PASS: said by a test\n",
			tally{}, tally{2, 1, 1}, "TestC"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := count([]byte(tt.output))
			if c.Specs != tt.specs || c.Tests != tt.tests || strings.Join(c.failures, ",") != tt.failures {
				t.Errorf("%+v", c)
			}
		})
	}
}
