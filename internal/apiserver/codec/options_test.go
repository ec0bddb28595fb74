package codec

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/apiserver/negotiate"
)

func TestOptionsOfCustomResourcesAreReadInTheVersionThatClientsName(t *testing.T) {
	v1 := schema.GroupVersionKind{Version: "v1", Kind: "DeleteOptions"}
	own := schema.GroupVersionKind{Group: "example.com", Version: "v1beta1", Kind: "DeleteOptions"}
	tests := []struct {
		name, body string
		refused    bool
	}{
		{"none", `{"gracePeriodSeconds":7}`, false},
		{"v1", `{"kind":"DeleteOptions","apiVersion":"v1","gracePeriodSeconds":7}`, false},
		{"meta.k8s.io", `{"kind":"DeleteOptions","apiVersion":"meta.k8s.io/v1","gracePeriodSeconds":7}`, false},
		{"the resource's own", `{"kind":"DeleteOptions","apiVersion":"example.com/v1beta1","gracePeriodSeconds":7}`, false},
		{"another custom group's", `{"kind":"DeleteOptions","apiVersion":"example.org/v1","gracePeriodSeconds":7}`, true},
		{"another kind of its own group", `{"kind":"Widget","apiVersion":"example.com/v1beta1"}`, true},
		{"its own, of the wrong shape", `{"kind":"DeleteOptions","apiVersion":"example.com/v1beta1","gracePeriodSeconds":"x"}`, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var opts metav1.DeleteOptions
			err := DecodeOptions([]byte(tt.body), "application/json", v1, own, &opts, []negotiate.Media{negotiate.JSON})
			if tt.refused {
				if !apierrors.IsBadRequest(err) {
					t.Errorf("%v", err)
				}
				return
			}
			if err != nil || opts.GracePeriodSeconds == nil || *opts.GracePeriodSeconds != 7 {
				t.Errorf("%+v, %v", opts, err)
			}
		})
	}
}
