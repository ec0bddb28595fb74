package core

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func TestResourcesOfAPodAsAWhole(t *testing.T) {
	const huge = "hugepages-2Mi"
	with := func(container, whole string) *corev1.Pod {
		return podWith(t, "containers: [{name: c, resources: {"+container+"}}], resources: {"+whole+"}", "")
	}
	windows := with("", "requests: {cpu: 1, x: 1}")
	windows.Spec.OS = &corev1.PodOS{Name: corev1.Windows}
	tests := []struct {
		name string
		pod  *corev1.Pod
		want []string // in upstream's order
	}{
		{"what its containers need", with("requests: {cpu: 1}, limits: {cpu: 2}", "requests: {cpu: 1}, limits: {cpu: 2}"), nil},
		{"less than its containers need", with("requests: {cpu: 1}, limits: {cpu: 2}", "requests: {cpu: 500m}, limits: {cpu: 1}"), []string{
			`r.requests[cpu]: Invalid value: "500m": must be greater than or equal to aggregate container requests of 1`,
			`r.containers[0][cpu].limits: Invalid value: "2": must be less than or equal to pod limits of 1`,
		}},
		{"a request below zero that no container makes", with("", "requests: {cpu: -1}"), []string{`r.requests[cpu]: Invalid value: "-1": must be greater than or equal to 0`}},
		{"huge pages alone", with("", "requests: {"+huge+": 2Mi}, limits: {"+huge+": 2Mi}"), []string{"r: Forbidden: HugePages require cpu or memory"}},
		{"huge pages without a limit, not whole", with("", "requests: {cpu: 1, "+huge+": 3Mi}"), []string{
			"r.limits: Required value: Limit must be set for non overcommitable resources",
			`r.requests[` + huge + `]: Invalid value: "3Mi": 3Mi is not positive integer multiple of ` + huge,
		}},
		{"huge pages below their limit, and a request above its own", with("", "requests: {cpu: 3, "+huge+": 2Mi}, limits: {cpu: 2, "+huge+": 4Mi}"), []string{
			`r.requests: Invalid value: "3": must be less than or equal to cpu limit of 2`,
			`r.requests: Invalid value: "2Mi": must be equal to ` + huge + ` limit of 4Mi`,
		}},
		{"fewer huge pages than its containers", with("requests: {cpu: 1, "+huge+": 4Mi}, limits: {"+huge+": 4Mi}", "requests: {cpu: 1, "+huge+": 2Mi}, limits: {"+huge+": 2Mi}"), []string{
			`r.requests[` + huge + `]: Invalid value: "2Mi": must be greater than or equal to aggregate container requests of 4Mi`,
			`r.limits[` + huge + `]: Invalid value: "2Mi": must be greater than or equal to aggregate container limits of 4Mi`,
			`r.containers[0][` + huge + `].limits: Invalid value: "4Mi": must be less than or equal to pod limits of 2Mi`,
		}},
		{"of other kinds", with("", "requests: {example.com/gpu: 1}, limits: {example.com/gpu: 1}"), []string{
			`r.limits[example.com/gpu]: Unsupported value: "example.com/gpu": supported values: "cpu", "hugepages-", "memory"`,
			`r.requests[example.com/gpu]: Unsupported value: "example.com/gpu": supported values: "cpu", "hugepages-", "memory"`,
		}},
		{"claims", with("", "requests: {cpu: 1}, claims: [{name: x}]"), []string{
			"r.claims: Forbidden: claims may not be set for Resources at pod-level",
			`r.claims[0]: Not found: "x": must be one of the names in pod.spec.resourceClaims which is empty`,
		}},
		{"on Windows", windows, []string{"r: Forbidden: may not be set for a windows pod"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if d := cmp.Diff(tt.want, messages(validatePodResources(&tt.pod.Spec, nil, field.NewPath("r")))); d != "" {
				t.Errorf("differs (-want +got):\n%s", d)
			}
		})
	}
}

func TestClaimsThatContainersUse(t *testing.T) {
	type uses = []corev1.ResourceClaim
	tests := []struct {
		name string
		used uses
		want []string
	}{
		{"each once", uses{{Name: "a"}, {Name: "b", Request: "r"}, {Name: "b", Request: "s"}}, nil},
		{"one twice", uses{{Name: "a"}, {Name: "a"}}, []string{`c[1]: Duplicate value: "a"`}},
		{"a request twice", uses{{Name: "a", Request: "r"}, {Name: "a", Request: "r"}}, []string{`c[1]: Duplicate value: "a/r"`}},
		{"a request of one that is used", uses{{Name: "a"}, {Name: "a", Request: "r"}}, []string{`c[1]: Duplicate value: "a"`}},
		{"one of which a request is used", uses{{Name: "a", Request: "r"}, {Name: "a"}}, []string{`c[1]: Duplicate value: "a"`}},
		{"one that is not there", uses{{Name: "z"}}, []string{`c[0]: Not found: "z": must be one of the names in pod.spec.resourceClaims: a, b`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if d := cmp.Diff(tt.want, messages(validateClaimNames(tt.used, sets.New("a", "b"), field.NewPath("c")))); d != "" {
				t.Errorf("differs (-want +got):\n%s", d)
			}
		})
	}
}
