package manager

import (
	"os"
	"slices"
	"testing"

	"sigs.k8s.io/yaml"
)

// The ledger's table of upstream's controllers says of each that is made here
// that it runs.
func TestTheLedgerKnowsEveryController(t *testing.T) {
	data, err := os.ReadFile("../../test/features.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var ledger struct {
		Controllers []struct{ Name, Status string }
	}
	if err := yaml.Unmarshal(data, &ledger); err != nil {
		t.Fatal(err)
	}
	status := map[string]string{}
	for _, c := range ledger.Controllers {
		status[c.Name] = c.Status
	}
	for _, e := range entries {
		if status[e.name] != "runs" {
			t.Errorf("%s is %q in the ledger", e.name, status[e.name])
		}
	}
	for name, s := range status {
		made := slices.ContainsFunc(entries, func(e entry) bool { return e.name == name })
		if s == "runs" && !made {
			t.Errorf("%s runs by the ledger, but nobody makes it", name)
		}
	}
}

func TestControllersAreChosenByName(t *testing.T) {
	for _, c := range []struct {
		names []string
		entry entry
		want  bool
	}{
		{[]string{"*"}, entry{name: "a"}, true},
		{[]string{"*"}, entry{name: "a", off: true}, false},
		{[]string{"*", "a"}, entry{name: "a", off: true}, true},
		{[]string{"*", "-a"}, entry{name: "a"}, false},
		{[]string{"b"}, entry{name: "a"}, false},
		{[]string{"*", "-old"}, entry{name: "a", alias: "old"}, false},
		{[]string{"old"}, entry{name: "a", alias: "old"}, true},
	} {
		if got := c.entry.on(c.names); got != c.want {
			t.Errorf("%s of %v: %v", c.entry.name, c.names, got)
		}
	}
}
