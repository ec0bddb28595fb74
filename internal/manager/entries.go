package manager

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	accounts "k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"

	"proa/internal/controllers"
	"proa/internal/controllers/attachdetach"
	"proa/internal/controllers/bootstrapsigner"
	"proa/internal/controllers/clusterroleaggregation"
	"proa/internal/controllers/clustertrustbundle"
	"proa/internal/controllers/cronjob"
	"proa/internal/controllers/csr"
	"proa/internal/controllers/daemonset"
	"proa/internal/controllers/deployment"
	"proa/internal/controllers/devicetainteviction"
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
	"proa/internal/controllers/resourceclaim"
	"proa/internal/controllers/resourcequota"
	"proa/internal/controllers/rootca"
	"proa/internal/controllers/selinuxwarning"
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
	name  string
	alias string // a name that it had before, or ""
	off   bool   // unless named
	make  func(*builder) (controller, error)
}

// simple is an entry of a controller that needs a service account and nothing else.
func simple[C controller](name, account string, make func(controllers.Config) C) entry {
	return entry{name: name, make: func(b *builder) (controller, error) {
		return make(b.as(account)), nil
	}}
}

// special is an entry of a controller that takes more.
func special(name string, make func(b *builder) controller) entry {
	return entry{name: name, make: func(b *builder) (controller, error) { return make(b), nil }}
}

// formerly gives an entry the name that it had before.
func (e entry) formerly(alias string) entry {
	e.alias = alias
	return e
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
	}).formerly("serviceaccount-token"),
	simple("serviceaccount-controller", "service-account-controller", serviceaccount.New).formerly("serviceaccount"),
	special("root-ca-certificate-publisher-controller", func(b *builder) controller {
		if b.RootCA == nil {
			return nil
		}
		return rootca.New(b.as("root-ca-cert-publisher"), b.RootCA)
	}).formerly("root-ca-cert-publisher"),
	special("kube-apiserver-serving-clustertrustbundle-publisher-controller", func(b *builder) controller {
		if b.RootCA == nil {
			return nil
		}
		return clustertrustbundle.New(b.as("kube-apiserver-serving-clustertrustbundle-publisher"), b.RootCA)
	}),
	simple("podcertificaterequest-cleaner-controller", "podcertificaterequestcleaner", podcertificatecleaner.New),
	special("legacy-serviceaccount-token-cleaner-controller", func(b *builder) controller {
		return legacytokencleaner.New(b.as("legacy-service-account-token-cleaner"), b.LegacyTokenPeriod)
	}).formerly("legacy-service-account-token-cleaner"),
	simple("endpointslice-controller", "endpointslice-controller", endpointslice.New).formerly("endpointslice"),
	simple("endpointslice-mirroring-controller", "endpointslicemirroring-controller", endpointslicemirroring.New).formerly("endpointslicemirroring"),
	simple("endpoints-controller", "endpoint-controller", endpoints.New).formerly("endpoint"),
	entry{name: "namespace-controller", alias: "namespace", make: newNamespaces},
	entry{name: "garbage-collector-controller", alias: "garbagecollector", make: newGarbageCollector},
	simple("replicaset-controller", "replicaset-controller", replicaset.New).formerly("replicaset"),
	simple("replicationcontroller-controller", "replication-controller", replicationcontroller.New).formerly("replicationcontroller"),
	simple("deployment-controller", "deployment-controller", deployment.New).formerly("deployment"),
	simple("statefulset-controller", "statefulset-controller", statefulset.New).formerly("statefulset"),
	simple("daemonset-controller", "daemon-set-controller", daemonset.New).formerly("daemonset"),
	simple("job-controller", "job-controller", job.New).formerly("job"),
	simple("cronjob-controller", "cronjob-controller", cronjob.New).formerly("cronjob"),
	simple("ttl-after-finished-controller", "ttl-after-finished-controller", ttlafterfinished.New).formerly("ttl-after-finished"),
	special("disruption-controller", func(b *builder) controller {
		return disruption.New(b.as("disruption-controller"), b.Catalogue)
	}).formerly("disruption"),
	special("horizontal-pod-autoscaler-controller", func(b *builder) controller {
		return horizontalpodautoscaler.New(b.as("horizontal-pod-autoscaler"), b.Catalogue, b.Metrics)
	}).formerly("horizontalpodautoscaling"),
	special("storage-version-migrator-controller", func(b *builder) controller {
		return storageversionmigrator.New(b.as("storage-version-migrator-controller"), b.Catalogue)
	}).formerly("svm"),
	simple("service-cidr-controller", "service-cidrs-controller", servicecidr.New),
	special("node-lifecycle-controller", func(b *builder) controller {
		return nodelifecycle.New(b.as("node-controller"), b.NodePeriods)
	}).formerly("nodelifecycle"),
	simple("taint-eviction-controller", "node-controller", tainteviction.New),
	simple("resourceclaim-controller", "resource-claim-controller", resourceclaim.New),
	simple("device-taint-eviction-controller", "device-taint-eviction-controller", devicetainteviction.New),
	simple("ttl-controller", "ttl-controller", ttl.New).formerly("ttl"),
	{name: "node-ipam-controller", alias: "nodeipam", make: newRanges},
	special("pod-garbage-collector-controller", func(b *builder) controller {
		return podgc.New(b.as("pod-garbage-collector"), b.TerminatedPods)
	}).formerly("podgc"),
	special("resourcequota-controller", func(b *builder) controller {
		return resourcequota.New(b.as("resourcequota-controller"), b.Catalogue)
	}).formerly("resourcequota"),
	special("certificatesigningrequest-approving-controller", func(b *builder) controller {
		return csr.NewApproving(b.as("certificate-controller"), b.Serving)
	}).formerly("csrapproving"),
	special("certificatesigningrequest-signing-controller", func(b *builder) controller {
		if b.Sign == nil {
			return nil
		}
		return csr.NewSigning(b.as("certificate-controller"), b.Sign)
	}).formerly("csrsigning"),
	simple("certificatesigningrequest-cleaner-controller", "certificate-controller", csr.NewCleaning).formerly("csrcleaner"),
	simple("clusterrole-aggregation-controller", "clusterrole-aggregation-controller", clusterroleaggregation.New).formerly("clusterrole-aggregation"),
	special("validatingadmissionpolicy-status-controller", func(b *builder) controller {
		return validatingadmissionpolicy.New(b.as("validatingadmissionpolicy-status-controller"), b.Catalogue)
	}),
	special("persistentvolume-binder-controller", func(b *builder) controller {
		return volume.New(volume.Config{Controllers: b.as("volume-controller"), LocalPath: b.LocalPath})
	}).formerly("persistentvolume-binder"),
	special("persistentvolume-attach-detach-controller", func(b *builder) controller {
		return attachdetach.New(attachdetach.Config{Controllers: b.as("attachdetach-controller"), KeepMounted: b.KeepMounted})
	}).formerly("attachdetach"),
	simple("persistentvolumeclaim-protection-controller", "pvc-protection-controller", volume.NewClaimProtection).formerly("pvc-protection"),
	simple("persistentvolume-protection-controller", "pv-protection-controller", volume.NewVolumeProtection).formerly("pv-protection"),
	simple("ephemeral-volume-controller", "ephemeral-volume-controller", volume.NewEphemeralClaims).formerly("ephemeral-volume"),
	simple("persistentvolume-expander-controller", "expand-controller", volumeexpand.New).formerly("persistentvolume-expander"),
	simple("volumeattributesclass-protection-controller", "volumeattributesclass-protection-controller", volumeattributesclass.New),
	offByDefault(simple("selinux-warning-controller", "selinux-warning-controller", selinuxwarning.New)),
	offByDefault(simple("token-cleaner-controller", "token-cleaner", tokencleaner.New)).formerly("tokencleaner"),
	offByDefault(simple("bootstrap-signer-controller", "bootstrap-signer", bootstrapsigner.New)).formerly("bootstrapsigner"),
}

func newNamespaces(b *builder) (controller, error) {
	const account = "namespace-controller"
	config := b.as(account)
	n := namespace.New(config, b.Catalogue)
	if b.Aggregator == nil {
		return n, nil
	}
	everywhere, err := b.Aggregator.Everywhere(config.Cache.API(), accountOf(account))
	if err != nil {
		return nil, err
	}
	return n.With(b.Aggregator, everywhere), nil
}

func newGarbageCollector(b *builder) (controller, error) {
	const account = "generic-garbage-collector"
	config := b.as(account)
	g := garbagecollector.New(config, b.Catalogue)
	if b.Aggregator == nil {
		return g, nil
	}
	everywhere, err := b.Aggregator.Everywhere(config.Cache.API(), accountOf(account))
	if err != nil {
		return nil, err
	}
	return g.With(b.Aggregator.Kinds(), everywhere), nil
}

// accountOf is whom extension servers see when a controller asks them.
func accountOf(name string) user.Info {
	return &user.DefaultInfo{
		Name:   accounts.MakeUsername(metav1.NamespaceSystem, name),
		Groups: append(accounts.MakeGroupNames(metav1.NamespaceSystem), user.AllAuthenticated),
	}
}

func newRanges(b *builder) (controller, error) {
	if len(b.PodCIDRs) == 0 {
		return nil, nil
	}
	ranges, err := nodeipam.New(b.as("node-controller"), b.PodCIDRs...)
	if err != nil {
		return nil, err
	}
	b.manager.Ranges = ranges
	return ranges, nil
}

// on reads a list as upstream does: the first that names the controller decides,
// then a star stands for all that are not off.
func (e entry) on(list []string) bool {
	for _, name := range list {
		switch bare, no := strings.CutPrefix(name, "-"); bare {
		case e.name, e.alias:
			return !no
		}
	}
	return !e.off && slices.Contains(list, "*")
}

func checkNames(list []string) error {
	var errs []error
	for _, name := range list {
		bare := strings.TrimPrefix(name, "-")
		known := slices.ContainsFunc(entries, func(e entry) bool { return bare == e.name || bare == e.alias && bare != "" })
		if name != "*" && !known {
			errs = append(errs, fmt.Errorf("%q is not in the list of known controllers", bare))
		}
	}
	return errors.Join(errs...)
}
