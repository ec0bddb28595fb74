package webhook

import (
	"context"
	"errors"
	"net/http"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apiserver/pkg/admission/metrics"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"

	"proa/internal/latency"
)

// measured is call, with upstream's metrics of it.
func (p *plugin) measured(ctx context.Context, i *invocation, mutating bool) (*admissionv1.AdmissionResponse, error) {
	start := time.Now()
	answer, err := p.call(ctx, i, mutating)
	took := time.Since(start)
	if mutating { // the validating ones are asked at the same time
		latency.Of(ctx).Add(latency.MutatingWebhooks, took)
	}
	observe(ctx, i, mutating, took, err)
	return answer, err
}

func observe(ctx context.Context, i *invocation, mutating bool, took time.Duration, err error) {
	step := "validating"
	if mutating {
		step = "admit"
	}
	rejected, code := false, http.StatusOK
	reject := func(why metrics.WebhookRejectionErrorType) {
		rejected = true
		metrics.Metrics.ObserveWebhookRejection(ctx, i.Name, step, string(i.shown.GetOperation()), why, code)
	}
	var calling *webhookutil.ErrCallingWebhook
	var rejection *webhookutil.ErrWebhookRejection
	switch {
	case err == nil:
	case errors.As(err, &calling):
		if code = 0; calling.Status != nil {
			code = int(calling.Status.ErrStatus.Code)
		}
		if i.failsOpen() {
			metrics.Metrics.ObserveWebhookFailOpen(ctx, i.Name, step)
		} else {
			reject(metrics.WebhookRejectionCallingWebhookError)
		}
	case errors.As(err, &rejection):
		if code = 0; rejection.Status != nil {
			code = int(rejection.Status.ErrStatus.Code)
		}
		reject(metrics.WebhookRejectionNoError)
	default:
		code = 0
		reject(metrics.WebhookRejectionAPIServerInternalError)
	}
	metrics.Metrics.ObserveWebhook(ctx, i.Name, took, rejected, i.shown, step, code)
}
