package emptied

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

func TestWhatIsEmptyAndShownBecomesAbsent(t *testing.T) {
	tests := []struct {
		name      string
		obj, want any
	}{
		{"a list of the object", &rbacv1.Role{Rules: []rbacv1.PolicyRule{}}, &rbacv1.Role{}},
		{"a list in a list", &rbacv1.Role{Rules: []rbacv1.PolicyRule{{Verbs: []string{}}}}, &rbacv1.Role{Rules: []rbacv1.PolicyRule{{}}}},
		{"two lists", &discoveryv1.EndpointSlice{Endpoints: []discoveryv1.Endpoint{}, Ports: []discoveryv1.EndpointPort{}}, &discoveryv1.EndpointSlice{}},
		{"a list behind a pointer",
			&corev1.Pod{Spec: corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{}}}}}},
			&corev1.Pod{Spec: corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{}}}}}},
		{"not a list that JSON leaves out when empty", &corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{}}}, &corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{}}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			For(tt.obj).Clear(tt.obj)
			if d := cmp.Diff(tt.want, tt.obj); d != "" {
				t.Errorf("differs (-want +got):\n%s", d)
			}
		})
	}
}
