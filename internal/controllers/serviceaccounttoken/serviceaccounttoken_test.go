package serviceaccounttoken

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
)

func run(t *testing.T, test func(w *controllertest.World)) {
	t.Helper()
	controllertest.Run(t, func(w *controllertest.World) {
		issue := func(a *corev1.ServiceAccount, s *corev1.Secret) (string, error) { return a.Name + " by " + s.Name, nil }
		defer w.Start(func(c controllers.Config) []controllertest.Runner {
			return []controllertest.Runner{New(c, issue, []byte("CA"))}
		})()
		test(w)
	})
}

func secret(name string, annotations map[string]string) *corev1.Secret {
	annotations[corev1.ServiceAccountNameKey] = "robot"
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}, Type: corev1.SecretTypeServiceAccountToken}
}

func secrets(w *controllertest.World) (names []string) {
	for _, s := range controllertest.List[*corev1.Secret](w) {
		names = append(names, s.Name)
	}
	return names
}

func TestASecretIsFilled(t *testing.T) {
	run(t, func(w *controllertest.World) {
		w.Create(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}})
		w.Create(secret("s", map[string]string{}))
		w.Settle()
		s := controllertest.Get[*corev1.Secret](w, "s")
		account := controllertest.Get[*corev1.ServiceAccount](w, "robot")
		if string(s.Data["token"]) != "robot by s" || string(s.Data["ca.crt"]) != "CA" || string(s.Data["namespace"]) != "default" ||
			s.Annotations[corev1.ServiceAccountUIDKey] != string(account.UID) {
			t.Errorf("secret %+v", s)
		}
		if got := w.Writes(); got["update secrets"] != 1 || len(got) != 1 {
			t.Errorf("wrote %v", got)
		}
		controllertest.Change(w, "s", func(s *corev1.Secret) { delete(s.Data, "token") })
		if s := controllertest.Get[*corev1.Secret](w, "s"); string(s.Data["token"]) != "robot by s" {
			t.Error("a token that was removed is not written again")
		}
	})
}

func TestSecretsGoWithTheirAccount(t *testing.T) {
	run(t, func(w *controllertest.World) {
		w.Create(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}})
		w.Create(secret("s", map[string]string{}))
		w.Create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "plain"}})
		w.Create(secret("of-an-earlier-one", map[string]string{corev1.ServiceAccountUIDKey: "other"}))
		w.Settle()
		if got := secrets(w); len(got) != 2 {
			t.Errorf("secrets %v", got)
		}
		controllertest.Delete[*corev1.ServiceAccount](w, "robot")
		if got := secrets(w); len(got) != 1 || got[0] != "plain" {
			t.Errorf("secrets after the account %v", got)
		}
	})
}

func TestAnAccountForgetsSecretsThatAreGone(t *testing.T) {
	run(t, func(w *controllertest.World) {
		w.Create(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}, Secrets: []corev1.ObjectReference{{Name: "s"}, {Name: "plain"}}})
		w.Create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "plain"}})
		w.Create(secret("s", map[string]string{}))
		w.Settle()
		controllertest.Delete[*corev1.Secret](w, "s")
		if got := controllertest.Get[*corev1.ServiceAccount](w, "robot").Secrets; len(got) != 1 || got[0].Name != "plain" {
			t.Errorf("references %v", got)
		}
	})
}
