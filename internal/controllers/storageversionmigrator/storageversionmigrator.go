// Package storageversionmigrator rewrites every stored object of a resource, so
// that all are stored as the server stores them today (KEP-4192).
package storageversionmigrator

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"proa/internal/apis"
	"proa/internal/client"
	"proa/internal/controllers"
)

const (
	fieldManager = "storage-version-migrator-controller"

	reasonRunning   = "StorageVersionMigrationInProgress"
	reasonSucceeded = "StorageVersionMigrationSucceeded"
	reasonFailed    = "StorageVersionMigrationFailed"

	// pageSize is how many objects are read at once.
	pageSize = 500

	// appearance is how long a resource may stay unknown after its migration was
	// asked for: it may be one that is about to be defined.
	appearance = time.Minute
)

// verbs are what a resource must know to be migrated.
var verbs = []string{"update", "patch", "list"}

type (
	migration  = storagemigrationv1.StorageVersionMigration
	definition = apiextensionsv1.CustomResourceDefinition
)

// Controller carries out StorageVersionMigrations.
type Controller struct {
	loop        *controllers.Loop
	api         client.API
	catalogue   *apis.Catalogue
	migrations  *client.Informer[*migration]
	definitions *client.Informer[*definition]
	clock       clock.PassiveClock
}

// New returns the controller; catalogue says which resources there are.
func New(c controllers.Config, catalogue *apis.Catalogue) *Controller {
	m := &Controller{
		api: c.Cache.API(), catalogue: catalogue, clock: c.Clock,
		migrations:  client.Shared[*migration](c.Cache),
		definitions: client.Shared[*definition](c.Cache),
	}
	m.loop = controllers.NewLoop(fieldManager, c, m.reconcile)
	m.migrations.OnChange(func(_, svm *migration) {
		if svm != nil && !ended(svm) {
			m.loop.EnqueueObject(svm)
		}
	})
	return m
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func ended(svm *migration) bool {
	return meta.IsStatusConditionTrue(svm.Status.Conditions, string(storagemigrationv1.MigrationSucceeded)) ||
		meta.IsStatusConditionTrue(svm.Status.Conditions, string(storagemigrationv1.MigrationFailed))
}

func (c *Controller) reconcile(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	svm, ok := c.migrations.Cached("", key.Name)
	if !ok || ended(svm) || svm.DeletionTimestamp != nil {
		return controllers.Result{}, nil
	}
	gr := schema.GroupResource(svm.Spec.Resource)
	resource, ok := c.catalogue.Stored(gr)
	if !ok {
		if young := c.clock.Since(svm.CreationTimestamp.Time); young < appearance {
			return controllers.Result{After: appearance - young}, nil
		}
		return controllers.Result{}, c.end(ctx, svm, storagemigrationv1.MigrationFailed, reasonFailed, "resource does not exist in discovery")
	}
	if !migratable(resource) {
		return controllers.Result{}, c.end(ctx, svm, storagemigrationv1.MigrationFailed, reasonFailed,
			fmt.Sprintf("resource %q does not support discovery operations: %v", resource.GroupVersionResource(), verbs))
	}
	svm, err := c.begin(ctx, svm, resource.GroupVersionResource())
	if err != nil {
		return controllers.Result{}, err
	}
	before, err := c.definitionOf(resource)
	if err != nil {
		return controllers.Result{}, err
	}
	if err := c.rewrite(ctx, resource.GroupVersionResource()); err != nil {
		if !refused(err) {
			return controllers.Result{}, err
		}
		return controllers.Result{}, c.end(ctx, svm, storagemigrationv1.MigrationFailed, reasonFailed, fmt.Sprintf("migration encountered unhandled error: %v", err))
	}
	if err := c.trim(ctx, before); err != nil {
		return controllers.Result{}, err
	}
	return controllers.Result{}, c.end(ctx, svm, storagemigrationv1.MigrationSucceeded, reasonSucceeded, "")
}

// migratable leaves out what is answered or computed, not stored.
func migratable(r *apis.Resource) bool {
	return r.Verbs == nil || !slices.ContainsFunc(verbs, func(verb string) bool { return !slices.Contains(r.Verbs, verb) })
}

// refused tells that a write will fail again: the object itself is in its way.
func refused(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) || apierrors.IsMethodNotSupported(err)
}

// begin notes how far the resource had come and that the migration runs.
func (c *Controller) begin(ctx context.Context, svm *migration, gvr schema.GroupVersionResource) (*migration, error) {
	if svm.Status.ResourceVersion != "" && meta.IsStatusConditionTrue(svm.Status.Conditions, string(storagemigrationv1.MigrationRunning)) {
		return svm, nil
	}
	svm = svm.DeepCopy()
	if svm.Status.ResourceVersion == "" {
		list, err := c.api.List(ctx, client.Ref{Resource: gvr}, metav1.ListOptions{Limit: 1})
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", gvr.Resource, err)
		}
		svm.Status.ResourceVersion = list.ResourceVersion
	}
	c.set(svm, storagemigrationv1.MigrationRunning, metav1.ConditionTrue, reasonRunning, "")
	return c.migrations.UpdateStatus(ctx, svm)
}

// end says how a migration ended; nothing follows.
func (c *Controller) end(ctx context.Context, svm *migration, how storagemigrationv1.MigrationConditionType, reason, message string) error {
	svm = svm.DeepCopy()
	if meta.FindStatusCondition(svm.Status.Conditions, string(storagemigrationv1.MigrationRunning)) != nil {
		c.set(svm, storagemigrationv1.MigrationRunning, metav1.ConditionFalse, reasonRunning, "")
	}
	c.set(svm, how, metav1.ConditionTrue, reason, message)
	_, err := c.migrations.UpdateStatus(ctx, svm)
	return err
}

func (c *Controller) set(svm *migration, t storagemigrationv1.MigrationConditionType, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&svm.Status.Conditions, metav1.Condition{
		Type: string(t), Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(c.clock.Now()),
	})
}

// rewrite writes every object as it is. One that changes or goes meanwhile needs
// no more: who wrote it stored it as of today.
func (c *Controller) rewrite(ctx context.Context, gvr schema.GroupVersionResource) error {
	opts := metav1.ListOptions{Limit: pageSize}
	for {
		list, err := c.api.List(ctx, client.Ref{Resource: gvr}, opts)
		if apierrors.IsResourceExpired(err) && opts.Continue != "" {
			opts.Continue = "" // from the start: what was rewritten stays so
			continue
		}
		if err != nil {
			return fmt.Errorf("list %s: %w", gvr.Resource, err)
		}
		for _, obj := range list.Items {
			if err := c.touch(ctx, gvr, obj); err != nil {
				return err
			}
		}
		if opts.Continue = list.Continue; opts.Continue == "" {
			return nil
		}
	}
}

// touch writes an object that has not changed since it was read.
func (c *Controller) touch(ctx context.Context, gvr schema.GroupVersionResource, obj client.Object) error {
	data, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": obj.GetUID(), "resourceVersion": obj.GetResourceVersion()}})
	if err != nil {
		return err
	}
	ref := client.Ref{Resource: gvr, Namespace: obj.GetNamespace(), Name: obj.GetName()}
	_, err = c.api.Patch(ctx, ref, types.MergePatchType, data, metav1.PatchOptions{FieldManager: fieldManager})
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return fmt.Errorf("rewrite %s %s/%s: %w", gvr.Resource, obj.GetNamespace(), obj.GetName(), err)
}

// definitionOf returns the definition of a custom resource, nil of any other. What
// it says has to be in force: objects are written in its storage version.
func (c *Controller) definitionOf(resource *apis.Resource) (*definition, error) {
	if resource.Custom == nil {
		return nil, nil
	}
	crd, ok := c.definitions.Cached("", resource.Custom.Definition)
	if !ok || crd.UID != resource.Custom.UID || storageVersion(crd) != resource.Custom.StorageVersion {
		return nil, fmt.Errorf("definition %s is about to be served", resource.Custom.Definition)
	}
	return crd, nil
}

func storageVersion(crd *definition) string {
	for i := range crd.Spec.Versions {
		if crd.Spec.Versions[i].Storage {
			return crd.Spec.Versions[i].Name
		}
	}
	return ""
}

// trim tells a definition that its objects are stored in no other version than
// the one in which they were rewritten. One that has changed since keeps its
// versions, which asks for another migration.
func (c *Controller) trim(ctx context.Context, before *definition) error {
	if before == nil {
		return nil
	}
	crd, ok := c.definitions.Cached("", before.Name)
	stored := []string{storageVersion(before)}
	if !ok || crd.UID != before.UID || crd.Generation != before.Generation || slices.Equal(crd.Status.StoredVersions, stored) {
		return nil
	}
	data, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": crd.UID, "resourceVersion": crd.ResourceVersion},
		"status":   map[string]any{"storedVersions": stored},
	})
	if err != nil {
		return err
	}
	if _, err = c.definitions.Patch(ctx, "", crd.Name, types.MergePatchType, data, "status"); err != nil {
		return fmt.Errorf("trim stored versions of %s: %w", crd.Name, err)
	}
	return nil
}
