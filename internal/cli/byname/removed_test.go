package byname

import (
	"io"
	"testing"
)

// TestFlagsThatWereRemovedAreUnknown is every flag that upstream once had and a
// script may still give: it must not pass for one that acts.
func TestFlagsThatWereRemovedAreUnknown(t *testing.T) {
	for _, tt := range []struct{ daemon, flag, value string }{
		{"kube-apiserver", "master-service-namespace", "default"},
		{"kube-apiserver", "insecure-port", "0"},
		{"kube-controller-manager", "enable-taint-manager", "true"},
		{"kube-controller-manager", "pod-eviction-timeout", "5m"},
	} {
		t.Run(tt.flag, func(t *testing.T) {
			cmd := command(tt.daemon, "", daemons[tt.daemon]())
			cmd.SetArgs([]string{"--" + tt.flag + "=" + tt.value})
			cmd.SetOut(io.Discard)
			cmd.SetErr(io.Discard)
			if err := cmd.ExecuteContext(t.Context()); err == nil || err.Error() != "unknown flag: --"+tt.flag {
				t.Errorf("%s takes it: %v", tt.daemon, err)
			}
		})
	}
}
