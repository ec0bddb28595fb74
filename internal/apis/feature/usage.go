package feature

import (
	"slices"
	"strings"
)

// Usage is what --help says of --feature-gates: as upstream's, with every gate that
// may be turned. Those that Proa refuses to turn are not among them.
func Usage() string {
	fixed := strings.Fields(bound)
	lines := []string{"features that are on or off, as A=true,B=false. Options are:"}
	for _, line := range known().KnownFeatures() {
		if name, _, _ := strings.Cut(line, "="); !slices.Contains(fixed, name) {
			lines = append(lines, "kube:"+line)
		}
	}
	return strings.Join(lines, "\n")
}
