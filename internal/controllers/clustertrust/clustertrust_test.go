package clustertrust

import (
	"encoding/pem"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/auth/pki"
	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
)

func authority(t *testing.T) []byte {
	t.Helper()
	a, err := pki.LoadOrCreate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.FrontProxy.Cert.Raw})
}

func TestNewAuthoritiesStandBesideTheOldOnes(t *testing.T) {
	ca, proxyCA, newCA, newProxyCA := authority(t), authority(t), authority(t), authority(t)
	controllertest.Run(t, func(w *controllertest.World) {
		w.Create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem}})
		var c *Controller
		defer w.Start(func(config controllers.Config) []controllertest.Runner {
			c = New(config, Trust{ClientCA: ca, FrontProxyCA: proxyCA})
			return []controllertest.Runner{c}
		})()
		published := func() (clients, proxies string) {
			t.Helper()
			w.Settle()
			cm, err := client.Of[*corev1.ConfigMap](w.API).Get(w.T.Context(), metav1.NamespaceSystem, configMapName)
			if err != nil {
				t.Fatal(err)
			}
			return cm.Data["client-ca-file"], cm.Data["requestheader-client-ca-file"]
		}
		c.Renew(newCA, nil)
		if clients, proxies := published(); clients != string(ca)+string(newCA) || proxies != string(proxyCA) {
			t.Errorf("clients' authorities %s, proxies' %s", clients, proxies)
		}
		c.Renew(nil, newProxyCA)
		if clients, proxies := published(); clients != string(ca)+string(newCA) || proxies != string(proxyCA)+string(newProxyCA) {
			t.Errorf("clients' authorities %s, proxies' %s", clients, proxies)
		}
	})
}

func TestTrustIsPublishedAndRestored(t *testing.T) {
	ca, proxyCA, other := authority(t), authority(t), authority(t)
	controllertest.Run(t, func(w *controllertest.World) {
		w.Create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem}})
		defer w.Start(func(c controllers.Config) []controllertest.Runner {
			return []controllertest.Runner{New(c, Trust{ClientCA: ca, FrontProxyCA: proxyCA, FrontProxyNames: []string{"front-proxy-client"}})}
		})()
		configMaps := client.Of[*corev1.ConfigMap](w.API)
		get := func() *corev1.ConfigMap {
			t.Helper()
			w.Settle()
			cm, err := configMaps.Get(w.T.Context(), metav1.NamespaceSystem, configMapName)
			if err != nil {
				t.Fatal(err)
			}
			return cm.DeepCopy()
		}
		want := map[string]string{
			"client-ca-file": string(ca), "requestheader-client-ca-file": string(proxyCA),
			"requestheader-allowed-names": `["front-proxy-client"]`, "requestheader-extra-headers-prefix": `["X-Remote-Extra-"]`,
			"requestheader-group-headers": `["X-Remote-Group"]`, "requestheader-uid-headers": `["X-Remote-Uid"]`, "requestheader-username-headers": `["X-Remote-User"]`,
		}
		check := func(when string, cm *corev1.ConfigMap) {
			t.Helper()
			for key, value := range want {
				if cm.Data[key] != value {
					t.Errorf("%s: %s is %q", when, key, cm.Data[key])
				}
			}
		}
		check("at first", get())
		cm := get()
		cm.Data = map[string]string{"client-ca-file": string(other), "requestheader-allowed-names": "nonsense"}
		if _, err := configMaps.Update(w.T.Context(), cm); err != nil {
			t.Fatal(err)
		}
		want["client-ca-file"] = string(other) + string(ca)
		check("beside another server's authority", get())
		if _, err := configMaps.Delete(w.T.Context(), metav1.NamespaceSystem, configMapName, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		want["client-ca-file"] = string(ca)
		check("after a deletion", get())
		if n := strings.Count(get().Data["client-ca-file"], "BEGIN"); n != 1 {
			t.Errorf("%d certificates", n)
		}
	})
}
