// Package cluster puts a cluster together on one host: it checks the host,
// keeps certificates and settings, starts the control plane and the node, and
// takes everything down again.
package cluster

import (
	"context"
	"errors"
	"log/slog"

	"github.com/google/renameio/v2"
	"golang.org/x/sync/errgroup"
	"k8s.io/apiserver/pkg/authentication/user"

	"proa/internal/auth/pki"
	"proa/internal/cluster/join"
)

// Options say which parts of a cluster this process is.
type Options struct {
	Layout   Layout
	Settings Settings
	Server   bool
	Node     bool
	Merge    bool           // add the cluster to the user's kubeconfig
	Copy     string         // another file for the administrator's kubeconfig; may be empty
	Token    *join.Grant    // what nodes can join with from the first start on; may be nil
	Tell     func(Progress) // nil: nobody listens
}

// Run starts the parts that o names and keeps them until ctx ends. Containers go
// on running then: Down stops them. It returns an error with nothing left half
// started when a part cannot start, ErrRunning when another process serves the
// data directory.
func Run(ctx context.Context, o Options) error {
	r := newReporter(o.Tell)
	l := o.Layout
	if err := l.Make(o.Node); err != nil {
		return err
	}
	instance, err := Acquire(l)
	if err != nil {
		return err
	}
	defer instance.Release(l)
	settings, err := o.Settings.Settle(l)
	if err != nil {
		return err
	}
	err = r.step("check this host", func() error { return Problems(Preflight(l, settings, o)) })
	if err != nil {
		return err
	}
	if err := settings.save(l); err != nil {
		return err
	}
	paceCollector()
	return start(ctx, o, settings, r)
}

func start(ctx context.Context, o Options, s Settings, r *reporter) (err error) {
	var authority *pki.Authority
	err = r.step("certificates", func() (err error) {
		authority, err = pki.LoadOrCreate(o.Layout.PKI())
		return err
	})
	if err != nil {
		return err
	}
	g, running := errgroup.WithContext(ctx)
	var n *node
	if o.Node {
		if n, err = newNode(ctx, o.Layout, s); err != nil {
			return err
		}
		g.Go(func() error { return n.runtime.Run(running) }) // starts while the control plane does
	}
	if err := serve(running, g, o, s, authority, n, r); err != nil {
		return errors.Join(err, n.abandon(ctx, g))
	}
	return ended(ctx, g.Wait())
}

// serve starts what needs the API, and waits until the node is Ready.
func serve(ctx context.Context, g *errgroup.Group, o Options, s Settings, authority *pki.Authority, n *node, r *reporter) error {
	l := o.Layout
	var cp *controlPlane
	err := r.step("control plane", func() (err error) {
		if cp, err = openControlPlane(ctx, l, s, authority); err != nil {
			return err
		}
		return writeAdminKubeconfig(o, s, authority)
	})
	if err != nil {
		return err
	}
	cache, components, err := cp.components(ctx, o)
	if err == nil && n != nil {
		var a access
		if a, err = cp.access(cache); err == nil {
			err = n.join(a)
		}
		components = append(components, n)
	}
	if err != nil {
		cp.Close()
		return err
	}
	g.Go(func() error {
		defer cp.Close()
		return cp.run(ctx, cache, components)
	})
	if n != nil {
		if err := r.step("container runtime", func() error { return n.runtime.Ready(ctx) }); err != nil {
			return err
		}
		if err := r.step("node Ready", func() error { return n.waitReady(ctx) }); err != nil {
			return err
		}
	}
	summary := summarize(l, s, o)
	r.ready(summary)
	slog.InfoContext(ctx, "ready", "server", summary.Server, "node", summary.Node)
	return nil
}

// abandon ends what a failed start had begun. Containers of an earlier start
// stay: they are the user's.
func (n *node) abandon(ctx context.Context, g *errgroup.Group) error {
	g.Go(func() error { return errAbandoned })
	err := g.Wait()
	if errors.Is(err, errAbandoned) || errors.Is(err, context.Canceled) {
		err = nil
	}
	if n == nil {
		return err
	}
	return errors.Join(err, n.runtime.Stop(context.WithoutCancel(ctx)))
}

var errAbandoned = errors.New("start failed")

func ended(ctx context.Context, err error) error {
	if errors.Is(err, context.Canceled) || ctx.Err() != nil && err == nil {
		return nil
	}
	return err
}

func writeAdminKubeconfig(o Options, s Settings, authority *pki.Authority) error {
	l := o.Layout
	cert, key, err := authority.KeptClient("admin", "kubernetes-admin", user.SystemPrivilegedGroup)
	if err != nil {
		return err
	}
	data, err := pki.Kubeconfig(s.localServer(), authority.CAPEM(), cert, key, l.contextName())
	if err != nil {
		return err
	}
	if o.Copy != "" {
		if err := renameio.WriteFile(o.Copy, data, 0o600); err != nil {
			return err
		}
	}
	return renameio.WriteFile(l.Kubeconfig(), data, 0o600)
}

func summarize(l Layout, s Settings, o Options) Summary {
	summary := Summary{Server: s.localServer(), Kubeconfig: l.Kubeconfig()}
	if o.Node {
		summary.Node = s.NodeName
	}
	if o.Merge {
		file, current, err := mergeKubeconfig(l)
		if err != nil {
			summary.Notice = err.Error()
			return summary
		}
		summary.Merged, summary.Current, summary.Context = file, current, l.contextName()
	}
	return summary
}
