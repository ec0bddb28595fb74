package byname

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/component-base/config"
	"k8s.io/component-base/config/options"
	_ "k8s.io/component-base/metrics/prometheus/clientgo/leaderelection"
	_ "k8s.io/component-base/metrics/prometheus/restclient"

	"proa/internal/apis"
	"proa/internal/apis/builtin"
)

// remote is a daemon's way to the API server, and its turn among its like.
type remote struct {
	component  string
	kubeconfig string
	master     string
	qps        float32
	burst      int32
	leader     config.LeaderElectionConfiguration
	identity   string // of this process among those that elect
	gates      string
}

func (r *remote) add(fs *pflag.FlagSet, component string) {
	r.component = component
	fs.StringVar(&r.kubeconfig, "kubeconfig", "", "kubeconfig with address and credentials of the API server")
	fs.StringVar(&r.master, "master", "", "address of the API server, instead of the kubeconfig's")
	fs.Float32Var(&r.qps, "kube-api-qps", 0, "requests per second that the API server is asked at most; 0: no limit")
	fs.Int32Var(&r.burst, "kube-api-burst", 0, "requests at once that --kube-api-qps lets pass")
	fs.StringVar(&r.gates, "feature-gates", "", "features that are on or off, as A=true,B=false: the kinds and fields that they bring are known here")
	r.leader.LeaderElect = true
	r.leader.LeaseDuration.Duration = 15 * time.Second
	r.leader.RenewDeadline.Duration = 10 * time.Second
	r.leader.RetryPeriod.Duration = 2 * time.Second
	r.leader.ResourceLock = resourcelock.LeasesResourceLock
	r.leader.ResourceName, r.leader.ResourceNamespace = component, "kube-system"
	options.BindLeaderElectionFlags(&r.leader, fs)
}

// access reads the kubeconfig; without one the daemon is in a pod.
func (r *remote) access() (*rest.Config, error) {
	c, err := clientcmd.BuildConfigFromFlags(r.master, r.kubeconfig)
	if err != nil {
		return nil, err
	}
	c.UserAgent = r.component
	if c.QPS = -1; r.qps > 0 {
		c.QPS, c.Burst = r.qps, int(r.burst)
	}
	return c, nil
}

// catalogue is what the API server may serve under --feature-gates.
func (r *remote) catalogue() (*apis.Catalogue, error) {
	gates, served, err := builtin.Options{FeatureGates: r.gates}.Parse()
	if err != nil {
		return nil, err
	}
	return builtin.Serving(gates, served), nil
}

var errNotLeader = errors.New("leaderelection lost")

// whileLeading runs work while this process is the leader, at once where nobody
// elects. To lose the lead is an error: another process works already.
func (r *remote) whileLeading(ctx context.Context, access *rest.Config, work func(context.Context) error) error {
	if !r.leader.LeaderElect {
		return work(ctx)
	}
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	r.identity = host + "_" + string(uuid.NewUUID())
	return r.whileHolding(ctx, access, r.leader.ResourceLock, r.leader.ResourceName, work)
}

// whileHolding is whileLeading for a lock of a kind and name.
func (r *remote) whileHolding(ctx context.Context, access *rest.Config, kind, name string, work func(context.Context) error) error {
	api, err := kubernetes.NewForConfig(rest.AddUserAgent(rest.CopyConfig(access), "leader-election"))
	if err != nil {
		return err
	}
	lock, err := resourcelock.New(kind, r.leader.ResourceNamespace, name,
		api.CoreV1(), api.CoordinationV1(), resourcelock.ResourceLockConfig{Identity: r.identity})
	if err != nil {
		return fmt.Errorf("error creating lock: %w", err)
	}
	leading := make(chan context.Context, 1)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, Name: name, ReleaseOnCancel: true,
		LeaseDuration: r.leader.LeaseDuration.Duration, RenewDeadline: r.leader.RenewDeadline.Duration, RetryPeriod: r.leader.RetryPeriod.Duration,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) { leading <- ctx },
			OnStoppedLeading: func() {},
			OnNewLeader: func(id string) {
				slog.Info("Leader", "lease", name, "leader", id, "self", id == r.identity)
			},
		},
	})
	if err != nil {
		return err
	}
	g, electing := errgroup.WithContext(ctx)
	g.Go(func() error {
		elector.Run(electing)
		if ctx.Err() == nil && electing.Err() == nil {
			return errNotLeader
		}
		return nil
	})
	g.Go(func() error {
		select {
		case <-electing.Done():
			return nil
		case lead := <-leading:
			return work(lead)
		}
	})
	return g.Wait()
}
