package legacytokencleaner

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
)

const period = 3 * 24 * time.Hour

func date(days int) string { return time.Now().UTC().AddDate(0, 0, days).Format(time.DateOnly) }

func TestUnusedTokensBecomeInvalidAndThenGo(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		w.Create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem}})
		w.Create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: trackingMap, Namespace: metav1.NamespaceSystem}, Data: map[string]string{trackingKey: date(0)}})
		token := func(name string) {
			w.Create(&corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{corev1.ServiceAccountNameKey: "app"}},
				Type:       corev1.SecretTypeServiceAccountToken,
			})
		}
		w.Create(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "app"}, Secrets: []corev1.ObjectReference{
			{Name: "unused"}, {Name: "mounted"}, {Name: "used"}, {Name: "unreadable"}, {Name: "young"},
		}})
		for _, name := range []string{"unused", "mounted", "used", "unreadable", "asked-for"} {
			token(name)
		}
		w.Create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.PodSpec{
			Containers:       []corev1.Container{{Name: "c", Image: "nginx"}},
			ImagePullSecrets: []corev1.LocalObjectReference{{Name: "mounted"}},
		}})
		defer w.Start(func(c controllers.Config) []controllertest.Runner { return []controllertest.Runner{New(c, period)} })()
		label := func(name, key, value string) {
			t.Helper()
			controllertest.Change(w, name, func(s *corev1.Secret) { metav1.SetMetaDataLabel(&s.ObjectMeta, key, value) })
		}
		invalid := func() (names string) {
			for _, s := range controllertest.List[*corev1.Secret](w) {
				if s.Labels[invalidSinceLabel] != "" {
					names += s.Name + " "
				}
			}
			return names
		}
		days := func(n int) {
			for range n {
				time.Sleep(24 * time.Hour)
				w.Settle()
			}
		}
		days(2)
		token("young")
		label("used", lastUsedLabel, date(0))
		label("unreadable", lastUsedLabel, "yesterday")
		if got := invalid(); got != "" {
			t.Errorf("invalid before the period is over: %s", got)
		}
		days(2)
		if got := invalid(); got != "unused " {
			t.Errorf("invalid after the period: %s", got)
		}
		days(3)
		if n := len(controllertest.List[*corev1.Secret](w)); n != 6 {
			t.Errorf("%d tokens are left before the second period is over", n)
		}
		days(1)
		left := ""
		for _, s := range controllertest.List[*corev1.Secret](w) {
			left += s.Name + " "
		}
		if left != "asked-for mounted unreadable used young " {
			t.Errorf("left: %s", left)
		}
	})
}

func TestNothingIsUnusedWhereUseIsNotNoted(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		w.Create(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "app"}, Secrets: []corev1.ObjectReference{{Name: "unused"}}})
		w.Create(&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "unused", Annotations: map[string]string{corev1.ServiceAccountNameKey: "app"}},
			Type:       corev1.SecretTypeServiceAccountToken,
		})
		defer w.Start(func(c controllers.Config) []controllertest.Runner { return []controllertest.Runner{New(c, period)} })()
		time.Sleep(2 * period)
		w.Settle()
		if s := controllertest.Get[*corev1.Secret](w, "unused"); s.Labels[invalidSinceLabel] != "" {
			t.Errorf("labels: %v", s.Labels)
		}
	})
}
