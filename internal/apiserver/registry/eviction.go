package registry

import (
	"context"
	"fmt"
	"net/http"
	"reflect"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"proa/internal/apis"
	"proa/internal/store"
)

var budgets = schema.GroupResource{Group: "policy", Resource: "poddisruptionbudgets"}

var evictions = schema.GroupKind{Group: "policy", Kind: "Eviction"}

// unprocessedDelay is after how many seconds an eviction is worth another try when
// the controller has not seen the budget as it is now.
const unprocessedDelay = 10

// maxDisrupted bounds the evictions of a budget that its controller has not confirmed.
const maxDisrupted = 2000

// evict deletes a pod unless a disruption budget forbids it. The budget, the
// pod's condition and its deletion change in one transaction. The answer has no object.
func (r *Registry) evict(ctx context.Context, q *Request, obj apis.Object, opts metav1.CreateOptions) (apis.Object, error) {
	e, ok := obj.(*policyv1.Eviction)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a Eviction object: %T", obj))
	}
	if e.Name != q.Name {
		return nil, apierrors.NewBadRequest("name in URL does not match name in Eviction object")
	}
	if e.DeleteOptions != nil && ptr.Deref(e.DeleteOptions.IgnoreStoreReadErrorWithClusterBreakingPotential, false) {
		return nil, invalid(evictions, q.Name, field.ErrorList{field.Invalid(
			field.NewPath("deleteOptions", "ignoreStoreReadErrorWithClusterBreakingPotential"), true, "can not be set for pod eviction, try after removing the option")})
	}
	del, err := evictionOptions(e, opts.DryRun)
	if err != nil {
		return nil, err
	}
	attrs := r.attributes(q, admissionv1.Create, e, nil, &opts, isDryRun(opts.DryRun))
	if err := r.admission.Admit(ctx, attrs); err != nil {
		return nil, err
	}
	if err := r.admission.Validate(ctx, attrs); err != nil {
		return nil, err
	}
	var item *store.Item
	err = r.write(ctx, "Delete etcd3", isDryRun(del.DryRun), func(tx *store.Tx) (err error) {
		item, err = r.evictIn(tx, q, del.DeepCopy())
		return err
	}, &item)
	return nil, status(err, pods, q.Name)
}

// evictionOptions are the delete options of an eviction, with the request's dry run.
func evictionOptions(e *policyv1.Eviction, dryRun []string) (*metav1.DeleteOptions, error) {
	opts := &metav1.DeleteOptions{}
	if e.DeleteOptions != nil {
		opts = e.DeleteOptions.DeepCopy()
	}
	if len(opts.DryRun) == 0 {
		opts.DryRun = dryRun
	}
	if len(dryRun) > 0 && !reflect.DeepEqual(dryRun, opts.DryRun) {
		return nil, unknown(fmt.Sprintf("Non-matching dry-run options in request and content: %v and %v", dryRun, opts.DryRun))
	}
	return opts, nil
}

func (r *Registry) evictIn(tx *store.Tx, q *Request, opts *metav1.DeleteOptions) (*store.Item, error) {
	podQ := *q
	podQ.Subresource = ""
	existing, err := tx.Get(podQ.key())
	if err != nil {
		return nil, err
	}
	pod := existing.Object.(*corev1.Pod)
	if !skipsBudget(pod) {
		if err := r.disrupt(tx, pod); err != nil {
			return nil, err
		}
	}
	if err := checkPreconditions(&podQ, pod, opts); err != nil {
		return nil, err
	}
	if err := invalidOptions("DeleteOptions", metav1validation.ValidateDeleteOptions(opts)); err != nil {
		return nil, err
	}
	pod = pod.DeepCopy()
	setPodCondition(pod, corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
		Reason: "EvictionByEvictionAPI", Message: "Eviction API: evicting",
	}, r.now())
	item, _, err := r.terminate(tx, &podQ, existing, pod, opts)
	return item, err
}

// skipsBudget says that deleting the pod disrupts nothing.
func skipsBudget(pod *corev1.Pod) bool {
	switch pod.Status.Phase {
	case corev1.PodSucceeded, corev1.PodFailed, corev1.PodPending:
		return true
	}
	return pod.DeletionTimestamp != nil
}

// disrupt takes one disruption from the budget that covers the pod, if there is one.
func (r *Registry) disrupt(tx *store.Tx, pod *corev1.Pod) error {
	keys := r.budgetsOf(pod)
	switch {
	case len(keys) == 0:
		return nil
	case len(keys) > 1:
		return &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusInternalServerError,
			Message: "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
		}}
	}
	item, err := tx.Get(keys[0])
	if err != nil {
		return err
	}
	pdb := item.Object.(*policyv1.PodDisruptionBudget)
	if !podReady(pod) && evictsUnhealthy(pdb) {
		return nil
	}
	if err := checkBudget(pdb); err != nil {
		return err
	}
	pdb = pdb.DeepCopy()
	pdb.Status.DisruptionsAllowed--
	if pdb.Status.DisruptionsAllowed == 0 {
		meta.SetStatusCondition(&pdb.Status.Conditions, metav1.Condition{
			Type: policyv1.DisruptionAllowedCondition, Reason: policyv1.InsufficientPodsReason, Status: metav1.ConditionFalse,
			ObservedGeneration: pdb.Status.ObservedGeneration, LastTransitionTime: r.now(),
		})
	}
	if pdb.Status.DisruptedPods == nil {
		pdb.Status.DisruptedPods = map[string]metav1.Time{}
	}
	pdb.Status.DisruptedPods[pod.Name] = r.now()
	if err := r.recordDisruption(pdb, item.Object); err != nil {
		return err
	}
	_, err = tx.Put(keys[0], pdb)
	return err
}

// recordDisruption notes the fields of a budget that an eviction writes as the
// server's own.
func (r *Registry) recordDisruption(pdb, old apis.Object) error {
	kind, ok := r.catalogue.Stored(budgets)
	if !ok {
		return apierrors.NewInternalError(fmt.Errorf("%s are not served", budgets))
	}
	m, err := r.managers.For(apis.View{Resource: kind}, "status")
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	m.Updated(pdb, old, "kube-apiserver")
	return nil
}

// budgetsOf returns the budgets whose selector matches the pod.
func (r *Registry) budgetsOf(pod *corev1.Pod) []store.Key {
	var keys []store.Key
	r.store.Snapshot().Range(budgets, pod.Namespace, store.Key{}, func(item *store.Item) bool {
		selector, err := metav1.LabelSelectorAsSelector(item.Object.(*policyv1.PodDisruptionBudget).Spec.Selector)
		if err == nil && selector.Matches(labels.Set(pod.Labels)) {
			keys = append(keys, item.Key)
		}
		return true
	})
	return keys
}

func podReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// evictsUnhealthy says whether a budget lets a pod that is not ready go without counting it.
func evictsUnhealthy(pdb *policyv1.PodDisruptionBudget) bool {
	if p := pdb.Spec.UnhealthyPodEvictionPolicy; p != nil && *p == policyv1.AlwaysAllow {
		return true
	}
	return pdb.Status.CurrentHealthy >= pdb.Status.DesiredHealthy && pdb.Status.DesiredHealthy > 0
}

func checkBudget(pdb *policyv1.PodDisruptionBudget) error {
	budget := schema.GroupResource{Group: "policy", Resource: "poddisruptionbudget"}
	st := &pdb.Status
	switch {
	case st.ObservedGeneration < pdb.Generation:
		return tooManyDisruptions(fmt.Sprintf("The disruption budget %s is still being processed by the server.", pdb.Name), unprocessedDelay)
	case st.DisruptionsAllowed < 0:
		return apierrors.NewForbidden(budget, pdb.Name, fmt.Errorf("pdb disruptions allowed is negative"))
	case len(st.DisruptedPods) > maxDisrupted:
		return tooManyDisruptions(fmt.Sprintf("The disruption budget %s does not allow evicting pods currently: too many pending evictions not confirmed by PDB controller", pdb.Name), 0)
	case st.DisruptionsAllowed > 0:
		return nil
	}
	c := meta.FindStatusCondition(st.Conditions, policyv1.DisruptionAllowedCondition)
	if c != nil && c.Status == metav1.ConditionFalse && c.Reason == policyv1.SyncFailedReason {
		return tooManyDisruptions(fmt.Sprintf("The disruption budget %s does not allow evicting pods currently because it failed sync: %v", pdb.Name, c.Message), 0)
	}
	return tooManyDisruptions(fmt.Sprintf("The disruption budget %s needs %d healthy pods and has %d currently", pdb.Name, st.DesiredHealthy, st.CurrentHealthy), 0)
}

// tooManyDisruptions asks the client to try again, after seconds if it is to wait.
func tooManyDisruptions(cause string, seconds int) error {
	err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", seconds)
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes,
		metav1.StatusCause{Type: policyv1.DisruptionBudgetCause, Message: cause})
	return err
}
