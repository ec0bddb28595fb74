// Package attachdetach asks CSI drivers to attach volumes to the nodes that pods
// were bound to, and to detach them when no pod there needs them any more: it
// creates and deletes VolumeAttachments, which a driver's external-attacher acts
// on, and tells each node in its status what is attached to it.
//
// Everything is decided from objects, so that another process can go on where
// this one ended: who needs a volume from Pods, claims and PersistentVolumes,
// what is attached from VolumeAttachments, what is still mounted from the node's
// volumesInUse. Only since when a volume is not needed, and what was said in
// events, is kept in memory.
package attachdetach

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/clock"

	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/podclaims"
)

// unmountTimeout is how long the node of a volume that is not needed any more may
// take to unmount it before an unhealthy node is asked no longer.
const unmountTimeout = 6 * time.Minute

// attachTimeout is how long an external-attacher may take before events say so.
const attachTimeout = 2 * time.Minute

// indexes
const (
	byDriver = "attachdetach/driver" // volumes by their CSI driver
	byVolume = "attachdetach/volume" // attachments by their volume
	byNode   = "attachdetach/node"   // attachments, and pods that use claims, by their node
)

// Config of a Controller. Controllers.Cache is required.
type Config struct {
	Controllers controllers.Config
	// KeepMounted never detaches what a node has not unmounted, however long it
	// is unhealthy, unless it is marked as out of service.
	KeepMounted bool
}

// Controller attaches and detaches.
type Controller struct {
	volumeLoop *controllers.Loop // by PersistentVolume
	nodeLoop   *controllers.Loop // what is told to nodes
	clock      clock.PassiveClock
	events     controllers.EventRecorder

	pods        *client.Informer[*corev1.Pod]
	claims      *client.Informer[*corev1.PersistentVolumeClaim]
	volumes     *client.Informer[*corev1.PersistentVolume]
	nodes       *client.Informer[*corev1.Node]
	drivers     *client.Informer[*storagev1.CSIDriver]
	attachments *client.Informer[*storagev1.VolumeAttachment]

	keepMounted bool
	forced      *prometheus.CounterVec

	mu    sync.Mutex // guards what follows
	known map[place]*memory
}

// place is one volume at one node.
type place struct{ volume, node string }

// memory is what is kept of a place beside objects.
type memory struct {
	unneeded    time.Time // since when no pod needs the volume; zero: one does
	going       bool      // the node must not mount it any more: its attachment is about to go
	awaited     bool      // its attaching has begun and was not reported yet
	reported    string    // the last failure that events told of
	multiAttach bool      // events told that the volume is elsewhere
}

// New returns a controller that reads through c.Controllers.Cache.
func New(config Config) *Controller {
	c := config.Controllers
	a := &Controller{
		clock: c.Clock, events: c.Events("attachdetach-controller"), keepMounted: config.KeepMounted,
		pods:        client.Shared[*corev1.Pod](c.Cache),
		claims:      client.Shared[*corev1.PersistentVolumeClaim](c.Cache),
		volumes:     client.Shared[*corev1.PersistentVolume](c.Cache),
		nodes:       client.Shared[*corev1.Node](c.Cache),
		drivers:     client.Shared[*storagev1.CSIDriver](c.Cache),
		attachments: client.Shared[*storagev1.VolumeAttachment](c.Cache),
		known:       map[place]*memory{},
	}
	a.forced = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "attach_detach_controller_attachdetach_controller_forced_detaches",
		Help: "[ALPHA] Volumes that were detached though their node did not say that they are unmounted",
	}, []string{"reason"})
	c.Register(a.forced, a)
	a.volumeLoop = controllers.NewLoop("attachdetach", c, a.reconcileVolume)
	a.nodeLoop = controllers.NewLoop("attachdetach_nodes", c, a.reconcileNode)
	a.index()
	a.watch()
	return a
}

// Run works until ctx ends. The cache must have synced.
func (a *Controller) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { _ = a.nodeLoop.Run(ctx) })
	return a.volumeLoop.Run(ctx)
}

func (a *Controller) index() {
	a.pods.AddIndex(podclaims.Index, podclaims.Keys)
	a.pods.AddIndex(byNode, func(pod *corev1.Pod) []string {
		if pod.Spec.NodeName == "" || len(podclaims.Keys(pod)) == 0 {
			return nil
		}
		return []string{pod.Spec.NodeName}
	})
	a.volumes.AddIndex(byDriver, func(pv *corev1.PersistentVolume) []string {
		csi := csiOf(pv)
		if csi == nil {
			return nil
		}
		return []string{csi.Driver}
	})
	a.attachments.AddIndex(byVolume, func(va *storagev1.VolumeAttachment) []string {
		if name := volumeOf(va); name != "" {
			return []string{name}
		}
		return nil
	})
	a.attachments.AddIndex(byNode, func(va *storagev1.VolumeAttachment) []string {
		if volumeOf(va) == "" {
			return nil
		}
		return []string{va.Spec.NodeName}
	})
}

func (a *Controller) watch() {
	a.pods.OnChange(func(old, pod *corev1.Pod) {
		if pod == nil {
			pod = old
		}
		if pod.Spec.NodeName != "" {
			a.enqueueClaimsOf(pod)
		}
	})
	a.claims.OnChange(func(_, claim *corev1.PersistentVolumeClaim) {
		if claim != nil && claim.Spec.VolumeName != "" {
			a.volumeLoop.Enqueue(controllers.Key{Name: claim.Spec.VolumeName})
		}
	})
	a.volumes.OnChange(func(old, pv *corev1.PersistentVolume) {
		if pv == nil {
			pv = old
		}
		if csiOf(pv) != nil {
			a.volumeLoop.EnqueueObject(pv)
		}
	})
	a.attachments.OnChange(func(old, va *storagev1.VolumeAttachment) {
		if va == nil {
			va = old
		}
		if name := volumeOf(va); name != "" {
			a.volumeLoop.Enqueue(controllers.Key{Name: name})
			a.nodeLoop.Enqueue(controllers.Key{Name: va.Spec.NodeName})
		}
	})
	a.drivers.OnChange(func(old, driver *storagev1.CSIDriver) {
		if driver == nil {
			driver = old
		}
		for _, pv := range a.volumes.ByIndex(byDriver, driver.Name) {
			a.volumeLoop.EnqueueObject(pv)
		}
	})
	a.nodes.OnChange(a.nodeChanged)
}

// nodeChanged looks again at what is attached to a node when something that
// decides about it has changed, which is not so for most writes of its status.
func (a *Controller) nodeChanged(old, node *corev1.Node) {
	if old != nil && node != nil && managed(old) == managed(node) && healthy(old) == healthy(node) && outOfService(old) == outOfService(node) &&
		equality.Semantic.DeepEqual(old.Status.VolumesInUse, node.Status.VolumesInUse) &&
		equality.Semantic.DeepEqual(old.Status.VolumesAttached, node.Status.VolumesAttached) {
		return
	}
	name := ""
	if node != nil {
		name = node.Name
		a.nodeLoop.EnqueueObject(node)
	} else {
		name = old.Name
	}
	for _, va := range a.attachments.ByIndex(byNode, name) {
		a.volumeLoop.Enqueue(controllers.Key{Name: volumeOf(va)})
	}
	if node == nil || !managed(node) || old != nil && managed(old) {
		return
	}
	for _, pod := range a.pods.ByIndex(byNode, name) {
		a.enqueueClaimsOf(pod)
	}
}

func (a *Controller) enqueueClaimsOf(pod *corev1.Pod) {
	for i := range pod.Spec.Volumes {
		name := podclaims.Name(pod, &pod.Spec.Volumes[i])
		if name == "" {
			continue
		}
		if claim, ok := a.claims.Cached(pod.Namespace, name); ok && claim.Spec.VolumeName != "" {
			a.volumeLoop.Enqueue(controllers.Key{Name: claim.Spec.VolumeName})
		}
	}
}

// remembered calls use with what is known of a place, which use may change.
func (a *Controller) remembered(at place, use func(*memory)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	m := a.known[at]
	if m == nil {
		m = &memory{}
		a.known[at] = m
	}
	use(m)
}
