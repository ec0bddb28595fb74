// Package cli is what a person types. A command parses flags, calls one function
// of another package and prints what came of it; it decides nothing itself.
package cli

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"proa/internal/cli/byname"
)

// Version is stamped at link time.
var Version = "dev"

// programs are what this one is by another name, or when that name is its first
// argument. Each takes its own name and its flags.
var programs = map[string]func(args []string) int{
	"kubectl":                 runKubectl,
	"etcd":                    runEtcd,
	"kube-apiserver":          byname.APIServer,
	"kube-controller-manager": byname.ControllerManager,
	"kube-scheduler":          byname.Scheduler,
	"kubelet":                 byname.Kubelet,
}

// Main runs the command line and returns the exit code.
func Main(args []string) int {
	if run, ok := programs[filepath.Base(args[0])]; ok {
		return run(args)
	}
	if len(args) > 1 {
		if run, ok := programs[args[1]]; ok {
			return run(args[1:])
		}
	}
	root := newRoot()
	root.SetArgs(args[1:])
	if err := root.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		return 1
	}
	return 0
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "proa",
		Short:         "Kubernetes as one fast program",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(
		newUp(), newDown(), newStatus(), newServer(), newAgent(), newToken(), newDoctor(), newImage(), newBench(), newVersion(),
		&cobra.Command{Use: "kubectl", Short: "kubectl of the same version", DisableFlagParsing: true},
		newEnvtest(), newSimulate(), newWhy(),
	)
	for name, short := range map[string]string{
		"etcd": "etcd, with its own flags", "kube-apiserver": "upstream's API server, by its flags",
	} {
		root.AddCommand(&cobra.Command{Use: name, Short: short, DisableFlagParsing: true})
	}
	return root
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) {
			fmt.Fprintf(cmd.OutOrStdout(), "proa %s\n", Version)
		},
	}
}
