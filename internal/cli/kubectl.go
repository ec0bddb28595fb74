package cli

import (
	"os"

	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/plugin"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	"proa/internal/cluster"
)

// runKubectl is kubectl, unchanged. As `proa kubectl` on a host whose user has
// no kubeconfig at all it talks to the cluster of this host.
func runKubectl(args []string) int {
	useHostCluster()
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	command := cmd.NewDefaultKubectlCommandWithArgs(cmd.KubectlOptions{
		PluginHandler: cmd.NewDefaultPluginHandler(plugin.ValidPluginFilenamePrefixes),
		Arguments:     args,
		IOStreams:     streams,
	})
	command.SetArgs(args[1:])
	if err := cli.RunNoErrOutput(command); err != nil {
		cmdutil.CheckErr(err)
		return 1
	}
	return 0
}

func useHostCluster() {
	if os.Getenv("KUBECONFIG") != "" || os.Getenv("KUBERNETES_SERVICE_HOST") != "" {
		return
	}
	if home, err := os.UserHomeDir(); err == nil {
		if _, err := os.Stat(home + "/.kube/config"); err == nil {
			return
		}
	}
	layout, err := cluster.NewLayout(cluster.DefaultDataDir)
	if err != nil {
		return
	}
	if _, err := os.Stat(layout.Kubeconfig()); err == nil {
		os.Setenv("KUBECONFIG", layout.Kubeconfig())
	}
}
