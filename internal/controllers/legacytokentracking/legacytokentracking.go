// Package legacytokentracking keeps the ConfigMap that says since when the use of
// service account tokens in Secrets is noted (KEP-2799): what was not used since then
// has not been used for a known time.
package legacytokentracking

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"proa/internal/client"
	"proa/internal/controllers"
)

const (
	// ConfigMapName is the ConfigMap's, in kube-system, and SinceKey where it holds
	// the date.
	ConfigMapName = "kube-apiserver-legacy-service-account-token-tracking"
	SinceKey      = "since"

	// pace is how often it is made at most: a server of another release may remove it.
	pace = 30 * time.Minute
)

// Controller keeps the ConfigMap.
type Controller struct {
	loop       *controllers.Loop
	clock      clock.PassiveClock
	configMaps *client.Informer[*corev1.ConfigMap]
	made       time.Time
}

// New returns a controller.
func New(c controllers.Config) *Controller {
	t := &Controller{clock: c.Clock, configMaps: client.Filtered[*corev1.ConfigMap](c.Cache, metav1.ListOptions{
		FieldSelector: "metadata.name=" + ConfigMapName + ",metadata.namespace=" + metav1.NamespaceSystem,
	})}
	c.Workers = 1
	t.loop = controllers.NewLoop("legacy-token-tracking", c, t.reconcile)
	t.configMaps.OnChange(func(_, _ *corev1.ConfigMap) { t.enqueue() })
	return t
}

func (t *Controller) enqueue() {
	t.loop.Enqueue(controllers.Key{Namespace: metav1.NamespaceSystem, Name: ConfigMapName})
}

// Run works until ctx ends.
func (t *Controller) Run(ctx context.Context) error {
	t.enqueue()
	return t.loop.Run(ctx)
}

func (t *Controller) reconcile(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	now := t.clock.Now()
	today := now.UTC().Format(time.DateOnly)
	current, ok := t.configMaps.Cached(key.Namespace, key.Name)
	if !ok {
		return t.create(ctx, key, now, today)
	}
	if _, err := time.Parse(time.DateOnly, current.Data[SinceKey]); err == nil {
		return controllers.Result{}, nil
	}
	next := current.DeepCopy()
	if next.Data == nil {
		next.Data = map[string]string{}
	}
	next.Data[SinceKey] = today
	_, err := t.configMaps.Update(ctx, next)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		err = nil // the change that came between enqueues
	}
	return controllers.Result{}, err
}

func (t *Controller) create(ctx context.Context, key controllers.Key, now time.Time, today string) (controllers.Result, error) {
	if wait := t.made.Add(pace).Sub(now); !t.made.IsZero() && wait > 0 {
		return controllers.Result{After: wait}, nil
	}
	_, err := t.configMaps.Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}, Data: map[string]string{SinceKey: today},
	})
	if apierrors.IsAlreadyExists(err) {
		return controllers.Result{}, nil
	}
	if err == nil {
		t.made = now
	}
	return controllers.Result{}, err
}
