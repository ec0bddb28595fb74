// Package volumes gives pods their volumes: it makes what a pod's volumes need
// on this node, says what to mount into each container, keeps projected files up
// to date and takes everything away when the pod has gone.
//
// The file system is the only record, so a restart forgets nothing:
//
//	<root>/pods/<uid>/volumes/kubernetes.io~<kind>/<volume>/      the volume
//	<root>/pods/<uid>/volume-subpaths/<volume>/<container>/<n>    a subPath, bind-mounted
//
// Containers own what is inside a volume and may change it at any time. Nothing
// here trusts a path inside a volume: see resolve, removeTree and owner.
package volumes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"proa/internal/client"
	"proa/internal/kubelet/environment"
	"proa/internal/kubelet/tokens"
)

const (
	refreshInterval = time.Minute
	podDirMode      = 0o750
	volumeMode      = 0o777
	envFileLimit    = 64 << 10
)

// Config of a Manager. API, Source, RootDir, NodeName and Tokens are required.
type Config struct {
	API      client.API
	Source   environment.Source // ConfigMaps and Secrets
	RootDir  string             // the kubelet's directory; pods/ lies in it
	NodeName string
	Tokens   *tokens.Cache
	// TrustBundles of the cluster. Required where pods project them.
	TrustBundles TrustBundles
	// Certificates that were issued to this node's pods. Nil: none are.
	Certificates Certificates
	Clock        clock.WithTicker // default: the wall clock
	// LocalRoot is where volumes of the class local-path are on this node.
	// Default RootDir/local-path.
	LocalRoot string
	// Node returns the node's object: its allocatable resources and labels.
	Node func() (*corev1.Node, error)
	// HostIPs of the node, the primary one first.
	HostIPs func() []string
	// UsageAge is how long a measurement of a large volume serves. Default 1 min;
	// negative: volumes are not measured.
	UsageAge time.Duration
	// PullImage pulls the image of an image volume (KEP-4639) as its policy
	// says and returns the reference to mount. Nil: image volumes are refused.
	PullImage func(ctx context.Context, pod *corev1.Pod, image *corev1.ImageVolumeSource) (ref string, err error)
	// RecursiveReadOnly says whether the runtime handler of a pod can make
	// mounts read-only recursively (KEP-3857). Nil: none can.
	RecursiveReadOnly func(pod *corev1.Pod) bool
	// IDMappings of a pod's user namespace (KEP-127), nil for a pod without one.
	IDMappings func(pod *corev1.Pod) (uids, gids []*runtimeapi.IDMapping)
}

// TrustBundles are the cluster's ClusterTrustBundles.
type TrustBundles interface {
	Named(ctx context.Context, name string) (*certificatesv1.ClusterTrustBundle, error)
	Signed(ctx context.Context, signer string, selector labels.Selector) ([]*certificatesv1.ClusterTrustBundle, error)
}

// Certificates are what podCertificate projections show: a private key and the
// chain of certificates issued to it, both in PEM.
type Certificates interface {
	Credential(pod *corev1.Pod, volume string, source int) (key, chain []byte, err error)
}

// Manager of the volumes of this node's pods. It is safe for concurrent use;
// calls for one pod wait for each other.
type Manager struct {
	api      client.API
	source   environment.Source
	podsDir  string
	local    string
	nodeName string
	tokens   *tokens.Cache
	bundles  TrustBundles
	clock    clock.WithTicker
	node     func() (*corev1.Node, error)
	hostIPs  func() []string
	usageAge time.Duration
	pull     func(context.Context, *corev1.Pod, *corev1.ImageVolumeSource) (string, error)
	rro      func(*corev1.Pod) bool
	idmaps   func(*corev1.Pod) ([]*runtimeapi.IDMapping, []*runtimeapi.IDMapping)

	certificates Certificates

	changed chan struct{} // wakes Run after Changed

	mu    sync.Mutex // guards what follows
	pods  map[types.UID]*podVolumes
	dirty sets.Set[types.UID]
}

// podVolumes is what is known in memory of one pod.
type podVolumes struct {
	mu     sync.Mutex // serialises work on the pod; guards what follows
	pod    *corev1.Pod
	images map[string]string // image volume -> pulled reference
	claims map[string]*claim // volume -> what its claim is bound to
	usage  usage
	gone   bool
}

// New returns a Manager. It touches nothing until a pod is mounted.
func New(c Config) *Manager {
	m := &Manager{
		api: c.API, source: c.Source, podsDir: filepath.Join(c.RootDir, "pods"), local: c.LocalRoot, nodeName: c.NodeName,
		tokens: c.Tokens, clock: c.Clock, node: c.Node, hostIPs: c.HostIPs, pull: c.PullImage, usageAge: cmp.Or(c.UsageAge, time.Minute),
		bundles: c.TrustBundles, certificates: c.Certificates, rro: c.RecursiveReadOnly, idmaps: c.IDMappings,
		changed: make(chan struct{}, 1), pods: map[types.UID]*podVolumes{}, dirty: sets.New[types.UID](),
	}
	if m.local == "" {
		m.local = filepath.Join(c.RootDir, "local-path")
	}
	if m.clock == nil {
		m.clock = clock.RealClock{}
	}
	if m.node == nil {
		m.node = func() (*corev1.Node, error) { return &corev1.Node{}, nil }
	}
	if m.hostIPs == nil {
		m.hostIPs = func() []string { return nil }
	}
	if m.rro == nil {
		m.rro = func(*corev1.Pod) bool { return false }
	}
	return m
}

// PodDir is the directory of one pod.
func (m *Manager) PodDir(uid types.UID) string { return filepath.Join(m.podsDir, string(uid)) }

func (m *Manager) volumeDir(uid types.UID, kind, volume string) string {
	return filepath.Join(m.PodDir(uid), "volumes", "kubernetes.io~"+kind, volume)
}

func (m *Manager) subPathsDir(uid types.UID) string {
	return filepath.Join(m.PodDir(uid), "volume-subpaths")
}

func (m *Manager) allocatable() corev1.ResourceList {
	node, err := m.node()
	if err != nil {
		return nil
	}
	return node.Status.Allocatable
}

// Mount makes all volumes of a pod ready, and writes new contents where they
// changed. It may be called again at any time. Each volume that fails adds one
// error, worded as the FailedMount event.
func (m *Manager) Mount(ctx context.Context, pod *corev1.Pod) error {
	pv := m.track(pod)
	pv.mu.Lock()
	defer pv.mu.Unlock()
	if pv.gone {
		return fmt.Errorf("pod %s/%s has been unmounted", pod.Namespace, pod.Name)
	}
	pv.pod = pod
	if err := os.MkdirAll(m.PodDir(pod.UID), podDirMode); err != nil {
		return err
	}
	var errs []error
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if err := m.setUp(ctx, pv, pod, v); err != nil {
			errs = append(errs, fmt.Errorf("MountVolume.SetUp failed for volume %q : %w", v.Name, err))
		}
	}
	return errors.Join(errs...)
}

func (m *Manager) track(pod *corev1.Pod) *podVolumes {
	m.mu.Lock()
	defer m.mu.Unlock()
	pv := m.pods[pod.UID]
	if pv == nil {
		pv = &podVolumes{images: map[string]string{}, claims: map[string]*claim{}}
		m.pods[pod.UID] = pv
	}
	return pv
}

func (m *Manager) setUp(ctx context.Context, pv *podVolumes, pod *corev1.Pod, v *corev1.Volume) error {
	switch {
	case v.EmptyDir != nil:
		return m.setUpEmptyDir(pod, v)
	case v.HostPath != nil:
		return checkHostPath(v.HostPath)
	case isPayload(v):
		return m.setUpPayload(ctx, pod, v)
	case v.PersistentVolumeClaim != nil, v.Ephemeral != nil:
		return m.setUpClaim(ctx, pv, pod, v)
	case v.Image != nil: // pulled when a container that mounts it starts
		return nil
	}
	return fmt.Errorf("no volume plugin matched: volume source %s is not supported by this node", sourceKind(v))
}

// Refresh writes what changed in a pod's configMap, secret, downwardAPI and
// projected volumes since they were mounted, renewed tokens included.
func (m *Manager) Refresh(ctx context.Context, pod *corev1.Pod) error {
	pv := m.track(pod)
	pv.mu.Lock()
	defer pv.mu.Unlock()
	if pv.gone {
		return nil
	}
	pv.pod = pod
	return m.refreshLocked(ctx, pod)
}

func (m *Manager) refreshLocked(ctx context.Context, pod *corev1.Pod) error {
	var errs []error
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if !isPayload(v) {
			continue
		}
		if err := m.setUpPayload(ctx, pod, v); err != nil {
			errs = append(errs, fmt.Errorf("MountVolume.SetUp failed for volume %q : %w", v.Name, err))
		}
	}
	return errors.Join(errs...)
}

// Changed asks Run to refresh pods whose ConfigMaps or Secrets changed.
func (m *Manager) Changed(pods []types.UID) {
	m.mu.Lock()
	m.dirty.Insert(pods...)
	m.mu.Unlock()
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// Run refreshes pods after Changed and all of them every minute, which renews
// their tokens.
func (m *Manager) Run(ctx context.Context) error {
	tick := m.clock.NewTicker(refreshInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.changed:
			m.refresh(ctx, m.takeDirty())
		case <-tick.C():
			m.refresh(ctx, m.known())
		}
	}
}

func (m *Manager) takeDirty() []types.UID {
	m.mu.Lock()
	defer m.mu.Unlock()
	uids := m.dirty.UnsortedList()
	m.dirty = sets.New[types.UID]()
	return uids
}

func (m *Manager) known() []types.UID { return sets.KeySet(m.snapshot()).UnsortedList() }

func (m *Manager) snapshot() map[types.UID]*podVolumes {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make(map[types.UID]*podVolumes, len(m.pods))
	for uid, pv := range m.pods {
		out[uid] = pv
	}
	return out
}

func (m *Manager) refresh(ctx context.Context, uids []types.UID) {
	pods := m.snapshot()
	for _, uid := range uids {
		pv := pods[uid]
		if pv == nil {
			continue
		}
		pv.mu.Lock()
		if pv.pod != nil && !pv.gone {
			if err := m.refreshLocked(ctx, pv.pod); err != nil && ctx.Err() == nil {
				slog.Warn("refresh volumes", "pod", pv.pod.Namespace+"/"+pv.pod.Name, "err", err)
			}
		}
		pv.mu.Unlock()
	}
}

// Unmount takes a pod's volumes away, once its containers are gone. It works
// from the file system alone and may be called again until it succeeds. Files
// that the pod kept elsewhere in its directory (etc-hosts, termination logs) stay.
func (m *Manager) Unmount(_ context.Context, uid types.UID) error {
	m.mu.Lock()
	pv := m.pods[uid]
	delete(m.pods, uid)
	m.mu.Unlock()
	if pv != nil {
		pv.mu.Lock()
		defer pv.mu.Unlock()
		pv.gone = true
	}
	if m.tokens != nil {
		m.tokens.Forget(uid)
	}
	if err := validUID(uid); err != nil {
		return err
	}
	for _, dir := range []string{m.subPathsDir(uid), filepath.Join(m.PodDir(uid), "volumes")} {
		if err := unmountBelow(dir); err != nil {
			return err
		}
		if err := removeTree(dir); err != nil {
			return err
		}
	}
	return nil
}

// RemovePodDir deletes what Unmount leaves of a pod's directory.
func (m *Manager) RemovePodDir(uid types.UID) error {
	if err := validUID(uid); err != nil {
		return err
	}
	return removeTree(m.PodDir(uid))
}

// Orphans lists the pods that have a directory but are not in live.
func (m *Manager) Orphans(live sets.Set[types.UID]) ([]types.UID, error) {
	entries, err := os.ReadDir(m.podsDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var orphans []types.UID
	for _, e := range entries {
		if uid := types.UID(e.Name()); e.IsDir() && !live.Has(uid) {
			orphans = append(orphans, uid)
		}
	}
	return orphans, nil
}

// validUID keeps a uid that came from outside the API (a directory name, a
// static pod's annotation) from naming another directory.
func validUID(uid types.UID) error {
	if s := string(uid); s == "" || s != filepath.Base(s) || s == "." || s == ".." {
		return fmt.Errorf("invalid pod uid %q", uid)
	}
	return nil
}
