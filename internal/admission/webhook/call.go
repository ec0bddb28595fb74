package webhook

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/attribute"
	admissionv1 "k8s.io/api/admission/v1"
	admissionv1beta1 "k8s.io/api/admission/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"

	"proa/internal/tracing"
)

// call asks a webhook. The error is a *webhookutil.ErrCallingWebhook when there
// was no usable answer, a *webhookutil.ErrWebhookRejection when the answer is no,
// else a StatusError.
func (p *plugin) call(ctx context.Context, i *invocation, mutating bool) (_ *admissionv1.AdmissionResponse, failure error) {
	if i.shown.IsDryRun() && i.sideEffectsOnDryRun() {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("admission webhook %q does not support dry run", i.Name))
	}
	uid := uuid.NewUUID()
	request, response := i.review(uid)
	if request == nil {
		return nil, i.failed("could not create admission objects", errors.New("webhook does not accept known AdmissionReview versions (v1, v1beta1)"),
			apierrors.NewBadRequest("error creating admission objects"))
	}
	client, err := p.clients.of(i.MutatingWebhook)
	if err != nil {
		return nil, i.failed("could not get REST client", err, apierrors.NewInternalError(err))
	}
	ctx, span := tracing.Start(ctx, spanNames[mutating])
	defer func() { span.End(failure) }()
	if span.On() {
		a := i.shown.Attributes
		span.Set(attribute.String("webhook", i.Name), attribute.String("resource", a.GetResource().String()),
			attribute.String("subresource", a.GetSubresource()), attribute.String("operation", string(a.GetOperation())), attribute.String("UID", string(uid)))
	}
	if s := i.TimeoutSeconds; s != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(*s)*time.Second)
		defer cancel()
	}
	r := client.Post().Body(request)
	if end, ok := ctx.Deadline(); ok {
		r.Timeout(wholeSeconds(time.Until(end))) // tells the webhook
	}
	if err := r.Do(ctx).Into(response); err != nil {
		status := apierrors.NewServiceUnavailable("error calling webhook")
		errors.As(err, &status)
		return nil, i.failed("failed to call webhook", err, status)
	}
	answer, err := verify(response, uid, mutating)
	if err != nil {
		return nil, i.failed("received invalid webhook response", err, apierrors.NewServiceUnavailable("error validating webhook response"))
	}
	if !answer.Allowed {
		return answer, &webhookutil.ErrWebhookRejection{Status: denied(i.Name, answer.Result)}
	}
	return answer, nil
}

// spanNames are upstream's for mutating webhooks and for others.
var spanNames = map[bool]string{true: "Call mutating webhook", false: "Call validating webhook"}

func (i *invocation) failed(what string, err error, status *apierrors.StatusError) error {
	return &webhookutil.ErrCallingWebhook{WebhookName: i.Name, Reason: fmt.Errorf("%s: %w", what, err), Status: status}
}

// wholeSeconds rounds up.
func wholeSeconds(d time.Duration) time.Duration {
	if whole := d.Truncate(time.Second); whole != d {
		return whole + time.Second
	}
	return d
}

// review is what the webhook is sent, in the first version that it and this
// server speak, and what its answer is read into. Nil: they share none.
func (i *invocation) review(uid types.UID) (request, response runtime.Object) {
	for _, version := range i.AdmissionReviewVersions {
		switch version {
		case "v1":
			r := i.request(uid)
			return &admissionv1.AdmissionReview{Request: r}, &admissionv1.AdmissionReview{}
		case "v1beta1":
			r := i.request(uid)
			return &admissionv1beta1.AdmissionReview{Request: &admissionv1beta1.AdmissionRequest{
				UID: r.UID, Kind: r.Kind, Resource: r.Resource, SubResource: r.SubResource,
				RequestKind: r.RequestKind, RequestResource: r.RequestResource, RequestSubResource: r.RequestSubResource,
				Name: r.Name, Namespace: r.Namespace, Operation: admissionv1beta1.Operation(r.Operation), UserInfo: r.UserInfo,
				Object: r.Object, OldObject: r.OldObject, DryRun: r.DryRun, Options: r.Options,
			}}, &admissionv1beta1.AdmissionReview{}
		}
	}
	return nil, nil
}

func (i *invocation) request(uid types.UID) *admissionv1.AdmissionRequest {
	r := plugincel.CreateAdmissionRequest(i.shown.Attributes, metav1.GroupVersionResource(i.version.Resource), metav1.GroupVersionKind(i.version.Kind))
	r.UID = uid
	r.Object = runtime.RawExtension{Object: i.shown.VersionedObject.Object()}
	r.OldObject = runtime.RawExtension{Object: i.shown.VersionedOldObject.Object()}
	return r
}

// verify reads an answer of either version as v1. Answers in v1 are checked strictly.
func verify(review runtime.Object, uid types.UID, mutating bool) (*admissionv1.AdmissionResponse, error) {
	switch r := review.(type) {
	case *admissionv1.AdmissionReview:
		if r.Response == nil {
			return nil, errors.New("webhook response was absent")
		}
		if want := admissionv1.SchemeGroupVersion.WithKind("AdmissionReview"); r.Response.UID == uid && r.GroupVersionKind() != want {
			return nil, fmt.Errorf("expected webhook response of %v, got %v", want, r.GroupVersionKind())
		}
		return r.Response, check(r.Response, uid, mutating)
	case *admissionv1beta1.AdmissionReview:
		if r.Response == nil {
			return nil, errors.New("webhook response was absent")
		}
		answer := &admissionv1.AdmissionResponse{
			Allowed: r.Response.Allowed, Result: r.Response.Result, AuditAnnotations: r.Response.AuditAnnotations, Warnings: r.Response.Warnings,
		}
		if jsonPatch := admissionv1.PatchTypeJSONPatch; mutating && len(r.Response.Patch) > 0 {
			answer.Patch, answer.PatchType = r.Response.Patch, &jsonPatch // v1beta1 did not look at the type
		}
		return answer, nil
	}
	return nil, fmt.Errorf("unexpected response type %T", review)
}

func check(r *admissionv1.AdmissionResponse, uid types.UID, mutating bool) error {
	patch, patchType := len(r.Patch) > 0, r.PatchType != nil
	switch {
	case r.UID != uid:
		return fmt.Errorf("expected response.uid=%q, got %q", uid, r.UID)
	case !mutating && patch:
		return errors.New("validating webhook may not return response.patch")
	case !mutating && patchType:
		return errors.New("validating webhook may not return response.patchType")
	case patch && !patchType:
		return errors.New("webhook returned response.patch but not response.patchType")
	case patchType && !patch:
		return errors.New("webhook returned response.patchType but not response.patch")
	case patchType && *r.PatchType == "":
		return fmt.Errorf("webhook returned invalid response.patchType of %q", *r.PatchType)
	}
	return nil
}

// denied is the status of a write that a webhook refused: what the webhook says,
// made a failure where it is none.
func denied(webhook string, result *metav1.Status) *apierrors.StatusError {
	status := metav1.Status{}
	if result != nil {
		status = *result
	}
	if status.Code < http.StatusBadRequest {
		status.Code = http.StatusBadRequest
	}
	if status.Status == "" || status.Status == metav1.StatusSuccess {
		status.Status = metav1.StatusFailure
	}
	by := fmt.Sprintf("admission webhook %q denied the request", webhook)
	switch {
	case status.Message != "":
		status.Message = by + ": " + status.Message
	case status.Reason != "":
		status.Message = by + ": " + string(status.Reason)
	default:
		status.Message = by + " without explanation"
	}
	return &apierrors.StatusError{ErrStatus: status}
}
