package cluster

import (
	"fmt"
	"path/filepath"

	"k8s.io/utils/ptr"

	"proa/internal/kubelet/config"
)

// decided are the fields of a KubeletConfiguration that follow from the cluster, or
// concern the whole process, each with what to use instead.
var decided = []struct{ field, instead string }{
	{"containerRuntimeEndpoint", "the node runs its own container runtime"},
	{"imageServiceEndpoint", "the node runs its own container runtime"},
	{"cgroupRoot", "it follows from the data directory"},
	{"cgroupDriver", "the node runs its own container runtime"},
	{"staticPodPath", "manifests lie in the data directory"},
	{"clusterDNS", "it follows from --service-cidr"},
	{"clusterDomain", "use --cluster-domain"},
	{"port", "use --kubelet-port"},
	{"tlsCertFile", "the cluster's authority signs the certificate"},
	{"tlsPrivateKeyFile", "the cluster's authority signs the certificate"},
	{"authentication.x509.clientCAFile", "the cluster's authority signs the clients' certificates"},
	{"registerNode", "the node is the cluster's"},
	{"enableServer", "the cluster asks its nodes"},
	{"kubeAPIQPS", "the node does not limit itself"},
	{"kubeAPIBurst", "the node does not limit itself"},
	{"eventRecordQPS", "the node does not limit itself"},
	{"eventBurst", "the node does not limit itself"},
	{"contentType", "the node chooses it"},
	{"oomScoreAdj", "the process is more than a node"},
	{"maxOpenFiles", "the process is more than a node"},
	{"logging.format", "the process is more than a node"},
	{"logging.verbosity", "the process is more than a node"},
}

// configuration is what the node's agent is told: the user's file, with what makes
// the node one of this cluster.
func (n *node) configuration() (*config.Configuration, error) {
	c, err := config.Load(n.settings.KubeletConfig, "")
	if err != nil {
		return nil, fmt.Errorf("--kubelet-config: %w", err)
	}
	given := config.Given(c)
	for _, d := range decided {
		if given[d.field] {
			return nil, fmt.Errorf("--kubelet-config: %s: %s cannot be set here: %s", n.settings.KubeletConfig, d.field, d.instead)
		}
	}
	prefer(c)
	if c.PodLogsDir == "" {
		c.PodLogsDir = filepath.Join(n.layout.Logs(), "pods")
	}
	c.ContainerRuntimeEndpoint = n.runtime.Endpoint()
	c.CgroupRoot, c.StaticPodPath = n.layout.CgroupRoot(), n.layout.Manifests()
	c.ClusterDNS, c.ClusterDomain = []string{n.settings.clusterDNS().String()}, n.settings.ClusterDomain
	c.Port = int32(n.settings.KubeletPort)
	config.Default(c)
	if err := config.Validate(c); err != nil {
		return nil, fmt.Errorf("--kubelet-config: %w", err)
	}
	return c, nil
}

// prefer sets what upstream's defaults would keep from one program on any host:
// several pulls at a time, hosts with swap or cgroup v1, no ports beyond its own.
func prefer(c *config.Configuration) {
	if c.SerializeImagePulls == nil && c.MaxParallelImagePulls == nil {
		c.MaxParallelImagePulls = ptr.To[int32](5)
	}
	for field, def := range map[**bool]bool{&c.FailCgroupV1: false, &c.FailSwapOn: false, &c.EnableSystemLogHandler: false} {
		if *field == nil {
			*field = ptr.To(def)
		}
	}
	for _, field := range []**int32{&c.HealthzPort, &c.RegistryPullQPS} {
		if *field == nil {
			*field = ptr.To[int32](0)
		}
	}
}
