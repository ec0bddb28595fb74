package webhook

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/pkg/warning"

	"proa/internal/admission"
	"proa/internal/admission/review"
	"proa/internal/latency"
)

// Validating lets webhooks judge the completed object.
type Validating struct{ plugin }

func (*Validating) Name() string { return "ValidatingAdmissionWebhook" }

// Validate asks all webhooks that want to see the write at the same time. The
// first in order that refuses it, or cannot be asked and fails closed, decides.
func (p *Validating) Validate(ctx context.Context, a *admission.Attributes) error {
	if p.idle(a.Resource) {
		return nil
	}
	sn := p.config.Store.Snapshot()
	configurations := p.configurations(sn, a.Resource)
	if len(configurations) == 0 {
		return nil
	}
	r := review.New(a, sn, p.config.Catalogue)
	var invocations []*invocation
	for _, hooks := range configurations {
		for _, h := range hooks {
			i, err := p.invoke(ctx, h, r)
			if err != nil {
				return err
			}
			if i != nil {
				invocations = append(invocations, i)
			}
		}
	}
	return p.ask(ctx, a, invocations)
}

func (p *Validating) ask(ctx context.Context, a *admission.Attributes, invocations []*invocation) error {
	if len(invocations) == 0 {
		return nil
	}
	if ctx.Err() != nil {
		return errTimedOut()
	}
	defer latency.Of(ctx).Track(latency.ValidatingWebhooks)()
	answers, errs := make([]*admissionv1.AdmissionResponse, len(invocations)), make([]error, len(invocations))
	var wg sync.WaitGroup
	for n, i := range invocations {
		wg.Go(func() { answers[n], errs[n] = p.measured(ctx, i, false) })
	}
	wg.Wait()
	var first error
	for n, i := range invocations {
		record(ctx, a, i.hook, answers[n])
		err := verdict(ctx, i.hook, errs[n], func() {
			a.AddAuditAnnotation(fmt.Sprintf("failed-open.validating.webhook.admission.k8s.io/round_0_index_%d", n), i.Name)
		})
		if first == nil {
			first = err
		}
	}
	return first
}

func errTimedOut() error {
	return apierrors.NewTimeoutError("request did not complete within requested timeout", 0)
}

// record passes on what an answer says beside yes or no.
func record(ctx context.Context, a *admission.Attributes, h *hook, answer *admissionv1.AdmissionResponse) {
	if answer == nil {
		return
	}
	for key, value := range answer.AuditAnnotations {
		a.AddAuditAnnotation(h.Name+"/"+key, value)
	}
	for _, text := range answer.Warnings {
		warning.AddWarning(ctx, "", text)
	}
}

// verdict turns the error of a call into the error of the request, nil when the
// write may pass. A webhook that fails open is passed over, which opened notes.
func verdict(ctx context.Context, h *hook, err error, opened func()) error {
	var calling *webhookutil.ErrCallingWebhook
	var rejection *webhookutil.ErrWebhookRejection
	switch {
	case errors.As(err, &calling):
		if !h.failsOpen() {
			return apierrors.NewInternalError(calling)
		}
		slog.WarnContext(ctx, "webhook could not be asked and is passed over", "webhook", h.Name, "configuration", h.configuration, "err", calling)
		opened()
		return nil
	case errors.As(err, &rejection):
		return rejection.Status
	}
	return err
}
