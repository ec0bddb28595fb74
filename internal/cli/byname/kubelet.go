package byname

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/utils/ptr"

	"proa/internal/apis/builtin"
	"proa/internal/client"
	"proa/internal/kubelet"
	"proa/internal/kubelet/config"
	"proa/internal/kubelet/cri"
	"proa/internal/verbosity"
)

// Kubelet is the node agent, beside any API server and any container runtime that
// are there already. What a flag says goes before a drop-in, and that before the
// file. There is no mode without an API server, and the defaults without a file are
// those of a file: nobody is served who is not known.
func Kubelet(args []string) int {
	return execute(command("kubelet", "The agent of one node", &nodeAgent{}), args[1:])
}

type nodeAgent struct {
	config struct{ file, dir string }
	given  []setting // flags of the configuration, as they were given
	flags  *pflag.FlagSet

	kubeconfig     string
	certDir        string
	rootDir        string
	hostname       string
	nodeIP         string
	labels         map[string]string
	cloud          string
	seccompDefault bool
}

func (k *nodeAgent) add(fs *pflag.FlagSet) {
	k.labels = map[string]string{}
	fs.StringVar(&k.config.file, "config", "", "file with a KubeletConfiguration; flags go before it")
	fs.StringVar(&k.config.dir, "config-dir", "", "directory of drop-ins over --config: files *.conf, in the order of their names")
	fs.StringVar(&k.kubeconfig, "kubeconfig", "", "kubeconfig with address and credentials of the API server")
	fs.StringVar(&k.certDir, "cert-dir", "/var/lib/kubelet/pki", "where the serving certificate is, or is made, when none is named")
	fs.StringVar(&k.rootDir, "root-dir", "/var/lib/kubelet", "directory of the pods' volumes and of what the agent keeps")
	fs.StringVar(&k.hostname, "hostname-override", "", "name of the node, instead of the host's")
	fs.StringVar(&k.nodeIP, "node-ip", "", "address of the node, or one per IP family, separated by a comma")
	fs.Var((*cliflag.ConfigurationMap)(&k.labels), "node-labels", "labels of the node when it registers: key=value, separated by commas")
	fs.StringVar(&k.cloud, "cloud-provider", "", "empty, or external: a cloud controller manager completes the node")
	fs.BoolVar(&k.seccompDefault, "seccomp-default", false, "use RuntimeDefault for containers that name no seccomp profile")
	recordFlags(fs, &k.given)
	k.flags = fs
}

// inForce are the values of all flags. None of them is a secret.
func (k *nodeAgent) inForce() map[string]string {
	values := map[string]string{}
	k.flags.VisitAll(func(f *pflag.Flag) { values[f.Name] = f.Value.String() })
	return values
}

// run serves the node until ctx ends.
func (k *nodeAgent) run(ctx context.Context) error {
	if err := k.validate(); err != nil {
		return err
	}
	c, err := k.configuration()
	if err != nil {
		return err
	}
	if err := log(c); err != nil {
		return err
	}
	agent, err := k.agent(ctx, c)
	if err != nil {
		return fmt.Errorf("failed to run Kubelet: %w", err)
	}
	settleProcess(c)
	if err := agent.Run(ctx); err != nil {
		return fmt.Errorf("failed to run Kubelet: %w", err)
	}
	return nil
}

// configuration is what files and flags say together.
func (k *nodeAgent) configuration() (*config.Configuration, error) {
	c, err := config.Load(k.config.file, k.config.dir)
	if err != nil {
		return nil, err
	}
	config.Default(c)
	if err := replay(k.given, c); err != nil {
		return nil, err
	}
	if k.seccompDefault {
		c.SeccompDefault = ptr.To(true)
	}
	if err := config.Validate(c); err != nil {
		return nil, fmt.Errorf("failed to validate kubelet configuration, error: %w", err)
	}
	return c, nil
}

func (k *nodeAgent) agent(ctx context.Context, c *config.Configuration) (*kubelet.Kubelet, error) {
	node, err := k.node()
	if err != nil {
		return nil, err
	}
	if err := checkRuntime(ctx, c); err != nil {
		return nil, err
	}
	access, err := clientcmd.BuildConfigFromFlags("", k.kubeconfig)
	if err != nil {
		return nil, err
	}
	access.UserAgent = "kubelet"
	api, err := limited(access, *c.KubeAPIQPS, c.KubeAPIBurst)
	if err != nil {
		return nil, err
	}
	events, err := limited(access, *c.EventRecordQPS, c.EventBurst)
	if err != nil {
		return nil, err
	}
	pair, err := k.certificate(c, node)
	if err != nil {
		return nil, err
	}
	cas, err := pool("--client-ca-file", c.Authentication.X509.ClientCAFile)
	if err != nil {
		return nil, err
	}
	root, err := filepath.Abs(k.rootDir)
	if err != nil {
		return nil, err
	}
	return kubelet.New(kubelet.Config{
		API: api, Events: events, NodeName: node.name, NodeIPs: node.ips, NodeLabels: k.labels, Cloud: k.cloud == external, CloudIPs: node.told,
		Configuration: c, RootDir: root, Certificate: pair.get, ClientCAs: cas, Flags: k.inForce(),
	})
}

// limited is the API at so many requests per second; 0: as many as come.
func limited(access *rest.Config, qps, burst int32) (client.API, error) {
	bounded := rest.CopyConfig(access)
	if bounded.QPS = -1; qps > 0 {
		bounded.QPS, bounded.Burst = float32(qps), int(burst)
	}
	return client.NewHTTP(bounded, builtin.Catalogue())
}

// checkRuntime refuses to start beside a runtime that is not there, or does not
// serve CRI v1.
func checkRuntime(ctx context.Context, c *config.Configuration) error {
	rt, err := cri.Connect(cri.Config{Endpoint: c.ContainerRuntimeEndpoint, Images: c.ImageServiceEndpoint, Timeout: c.RuntimeRequestTimeout.Duration})
	if err != nil {
		return err
	}
	_, err = rt.Check(ctx)
	return errors.Join(err, rt.Close())
}

// log shapes this process's log as the configuration says, unless flags have.
func log(c *config.Configuration) error {
	if n := int(c.Logging.Verbosity); n > 0 && verbosity.Number() == 0 {
		if err := verbosity.Set(strconv.Itoa(n)); err != nil {
			return err
		}
	}
	if c.Logging.Format != "json" {
		return nil
	}
	handler, err := verbosity.Handler(os.Stderr, c.Logging.Format)
	if err != nil {
		return err
	}
	slog.SetDefault(slog.New(handler))
	return nil
}

// settleProcess sets how this process stands among others. A host that does not let
// it is told of in the log.
func settleProcess(c *config.Configuration) {
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(int(*c.OOMScoreAdj))), 0); err != nil {
		slog.Warn("Failed to ApplyOOMScoreAdj", "err", err)
	}
	if n := uint64(c.MaxOpenFiles); n > 0 {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: n}); err != nil {
			slog.Warn("Failed to set rlimit on max file handles", "err", err)
		}
	}
}
