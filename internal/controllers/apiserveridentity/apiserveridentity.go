// Package apiserveridentity lets API servers know of each other (KEP-1965): each
// keeps a Lease in kube-system, and removes those of servers that are gone.
package apiserveridentity

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"proa/internal/client"
)

const (
	// Label marks the Leases; its value says of which program.
	Label     = "apiserver.kubernetes.io/identity"
	apiServer = "kube-apiserver"

	life        = time.Hour
	renewEvery  = 10 * time.Second
	removeEvery = time.Hour
)

// Config says whose Lease it is.
type Config struct {
	API      client.API
	Clock    clock.WithTicker
	Hostname string
	Instance string // unique to the process
}

// Controller keeps the Lease of one server.
type Controller struct {
	config Config
	leases client.Resource[*coordinationv1.Lease]
}

// New returns a controller.
func New(c Config) *Controller {
	return &Controller{config: c, leases: client.Of[*coordinationv1.Lease](c.API)}
}

// ID is the identity of the API server on a host, and its Lease's name.
func ID(hostname string) string {
	var text []byte
	for _, part := range []string{hostname, apiServer} {
		text = append(text, byte(len(part)>>8), byte(len(part)))
		text = append(text, part...)
	}
	digest := sha256.Sum256(text)
	return "apiserver-" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(digest[:16]))
}

// Run renews the Lease, and removes those that have expired, until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	remove := c.config.Clock.Now()
	for {
		if err := c.renew(ctx); err != nil && ctx.Err() == nil {
			slog.Error("Renew the lease of this API server", "err", err)
		}
		if now := c.config.Clock.Now(); !now.Before(remove) {
			remove = now.Add(removeEvery)
			if err := c.removeExpired(ctx, now); err != nil && ctx.Err() == nil {
				slog.Error("Remove the leases of API servers that are gone", "err", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-c.config.Clock.After(renewEvery):
		}
	}
}

func (c *Controller) renew(ctx context.Context) error {
	id := ID(c.config.Hostname)
	current, err := c.leases.Get(ctx, metav1.NamespaceSystem, id)
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return err
	}
	next := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: id}}
	if !missing {
		next = current.DeepCopy()
	}
	if next.Labels == nil {
		next.Labels = map[string]string{}
	}
	next.Labels[Label], next.Labels[corev1.LabelHostname] = apiServer, c.config.Hostname
	next.Spec.HolderIdentity = ptr.To(id + "_" + c.config.Instance)
	next.Spec.LeaseDurationSeconds = ptr.To(int32(life.Seconds()))
	next.Spec.RenewTime = &metav1.MicroTime{Time: c.config.Clock.Now()}
	if missing {
		_, err = c.leases.Create(ctx, next)
	} else {
		_, err = c.leases.Update(ctx, next)
	}
	return err
}

func (c *Controller) removeExpired(ctx context.Context, now time.Time) error {
	leases, err := c.leases.List(ctx, metav1.NamespaceSystem, metav1.ListOptions{LabelSelector: Label + "=" + apiServer})
	if err != nil {
		return err
	}
	var errs []error
	for _, lease := range leases {
		if !expired(lease, now) {
			continue
		}
		// not one that its server has renewed meanwhile
		unchanged := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &lease.UID, ResourceVersion: &lease.ResourceVersion}}
		if _, err := c.leases.Delete(ctx, lease.Namespace, lease.Name, unchanged); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			errs = append(errs, fmt.Errorf("%s: %w", lease.Name, err))
		}
	}
	return errors.Join(errs...)
}

func expired(lease *coordinationv1.Lease, now time.Time) bool {
	s := lease.Spec
	return s.RenewTime == nil || s.LeaseDurationSeconds == nil ||
		s.RenewTime.Add(time.Duration(*s.LeaseDurationSeconds)*time.Second).Before(now)
}
