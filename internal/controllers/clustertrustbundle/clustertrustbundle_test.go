package clustertrustbundle

import (
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/auth/pki"
	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
)

func authority(t *testing.T) string {
	t.Helper()
	a, err := pki.InMemory(nil)
	if err != nil {
		t.Fatal(err)
	}
	return string(a.CAPEM())
}

func TestTheServersAuthorityIsTheSignersOnlyBundle(t *testing.T) {
	ca, old := authority(t), authority(t)
	controllertest.Run(t, func(w *controllertest.World) {
		bundle := func(name, signer string) {
			w.Create(&certificatesv1.ClusterTrustBundle{
				ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: certificatesv1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: old},
			})
		}
		bundle("kubernetes.io:kube-apiserver-serving:of-before", Signer)
		bundle("example.com:other:kept", "example.com/other")
		bundle("kept", "")
		defer w.Start(func(c controllers.Config) []controllertest.Runner { return []controllertest.Runner{New(c, []byte(ca))} })()
		published := func() string {
			t.Helper()
			w.Settle()
			list := controllertest.List[*certificatesv1.ClusterTrustBundle](w)
			if len(list) != 3 || list[0].Name != "example.com:other:kept" || list[1].Name != "kept" {
				t.Fatalf("%d bundles: %v", len(list), list)
			}
			if b := list[2]; b.Spec.SignerName != Signer || b.Spec.TrustBundle != ca {
				t.Fatalf("published: %+v", b)
			}
			return list[2].Name
		}
		name := published()
		if digest, ok := strings.CutPrefix(name, "kubernetes.io:kube-apiserver-serving:"); !ok || len(digest) != 24 {
			t.Errorf("named %s", name)
		}
		controllertest.Change(w, name, func(b *certificatesv1.ClusterTrustBundle) { b.Spec.TrustBundle = old })
		published()
		controllertest.Delete[*certificatesv1.ClusterTrustBundle](w, name)
		published()
		bundle("kubernetes.io:kube-apiserver-serving:foreign", Signer)
		published()
	})
}
