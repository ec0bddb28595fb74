package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"proa/internal/cluster"
)

func newAgent() *cobra.Command {
	var dataDir, tokenFile string
	var options cluster.AgentOptions
	var detach bool
	var progressFD int
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Run a node that joins a cluster",
		Long: `Run a node that joins the cluster of a server elsewhere.

The first start needs a token, which proa token create makes on the server.
Later starts use the certificate that the node got then.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			layout, err := cluster.NewLayout(dataDir)
			if err != nil {
				return err
			}
			if pid, err := cluster.Running(layout); err != nil || pid != 0 {
				return errors.Join(err, alreadyRunning(pid, layout))
			}
			if tokenFile != "" {
				data, err := os.ReadFile(tokenFile)
				if err != nil {
					return err
				}
				options.Token = strings.TrimSpace(string(data))
			}
			if detach {
				return detached(cmd, layout)
			}
			options.Layout = layout
			return runUntilSignal(cmd, layout, true, progressFD, func(ctx context.Context, tell func(cluster.Progress)) error {
				options.Tell = tell
				return cluster.RunAgent(ctx, options)
			})
		},
	}
	dataDirFlag(cmd, &dataDir)
	flags := cmd.Flags()
	flags.StringVar(&options.Settings.Server, "server", "", "API server to join, such as https://10.0.0.1:6443")
	flags.StringVar(&options.Token, "token", "", "bootstrap token, for the first start")
	flags.StringVar(&tokenFile, "token-file", "", "file that holds the bootstrap token")
	flags.StringSliceVar(&options.Pins, "token-ca-cert-hash", nil, "hash of the cluster's authority (sha256:<hex>), one of which must match")
	flags.StringVar(&options.Settings.NodeName, "node-name", "", "name of this node (default: the host name)")
	flags.StringVar(&options.Settings.NodeIP, "node-ip", "", "address of this node (default: that towards the server)")
	kubeletConfigFlag(cmd, &options.Settings)
	flags.IntVar(&options.Settings.KubeletPort, "kubelet-port", 0, "port of the node agent (default 10250)")
	cmd.MarkFlagsMutuallyExclusive("token", "token-file")
	detachFlags(cmd, &detach, &progressFD)
	return cmd
}

func alreadyRunning(pid int, layout cluster.Layout) error {
	if pid == 0 {
		return nil
	}
	return fmt.Errorf("process %d serves %s already", pid, layout.Data)
}
