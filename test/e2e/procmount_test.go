package e2e

import (
	"strings"
	"testing"
)

// What /proc hides from containers is shown to one that asks for it and has a user
// namespace, and to no other.
func TestProcMount(t *testing.T) {
	l := newLab(t)
	pod := func(name, host, mount string) string {
		return podManifest(name, host+"  containers: ["+strings.TrimSuffix(busybox("c", "sleep 3600"), "}")+mount+"}]")
	}
	l.apply(pod("masked", "  hostUsers: false\n", "") + pod("open", "  hostUsers: false\n", ", securityContext: {procMount: Unmasked}"))
	for name, want := range map[string]bool{"masked": true, "open": false} {
		l.ready(name)
		mounts := l.exec(name, "cat", "/proc/mounts")
		for _, path := range []string{" /proc/timer_list ", " /proc/sys ", " /proc/bus "} {
			if got := strings.Contains(mounts, path); got != want {
				t.Errorf("%s: %s is mounted over: %v\n%s", name, path, got, mounts)
			}
		}
	}
	if _, stderr, err := shared.tryKubectl(pod("wrong", "", ", securityContext: {procMount: Unmasked}"), "create", "-n", l.ns, "-f", "-"); err == nil || !strings.Contains(stderr, "`hostUsers` must be false to use `Unmasked`") {
		t.Errorf("without a user namespace: %v %s", err, stderr)
	}
}
