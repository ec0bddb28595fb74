package byname

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/pflag"
)

// concurrency is how many objects a controller works on at once, by the
// controller's name.
type concurrency map[string]*syncs

// syncs is one flag of concurrency.
type syncs struct {
	flag    string
	workers int
	most    int // 0: any number
}

// defaultSyncs are upstream's flags, by the controller that each is of.
func defaultSyncs() concurrency {
	c := concurrency{}
	for controller, s := range map[string]syncs{
		"cronjob-controller":                          {"concurrent-cron-job-syncs", 5, 0},
		"daemonset-controller":                        {"concurrent-daemonset-syncs", 2, 0},
		"deployment-controller":                       {"concurrent-deployment-syncs", 5, 0},
		"device-taint-eviction-controller":            {"concurrent-device-taint-eviction-syncs", 8, 0},
		"disruption-controller":                       {"concurrent-disruption-syncs", 1, 0},
		"endpoints-controller":                        {"concurrent-endpoint-syncs", 5, 0},
		"ephemeral-volume-controller":                 {"concurrent-ephemeralvolume-syncs", 5, 0},
		"garbage-collector-controller":                {"concurrent-gc-syncs", 20, 0},
		"horizontal-pod-autoscaler-controller":        {"concurrent-horizontal-pod-autoscaler-syncs", 5, 0},
		"job-controller":                              {"concurrent-job-syncs", 5, 0},
		"namespace-controller":                        {"concurrent-namespace-syncs", 10, 0},
		"replicaset-controller":                       {"concurrent-replicaset-syncs", 5, 0},
		"replicationcontroller-controller":            {"concurrent-rc-syncs", 5, 0},
		"resourceclaim-controller":                    {"concurrent-resourceclaim-syncs", 50, 0},
		"resourcequota-controller":                    {"concurrent-resource-quota-syncs", 5, 0},
		"endpointslice-controller":                    {"concurrent-service-endpoint-syncs", 5, 50},
		"endpointslice-mirroring-controller":          {"mirroring-concurrent-service-endpoint-syncs", 5, 50},
		"serviceaccount-token-controller":             {"concurrent-serviceaccount-token-syncs", 5, 0},
		"statefulset-controller":                      {"concurrent-statefulset-syncs", 5, 0},
		"ttl-after-finished-controller":               {"concurrent-ttl-after-finished-syncs", 5, 0},
		"validatingadmissionpolicy-status-controller": {"concurrent-validating-admission-policy-status-syncs", 5, 0},
	} {
		c[controller] = &s
	}
	return c
}

func (c concurrency) add(fs *pflag.FlagSet) {
	for controller, s := range c {
		fs.IntVar(&s.workers, s.flag, s.workers, "how many objects the "+controller+" works on at once")
	}
}

// validate refuses numbers with which a controller would do nothing or too much.
func (c concurrency) validate() error {
	var errs []error
	for _, controller := range slices.Sorted(maps.Keys(c)) {
		switch s := c[controller]; {
		case s.workers < 1 && s.most > 0:
			errs = append(errs, fmt.Errorf("%s must not be less than 1, but got %d", s.flag, s.workers))
		case s.workers < 1:
			errs = append(errs, fmt.Errorf("%s must be greater than 0, but got %d", s.flag, s.workers))
		case s.most > 0 && s.workers > s.most:
			errs = append(errs, fmt.Errorf("%s must not be more than %d, but got %d", s.flag, s.most, s.workers))
		}
	}
	return errors.Join(errs...)
}

func (c concurrency) workers() map[string]int {
	all := map[string]int{}
	for controller, s := range c {
		all[controller] = s.workers
	}
	return all
}
