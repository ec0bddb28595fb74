package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"proa/internal/bench"
)

func newBench() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure an API server, this one or any other",
	}
	cmd.AddCommand(newBenchAPI(), newBenchPods(), newBenchIdle(), newBenchStart(), newBenchScheduler(), newBenchControllers())
	return cmd
}

// benchFlags are what every kind of measurement asks for.
type benchFlags struct {
	kubeconfig, context string
	pids                []int
	processes           []string
	output              string
}

func (f *benchFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "how the API server is reached (default: as kubectl)")
	flags.StringVar(&f.context, "context", "", "context of the kubeconfig")
	flags.IntSliceVar(&f.pids, "server-pid", nil, "process ids of the server, whose CPU and memory are measured")
	flags.StringSliceVar(&f.processes, "server-process", nil, "or the names of its programs")
	f.registerOutput(cmd)
}

func (f *benchFlags) registerOutput(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&f.output, "output", "o", "", "json: instead of a table")
}

func (f *benchFlags) resolve() (*rest.Config, bench.Server, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = f.kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: f.context}).ClientConfig()
	if err != nil {
		return nil, bench.Server{}, err
	}
	server, err := bench.FindServer(f.pids, f.processes)
	return config, server, err
}

// run measures until it is done or a signal ends it, and prints what is found.
func (f *benchFlags) run(cmd *cobra.Command, measure func(context.Context, bench.Report) error) error {
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	out := cmd.OutOrStdout()
	switch f.output {
	case "":
		return measure(ctx, bench.Table(out))
	case "json":
		figures := []bench.Figure{}
		if err := measure(ctx, func(figure bench.Figure) { figures = append(figures, figure) }); err != nil {
			return err
		}
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(figures)
	}
	return fmt.Errorf("output is json or nothing, not %q", f.output)
}

func newBenchAPI() *cobra.Command {
	var f benchFlags
	var a bench.API
	cmd := &cobra.Command{
		Use:   "api",
		Short: "Calls, lists and watches of pods that nobody runs",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if a.Config, a.Server, err = f.resolve(); err != nil {
				return err
			}
			return f.run(cmd, a.Run)
		},
	}
	f.register(cmd)
	flags := cmd.Flags()
	flags.StringVar(&a.Namespace, "namespace", "", "namespace to make and delete (default proa-bench)")
	flags.StringSliceVar(&a.Only, "only", nil, "tasks to do: "+strings.Join(bench.Tasks, ", ")+" (default all)")
	flags.IntSliceVar(&a.Clients, "clients", nil, "clients that call at once (default 1,16,64)")
	flags.DurationVar(&a.Duration, "duration", 5*time.Second, "how long each kind of call is made")
	flags.IntVar(&a.Pods, "pods", 50_000, "pods that are listed")
	flags.IntVar(&a.Repeat, "repeat", 3, "how often they are listed")
	flags.IntSliceVar(&a.Watchers, "watchers", nil, "watchers that see each change (default 10,100,1000)")
	flags.IntVar(&a.Streams, "streams", 1, "watches that share a connection")
	flags.IntVar(&a.Events, "events", 100_000, "events that all watchers get together")
	flags.BoolVar(&a.Compress, "gzip", false, "accept compressed answers")
	flags.BoolVar(&a.Keep, "keep", false, "leave the namespace and its pods")
	return cmd
}

func newBenchPods() *cobra.Command {
	var f benchFlags
	var p bench.Running
	cmd := &cobra.Command{
		Use:   "pods [flags] [-- COMMAND...]",
		Short: "The time from creating a pod to its Running, on a live cluster",
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if p.Config, p.Server, err = f.resolve(); err != nil {
				return err
			}
			p.Command = args
			return f.run(cmd, p.Run)
		},
	}
	f.register(cmd)
	flags := cmd.Flags()
	flags.StringVar(&p.Namespace, "namespace", "", "namespace to make and delete (default proa-bench)")
	flags.StringVar(&p.Image, "image", "", "image of the pods, present on the nodes")
	flags.IntVar(&p.Series, "series", 20, "pods one after another")
	flags.IntVar(&p.AtOnce, "at-once", 30, "pods at once, after that")
	cmd.MarkFlagRequired("image")
	return cmd
}

func newBenchIdle() *cobra.Command {
	var f benchFlags
	var d bench.Idle
	cmd := &cobra.Command{
		Use:   "idle",
		Short: "Memory, CPU and writes of a cluster that nobody uses",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if d.Config, d.Server, err = f.resolve(); err != nil {
				return err
			}
			return f.run(cmd, d.Run)
		},
	}
	f.register(cmd)
	cmd.Flags().DurationVar(&d.Duration, "duration", time.Minute, "how long to look")
	return cmd
}

func newBenchStart() *cobra.Command {
	var f benchFlags
	var s bench.Start
	cmd := &cobra.Command{
		Use:   "start --url https://127.0.0.1:6443/readyz -- COMMAND...",
		Short: "The time from starting a server to its being ready",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s.Command, s.Output = args, cmd.ErrOrStderr()
			return f.run(cmd, s.Run)
		},
	}
	f.registerOutput(cmd)
	cmd.Flags().StringVar(&s.URL, "url", "", "what answers 200 when the server is ready")
	cmd.Flags().IntVar(&s.Repeat, "repeat", 3, "how often")
	cmd.MarkFlagRequired("url")
	return cmd
}

func newBenchScheduler() *cobra.Command {
	var f benchFlags
	var s bench.Scheduling
	cmd := &cobra.Command{
		Use:   "scheduler",
		Short: "Pods scheduled in a second, by the shapes of upstream's scheduler_perf",
		Long: `Pods scheduled in a second, by the shapes of upstream's scheduler_perf.

Nodes are made that are objects only, then the pods that are there before, then
those that are measured: from before the first is created to the moment when a
watch shows the node of the last. Use a server without nodes of its own
(proa server --no-node). Floors are what a run of upstream's tests must reach.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if s.Config, s.Server, err = f.resolve(); err != nil {
				return err
			}
			return f.run(cmd, s.Run)
		},
	}
	f.register(cmd)
	flags := cmd.Flags()
	flags.StringSliceVar(&s.Only, "only", nil, "shapes to measure: "+strings.Join(bench.ShapeNames(), ", ")+" (default all)")
	flags.Float64Var(&s.Scale, "scale", 1, "of the numbers of nodes and pods")
	flags.IntVar(&s.Clients, "clients", 16, "connections that create pods at once")
	return cmd
}

func newBenchControllers() *cobra.Command {
	var f benchFlags
	var c bench.Controllers
	cmd := &cobra.Command{
		Use:   "controllers",
		Short: "Deployments that come up, roll over and go, on simulated nodes",
		Long: `Deployments that come up, roll over and go, on simulated nodes.

The cluster needs nodes that somebody simulates: proa server --no-node
--simulate 1000, or KWOK. Its own idle CPU is measured when --server-pid or
--server-process is given.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if c.Config, c.Server, err = f.resolve(); err != nil {
				return err
			}
			return f.run(cmd, c.Run)
		},
	}
	f.register(cmd)
	flags := cmd.Flags()
	flags.StringSliceVar(&c.Only, "only", nil, "tasks to do: "+strings.Join(bench.ControllerTasks, ", ")+" (default all)")
	flags.IntVar(&c.Deployments, "deployments", 1000, "Deployments")
	flags.IntVar(&c.Replicas, "replicas", 10, "pods of each")
	flags.IntVar(&c.Objects, "objects", 50_000, "ConfigMaps in the namespace that is deleted")
	flags.DurationVar(&c.Idle, "idle", 30*time.Second, "how long nothing happens while CPU is measured")
	flags.IntVar(&c.Clients, "clients", 16, "connections that create objects at once")
	return cmd
}
