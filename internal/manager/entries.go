package manager

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"proa/internal/controllers"
	"proa/internal/controllers/bootstrapsigner"
	"proa/internal/controllers/clusterroleaggregation"
	"proa/internal/controllers/clustertrustbundle"
	"proa/internal/controllers/cronjob"
	"proa/internal/controllers/csr"
	"proa/internal/controllers/daemonset"
	"proa/internal/controllers/deployment"
	"proa/internal/controllers/disruption"
	"proa/internal/controllers/endpoints"
	"proa/internal/controllers/endpointslice"
	"proa/internal/controllers/endpointslicemirroring"
	"proa/internal/controllers/garbagecollector"
	"proa/internal/controllers/horizontalpodautoscaler"
	"proa/internal/controllers/job"
	"proa/internal/controllers/legacytokencleaner"
	"proa/internal/controllers/namespace"
	"proa/internal/controllers/nodeipam"
	"proa/internal/controllers/nodelifecycle"
	"proa/internal/controllers/podcertificatecleaner"
	"proa/internal/controllers/podgc"
	"proa/internal/controllers/replicaset"
	"proa/internal/controllers/replicationcontroller"
	"proa/internal/controllers/resourcequota"
	"proa/internal/controllers/rootca"
	"proa/internal/controllers/serviceaccount"
	"proa/internal/controllers/serviceaccounttoken"
	"proa/internal/controllers/servicecidr"
	"proa/internal/controllers/statefulset"
	"proa/internal/controllers/storageversionmigrator"
	"proa/internal/controllers/tainteviction"
	"proa/internal/controllers/tokencleaner"
	"proa/internal/controllers/ttl"
	"proa/internal/controllers/ttlafterfinished"
	"proa/internal/controllers/validatingadmissionpolicy"
	"proa/internal/controllers/volumeattributesclass"
	"proa/internal/controllers/volumeexpand"
	"proa/internal/volume"
)

// entry is one controller under upstream's name. It makes none when it lacks
// what it works with.
type entry struct {
	name string
	off  bool // unless named
	make func(*builder) ([]controller, error)
}

// simple is an entry of a controller that needs a service account and nothing else.
func simple[C controller](name, account string, make func(controllers.Config) C) entry {
	return entry{name: name, make: func(b *builder) ([]controller, error) {
		return []controller{make(b.as(account))}, nil
	}}
}

// special is an entry of a controller that takes more.
func special(name string, make func(b *builder) controller) entry {
	return entry{name: name, make: func(b *builder) ([]controller, error) {
		if c := make(b); c != nil {
			return []controller{c}, nil
		}
		return nil, nil
	}}
}

// offByDefault is an entry that runs only where it is named.
func offByDefault(e entry) entry {
	e.off = true
	return e
}

var entries = []entry{
	special("serviceaccount-token-controller", func(b *builder) controller {
		if b.Token == nil {
			return nil
		}
		return serviceaccounttoken.New(b.itself(), b.Token, b.RootCA)
	}),
	simple("serviceaccount-controller", "service-account-controller", serviceaccount.New),
	special("root-ca-certificate-publisher-controller", func(b *builder) controller {
		if b.RootCA == nil {
			return nil
		}
		return rootca.New(b.as("root-ca-cert-publisher"), b.RootCA)
	}),
	special("kube-apiserver-serving-clustertrustbundle-publisher-controller", func(b *builder) controller {
		if b.RootCA == nil {
			return nil
		}
		return clustertrustbundle.New(b.as("kube-apiserver-serving-clustertrustbundle-publisher"), b.RootCA)
	}),
	simple("podcertificaterequest-cleaner-controller", "podcertificaterequestcleaner", podcertificatecleaner.New),
	special("legacy-serviceaccount-token-cleaner-controller", func(b *builder) controller {
		return legacytokencleaner.New(b.as("legacy-service-account-token-cleaner"), b.LegacyTokenPeriod)
	}),
	simple("endpointslice-controller", "endpointslice-controller", endpointslice.New),
	simple("endpointslice-mirroring-controller", "endpointslicemirroring-controller", endpointslicemirroring.New),
	simple("endpoints-controller", "endpoint-controller", endpoints.New),
	special("namespace-controller", func(b *builder) controller {
		return namespace.New(b.as("namespace-controller"), b.Catalogue).With(b.Aggregator)
	}),
	special("garbage-collector-controller", func(b *builder) controller {
		return garbagecollector.New(b.as("generic-garbage-collector"), b.Catalogue)
	}),
	simple("replicaset-controller", "replicaset-controller", replicaset.New),
	simple("replicationcontroller-controller", "replication-controller", replicationcontroller.New),
	simple("deployment-controller", "deployment-controller", deployment.New),
	simple("statefulset-controller", "statefulset-controller", statefulset.New),
	simple("daemonset-controller", "daemon-set-controller", daemonset.New),
	simple("job-controller", "job-controller", job.New),
	simple("cronjob-controller", "cronjob-controller", cronjob.New),
	simple("ttl-after-finished-controller", "ttl-after-finished-controller", ttlafterfinished.New),
	special("disruption-controller", func(b *builder) controller {
		return disruption.New(b.as("disruption-controller"), b.Catalogue)
	}),
	special("horizontal-pod-autoscaler-controller", func(b *builder) controller {
		return horizontalpodautoscaler.New(b.as("horizontal-pod-autoscaler"), b.Catalogue, b.Metrics)
	}),
	special("storage-version-migrator-controller", func(b *builder) controller {
		return storageversionmigrator.New(b.as("storage-version-migrator-controller"), b.Catalogue)
	}),
	simple("service-cidr-controller", "service-cidrs-controller", servicecidr.New),
	special("node-lifecycle-controller", func(b *builder) controller {
		return nodelifecycle.New(b.as("node-controller"), b.NodePeriods)
	}),
	simple("taint-eviction-controller", "node-controller", tainteviction.New),
	simple("ttl-controller", "ttl-controller", ttl.New),
	{name: "node-ipam-controller", make: newRanges},
	special("pod-garbage-collector-controller", func(b *builder) controller {
		return podgc.New(b.as("pod-garbage-collector"), b.TerminatedPods)
	}),
	special("resourcequota-controller", func(b *builder) controller {
		return resourcequota.New(b.as("resourcequota-controller"), b.Catalogue)
	}),
	special("certificatesigningrequest-controller", func(b *builder) controller {
		return csr.New(b.as("certificate-controller"), b.Sign, b.Serving)
	}),
	simple("clusterrole-aggregation-controller", "clusterrole-aggregation-controller", clusterroleaggregation.New),
	special("validatingadmissionpolicy-status-controller", func(b *builder) controller {
		return validatingadmissionpolicy.New(b.as("validatingadmissionpolicy-status-controller"), b.Catalogue)
	}),
	special("persistentvolume-binder-controller", func(b *builder) controller {
		return volume.New(volume.Config{Controllers: b.as("volume-controller"), LocalPath: b.LocalPath})
	}),
	simple("persistentvolume-expander-controller", "expand-controller", volumeexpand.New),
	simple("volumeattributesclass-protection-controller", "volumeattributesclass-protection-controller", volumeattributesclass.New),
	offByDefault(simple("token-cleaner-controller", "token-cleaner", tokencleaner.New)),
	offByDefault(simple("bootstrap-signer-controller", "bootstrap-signer", bootstrapsigner.New)),
}

func newRanges(b *builder) ([]controller, error) {
	if len(b.PodCIDRs) == 0 {
		return nil, nil
	}
	ranges, err := nodeipam.New(b.as("node-controller"), b.PodCIDRs...)
	if err != nil {
		return nil, err
	}
	b.manager.Ranges = ranges
	return []controller{ranges}, nil
}

// on reads a list as upstream does: the first that names the controller decides,
// then a star stands for all that are not off.
func (e entry) on(list []string) bool {
	for _, name := range list {
		switch name {
		case e.name:
			return true
		case "-" + e.name:
			return false
		}
	}
	return !e.off && slices.Contains(list, "*")
}

func checkNames(list []string) error {
	known, _ := Names()
	var errs []error
	for _, name := range list {
		if bare := strings.TrimPrefix(name, "-"); name != "*" && !slices.Contains(known, bare) {
			errs = append(errs, fmt.Errorf("%q is not in the list of known controllers", bare))
		}
	}
	return errors.Join(errs...)
}
