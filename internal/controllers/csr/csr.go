// Package csr serves CertificateSigningRequests: it approves those of kubelets
// for themselves (serving.go says when for serving certificates), signs approved ones of the signers that the cluster's CA
// stands for, and removes old ones.
package csr

import (
	"context"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"

	"proa/internal/client"
	"proa/internal/controllers"
)

// Sign certifies a public key as template says, for the given time.
type Sign func(template *x509.Certificate, public crypto.PublicKey, life time.Duration) (certPEM []byte, err error)

// Controller does one of three things to requests: it approves, signs or removes them.
type Controller struct {
	loop     *controllers.Loop
	api      client.API
	requests *client.Informer[*certificatesv1.CertificateSigningRequest]
	nodes    *client.Informer[*corev1.Node]
	clock    clock.PassiveClock
	sign     Sign
	serving  Serving
}

// NewApproving returns a controller that approves requests of node agents, those
// for serving certificates within the limits of serving.
func NewApproving(c controllers.Config, serving Serving) *Controller {
	r := newController(c)
	r.nodes, r.serving = client.Shared[*corev1.Node](c.Cache), serving
	r.reconcileWith(controllers.NewLoop("csrapproving", c, r.approve))
	r.watchNodes()
	return r
}

// NewSigning returns a controller that signs approved requests with sign.
func NewSigning(c controllers.Config, sign Sign) *Controller {
	r := newController(c)
	r.sign = sign
	r.reconcileWith(controllers.NewLoop("csrsigning", c, r.issue))
	return r
}

// NewCleaning returns a controller that removes old requests.
func NewCleaning(c controllers.Config) *Controller {
	r := newController(c)
	r.reconcileWith(controllers.NewLoop("csrcleaner", c, r.clean))
	return r
}

func newController(c controllers.Config) *Controller {
	return &Controller{
		api: c.Cache.API(), clock: c.Clock,
		requests: client.Shared[*certificatesv1.CertificateSigningRequest](c.Cache),
	}
}

func (c *Controller) reconcileWith(l *controllers.Loop) {
	c.loop = l
	c.requests.OnChange(func(_, csr *certificatesv1.CertificateSigningRequest) {
		if csr != nil {
			l.EnqueueObject(csr)
		}
	})
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func has(csr *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType) bool {
	return slices.ContainsFunc(csr.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool { return c.Type == kind })
}

func parse(csr *certificatesv1.CertificateSigningRequest) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(csr.Spec.Request)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, fmt.Errorf("PEM block type must be CERTIFICATE REQUEST")
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, err
	}
	return request, request.CheckSignature()
}

// ignoreStale: the change that came first brings the request back here.
func ignoreStale(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// How long requests are kept: so long after their creation, or after the last
// update of the condition that settled them.
const (
	keptPending = 24 * time.Hour
	keptSettled = time.Hour
)

// clean removes a request that is settled, or that nobody settles, when its time is over.
func (c *Controller) clean(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	csr, ok := c.requests.Cached("", key.Name)
	if !ok {
		return controllers.Result{}, nil
	}
	at, ends := end(csr)
	if !ends {
		return controllers.Result{}, nil
	}
	if left := at.Sub(c.clock.Now()); left > 0 {
		return controllers.Result{After: left}, nil
	}
	_, err := c.requests.Delete(ctx, "", csr.Name, preconditions(csr))
	return controllers.Result{}, ignoreStale(err)
}

// end is when a request is to be removed. One that is approved waits for its signer,
// however long that takes.
func end(csr *certificatesv1.CertificateSigningRequest) (at time.Time, ends bool) {
	if len(csr.Status.Conditions) == 0 {
		return csr.CreationTimestamp.Add(keptPending), true
	}
	var last time.Time
	for _, c := range csr.Status.Conditions {
		if c.Type == certificatesv1.CertificateApproved && len(csr.Status.Certificate) == 0 {
			continue
		}
		if c.LastUpdateTime.After(last) {
			last = c.LastUpdateTime.Time
		}
	}
	if last.IsZero() {
		return last, false
	}
	at = last.Add(keptSettled)
	if expiry := expiryOf(csr.Status.Certificate); !expiry.IsZero() && expiry.Before(at) {
		return expiry, true
	}
	return at, true
}

func expiryOf(certPEM []byte) time.Time {
	block, _ := pem.Decode(certPEM)
	if block == nil {
		return time.Time{}
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return time.Time{}
	}
	return cert.NotAfter
}

// fail notes that a request cannot be signed.
func (c *Controller) fail(ctx context.Context, csr *certificatesv1.CertificateSigningRequest, reason string, cause error) error {
	updated := csr.DeepCopy()
	updated.Status.Conditions = append(updated.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateFailed, Status: corev1.ConditionTrue, Reason: reason, Message: cause.Error(),
	})
	_, err := c.requests.UpdateStatus(ctx, updated)
	return err
}
