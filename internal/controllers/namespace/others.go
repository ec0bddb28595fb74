package namespace

import (
	"context"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"

	"proa/internal/apiserver/aggregator"
)

// account is whom other servers see.
var account = &user.DefaultInfo{
	Name:   serviceaccount.MakeUsername(metav1.NamespaceSystem, "namespace-controller"),
	Groups: append(serviceaccount.MakeGroupNames(metav1.NamespaceSystem), user.AllAuthenticated),
}

// emptyElsewhere deletes the objects that other servers keep for a namespace. One
// that does not answer holds the deletion up: nobody knows what it has.
func (n *Controller) emptyElsewhere(ctx context.Context, namespace string, left *remains) {
	if n.others == nil {
		return
	}
	kinds, unknown := n.others.Namespaced()
	left.unknown = unknown
	for _, k := range kinds {
		objs, err := n.emptyOther(ctx, namespace, k)
		if err != nil {
			left.failures = append(left.failures, err)
		}
		if len(objs) > 0 {
			left.objects[k.GroupVersionResource] = len(objs)
		}
		for _, obj := range objs {
			for _, finalizer := range obj.Finalizers {
				left.finalizers[finalizer]++
			}
		}
	}
}

// emptyOther deletes the objects of one kind and returns those that are still there.
func (n *Controller) emptyOther(ctx context.Context, namespace string, k aggregator.Kind) ([]metav1.ObjectMeta, error) {
	objs, err := n.others.List(ctx, account, k, namespace)
	if err != nil || len(objs) == 0 {
		return nil, err
	}
	if err := n.others.Delete(ctx, account, k, namespace, objs); err != nil {
		return objs, err
	}
	return n.others.List(ctx, account, k, namespace)
}

// discoveryFailure names the group versions whose servers do not answer.
func (left *remains) discoveryFailure() string {
	texts := make([]string, len(left.unknown))
	for i, gv := range left.unknown {
		texts[i] = fmt.Sprintf("%s: stale GroupVersion discovery: %s", gv, gv)
	}
	return fmt.Sprintf("Discovery failed for some groups, %d failing: unable to retrieve the complete list of server APIs: %s",
		len(texts), strings.Join(texts, ", "))
}
