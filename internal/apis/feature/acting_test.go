package feature

import (
	_ "embed"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/component-base/featuregate"
)

// What the metric kubernetes_feature_enabled of upstream's API server 1.37 says:
// name, stage, 1 for on.
//
//go:embed testdata/upstream.txt
var upstreams string

func TestGatesAreUpstreams(t *testing.T) {
	var ours []string
	for _, s := range (Gates{}).All() {
		on := 0
		if s.Enabled {
			on = 1
		}
		stage := s.Stage
		if stage == "" {
			stage = "GA"
		}
		ours = append(ours, fmt.Sprintf("%s %s %d", s.Name, stage, on))
	}
	if d := cmp.Diff(strings.Split(strings.TrimSpace(upstreams), "\n"), ours); d != "" {
		t.Error(d)
	}
}

const (
	// unseen are gates of how upstream does a thing, not of what comes of it, of
	// settings that Proa refuses in any case, and of what it has no part of:
	// Windows, cloud controllers, kube-proxy, a watch cache.
	unseen = `
	APIServingWithRoutine AtomicFIFO CPUManagerPolicyAlphaOptions CPUManagerPolicyBetaOptions CRIListStreaming
	ClientsAllowCARotation ClientsAllowCBOR ClientsAllowTLSCacheGC ClientsPreferCBOR
	CloudControllerManagerWatchBasedRoutesReconciliation CloudControllerManagerWebhook ConcurrentWatchObjectDecode
	ContextualLogging ControllerManagerReleaseLeaderElectionLockOnExit DetectCacheInconsistency EtcdRangeStream
	HPAOptimizedSelectorStore InOrderInformersBatchProcess InPlacePodVerticalScalingExclusiveCPUs
	InPlacePodVerticalScalingExclusiveMemory InformerResourceVersion InterPodAffinityHostnameFastPath KubeProxyIPVS
	KubeletPodResourcesListUseActivePods KubeletSeparateDiskGC KubeletServiceAccountTokenForCredentialProviders
	ListFromCacheSnapshot LoggingAlphaOptions LoggingBetaOptions NFTablesNetlink
	OpportunisticBatching PodAndContainerStatsFromCRI PodsAPI QOSReserved RotateKubeletServerCertificate
	SchedulerAsyncAPICalls SchedulerAsyncPreemption SchedulerPopFromBackoffQ SchedulerPreQueueingHints
	SizeBasedListCostEstimate StaleControllerConsistencyDaemonSet StaleControllerConsistencyHPA
	StaleControllerConsistencyJob StaleControllerConsistencyReplicaSet StaleControllerConsistencyStatefulSet
	StorageNamespaceIndex StructuredAuthenticationConfigurationEgressSelector TopologyManagerPolicyAlphaOptions
	TopologyManagerPolicyBetaOptions UnknownVersionInteroperabilityProxy UnlockWhileProcessingFIFO WatchListClient
	WebhookRoundTripLoadBalancing WindowsCPUAndMemoryAffinity WindowsGracefulNodeShutdown WindowsHostNetwork`
)

// A gate that may be turned is one that the source asks about, or one that makes
// no difference to see; every other is bound.
func TestNoGateIsIgnored(t *testing.T) {
	named := namesInSource(t)
	gates := known()
	for name, spec := range gates.GetAll() {
		n := string(name)
		if spec.LockToDefault || n == "AllAlpha" || n == "AllBeta" {
			continue
		}
		asked := named[n]
		hidden, fixed := slices.Contains(strings.Fields(unseen), n), slices.Contains(strings.Fields(bound), n)
		switch {
		case fixed && hidden:
			t.Errorf("%s is bound, and said to make no difference", n)
		case !fixed && !hidden && !asked:
			t.Errorf("nothing asks about %s: it is neither bound nor said to make no difference", n)
		}
	}
	for _, n := range append(strings.Fields(bound), strings.Fields(unseen)...) {
		if spec, ok := gates.GetAll()[featuregate.Feature(n)]; !ok || spec.LockToDefault {
			t.Errorf("%s is no gate, or locked", n)
		}
	}
}

// namesInSource are the words that stand in quotes in the program, or in the table
// of markers, but for this package and tests.
func namesInSource(t *testing.T) map[string]bool {
	words := map[string]bool{}
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		own := filepath.Base(filepath.Dir(path)) == "feature"
		separators := "\""
		if filepath.Base(path) == "markers.txt" {
			separators = "@,()\t\n"
		} else if d.IsDir() || own || strings.HasSuffix(path, "_test.go") || filepath.Ext(path) != ".go" {
			return nil
		}
		text, err := os.ReadFile(path)
		for _, word := range strings.FieldsFunc(string(text), func(r rune) bool { return strings.ContainsRune(separators, r) }) {
			words[word] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return words
}
