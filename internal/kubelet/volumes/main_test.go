package volumes

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

const inNamespace = "PROA_TEST_MOUNT_NAMESPACE"

// TestMain runs the tests in a mount namespace of their own, so that nothing
// they mount is seen by the machine.
func TestMain(m *testing.M) {
	if os.Geteuid() != 0 || os.Getenv(inNamespace) != "" {
		if os.Getenv(inNamespace) != "" {
			if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
				fmt.Fprintln(os.Stderr, "make mounts private:", err)
				os.Exit(1)
			}
		}
		os.Exit(m.Run())
	}
	cmd := exec.Command(os.Args[0], os.Args[1:]...)
	cmd.Env = append(os.Environ(), inNamespace+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &unix.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	if err := cmd.Run(); err != nil {
		if cmd.ProcessState == nil {
			fmt.Fprintln(os.Stderr, "start tests in a mount namespace:", err)
			os.Exit(1)
		}
		os.Exit(cmd.ProcessState.ExitCode())
	}
	os.Exit(0)
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Getenv(inNamespace) == "" {
		t.Skip("mounts need root")
	}
}
