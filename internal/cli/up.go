package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"proa/internal/apis/feature"
	"proa/internal/cluster"
	"proa/internal/cluster/join"
	"proa/internal/configfile"
	"proa/internal/controlplane"
	"proa/internal/verbosity"
)

// clusterFlags are the flags of every command that starts a part of a cluster.
type clusterFlags struct {
	dataDir  string
	settings cluster.Settings
	server   controlplane.Flags
	simulate simulateFlags
	token    string
	tokenTTL time.Duration
	copy     string
}

func (f *clusterFlags) register(cmd *cobra.Command) {
	dataDirFlag(cmd, &f.dataDir)
	flags := cmd.Flags()
	flags.IntVar(&f.settings.Port, "port", 0, "port of the API server (default 6443)")
	flags.IntVar(&f.settings.KubeletPort, "kubelet-port", 0, "port of the node agent (default 10250)")
	kubeletConfigFlag(cmd, &f.settings)
	flags.StringVar(&f.settings.NodeName, "node-name", "", "name of this node (default: the host name)")
	flags.StringVar(&f.settings.NodeIP, "node-ip", "", "address of this node (default: that of the default route)")
	flags.StringVar(&f.settings.BindAddress, "bind-address", "", "address that the API server listens on (default: every address)")
	flags.StringVar(&f.settings.AdvertiseAddress, "advertise-address", "", "address of the API server for nodes and pods (default: that of this node)")
	flags.StringSliceVar(&f.settings.TLSNames, "tls-san", nil, "further names and addresses in the API server's certificate")
	flags.StringVar(&f.settings.PodCIDR, "pod-cidr", "", "addresses of pods (default: the first free of 10.244.0.0/16 ...)")
	flags.StringVar(&f.settings.PodCIDR, "cluster-cidr", "", "the same as --pod-cidr")
	flags.StringVar(&f.settings.ServiceCIDR, "service-cidr", "", "addresses of Services (default: the first free of 10.96.0.0/16 ...)")
	flags.StringVar(&f.settings.ClusterDomain, "cluster-domain", "", "DNS domain of the cluster (default cluster.local)")
}

// registerStart adds the flags of commands that start a control plane.
func (f *clusterFlags) registerStart(cmd *cobra.Command) {
	f.register(cmd)
	flags := cmd.Flags()
	flags.StringVar(&f.token, "token", "", "bootstrap token that nodes can join with, made if it is not there")
	flags.DurationVar(&f.tokenTTL, "token-ttl", join.DefaultTTL, "how long that token lives; 0: for ever")
	flags.StringVar(&f.settings.FeatureGates, "feature-gates", "", feature.Usage())
	flags.StringVar(&f.settings.RuntimeConfig, "runtime-config", "", "APIs to serve: api/all=true, group/version=false, group/version/resource=true")
	datastore := &f.settings.Datastore
	flags.StringSliceVar(&datastore.Endpoints, "datastore-endpoint", nil, "URLs of the etcd that keeps the cluster's objects (default: the data directory)")
	flags.StringSliceVar(&datastore.Endpoints, "etcd-servers", nil, "the same as --datastore-endpoint")
	flags.StringVar(&datastore.Prefix, "etcd-prefix", "", "what all keys in etcd begin with (default /registry)")
	flags.StringVar(&datastore.CAFile, "etcd-cafile", "", "certificates of the authorities that etcd's certificate is from")
	flags.StringVar(&datastore.CertFile, "etcd-certfile", "", "client certificate for etcd")
	flags.StringVar(&datastore.KeyFile, "etcd-keyfile", "", "key of the client certificate for etcd")
	flags.StringVar(&f.settings.EventTTL, "event-ttl", "", "how long Events are kept; 0: for ever (default 1h)")
	f.server.Add(flags)
	flags.StringVar(&f.settings.SchedulerConfig, "scheduler-config", "", "KubeSchedulerConfiguration file: profiles, plugins, extenders")
	f.simulate.register(cmd)
	flags.StringVar(&f.copy, "write-kubeconfig", "", "write the administrator's kubeconfig to this file, too")
}

// options are what the flags ask for.
func (f *clusterFlags) options() (cluster.Options, error) {
	layout, err := cluster.NewLayout(f.dataDir)
	if err != nil {
		return cluster.Options{}, err
	}
	f.settings.APIServer = f.server.Given()
	if err := f.simulate.settle(&f.settings); err != nil {
		return cluster.Options{}, err
	}
	o := cluster.Options{Layout: layout, Settings: f.settings, Server: true, Copy: f.copy}
	if f.token == "" {
		return o, nil
	}
	grant, err := newGrant(f.token, f.tokenTTL)
	if err != nil {
		return cluster.Options{}, err
	}
	grant.Description = "Made at the start of the server"
	o.Token = &grant
	return o, nil
}

func kubeletConfigFlag(cmd *cobra.Command, s *cluster.Settings) {
	cmd.Flags().Var((*configfile.Path)(&s.KubeletConfig), "kubelet-config", "KubeletConfiguration file for this node")
}

func dataDirFlag(cmd *cobra.Command, dir *string) {
	cmd.Flags().StringVar(dir, "data-dir", cluster.DefaultDataDir, "where the cluster keeps everything")
}

func newUp() *cobra.Command {
	var flags clusterFlags
	var detach bool
	var progressFD int
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start a cluster on this machine: control plane and node",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			options, err := flags.options()
			if err != nil {
				return err
			}
			if running, err := alreadyUp(cmd, options.Layout); running || err != nil {
				return err
			}
			if detach {
				return detached(cmd, options.Layout)
			}
			options.Node, options.Merge = true, true
			return run(cmd, options, progressFD)
		},
	}
	flags.registerStart(cmd)
	detachFlags(cmd, &detach, &progressFD)
	return cmd
}

func detachFlags(cmd *cobra.Command, detach *bool, progressFD *int) {
	cmd.Flags().BoolVar(detach, "detach", false, "run in the background; return when the node is Ready")
	cmd.Flags().IntVar(progressFD, "progress-fd", 0, "write progress as JSON lines to this descriptor")
	cmd.Flags().MarkHidden("progress-fd")
}

func newServer() *cobra.Command {
	var flags clusterFlags
	var noNode bool
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Run a control plane in the foreground, with a node unless --no-node",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			options, err := flags.options()
			if err != nil {
				return err
			}
			options.Node = !noNode
			return run(cmd, options, 0)
		},
	}
	flags.registerStart(cmd)
	cmd.Flags().BoolVar(&noNode, "no-node", false, "control plane alone")
	return cmd
}

// alreadyUp makes a second `proa up` print what the first one did.
func alreadyUp(cmd *cobra.Command, layout cluster.Layout) (bool, error) {
	pid, err := cluster.Running(layout)
	if err != nil || pid == 0 {
		return false, err
	}
	settings, err := cluster.ReadSettings(layout)
	if err != nil {
		return true, err
	}
	if settings != nil && settings.Server != "" {
		return true, fmt.Errorf("%s is the data directory of an agent of %s, process %d: choose another with --data-dir", layout.Data, settings.Server, pid)
	}
	summary, err := cluster.Describe(cmd.Context(), layout)
	if err != nil {
		return true, fmt.Errorf("process %d runs this cluster but does not answer: %w; see %s, or stop it with: proa down", pid, err, layout.LogFile())
	}
	fmt.Fprintf(cmd.OutOrStdout(), "Already running (process %d).\n", pid)
	printSummary(cmd.OutOrStdout(), layout, *summary)
	return true, nil
}

// run starts the parts of a cluster that options name.
func run(cmd *cobra.Command, options cluster.Options, progressFD int) error {
	return runUntilSignal(cmd, options.Layout, options.Node, progressFD, func(ctx context.Context, tell func(cluster.Progress)) error {
		options.Tell = tell
		return cluster.Run(ctx, options)
	})
}

// runUntilSignal starts something and keeps it until a signal. The log goes to a
// file, what a person reads to standard output.
func runUntilSignal(cmd *cobra.Command, layout cluster.Layout, node bool, progressFD int, start func(context.Context, func(cluster.Progress)) error) error {
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	out := cmd.OutOrStdout()
	tell := newPrinter(out, layout).tell
	if progressFD > 0 {
		syscall.CloseOnExec(progressFD) // containerd outlives this process and must not hold the parent
		pipe := os.NewFile(uintptr(progressFD), "progress")
		write := cluster.WriteProgress(pipe)
		tell = func(p cluster.Progress) {
			write(p)
			if p.Ready != nil {
				pipe.Close()
			}
		}
	}
	if err := layout.Make(node); err != nil {
		return err
	}
	logFile, err := os.OpenFile(layout.LogFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	defer logFile.Close()
	slog.SetDefault(slog.New(slog.NewTextHandler(logFile, &slog.HandlerOptions{Level: verbosity.Level()})))
	klog.SetSlogLogger(slog.Default()) // borrowed libraries log through it
	err = start(ctx, tell)
	if err != nil {
		slog.Error("ended", "err", err)
		tell(cluster.Progress{Failed: err.Error()})
		return err
	}
	if progressFD == 0 {
		fmt.Fprintln(out, "Stopped. Pods keep running; end them with: proa down")
	}
	return nil
}

// detached starts the same command again in a session of its own and passes its
// progress on until the node is Ready.
func detached(cmd *cobra.Command, layout cluster.Layout) error {
	if err := layout.Make(true); err != nil {
		return err
	}
	logFile, err := os.OpenFile(layout.LogFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	defer logFile.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	const firstExtraFD = 3
	child := exec.Command(self, withoutDetach(os.Args[1:], firstExtraFD)...)
	child.Stdout, child.Stderr, child.ExtraFiles = logFile, logFile, []*os.File{w}
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := child.Start(); err != nil {
		w.Close()
		return err
	}
	w.Close()
	printer := newPrinter(cmd.OutOrStdout(), layout)
	var failed string
	ready := false
	err = cluster.ReadProgress(r, func(p cluster.Progress) {
		printer.tell(p)
		ready = ready || p.Ready != nil
		if p.Failed != "" {
			failed = p.Failed
		}
	})
	switch {
	case failed != "":
		child.Wait()
		return errors.New(failed)
	case err != nil:
		return err
	case !ready:
		return fmt.Errorf("the background process ended (%v); see %s", child.Wait(), layout.LogFile())
	}
	return child.Process.Release()
}

func withoutDetach(args []string, progressFD int) []string {
	kept := make([]string, 0, len(args)+1)
	for _, arg := range args {
		if arg != "--detach" && arg != "--detach=true" {
			kept = append(kept, arg)
		}
	}
	return append(kept, fmt.Sprintf("--progress-fd=%d", progressFD))
}

// printer shows progress: on a terminal a line per step that is completed in
// place, elsewhere plain lines.
type printer struct {
	out      io.Writer
	layout   cluster.Layout
	terminal bool
}

func newPrinter(out io.Writer, layout cluster.Layout) *printer {
	return &printer{out: out, layout: layout, terminal: isTerminal(out)}
}

func isTerminal(out io.Writer) bool {
	file, ok := out.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

func (p *printer) tell(progress cluster.Progress) {
	const clearLine = "\r\x1b[K"
	switch {
	case progress.Ready != nil:
		if p.terminal {
			fmt.Fprint(p.out, clearLine)
		}
		printSummary(p.out, p.layout, *progress.Ready)
	case progress.Failed != "":
		if p.terminal {
			fmt.Fprint(p.out, clearLine)
		}
	case progress.Took > 0 && p.terminal:
		fmt.Fprintf(p.out, "%s  %-28s %s\n", clearLine, progress.Step, seconds(progress.Took))
	case progress.Took > 0:
		fmt.Fprintf(p.out, "%s: %s\n", progress.Step, seconds(progress.Took))
	case p.terminal:
		fmt.Fprintf(p.out, "%s  %s ...", clearLine, progress.Step)
	}
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.2fs", d.Seconds()) }

func printSummary(out io.Writer, layout cluster.Layout, s cluster.Summary) {
	if s.Took > 0 {
		fmt.Fprintf(out, "Ready in %s: ", seconds(s.Took))
	}
	if s.Node != "" {
		fmt.Fprintf(out, "node %s, ", s.Node)
	}
	fmt.Fprintf(out, "API server %s\n", s.Server)
	if s.Notice != "" {
		fmt.Fprintf(out, "Note: %s\n", s.Notice)
	}
	if s.Agent {
		fmt.Fprintf(out, "\nThis node takes pods. See it with: %s\n", statusCommand(layout))
		return
	}
	kubectl := "kubectl"
	switch {
	case s.Merged == "" || s.Context == "":
		kubectl += " --kubeconfig " + s.Kubeconfig
	case !s.Current:
		kubectl += " --context " + s.Context
	}
	fmt.Fprintf(out, "\nTry:\n  %[1]s get pods -A\n  %[1]s apply -f examples/guestbook/\n", kubectl)
	fmt.Fprintf(out, "  %s\n", statusCommand(layout))
}

func statusCommand(layout cluster.Layout) string {
	if layout.Data != cluster.DefaultDataDir {
		return "proa status --data-dir " + layout.Data
	}
	return "proa status"
}
