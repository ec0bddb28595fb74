package core

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// A client changes the type and maybe the address; what it left as it was and
// the new type does not have goes.
func TestFieldsOfTheOldTypeGo(t *testing.T) {
	old := &corev1.Service{Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.0.0.1", ClusterIPs: []string{"10.0.0.1"},
		IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, IPFamilyPolicy: ptr.To(corev1.IPFamilyPolicySingleStack),
	}}
	for name, change := range map[string]func(*corev1.ServiceSpec){
		"the type alone":           func(*corev1.ServiceSpec) {},
		"the type and the address": func(s *corev1.ServiceSpec) { s.ClusterIP, s.ClusterIPs = "", nil },
	} {
		t.Run(name, func(t *testing.T) {
			s := old.DeepCopy()
			s.Spec.Type = corev1.ServiceTypeExternalName
			change(&s.Spec)
			dropTypeDependentFields(s, old)
			if s.Spec.ClusterIP != "" || s.Spec.ClusterIPs != nil || s.Spec.IPFamilies != nil || s.Spec.IPFamilyPolicy != nil {
				t.Errorf("left %+v", s.Spec)
			}
		})
	}
}
