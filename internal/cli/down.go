package cli

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"proa/internal/cluster"
)

func newDown() *cobra.Command {
	var dataDir string
	var options cluster.DownOptions
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Stop the cluster of this machine and its pods",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			layout, err := cluster.NewLayout(dataDir)
			if err != nil {
				return err
			}
			settings, err := cluster.ReadSettings(layout)
			if err != nil {
				return err
			}
			if err := cluster.Down(cmd.Context(), layout, options); err != nil {
				return err
			}
			start := "proa up"
			if settings != nil && settings.Server != "" {
				start = "proa agent"
			}
			switch {
			case options.Delete && start == "proa agent":
				fmt.Fprintf(cmd.OutOrStdout(), "Deleted: nothing of the node in %s is left here. The cluster still knows it: kubectl delete node %s\n", layout.Data, settings.NodeName)
			case options.Delete:
				fmt.Fprintf(cmd.OutOrStdout(), "Deleted: nothing of the cluster in %s is left.\n", layout.Data)
			case options.KeepPods:
				fmt.Fprintln(cmd.OutOrStdout(), "Stopped. Pods keep running; start again with: "+start)
			default:
				fmt.Fprintf(cmd.OutOrStdout(), "Stopped. The data is in %s; start again with: %s\n", layout.Data, start)
			}
			return nil
		},
	}
	dataDirFlag(cmd, &dataDir)
	cmd.Flags().BoolVar(&options.KeepPods, "keep-pods", false, "leave the containers running")
	cmd.Flags().BoolVar(&options.Delete, "delete", false, "remove everything, the data too")
	cmd.MarkFlagsMutuallyExclusive("keep-pods", "delete")
	return cmd
}

func newStatus() *cobra.Command {
	var dataDir string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Say what is healthy and what is not; exit code 1 when something is not",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			layout, err := cluster.NewLayout(dataDir)
			if err != nil {
				return err
			}
			parts, err := cluster.Status(cmd.Context(), layout)
			if err != nil {
				return err
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 3, ' ', 0)
			healthy := true
			for _, part := range parts {
				state := "ok"
				if !part.Healthy {
					state, healthy = "NOT OK", false
				}
				fmt.Fprintf(w, "%s\t%s\t%s\n", part.Name, state, part.Detail)
			}
			w.Flush()
			if !healthy {
				return fmt.Errorf("not everything is healthy; the log is %s", layout.LogFile())
			}
			return nil
		},
	}
	dataDirFlag(cmd, &dataDir)
	return cmd
}

func newDoctor() *cobra.Command {
	var flags clusterFlags
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this host lacks, and what mends it",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			layout, err := cluster.NewLayout(flags.dataDir)
			if err != nil {
				return err
			}
			settings, err := flags.settings.Settle(layout)
			if err != nil {
				return err
			}
			checks := cluster.Preflight(layout, settings, cluster.Options{Server: true, Node: true})
			for _, c := range checks {
				if c.Problem == "" {
					fmt.Fprintf(cmd.OutOrStdout(), "ok      %s\n", c.Name)
				} else {
					fmt.Fprintf(cmd.OutOrStdout(), "LACKING %s: %s\n        %s\n", c.Name, c.Problem, c.Mend)
				}
			}
			if cluster.Problems(checks) != nil {
				return fmt.Errorf("this host is not ready for a node")
			}
			return nil
		},
	}
	flags.register(cmd)
	return cmd
}
