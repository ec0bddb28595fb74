package workloads

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/pkg/proatest"
)

// KEP-1880: a full range is enlarged by another, which stays while it is needed.
func TestServicesGetAddressesOfAnotherRange(t *testing.T) {
	c := start(t, 0, func(o *proatest.Options) { o.ServiceCIDR = "10.9.0.0/29" })
	ranges := c.NetworkingV1().ServiceCIDRs()
	isReady := func(name string) {
		t.Helper()
		until(c, ranges, named(name), func(l *networkingv1.ServiceCIDRList) error {
			for _, s := range l.Items {
				for _, d := range s.Status.Conditions {
					if d.Type == networkingv1.ServiceCIDRConditionReady && d.Status == metav1.ConditionTrue {
						return nil
					}
				}
			}
			return fmt.Errorf("range %s is not ready", name)
		})
	}
	isReady("kubernetes")
	services := c.CoreV1().Services(ns)
	n := 0
	create := func() (*corev1.Service, error) {
		n++
		return services.Create(c.ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("s%d", n)}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
		}, metav1.CreateOptions{})
	}
	taken := map[string]bool{}
	for {
		s, err := create()
		if err != nil {
			if !strings.Contains(err.Error(), "failed to allocate a serviceIP") && !strings.Contains(err.Error(), "range is full") {
				t.Errorf("a full range: %v", err)
			}
			break
		}
		if taken[s.Spec.ClusterIP] || !strings.HasPrefix(s.Spec.ClusterIP, "10.9.0.") {
			t.Errorf("%s has %s", s.Name, s.Spec.ClusterIP)
		}
		taken[s.Spec.ClusterIP] = true
	}
	if len(taken) != 5 { // of 8: not the first, the last and that of the Service kubernetes
		t.Errorf("%d addresses: %v", len(taken), taken)
	}

	must(ranges.Create(c.ctx, &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "more"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.10.0.0/24"}}}, metav1.CreateOptions{}))(c)
	isReady("more")
	s := must(create())(c)
	if !strings.HasPrefix(s.Spec.ClusterIP, "10.10.0.") {
		t.Errorf("%s has %s", s.Name, s.Spec.ClusterIP)
	}
	address := must(c.NetworkingV1().IPAddresses().Get(c.ctx, s.Spec.ClusterIP, metav1.GetOptions{}))(c)
	if ref := address.Spec.ParentRef; ref == nil || ref.Resource != "services" || ref.Namespace != ns || ref.Name != s.Name {
		t.Errorf("address: %+v", address.Spec)
	}
	c.ok(ranges.Delete(c.ctx, "more", metav1.DeleteOptions{}))
	l := until(c, ranges, named("more"), func(l *networkingv1.ServiceCIDRList) error {
		if len(l.Items) != 1 {
			return fmt.Errorf("a range in use is gone")
		}
		for _, d := range l.Items[0].Status.Conditions {
			if d.Type == networkingv1.ServiceCIDRConditionReady && d.Status == metav1.ConditionFalse && d.Reason == networkingv1.ServiceCIDRReasonTerminating {
				return nil
			}
		}
		return fmt.Errorf("conditions: %+v", l.Items[0].Status.Conditions)
	})
	if f := l.Items[0].Finalizers; len(f) != 1 || f[0] != "networking.k8s.io/service-cidr-finalizer" {
		t.Errorf("finalizers: %v", f)
	}
	if _, err := create(); err == nil {
		t.Error("a terminating range gave an address")
	}
	c.ok(services.Delete(c.ctx, s.Name, metav1.DeleteOptions{}))
	if _, err := c.NetworkingV1().IPAddresses().Get(c.ctx, s.Spec.ClusterIP, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the address of a deleted Service: %v", err)
	}
	gone(c, ranges, named("more"), func(l *networkingv1.ServiceCIDRList) int { return len(l.Items) })
}
