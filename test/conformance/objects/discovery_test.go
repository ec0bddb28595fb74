package objects

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/pkg/proatest"
)

// TestEveryGroupHasResources reads the group, every version and the resources of
// each, one document after the other as clients without aggregated discovery do.
func TestEveryGroupHasResources(t *testing.T) {
	t.Parallel()
	s := newServer(t, proatest.Options{RuntimeConfig: "api/all=true"})
	rest := s.Discovery().RESTClient()
	ctx := within(t)
	var groups metav1.APIGroupList
	if err := rest.Get().AbsPath("/apis").SetHeader("Accept", "application/json").Do(ctx).Into(&groups); err != nil {
		t.Fatal(err)
	}
	if len(groups.Groups) < 20 {
		t.Errorf("there are %d groups", len(groups.Groups))
	}
	for _, group := range groups.Groups {
		var alone metav1.APIGroup
		if err := rest.Get().AbsPath("/apis/" + group.Name).Do(ctx).Into(&alone); err != nil {
			t.Fatal(err)
		}
		if alone.Name != group.Name || !slices.Equal(alone.Versions, group.Versions) || alone.PreferredVersion != group.PreferredVersion {
			t.Errorf("/apis says %v, /apis/%s %v", group, group.Name, alone)
		}
		if !preferred(group) {
			t.Errorf("%s prefers %v, of %v", group.Name, group.PreferredVersion, group.Versions)
		}
		for _, version := range group.Versions {
			resources(t, s, group.Name, version)
		}
	}
}

// preferred is whether a group prefers a version that it has.
func preferred(group metav1.APIGroup) bool {
	return slices.ContainsFunc(group.Versions, func(v metav1.GroupVersionForDiscovery) bool {
		return v == group.PreferredVersion && v.GroupVersion == group.Name+"/"+v.Version && v.Version != ""
	})
}

// resources wants the resources of a version to be of that version, and each to
// be one that a client can use.
func resources(t *testing.T, s *server, group string, version metav1.GroupVersionForDiscovery) {
	t.Helper()
	var list metav1.APIResourceList
	if err := s.Discovery().RESTClient().Get().AbsPath("/apis/" + version.GroupVersion).Do(within(t)).Into(&list); err != nil {
		t.Fatal(err)
	}
	if list.GroupVersion != version.GroupVersion || !strings.HasPrefix(list.GroupVersion, group+"/") {
		t.Errorf("%s lists resources of %q", version.GroupVersion, list.GroupVersion)
	}
	if len(list.APIResources) == 0 {
		t.Errorf("%s has no resources", version.GroupVersion)
	}
	for _, r := range list.APIResources {
		if r.Name == "" || r.Kind == "" || len(r.Verbs) == 0 || !strings.Contains(r.Name, "/") && r.SingularName == "" {
			t.Errorf("%s has the resource %+v", version.GroupVersion, r)
		}
	}
}
