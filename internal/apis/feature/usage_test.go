package feature

import (
	"strings"
	"testing"
)

func TestUsageListsWhatMayBeTurned(t *testing.T) {
	usage := Usage()
	for _, line := range []string{
		"kube:AllAlpha=true|false (ALPHA - default=false)", "kube:CBORServingAndStorage=true|false (ALPHA - default=false)",
		"kube:CoordinatedLeaderElection=true|false (BETA - default=false)", "kube:WatchList=true|false (BETA - default=true)",
	} {
		if !strings.Contains(usage+"\n", "\n"+line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
	for _, line := range strings.Split(usage, "\n")[1:] {
		pair, _, _ := strings.Cut(line, "|")
		name, _, _ := strings.Cut(pair, "=")
		turned := name + "=" + map[bool]string{true: "false", false: "true"}[strings.HasSuffix(line, "default=true)")]
		if _, err := ParseGates(turned); err != nil && !strings.Contains(err.Error(), "depends on") && !strings.Contains(err.Error(), "dependenc") {
			t.Errorf("%s: %v", turned, err)
		}
	}
	for _, name := range append(strings.Fields(bound), strings.Fields(stable)...) {
		if strings.Contains(usage, "kube:"+name+"=") {
			t.Errorf("%s is listed, and cannot be turned", name)
		}
	}
}
