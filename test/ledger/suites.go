package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"

	"sigs.k8s.io/yaml"
)

const suitesFile = "test/suites/results.yaml"

// Suite is what one suite of another project gave; test/suites writes it.
type Suite struct {
	Suite   string `json:"suite"`
	Module  string `json:"module"`
	Version string `json:"version"`
	Package string `json:"package"`
	Specs   Tally  `json:"specs"`
	Tests   Tally  `json:"tests"`
	Left    []Left `json:"left,omitempty"`
	Note    string `json:"note,omitempty"`
}

// Tally are tests by their end.
type Tally struct {
	Passed  int `json:"passed"`
	Failed  int `json:"failed,omitempty"`
	Skipped int `json:"skipped,omitempty"`
}

// Left are tests of a suite that are not run.
type Left struct {
	Tests  string `json:"tests"`
	Reason string `json:"reason"`
}

func readSuites() ([]Suite, error) {
	data, err := os.ReadFile(suitesFile)
	if err != nil {
		return nil, err
	}
	var suites []Suite
	if err := yaml.UnmarshalStrict(data, &suites); err != nil {
		return nil, fmt.Errorf("%s: %w", suitesFile, err)
	}
	return suites, nil
}

func writeSuites(b *bytes.Buffer, suites []Suite) {
	b.WriteString(`## Suites of other projects

` + "`make test-suites`" + ` runs them unmodified, with this program as kube-apiserver, etcd and kubectl; a run that gives other
counts fails. Specs are Ginkgo's, tests Go's with their subtests; skipped ones skip themselves or are pending upstream.
controller-runtime is compiled with this program's versions of the modules that both require, the others with their own.

| module | package | specs passed | skipped | tests passed | skipped | remarks |
|---|---|---|---|---|---|---|
`)
	var specs, tests Tally
	for _, s := range suites {
		var remarks []string
		for _, l := range s.Left {
			remarks = append(remarks, fmt.Sprintf("not run: `%s` (%s)", l.Tests, l.Reason))
		}
		if s.Note != "" {
			remarks = append(remarks, s.Note)
		}
		fmt.Fprintf(b, "| %s %s | `%s` | %d | %d | %d | %d | %s |\n", s.Module, s.Version, s.Package,
			s.Specs.Passed, s.Specs.Skipped, s.Tests.Passed, s.Tests.Skipped, strings.Join(remarks, "; "))
		specs.add(s.Specs)
		tests.add(s.Tests)
	}
	fmt.Fprintf(b, "| all | %d | %d | %d | %d | %d | |\n\n", len(suites), specs.Passed, specs.Skipped, tests.Passed, tests.Skipped)
}

func (t *Tally) add(o Tally) {
	t.Passed += o.Passed
	t.Skipped += o.Skipped
}
