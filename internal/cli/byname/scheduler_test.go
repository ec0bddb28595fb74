package byname

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/component-base/config"

	schedulerconfig "proa/internal/scheduler/config"
)

const ofTheProcess = `
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: /from/file, qps: 20, burst: 30}
leaderElection: {leaderElect: false, leaseDuration: 40s, resourceName: mine, resourceNamespace: there}
`

func TestAFileSaysHowTheSchedulerElectsUnlessFlagsDo(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte(ofTheProcess), 0o600); err != nil {
		t.Fatal(err)
	}
	settings, err := schedulerconfig.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	election := func(elect bool, lease time.Duration, name string) config.LeaderElectionConfiguration {
		c := config.LeaderElectionConfiguration{LeaderElect: elect, ResourceLock: resourcelock.LeasesResourceLock, ResourceName: name, ResourceNamespace: "there"}
		c.LeaseDuration.Duration, c.RenewDeadline.Duration, c.RetryPeriod.Duration = lease, 10*time.Second, 2*time.Second
		return c
	}
	for name, c := range map[string]struct {
		flags []string
		want  config.LeaderElectionConfiguration
	}{
		"the file alone":          {nil, election(false, 40*time.Second, "mine")},
		"flags go before":         {[]string{"--leader-elect=true", "--leader-elect-lease-duration=20s"}, election(true, 20*time.Second, "mine")},
		"though they are default": {[]string{"--leader-elect-resource-name=kube-scheduler"}, election(false, 40*time.Second, "kube-scheduler")},
	} {
		t.Run(name, func(t *testing.T) {
			s := &schedulerDaemon{}
			fs := pflag.NewFlagSet("kube-scheduler", pflag.ContinueOnError)
			s.add(fs)
			if err := fs.Parse(append(c.flags, "--kubeconfig=/from/flag", "--config="+file)); err != nil {
				t.Fatal(err)
			}
			s.configure(&settings)
			if s.leader != c.want {
				t.Errorf("elects as %+v, want %+v", s.leader, c.want)
			}
			if s.kubeconfig != "/from/file" || s.qps != 20 || s.burst != 30 {
				t.Errorf("reaches the server with %q, %v, %v", s.kubeconfig, s.qps, s.burst)
			}
		})
	}
}
