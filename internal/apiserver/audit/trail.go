package audit

import (
	"context"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apiserver/pkg/apis/audit"
	audits "k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// Trail makes the events of requests.
type Trail struct {
	policy  audits.PolicyRuleEvaluator
	backend audits.Backend
}

// New returns the Trail that c asks for, nil when nothing is audited.
func New(c Config) (*Trail, error) {
	if !c.Enabled() {
		return nil, nil
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	var backends []audits.Backend
	if c.Log.Path != "" {
		b, err := c.Log.open()
		if err != nil {
			return nil, err
		}
		backends = append(backends, b)
	}
	if c.Webhook.Kubeconfig != "" {
		b, err := c.Webhook.open()
		if err != nil {
			return nil, err
		}
		backends = append(backends, b)
	}
	if c.backend != nil {
		backends = append(backends, c.backend)
	}
	return &Trail{policy: policy.NewPolicyRuleEvaluator(c.Policy), backend: audits.Union(backends...)}, nil
}

// Run delivers events that are batched until ctx ends, then the last of them.
func (t *Trail) Run(ctx context.Context) error {
	if err := t.backend.Run(ctx.Done()); err != nil {
		return err
	}
	<-ctx.Done()
	t.backend.Shutdown()
	return nil
}

// Record is what is written down about one request.
type Record struct {
	trail    *Trail
	context  *audits.AuditContext
	received time.Time
	config   audits.RequestAuditConfig
	long     bool
}

type recordKey struct{}

// From returns the record of a request, nil when there is none.
func From(ctx context.Context) *Record {
	r, _ := ctx.Value(recordKey{}).(*Record)
	return r
}

// Open begins a record before it is known who asks, so that what is found out
// then can be noted, too.
func (t *Trail) Open(ctx context.Context, id string, received time.Time) context.Context {
	ctx = audits.WithAuditContext(ctx)
	audits.WithAuditID(ctx, types.UID(id))
	return context.WithValue(ctx, recordKey{}, &Record{trail: t, context: audits.AuditContextFrom(ctx), received: received})
}

// Receive writes down that a request came. ok is false when it cannot be and
// therefore must not be served.
func (r *Record) Receive(req *http.Request, a authorizer.Attributes, long bool) (ok bool) {
	if !r.judge(req, a, long) {
		return true
	}
	if !r.context.ProcessEventStage(req.Context(), audit.StageRequestReceived) {
		audits.ApiserverAuditDroppedCounter.WithContext(req.Context()).Inc()
		return false
	}
	return true
}

// judge asks the policy about a request, and reports whether it is of interest.
func (r *Record) judge(req *http.Request, a authorizer.Attributes, long bool) bool {
	r.config, r.long = r.trail.policy.EvaluatePolicyRule(a), long
	audits.ObservePolicyLevel(req.Context(), r.config.Level)
	if err := r.context.Init(r.config, r.trail.backend); err != nil || !r.Wanted() {
		return false
	}
	audits.LogRequestMetadata(req.Context(), req, r.received, a)
	return true
}

// Refuse writes down that nobody knows who asks.
func (r *Record) Refuse(req *http.Request, a authorizer.Attributes, message string) {
	if !r.judge(req, a, false) {
		return
	}
	r.context.SetEventResponseStatus(&metav1.Status{Status: metav1.StatusFailure, Code: http.StatusUnauthorized, Reason: metav1.StatusReasonUnauthorized, Message: message})
	r.context.ProcessEventStage(req.Context(), audit.StageResponseStarted)
}

// Wanted reports whether the policy wants to know of the request at all.
func (r *Record) Wanted() bool { return r != nil && r.config.Level != audit.LevelNone }

// Start notes the code of the response.
func (r *Record) Start(ctx context.Context, code int) {
	r.context.SetEventResponseStatusCode(int32(code))
	if r.long {
		r.context.ProcessEventStage(ctx, audit.StageResponseStarted)
	}
}

// Age is the time since the request came.
func (r *Record) Age(now time.Time) time.Duration { return now.Sub(r.received) }

// Complete writes down that a request has ended.
func (r *Record) Complete(ctx context.Context) {
	if r.context.GetEventResponseStatus() == nil {
		r.context.SetEventResponseStatus(&metav1.Status{Status: metav1.StatusSuccess, Code: http.StatusOK, Message: "Connection closed early"})
		if r.long {
			r.context.ProcessEventStage(ctx, audit.StageResponseStarted)
		}
	}
	r.context.ProcessEventStage(ctx, audit.StageResponseComplete)
}

// Panic writes down that a request broke.
func (r *Record) Panic(ctx context.Context, message string) {
	r.context.SetEventResponseStatus(&metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Reason: metav1.StatusReasonInternalError, Message: "APIServer panic'd: " + message,
	})
	r.context.ProcessEventStage(ctx, audit.StagePanic)
}

// As notes whom the user acts as, and the verb of constrained impersonation that
// allowed it, if one did.
func (r *Record) As(u user.Info, constraint string) {
	if r.Wanted() {
		r.context.LogImpersonatedUser(u, constraint)
	}
}

// Annotate notes a fact.
func (r *Record) Annotate(ctx context.Context, keysAndValues ...string) {
	if r.Wanted() {
		audits.AddAuditAnnotations(ctx, keysAndValues...)
	}
}

// plain encodes objects as they are, in JSON.
var plain = serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion()

// Request notes the object that was sent, before anything was done with it; its
// name goes into the reference in any case.
func (r *Record) Request(ctx context.Context, obj runtime.Object, gvk schema.GroupVersionKind, resource schema.GroupVersionResource, subresource string) {
	if !r.Wanted() {
		return
	}
	named := obj.DeepCopyObject()
	named.GetObjectKind().SetGroupVersionKind(gvk)
	audits.LogRequestObject(ctx, named, gvk.GroupVersion(), resource, subresource, plain)
}

// Patch notes the patch that was sent.
func (r *Record) Patch(ctx context.Context, patch []byte) {
	if r.Wanted() && r.wantsRequest() {
		audits.LogRequestPatch(ctx, patch)
	}
}

func (r *Record) wantsRequest() bool {
	return r.config.Level == audit.LevelRequest || r.config.Level == audit.LevelRequestResponse
}

// WantsResponse reports whether Response is of use.
func (r *Record) WantsResponse() bool {
	return r.Wanted() && r.config.Level == audit.LevelRequestResponse
}

// Response notes the object that is answered, in JSON.
func (r *Record) Response(body []byte) {
	if r.config.OmitManagedFields {
		body = withoutManagedFields(body)
	}
	r.context.LogResponseObject(nil, &runtime.Unknown{Raw: body, ContentType: runtime.ContentTypeJSON})
}

// Status notes the Status that is answered.
func (r *Record) Status(status *metav1.Status) {
	if !r.Wanted() {
		return
	}
	var obj *runtime.Unknown
	if r.WantsResponse() {
		whole := *status
		whole.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		if body, err := json.Marshal(&whole); err == nil {
			obj = &runtime.Unknown{Raw: body, ContentType: runtime.ContentTypeJSON}
		}
	}
	r.context.LogResponseObject(status, obj)
}

// withoutManagedFields takes the managed fields out of an object or the items of a list.
func withoutManagedFields(body []byte) []byte {
	var obj map[string]any
	if json.Unmarshal(body, &obj) != nil {
		return body
	}
	items, _ := obj["items"].([]any)
	for _, o := range append(items, obj) {
		if o, ok := o.(map[string]any); ok {
			if meta, ok := o["metadata"].(map[string]any); ok {
				delete(meta, "managedFields")
			}
		}
	}
	short, err := json.Marshal(obj)
	if err != nil {
		return body
	}
	return short
}
