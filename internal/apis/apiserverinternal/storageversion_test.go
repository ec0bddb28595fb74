package apiserverinternal

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	"sigs.k8s.io/yaml"
)

// What upstream's server answers to the same statuses.
func TestStatusesThatAreRefused(t *testing.T) {
	tests := []struct {
		name, status string
		want         []string
	}{
		{"nobody has said anything", "{}", nil},
		{"servers agree", "{commonEncodingVersion: apps/v1, storageVersions: [{apiServerID: a, encodingVersion: apps/v1, decodableVersions: [apps/v1]}, {apiServerID: b, encodingVersion: apps/v1, decodableVersions: [apps/v1]}]}", nil},
		{"a version in common of no server", "{commonEncodingVersion: apps/v1}",
			[]string{`status.commonEncodingVersion: Invalid value: "apps/v1": should be nil if servers do not agree on the same encoding version, or if there is no server reporting the supported versions yet`}},
		{"the same server twice", "{commonEncodingVersion: v1, storageVersions: [{apiServerID: a, encodingVersion: v1, decodableVersions: [v1]}, {apiServerID: a, encodingVersion: v1, decodableVersions: [v1]}]}",
			[]string{`status.storageVersions[1].apiServerID: Duplicate value: "a"`}},
		{"a server serves what it cannot decode", "{commonEncodingVersion: apps/v1beta1, storageVersions: [{apiServerID: a, encodingVersion: apps/v1beta1, decodableVersions: [apps/v1beta1], servedVersions: [apps/v1]}]}",
			[]string{`status.storageVersions[0].servedVersions[0]: Invalid value: "apps/v1": individual served version : apps/v1 must be included in decodableVersions : [apps/v1beta1]`}},
		{"no version", "{commonEncodingVersion: '', storageVersions: [{apiServerID: a, decodableVersions: ['']}]}",
			[]string{
				`status.storageVersions[0].decodableVersions[0]: Invalid value: "": version part: must be non-empty`,
				`status.storageVersions[0].encodingVersion: Invalid value: "": version part: must be non-empty`,
			}},
		{"servers differ", "{commonEncodingVersion: v1, storageVersions: [{apiServerID: a, encodingVersion: v1, decodableVersions: [v1]}, {apiServerID: b, encodingVersion: v2, decodableVersions: [v2]}]}",
			[]string{`status.commonEncodingVersion: Invalid value: "v1": should be nil if servers do not agree on the same encoding version, or if there is no server reporting the supported versions yet`}},
		{"a condition twice", "{conditions: [{type: A, status: 'True', reason: r, message: m}, {type: A, status: 'True', reason: r, message: m}]}",
			[]string{`status[1].type: Invalid value: "A": the type of the condition is not unique, it also appears in conditions[0]`}},
		{"a condition without a reason", "{conditions: [{type: A, status: 'True'}]}",
			[]string{"status[0].message: Required value", "status[0].reason: Required value"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v := &apiserverinternalv1alpha1.StorageVersion{}
			if err := yaml.UnmarshalStrict([]byte(tt.status), &v.Status); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, e := range StorageVersions.Subresources[0].ValidateUpdate(t.Context(), v, v) {
				got = append(got, e.Error())
			}
			slices.Sort(got)
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("differs (-want +got):\n%s", d)
			}
		})
	}
}
