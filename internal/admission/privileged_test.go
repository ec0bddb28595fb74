package admission

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"

	"proa/internal/apis"
)

func TestPrivilegedContainersAreRefusedWhereTheyAreNotAllowed(t *testing.T) {
	spec := func(privileged bool) corev1.PodSpec {
		return corev1.PodSpec{Containers: []corev1.Container{{SecurityContext: &corev1.SecurityContext{Privileged: ptr.To(privileged)}}}}
	}
	deployment := &appsv1.Deployment{}
	deployment.Spec.Template.Spec = spec(true)
	tests := []struct {
		name, kind string
		obj        apis.Object
		want       string
	}{
		{"a pod", "Pod", &corev1.Pod{Spec: spec(true)}, `Pod "a" is invalid: spec.containers[0].securityContext.privileged: Forbidden: disallowed by cluster policy`},
		{"a template", "Deployment", deployment, `Deployment "a" is invalid: spec.template.spec.containers[0].securityContext.privileged: Forbidden: disallowed by cluster policy`},
		{"a pod that is not privileged", "Pod", &corev1.Pod{Spec: spec(false)}, ""},
		{"what has no pods", "ConfigMap", &corev1.ConfigMap{}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := noPrivileged{}.Validate(t.Context(), &Attributes{Resource: &apis.Resource{Kind: tt.kind}, Name: "a", Object: tt.obj})
			if tt.want == "" && err != nil || tt.want != "" && (!apierrors.IsInvalid(err) || err.Error() != tt.want) {
				t.Errorf("%v, want %s", err, tt.want)
			}
		})
	}
}
