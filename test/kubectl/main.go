// Command kubectl is Kubernetes' own kubectl, built from its Go module with
// nothing of Proa in it: the client that the end-to-end tests hold the cluster to.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
)

func main() {
	if err := cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()); err != nil {
		cmdutil.CheckErr(err)
		os.Exit(1)
	}
}
