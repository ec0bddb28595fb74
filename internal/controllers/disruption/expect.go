package disruption

import (
	"context"
	"fmt"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"proa/internal/client"
)

// expectation is what a budget asks for.
type expectation struct {
	expected  int32 // pods that there should be
	desired   int32 // of them healthy
	unmanaged bool  // some pods have no controller that says how many there should be
}

// expect computes how many pods the budget counts on: those that exist where it
// asks for a number, otherwise those that their controllers want.
func (c *Controller) expect(ctx context.Context, pdb *policyv1.PodDisruptionBudget, pods []*corev1.Pod) (expectation, error) {
	least, most := pdb.Spec.MinAvailable, pdb.Spec.MaxUnavailable
	switch {
	case most == nil && least == nil:
		return expectation{}, nil
	case most == nil && least.Type == intstr.Int:
		return expectation{expected: int32(len(pods)), desired: least.IntVal}, nil
	}
	expected, unmanaged, err := c.scale(ctx, pods)
	if err != nil {
		return expectation{}, err
	}
	e := expectation{expected: expected, unmanaged: unmanaged}
	if most == nil {
		n, err := intstr.GetScaledValueFromIntOrPercent(least, int(expected), true)
		e.desired = int32(n)
		return e, err
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(most, int(expected), true)
	e.desired = max(0, expected-int32(n))
	return e, err
}

// scale sums what the controllers of pods want, each asked once.
func (c *Controller) scale(ctx context.Context, pods []*corev1.Pod) (total int32, unmanaged bool, err error) {
	asked := map[types.UID]bool{}
	for _, pod := range pods {
		ref := metav1.GetControllerOfNoCopy(pod)
		if ref == nil {
			unmanaged = true
			continue
		}
		if asked[ref.UID] {
			continue
		}
		uid, replicas, found, err := c.replicas(ctx, pod.Namespace, ref)
		if err != nil {
			return 0, false, err
		}
		if !found {
			return 0, false, fmt.Errorf("found no controllers for pod %q", pod.Name)
		}
		asked[ref.UID] = true
		if !asked[uid] || uid == ref.UID {
			total += replicas
		}
		asked[uid] = true
	}
	return total, unmanaged, nil
}

// replicas returns what the controller at ref wants, or the Deployment above it.
func (c *Controller) replicas(ctx context.Context, namespace string, ref *metav1.OwnerReference) (types.UID, int32, bool, error) {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return "", 0, false, err
	}
	switch (schema.GroupKind{Group: gv.Group, Kind: ref.Kind}) {
	case schema.GroupKind{Group: "apps", Kind: "ReplicaSet"}:
		rs, ok := c.sets.Cached(namespace, ref.Name)
		if !ok || rs.UID != ref.UID {
			return "", 0, false, nil
		}
		if above := metav1.GetControllerOfNoCopy(rs); above != nil && above.Kind == "Deployment" {
			d, ok := c.deployments.Cached(namespace, above.Name)
			if !ok || d.UID != above.UID {
				return "", 0, false, nil
			}
			return d.UID, *d.Spec.Replicas, true, nil
		}
		return rs.UID, *rs.Spec.Replicas, true, nil
	case schema.GroupKind{Group: "apps", Kind: "StatefulSet"}:
		s, ok := c.stateful.Cached(namespace, ref.Name)
		if !ok || s.UID != ref.UID {
			return "", 0, false, nil
		}
		return s.UID, *s.Spec.Replicas, true, nil
	case schema.GroupKind{Kind: "ReplicationController"}:
		rc, ok := c.rcs.Cached(namespace, ref.Name)
		if !ok || rc.UID != ref.UID {
			return "", 0, false, nil
		}
		return rc.UID, *rc.Spec.Replicas, true, nil
	}
	return c.scaleOf(ctx, namespace, gv.WithKind(ref.Kind), ref)
}

// scaleOf asks the scale subresource of a controller of any other kind.
func (c *Controller) scaleOf(ctx context.Context, namespace string, gvk schema.GroupVersionKind, ref *metav1.OwnerReference) (types.UID, int32, bool, error) {
	view, ok := c.catalogue.Kind(gvk)
	if !ok {
		return "", 0, false, fmt.Errorf("no matches for kind %q in version %q", gvk.Kind, gvk.GroupVersion())
	}
	if view.Subresource("scale") == nil {
		return "", 0, false, fmt.Errorf("%s does not implement the scale subresource", gvk)
	}
	obj, err := c.api.Get(ctx, client.Ref{Resource: gvk.GroupVersion().WithResource(view.Plural), Namespace: namespace, Name: ref.Name, Subresource: "scale"}, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", 0, false, nil
	}
	if err != nil {
		return "", 0, false, err
	}
	scale, ok := obj.(*autoscalingv1.Scale)
	if !ok || scale.UID != ref.UID {
		return "", 0, false, nil
	}
	return scale.UID, scale.Spec.Replicas, true, nil
}
