// Package volume is what pods keep: it binds PersistentVolumeClaims to
// PersistentVolumes, keeps both from being deleted while they are used, makes
// the claims of ephemeral volumes, and provisions directories on nodes for the
// StorageClass local-path.
//
// Binding is one loop with one worker. A claim and a volume point at each other,
// and two claims may want one volume: in sequence there is nothing to race for.
// Every step is a write that the informer shows before the next decision, so a
// crash between steps leaves a state that the next reconcile completes.
package volume

import (
	"context"

	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	storagehelpers "k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	"proa/internal/client"
	"proa/internal/controllers"
)

const (
	component              = "persistentvolume-controller"
	defaultClassAnnotation = "storageclass.kubernetes.io/is-default-class"

	// indexes
	byClaim   = "volume/claim"         // volumes by the claim they refer to
	byClass   = "volume/class"         // volumes that refer to none, by class
	unbound   = "volume/unbound-class" // claims that are not bound, by class; "" also for those without one
	byPodUsed = "volume/used-claim"    // pods by the claims they use
)

// Config of a Controller. Controllers.Cache is required.
type Config struct {
	Controllers controllers.Config
	// LocalPath configures the provisioner of the class local-path.
	LocalPath LocalPath
}

// Controller binds, provisions and reclaims.
type Controller struct {
	binder  *binder
	classes *client.Informer[*storagev1.StorageClass]
	local   LocalPath
}

// New returns a controller. Call it before the cache runs.
func New(c Config) *Controller {
	if c.LocalPath.Root == "" {
		c.LocalPath.Root = defaultLocalRoot
	}
	return &Controller{
		binder:  newBinder(c.Controllers, c.LocalPath),
		classes: client.Shared[*storagev1.StorageClass](c.Controllers.Cache),
		local:   c.LocalPath,
	}
}

// Run works until ctx ends. The cache must have synced. It makes the StorageClass
// local-path, unless nodes cannot serve it.
func (c *Controller) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	if c.local.Remove != nil {
		g.Go(func() error {
			c.keepMakingClass(ctx)
			return nil
		})
	}
	g.Go(func() error { return c.binder.loop.Run(ctx) })
	return g.Wait()
}

// keepMakingClass tries until the class is there: the store may be elsewhere and
// not answer for a while.
func (c *Controller) keepMakingClass(ctx context.Context) {
	const retryMax = 30 * time.Second
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, retryMax) {
		err := c.makeClass(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		slog.WarnContext(ctx, "make the default storage class", "err", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

// makeClass makes local-path the default class of a cluster that has none.
func (c *Controller) makeClass(ctx context.Context) error {
	if _, ok := c.classes.Cached("", LocalPathClass); ok {
		return nil
	}
	class := &storagev1.StorageClass{
		ObjectMeta:        metav1.ObjectMeta{Name: LocalPathClass, Annotations: map[string]string{}},
		Provisioner:       LocalPathProvisioner,
		ReclaimPolicy:     ptr.To(corev1.PersistentVolumeReclaimDelete),
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
	}
	if defaultClass(c.classes.Select("", labels.Everything())) == nil {
		class.Annotations[defaultClassAnnotation] = "true"
	}
	if _, err := c.classes.Create(ctx, class); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create storage class %s: %w", LocalPathClass, err)
	}
	return nil
}

// defaultClass is the newest of the classes that are marked as default.
func defaultClass(classes []*storagev1.StorageClass) *storagev1.StorageClass {
	var found *storagev1.StorageClass
	for _, class := range classes {
		if class.Annotations[defaultClassAnnotation] != "true" && class.Annotations["storageclass.beta.kubernetes.io/is-default-class"] != "true" {
			continue
		}
		if found == nil || found.CreationTimestamp.Before(&class.CreationTimestamp) {
			found = class
		}
	}
	return found
}

// ignoreStale drops errors that another writer's change explains: the change
// comes as an event of its own, and brings the key back.
func ignoreStale(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

func claimKey(c *corev1.PersistentVolumeClaim) string { return c.Namespace + "/" + c.Name }

func referredClaim(v *corev1.PersistentVolume) string {
	if ref := v.Spec.ClaimRef; ref != nil {
		return ref.Namespace + "/" + ref.Name
	}
	return ""
}

func isBindCompleted(c *corev1.PersistentVolumeClaim) bool {
	return metav1.HasAnnotation(c.ObjectMeta, storagehelpers.AnnBindCompleted)
}
