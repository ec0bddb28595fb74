package registry

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/apis"
	"proa/internal/apis/core"
)

// A token of any text is refused, or is one that a server could have made.
func FuzzContinue(f *testing.F) {
	f.Add("")
	f.Add(continueToken{Version: "meta.k8s.io/v1", Revision: 7, Start: "ns/a\x00", Served: 3}.encode())
	f.Add(continueToken{Version: "meta.k8s.io/v1", Revision: 7, Start: "../../secrets/x"}.encode())
	f.Fuzz(func(t *testing.T, text string) {
		token, err := decodeContinue(text)
		if err != nil {
			return
		}
		if token.Revision < -1 || token.Revision == 0 || strings.Contains(token.Start, "..") && strings.Contains("/"+token.Start+"/", "/../") {
			t.Errorf("%q is taken for %+v", text, token)
		}
		again, err := decodeContinue(token.encode())
		if err != nil || again != token {
			t.Errorf("%+v is written as %+v, %v", token, again, err)
		}
		for _, namespace := range []string{"", "ns"} {
			key := token.after(&Request{View: apis.View{Resource: &core.Pods}, Namespace: namespace})
			if namespace != "" && key.Namespace != namespace {
				t.Errorf("%q leaves namespace %s for %s", text, namespace, key.Namespace)
			}
		}
	})
}

// Selectors of any text are refused or select something.
func FuzzSelector(f *testing.F) {
	f.Add("app in (a,b),!x", "metadata.name=a,spec.nodeName!=b")
	f.Add("((((", `metadata.name=\`)
	pod := core.Pods.New()
	f.Fuzz(func(t *testing.T, labels, fields string) {
		s, err := newSelector(&Request{View: apis.View{Resource: &core.Pods}}, &metav1.ListOptions{LabelSelector: labels, FieldSelector: fields})
		if err == nil && s != nil {
			s.matches(pod)
		}
	})
}
