package webhook

import (
	"context"
	"encoding/json"
	"fmt"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/managedfields"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/pkg/warning"
	kjson "sigs.k8s.io/json"

	"proa/internal/admission"
	"proa/internal/admission/review"
	"proa/internal/apis"
)

// Mutating lets webhooks complete the object.
type Mutating struct{ plugin }

const mutatingName = "MutatingAdmissionWebhook"

func (*Mutating) Name() string { return mutatingName }

// rounds remembers between the two rounds of a write what was asked and what
// came out: in the second round only those are asked that were before, want to
// be, and have not seen a later change.
type rounds struct {
	asked, again map[string]bool // by uid of the webhook
	last         apis.Object     // after the first round
}

// changed says that the object is not as the webhook asked last has seen it.
func (s *rounds) changed() {
	for uid := range s.asked {
		s.again[uid] = true
	}
	clear(s.asked)
}

// Admit asks the webhooks one after the other; each sees what those before it
// made of the object.
func (p *Mutating) Admit(ctx context.Context, a *admission.Attributes) error {
	if p.idle(a.Resource) {
		return nil
	}
	sn := p.config.Store.Snapshot()
	configurations := p.configurations(sn, a.Resource)
	if len(configurations) == 0 {
		return nil
	}
	state, _ := a.Memory(mutatingName).(*rounds)
	if state == nil {
		state = &rounds{asked: map[string]bool{}, again: map[string]bool{}}
		a.Remember(mutatingName, state)
	}
	if a.SecondRound() && !equality.Semantic.DeepEqual(state.last, a.Object) {
		state.changed()
	}
	r, index := review.New(a, sn, p.config.Catalogue), 0
	for _, hooks := range configurations {
		for _, h := range hooks {
			if err := p.admitOne(ctx, r, h, state, index); err != nil {
				return err
			}
			index++
		}
	}
	if a.Object != nil && len(state.asked)+len(state.again) > 0 {
		state.last = a.Object.DeepCopyObject().(apis.Object)
	}
	return nil
}

// admitOne asks one webhook, if it wants to be.
func (p *Mutating) admitOne(ctx context.Context, r *review.Request, h *hook, state *rounds, index int) error {
	i, err := p.invoke(ctx, h, r)
	if err != nil || i == nil || r.SecondRound() && !state.again[h.uid] {
		return err
	}
	if ctx.Err() != nil {
		return errTimedOut()
	}
	notes := annotator{r.Attributes, h, index}
	answer, err := p.measured(ctx, i, true)
	record(ctx, r.Attributes, h, answer)
	changed := false
	if err == nil {
		changed, err = patch(ctx, r, i, answer, notes)
	}
	notes.mutated(changed)
	if changed {
		state.changed()
		r.AskAgain()
	}
	if h.ReinvocationPolicy != nil && *h.ReinvocationPolicy == admissionregistrationv1.IfNeededReinvocationPolicy {
		state.asked[h.uid] = true
	}
	return verdict(ctx, h, err, notes.failedOpen)
}

const invalidManagedFields = ".metadata.managedFields was in an invalid state after admission; this could be caused by an outdated mutating admission controller; please fix your requests: %v"

// patch makes the object what the webhook's answer says, in the version that the
// webhook saw.
func patch(ctx context.Context, r *review.Request, i *invocation, answer *admissionv1.AdmissionResponse, notes annotator) (changed bool, err error) {
	if len(answer.Patch) == 0 {
		return false, nil
	}
	operations, err := jsonpatch.DecodePatch(answer.Patch)
	if err != nil {
		return false, i.failed("received undecodable patch in webhook response", err, apierrors.NewServiceUnavailable("error decoding patch in webhook response"))
	}
	if len(operations) == 0 {
		return false, nil
	}
	if r.Object == nil {
		return false, apierrors.NewInternalError(fmt.Errorf("admission webhook %q attempted to modify the object, which is not supported for this operation", i.Name))
	}
	if *answer.PatchType != admissionv1.PatchTypeJSONPatch {
		return false, &webhookutil.ErrCallingWebhook{
			WebhookName: i.Name, Reason: fmt.Errorf("unsupported patch type %q", *answer.PatchType), Status: denied(i.Name, answer.Result),
		}
	}
	before, err := json.Marshal(i.shown.VersionedObject.Object())
	if err != nil {
		return false, apierrors.NewInternalError(err)
	}
	after, err := run(operations, before)
	if err != nil {
		return false, apierrors.NewInternalError(err)
	}
	obj, err := decode(r, i.version, after)
	if err != nil {
		return false, apierrors.NewInternalError(err)
	}
	notes.patched(operations)
	if equality.Semantic.DeepEqual(i.shown.VersionedObject.Object(), obj) {
		return false, nil
	}
	managers := r.Object.GetManagedFields()
	if err := r.Replace(i.version, obj); err != nil {
		return false, apierrors.NewInternalError(err)
	}
	keepManagers(ctx, r.Object, managers)
	return true, nil
}

// run applies operations. The library panics over some that lack a value, which no
// webhook may do to the server.
func run(operations jsonpatch.Patch, doc []byte) (after []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("an operation cannot be applied: %v", p)
		}
	}()
	return operations.Apply(doc)
}

// keepManagers undoes a change that left managedFields unreadable.
func keepManagers(ctx context.Context, obj apis.Object, managers []metav1.ManagedFieldsEntry) {
	if err := managedfields.ValidateManagedFields(obj.GetManagedFields()); err != nil {
		obj.SetManagedFields(managers)
		warning.AddWarning(ctx, "", fmt.Sprintf(invalidManagedFields, err.Error()))
	}
}

// decode reads an object of a version, its kind included.
func decode(r *review.Request, v review.Version, data []byte) (apis.Object, error) {
	obj := r.Empty(v)
	if u, ok := obj.(*unstructured.Unstructured); ok {
		u.Object = map[string]any{}
		return obj, kjson.UnmarshalCaseSensitivePreserveInts(data, &u.Object)
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, obj); err != nil {
		return nil, err
	}
	if got := obj.GetObjectKind().GroupVersionKind(); got != v.Kind {
		return nil, fmt.Errorf("the patched object is of kind %v, want %v", got, v.Kind)
	}
	return obj, nil
}

// annotator notes in the audit event what a webhook did.
type annotator struct {
	a     *admission.Attributes
	hook  *hook
	index int
}

func (n annotator) key(prefix string) string {
	round := 0
	if n.a.SecondRound() {
		round = 1
	}
	return fmt.Sprintf("%s/round_%d_index_%d", prefix, round, n.index)
}

func (n annotator) failedOpen() {
	n.a.AddAuditAnnotation(n.key("failed-open.mutation.webhook.admission.k8s.io"), n.hook.Name)
}

func (n annotator) mutated(changed bool) {
	n.add("mutation.webhook.admission.k8s.io", struct {
		Configuration string `json:"configuration"`
		Webhook       string `json:"webhook"`
		Mutated       bool   `json:"mutated"`
	}{n.hook.configuration, n.hook.Name, changed})
}

func (n annotator) patched(operations jsonpatch.Patch) {
	n.add("patch.webhook.admission.k8s.io", struct {
		Configuration string          `json:"configuration"`
		Webhook       string          `json:"webhook"`
		Patch         jsonpatch.Patch `json:"patch,omitempty"`
		PatchType     string          `json:"patchType,omitempty"`
	}{n.hook.configuration, n.hook.Name, operations, string(admissionv1.PatchTypeJSONPatch)})
}

func (n annotator) add(prefix string, value any) {
	if data, err := json.Marshal(value); err == nil {
		n.a.AddAuditAnnotation(n.key(prefix), string(data))
	}
}
