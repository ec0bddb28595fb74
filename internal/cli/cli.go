// Package cli is what a person types. A command parses flags, calls one function
// of another package and prints what came of it; it decides nothing itself.
package cli

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
)

// Version is stamped at link time.
var Version = "dev"

// Main runs the command line and returns the exit code.
func Main(args []string) int {
	if filepath.Base(args[0]) == "kubectl" {
		return runKubectl(args)
	}
	if len(args) > 1 && args[1] == "kubectl" {
		return runKubectl(append([]string{"kubectl"}, args[2:]...))
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
	)
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
