package byname

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"
	migration "k8s.io/controller-manager/config"
	"k8s.io/controller-manager/pkg/leadermigration"
	migrationconfig "k8s.io/controller-manager/pkg/leadermigration/config"
)

// leaderMigration moves controllers from one controller manager to another
// (KEP-2436): those that it names run under a Lease of their own, which both
// managers ask for, so that each of them runs once while managers are replaced.
type leaderMigration struct {
	enabled bool
	file    string
}

func (m *leaderMigration) add(fs *pflag.FlagSet) {
	fs.BoolVar(&m.enabled, "enable-leader-migration", false, "run controllers that are migrated between controller managers under a lease of their own")
	fs.StringVar(&m.file, "leader-migration-config", "", "file with a LeaderMigrationConfiguration that names the controllers; needs --enable-leader-migration")
}

// read is what the flags say; nil: nothing is migrated.
func (m *leaderMigration) read() (*migration.LeaderMigrationConfiguration, error) {
	switch {
	case !m.enabled && m.file != "":
		return nil, errors.New("--leader-migration-config needs --enable-leader-migration")
	case !m.enabled:
		return nil, nil
	case m.file == "":
		return migrationconfig.DefaultLeaderMigrationConfiguration(), nil
	}
	c, err := migrationconfig.ReadLeaderMigrationConfiguration(m.file)
	if err != nil {
		return nil, err
	}
	if errs := migrationconfig.ValidateLeaderMigrationConfiguration(c); len(errs) > 0 {
		return nil, fmt.Errorf("failed to parse leader migration configuration: %v", errs)
	}
	return c, nil
}

// underLease tells which controllers belong to the Lease of the migration; the
// others of this manager belong to its own, as does always the one that makes
// service accounts usable. Controllers of another manager are in neither.
func underLease(c *migration.LeaderMigrationConfiguration, component string, migrated bool) func(name string) bool {
	filter, want := leadermigration.NewLeaderMigrator(c, component).FilterFunc, leadermigration.FilterResult(leadermigration.ControllerNonMigrated)
	if migrated {
		want = leadermigration.ControllerMigrated
	}
	return func(name string) bool {
		if name == "serviceaccount-token-controller" {
			return !migrated
		}
		return filter(name) == want
	}
}
