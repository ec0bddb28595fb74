// Package legacytokencleaner makes tokens in Secrets that were made unasked, and
// that nobody has used for long, invalid, and deletes them after as long again
// (KEP-2799). The API server notes the use of tokens, and since when it does.
package legacytokencleaner

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/clock"

	"proa/internal/auth/references"
	"proa/internal/client"
	"proa/internal/controllers"
)

const (
	lastUsedLabel     = "kubernetes.io/legacy-token-last-used"
	invalidSinceLabel = "kubernetes.io/legacy-token-invalid-since"

	trackingMap = "kube-apiserver-legacy-service-account-token-tracking"
	trackingKey = "since"

	// DefaultPeriod is how long a token may lie unused.
	DefaultPeriod = 365 * 24 * time.Hour
	// interval is between two looks at a token.
	interval = 24 * time.Hour
)

// Controller looks at every token once a day.
type Controller struct {
	loop     *controllers.Loop
	clock    clock.PassiveClock
	secrets  *client.Informer[*corev1.Secret]
	accounts *client.Informer[*corev1.ServiceAccount]
	pods     *client.Informer[*corev1.Pod]
	tracking *client.Informer[*corev1.ConfigMap]
	period   time.Duration
}

// New returns a controller that reads through c.Cache. A period of 0 is the default.
func New(c controllers.Config, period time.Duration) *Controller {
	l := &Controller{
		clock:    c.Clock,
		secrets:  client.Shared[*corev1.Secret](c.Cache),
		accounts: client.Shared[*corev1.ServiceAccount](c.Cache),
		pods:     client.Shared[*corev1.Pod](c.Cache),
		tracking: client.Shared[*corev1.ConfigMap](c.Cache),
		period:   cmp.Or(period, DefaultPeriod),
	}
	c.Workers = 1
	l.loop = controllers.NewLoop("legacy-serviceaccount-token-cleaner", c, l.reconcile)
	l.secrets.OnChange(func(old, secret *corev1.Secret) {
		if old == nil && secret.Type == corev1.SecretTypeServiceAccountToken {
			l.loop.EnqueueObject(secret)
		}
	})
	return l
}

// Run works until ctx ends.
func (l *Controller) Run(ctx context.Context) error { return l.loop.Run(ctx) }

func (l *Controller) reconcile(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	secret, ok := l.secrets.Cached(key.Namespace, key.Name)
	if !ok || secret.DeletionTimestamp != nil {
		return controllers.Result{}, nil
	}
	again := controllers.Result{After: interval}
	before := l.clock.Now().UTC().Add(-l.period)
	if !l.tracked(before) || !l.stale(secret, before) || !l.madeUnasked(secret) || l.mounted(secret) {
		return again, nil
	}
	invalid, err := time.Parse(time.DateOnly, secret.Labels[invalidSinceLabel])
	if err != nil {
		return again, l.invalidate(ctx, secret)
	}
	if !invalid.Before(day(before)) {
		return again, nil
	}
	slog.InfoContext(ctx, "delete an unused service account token", "secret", key.String(),
		"lastUsed", secret.Labels[lastUsedLabel], "invalidSince", secret.Labels[invalidSinceLabel])
	_, err = l.secrets.Delete(ctx, key.Namespace, key.Name, metav1.DeleteOptions{Preconditions: metav1.NewRVDeletionPrecondition(secret.ResourceVersion).Preconditions})
	if apierrors.IsNotFound(err) {
		return controllers.Result{}, nil
	}
	return again, err
}

func day(t time.Time) time.Time { return t.Truncate(24 * time.Hour) }

// tracked tells that the use of tokens has been noted since before that time. It
// begins some time on the day that is written down.
func (l *Controller) tracked(before time.Time) bool {
	m, ok := l.tracking.Cached(metav1.NamespaceSystem, trackingMap)
	if !ok {
		return false
	}
	since, err := time.Parse(time.DateOnly, m.Data[trackingKey])
	return err == nil && !before.Before(since.AddDate(0, 0, 1))
}

// stale tells that a token is older than that and has not been used since. A use
// that cannot be read may have been today.
func (l *Controller) stale(secret *corev1.Secret, before time.Time) bool {
	if !secret.CreationTimestamp.Time.Before(before) {
		return false
	}
	text, used := secret.Labels[lastUsedLabel]
	if !used {
		return true
	}
	last, err := time.Parse(time.DateOnly, text)
	return err == nil && last.Before(day(before))
}

// madeUnasked tells that a token is one of its account's list, as the token
// controller of old wrote there what it made.
func (l *Controller) madeUnasked(secret *corev1.Secret) bool {
	account, ok := l.accounts.Cached(secret.Namespace, secret.Annotations[corev1.ServiceAccountNameKey])
	if uid := secret.Annotations[corev1.ServiceAccountUIDKey]; !ok || uid != "" && uid != string(account.UID) {
		return false
	}
	return slices.ContainsFunc(account.Secrets, func(ref corev1.ObjectReference) bool { return ref.Name == secret.Name })
}

// mounted tells that a pod refers to a token.
func (l *Controller) mounted(secret *corev1.Secret) bool {
	for _, pod := range l.pods.Select(secret.Namespace, labels.Everything()) {
		for name := range references.Secrets(pod) {
			if name == secret.Name {
				return true
			}
		}
	}
	return false
}

func (l *Controller) invalidate(ctx context.Context, secret *corev1.Secret) error {
	today := l.clock.Now().UTC().Format(time.DateOnly)
	slog.InfoContext(ctx, "mark an unused service account token as invalid", "secret", secret.Namespace+"/"+secret.Name, "invalidSince", today)
	_, err := l.secrets.MergePatch(ctx, secret.Namespace, secret.Name, map[string]any{
		"metadata": map[string]any{"uid": secret.UID, "labels": map[string]string{invalidSinceLabel: today}},
	})
	if apierrors.IsNotFound(err) {
		err = nil
	}
	return err
}
