package apiserver

import (
	"net/http"
	"net/textproto"
	"net/url"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/apiserver/registry"
)

// FuzzQuery reads query parameters as the options of every verb: what cannot be
// read is the client's mistake.
func FuzzQuery(f *testing.F) {
	for _, q := range []string{
		"limit=1&continue=x&resourceVersion=0&resourceVersionMatch=Exact&sendInitialEvents=true", "watch=1&timeoutSeconds=5&allowWatchBookmarks=true", "labelSelector=a+in+(b)&fieldSelector=c%3Dd",
		"dryRun=All&dryRun=All&fieldManager=m&fieldValidation=Strict&force=true", "gracePeriodSeconds=-1&propagationPolicy=Orphan&orphanDependents=x&uid=a&resourceVersion=1",
		"limit=9999999999999999999999", "timeoutSeconds=1e9", "fieldSelector=%00%ff", "fieldSelector=metadata.name%3Da%5C", "force=&force=true", "a[b]=c&;&&=", "%zz=1", "includeObject=None",
	} {
		f.Add(q, "name")
	}
	f.Fuzz(func(t *testing.T, raw, name string) {
		query, _ := url.ParseQuery(raw) // what is not well formed is left out, as net/http does
		c := &call{query: query, req: &registry.Request{Name: name}}
		_, err := c.listOptions()
		errs := []error{err}
		errs = append(errs, decode(query, new(metav1.CreateOptions), func(q *url.Values, o *metav1.CreateOptions) error {
			return metav1.Convert_url_Values_To_v1_CreateOptions(q, o, nil)
		}), decode(query, new(metav1.UpdateOptions), func(q *url.Values, o *metav1.UpdateOptions) error {
			return metav1.Convert_url_Values_To_v1_UpdateOptions(q, o, nil)
		}), decode(query, new(metav1.PatchOptions), func(q *url.Values, o *metav1.PatchOptions) error {
			return metav1.Convert_url_Values_To_v1_PatchOptions(q, o, nil)
		}), decode(query, new(metav1.DeleteOptions), func(q *url.Values, o *metav1.DeleteOptions) error {
			return metav1.Convert_url_Values_To_v1_DeleteOptions(q, o, nil)
		}), decode(query, new(metav1.GetOptions), func(q *url.Values, o *metav1.GetOptions) error {
			return metav1.Convert_url_Values_To_v1_GetOptions(q, o, nil)
		}))
		for _, err := range errs {
			if err != nil && !apierrors.IsBadRequest(err) {
				t.Errorf("%q: %v", raw, err)
			}
		}
	})
}

// FuzzImpersonation reads headers: nobody is impersonated without a name, and what
// is asked for is all that is got.
func FuzzImpersonation(f *testing.F) {
	f.Add("jane", "devs", "1", "scopes", "few")
	f.Add("", "system:masters", "", "", "")
	f.Add("a", "", "", "%2f%zz", "\x00")
	f.Add("a", "b", "c", "UPPER%41", "")
	f.Fuzz(func(t *testing.T, name, group, uid, key, value string) {
		h := http.Header{"Impersonate-User": {name}, "Impersonate-Group": {group}, "Impersonate-Uid": {uid}}
		extra := textproto.CanonicalMIMEHeaderKey("Impersonate-Extra-" + key)
		h[extra] = []string{value}
		got, err := impersonated(h)
		if name == "" {
			if !apierrors.IsBadRequest(err) {
				t.Fatalf("nobody: %v, %v", got, err)
			}
			return
		}
		if err != nil || got.Name != name || got.UID != uid || len(got.Groups) != 1 || got.Groups[0] != group {
			t.Fatalf("%v, %v", got, err)
		}
		for _, values := range got.Extra {
			if len(values) != 1 || values[0] != value {
				t.Fatalf("%q", got.Extra)
			}
		}
		if len(got.Extra) > 1 {
			t.Fatalf("%q", got.Extra)
		}
	})
}
