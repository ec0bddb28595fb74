// Package byname is the program under upstream's names: kube-apiserver,
// kube-controller-manager, kube-scheduler and kubelet, with upstream's flags. Each does
// what upstream's does and no more, so that tools which start those daemons
// (envtest, kwokctl, kind of their own) can start this one instead. A flag that is
// accepted acts; an unknown one is refused as upstream refuses it.
package byname

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/component-base/cli/flag"
	"k8s.io/klog/v2"

	"proa/internal/apis"
	"proa/internal/verbosity"
)

// daemon is one of upstream's programs.
type daemon interface {
	add(fs *pflag.FlagSet)
	// run serves until ctx ends. Its error is the reason for an end before that.
	run(ctx context.Context) error
}

// command returns the command line of a daemon.
func command(name, short string, d daemon) *cobra.Command {
	var version bool
	var format string
	cmd := &cobra.Command{
		Use: name, Short: short, Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if version {
				fmt.Fprintln(cmd.OutOrStdout(), "Kubernetes", apis.KubernetesVersion)
				return nil
			}
			handler, err := verbosity.Handler(os.Stderr, format)
			if err != nil {
				return err
			}
			slog.SetDefault(slog.New(handler))
			klog.SetSlogLogger(slog.Default())
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return d.run(ctx)
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = true
	d.add(fs)
	fs.VarP(level{}, "v", "v", "number for the log level verbosity: 4 and more logs details")
	if fs.Lookup("logging-format") == nil { // the kubelet has it in its configuration
		fs.StringVar(&format, "logging-format", "text", "form of the log: text or json")
	}
	fs.BoolVar(&version, "version", false, "print the version and quit")
	fs.SetNormalizeFunc(flag.WordSepNormalizeFunc)
	return cmd
}

// execute runs a command line and returns the exit code.
func execute(cmd *cobra.Command, args []string) int {
	cmd.SetArgs(args)
	if err := cmd.ExecuteContext(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		return 1
	}
	return 0
}

// level is klog's verbosity.
type level struct{}

func (level) String() string { return strconv.Itoa(verbosity.Number()) }
func (level) Type() string   { return "Level" }

func (level) Set(text string) error { return verbosity.Set(strings.TrimSpace(text)) }
