package byname

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"

	"proa/internal/client"
	"proa/internal/scheduler"
	schedulerconfig "proa/internal/scheduler/config"
)

// Scheduler is kube-scheduler: it binds the pods of an API server to its nodes.
func Scheduler(args []string) int {
	return execute(command("kube-scheduler", "Binds pods to nodes", &schedulerDaemon{}), args[1:])
}

type schedulerDaemon struct {
	status
	remote
	config string
	flags  *pflag.FlagSet
}

func (s *schedulerDaemon) add(fs *pflag.FlagSet) {
	s.status.add(fs, "kube-scheduler", 10259)
	s.remote.add(fs, "kube-scheduler")
	fs.StringVar(&s.config, "config", "", "file with a KubeSchedulerConfiguration")
	s.flags = fs
}

// validate refuses locks that upstream's refuses by its configuration.
func (s *schedulerDaemon) validate() error {
	if l := s.leader; l.LeaderElect && l.ResourceLock != resourcelock.LeasesResourceLock {
		return field.Invalid(field.NewPath("leaderElection", "resourceLock"), l.ResourceLock, `resourceLock value must be "leases"`)
	}
	return nil
}

// configure takes what a file says of the process. As upstream's, flags of the
// election go before the file, and the file before flags of the client.
func (s *schedulerDaemon) configure(from *schedulerconfig.Settings) {
	if c := from.Client; c.Kubeconfig != "" {
		s.kubeconfig = c.Kubeconfig
	}
	if c := from.Client; c.QPS != 0 {
		s.qps, s.burst = c.QPS, c.Burst
	}
	l := from.Election
	if l.LeaderElect != nil && !s.flags.Changed("leader-elect") {
		s.leader.LeaderElect = *l.LeaderElect
	}
	unlessFlag(s.flags, "leader-elect-lease-duration", &s.leader.LeaseDuration, l.LeaseDuration)
	unlessFlag(s.flags, "leader-elect-renew-deadline", &s.leader.RenewDeadline, l.RenewDeadline)
	unlessFlag(s.flags, "leader-elect-retry-period", &s.leader.RetryPeriod, l.RetryPeriod)
	unlessFlag(s.flags, "leader-elect-resource-lock", &s.leader.ResourceLock, l.ResourceLock)
	unlessFlag(s.flags, "leader-elect-resource-name", &s.leader.ResourceName, l.ResourceName)
	unlessFlag(s.flags, "leader-elect-resource-namespace", &s.leader.ResourceNamespace, l.ResourceNamespace)
}

// unlessFlag sets a setting to what a file says, unless a flag has set it or the
// file says nothing.
func unlessFlag[T comparable](flags *pflag.FlagSet, name string, setting *T, value T) {
	if !flags.Changed(name) {
		*setting = cmp.Or(value, *setting)
	}
}

// run schedules until ctx ends.
func (s *schedulerDaemon) run(ctx context.Context) error {
	var settings schedulerconfig.Settings
	if s.config != "" {
		var err error
		if settings, err = schedulerconfig.Load(s.config); err != nil {
			return fmt.Errorf("--config: %w", err)
		}
		s.configure(&settings)
	}
	if err := s.validate(); err != nil {
		return err
	}
	access, err := s.access()
	if err != nil {
		return err
	}
	catalogue, err := s.catalogue()
	if err != nil {
		return err
	}
	if s.reviewer, err = client.NewHTTP(access, catalogue); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.status.run(ctx) })
	g.Go(func() error {
		return s.whileLeading(ctx, access, func(ctx context.Context) error { return s.schedule(ctx, access, settings) })
	})
	return g.Wait()
}

func (s *schedulerDaemon) schedule(ctx context.Context, access *rest.Config, settings schedulerconfig.Settings) error {
	cache := client.NewCache(s.reviewer)
	groups, err := servesPodGroups(access)
	if err != nil {
		return err
	}
	scheduling, err := scheduler.New(scheduler.Config{
		Settings: settings, Cache: cache, Clock: clock.RealClock{}, Metrics: s.metrics, PodGroups: groups,
	})
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return cache.Run(ctx) })
	g.Go(func() error {
		if cache.WaitForSync(ctx) != nil {
			return nil // ctx ended
		}
		return scheduling.Run(ctx)
	})
	return g.Wait()
}

// servesPodGroups asks the server, which alone knows its gates.
func servesPodGroups(access *rest.Config) (bool, error) {
	d, err := discovery.NewDiscoveryClientForConfig(access)
	if err != nil {
		return false, err
	}
	served, err := d.ServerResourcesForGroupVersion(schedulingv1beta1.SchemeGroupVersion.String())
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("discover pod groups: %w", err)
	}
	return slices.ContainsFunc(served.APIResources, func(r metav1.APIResource) bool { return r.Name == "podgroups" }), nil
}
