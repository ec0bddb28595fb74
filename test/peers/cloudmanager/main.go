// Command cloud-controller-manager is upstream's (k8s.io/cloud-provider), unchanged,
// for a cloud that is only in its memory: instances have addresses, a zone and a type,
// load balancers an address, routes are remembered. It is a module of its own, so that
// nothing of it gets into Proa.
//
// Beside upstream's controllers it runs a node-ipam-controller, the one that clouds
// take over from kube-controller-manager.
package main

import (
	"fmt"
	"io"
	"os"

	"k8s.io/apimachinery/pkg/util/wait"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/app"
	"k8s.io/cloud-provider/app/config"
	"k8s.io/cloud-provider/names"
	"k8s.io/cloud-provider/options"
	"k8s.io/component-base/cli"
	cliflag "k8s.io/component-base/cli/flag"
)

func main() {
	cloudprovider.RegisterCloudProvider(provider, func(io.Reader) (cloudprovider.Interface, error) { return newCloud(), nil })
	o, err := options.NewCloudControllerManagerOptions()
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
	controllers := app.DefaultInitFuncConstructors
	controllers[nodeIPAM] = app.ControllerInitFuncConstructor{
		InitContext: app.ControllerInitContext{ClientName: "node-controller"}, Constructor: startNodeIPAM,
	}
	cmd := app.NewCloudControllerManagerCommand(o, open, controllers, names.CCMControllerAliases(), cliflag.NamedFlagSets{}, wait.NeverStop)
	os.Exit(cli.Run(cmd))
}

func open(c *config.CompletedConfig) cloudprovider.Interface {
	shared := c.ComponentConfig.KubeCloudShared.CloudProvider
	cloud, err := cloudprovider.InitCloudProvider(shared.Name, shared.CloudConfigFile)
	if err != nil || cloud == nil {
		fmt.Fprintf(os.Stderr, "Error: no cloud %q: %v\n", shared.Name, err)
		os.Exit(1)
	}
	return cloud
}
