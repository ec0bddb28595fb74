package validate

import (
	"encoding/json"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func TestBadValuesAreShownAsUpstreamShowsThem(t *testing.T) {
	tests := []struct {
		name  string
		value any
		want  string
	}{
		{"fields have their Go names, and absent ones are null", corev1.Taint{Key: "k", Value: "v", Effect: "NoSchedule"},
			`{"Key":"k","Value":"v","Effect":"NoSchedule","TimeAdded":null}`},
		{"numbers or percentages stay what they are", appsv1.DeploymentStrategy{Type: "X", RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: new(intstr.FromInt32(1))}},
			`{"Type":"X","RollingUpdate":{"MaxUnavailable":null,"MaxSurge":1}}`},
		{"an embedded object's fields are its own", &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "n"}},
			`{"name":"n","Target":{"Kind":"","Namespace":"","Name":"","UID":"","APIVersion":"","ResourceVersion":"","FieldPath":""}}`},
		{"types of the machinery keep their form", &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}},
			`{"matchLabels":{"a":"b"}}`},
		{"lists of nothing", []corev1.Taint(nil), `null`},
		{"text", "x", `"x"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := json.Marshal(Hub(tt.value))
			if err != nil || string(got) != tt.want {
				t.Errorf("got %s %v, want %s", got, err, tt.want)
			}
		})
	}
}
