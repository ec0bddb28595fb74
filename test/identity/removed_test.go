package identity

import (
	"strings"
	"testing"
)

// TestPluginsThatWereRemovedAreUnknown is that nobody can believe himself under
// the protection of an admission plugin that is no more.
func TestPluginsThatWereRemovedAreUnknown(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"PodSecurityPolicy", "SecurityContextDeny"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := `enable-admission-plugins plugin "` + name + `" is unknown`
			if out := refused(t, "--enable-admission-plugins="+name); !strings.Contains(out, want) {
				t.Errorf("it says %q, want %q", out, want)
			}
		})
	}
}
