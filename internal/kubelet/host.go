package kubelet

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	sysctls "k8s.io/component-helpers/node/util/sysctl"

	"proa/internal/kubelet/config"
)

// tunables are the kernel's settings that protectKernelDefaults insists on. They
// are never changed here: the host may run more than this agent.
var tunables = []struct {
	name string
	want int
}{
	{sysctls.VMOvercommitMemory, sysctls.VMOvercommitMemoryAlways},
	{sysctls.VMPanicOnOOM, sysctls.VMPanicOnOOMInvokeOOMKiller},
	{sysctls.KernelPanic, sysctls.KernelPanicRebootTimeout},
	{sysctls.KernelPanicOnOops, sysctls.KernelPanicOnOopsAlways},
	{sysctls.RootMaxKeys, sysctls.RootMaxKeysSetting},
	{sysctls.RootMaxBytes, sysctls.RootMaxBytesSetting},
}

// checkHost refuses a host that the configuration does not accept.
func checkHost(c *config.Configuration) error {
	if *c.FailSwapOn {
		if err := noSwap("/proc/swaps"); err != nil {
			return err
		}
	}
	if !c.ProtectKernelDefaults {
		return nil
	}
	kernel := sysctls.New()
	var errs []error
	for _, t := range tunables {
		if is, err := kernel.GetSysctl(t.name); err != nil {
			errs = append(errs, err)
		} else if is != t.want {
			errs = append(errs, fmt.Errorf("invalid kernel flag: %v, expected value: %v, actual value: %v", t.name, t.want, is))
		}
	}
	return errors.Join(errs...)
}

// noSwap reads the kernel's list of swap areas, which has a heading.
func noSwap(list string) error {
	data, err := os.ReadFile(list)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("failed to determine if swap is on: %w", err)
	}
	if bytes.Count(bytes.TrimSpace(data), []byte("\n")) > 0 {
		return errors.New("running with swap on is not supported, please disable swap or set --fail-swap-on flag to false")
	}
	return nil
}
