package identity

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

// loseKey starts a server with Secrets that nothing can decrypt any more.
func loseKey(t *testing.T, names []string, flags ...string) *server {
	t.Helper()
	config := file(t, "encryption.yaml", encryptionHead+encrypt("secrets", box("one")))
	s := start(t, append(flags, "--encryption-provider-config", config)...)
	s.makeSecrets(t, names...)
	s.stop(t)
	replace(t, config, encryptionHead+encrypt("secrets", box("two")))
	s.run(t, append(flags, "--encryption-provider-config", config)...)
	return s
}

// A list names a hundred of them and says that there are more. Informers of the kind
// fail until the last is gone, and then go on by themselves. Each removal is on record.
func TestHundredsOfObjectsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	var names []string
	for i := range 103 {
		names = append(names, fmt.Sprintf("s%03d", i))
	}
	log := filepath.Join(t.TempDir(), "audit.log")
	s := loseKey(t, names, "--audit-policy-file", file(t, "audit.yaml", auditPolicy), "--audit-log-path", log)
	secrets := s.admin(t).CoreV1().Secrets("default")
	_, err := secrets.List(t.Context(), metav1.ListOptions{})
	causes := statusOf(t, err).Details.Causes
	if len(causes) != 101 || causes[99].Field != "/registry/secrets/default/s099" || causes[99].Type != metav1.CauseTypeUnexpectedServerResponse ||
		causes[100].Type != metav1.CauseTypeTooMany || causes[100].Message != "too many errors, the list is truncated" || !strings.HasSuffix(err.Error(), "(and 99 more)") {
		t.Fatalf("%d causes, the last two %+v; %v", len(causes), causes[max(0, len(causes)-2):], err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	factory := informers.NewSharedInformerFactoryWithOptions(s.admin(t), 0, informers.WithNamespace("default"))
	informer := factory.Core().V1().Secrets().Informer()
	refused := make(chan error, 1)
	if err := informer.SetWatchErrorHandler(func(_ *cache.Reflector, err error) {
		select {
		case refused <- err:
		default:
		}
	}); err != nil {
		t.Fatal(err)
	}
	factory.Start(ctx.Done())
	if err := <-refused; !strings.Contains(err.Error(), "failed to read one or more secrets from the storage") || informer.HasSynced() {
		t.Errorf("the informer is told %v; synced: %t", err, informer.HasSynced())
	}
	for _, name := range names {
		if err := secrets.Delete(t.Context(), name, unsafely); err != nil {
			t.Fatal(err)
		}
	}
	s.makeSecrets(t, "later")
	eventually(t, func() error {
		if _, seen, _ := informer.GetStore().GetByKey("default/later"); !seen || !informer.HasSynced() {
			return fmt.Errorf("the informer holds %v", informer.GetStore().ListKeys())
		}
		return nil
	})
	cancel()
	factory.Shutdown()
	for _, name := range []string{"s000", "s102"} {
		eventually(t, audited(t, log, `"verb":"delete"`, `"name":"`+name+`"`, `"apiserver.k8s.io/unsafe-delete-ignore-read-error":""`))
	}
	if err := secrets.Delete(t.Context(), "later", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, audited(t, log, `"verb":"delete"`, `"name":"later"`))
	if audited(t, log, `"name":"later"`, "unsafe-delete-ignore-read-error") == nil {
		t.Error("a deletion as usual is on record as an unsafe one")
	}
}

// Controllers that need no Secrets, and the scheduler, work all the same; those that
// do begin when all Secrets can be read.
func TestOneSecretThatCannotBeReadStopsNothingElse(t *testing.T) {
	t.Parallel()
	s := loseKey(t, []string{"lost"})
	client := s.admin(t)
	labels := map[string]string{"app": "web"}
	if _, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "new"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		_, account := client.CoreV1().ServiceAccounts("new").Get(t.Context(), "default", metav1.GetOptions{})
		_, ca := client.CoreV1().ConfigMaps("new").Get(t.Context(), "kube-root-ca.crt", metav1.GetOptions{})
		return errors.Join(account, ca)
	})
	if _, err := client.AppsV1().Deployments("new").Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](2), Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		pods, err := client.CoreV1().Pods("new").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(pods.Items) != 2 {
			return fmt.Errorf("%d pods, %w", len(pods.Items), err)
		}
		for _, p := range pods.Items {
			if len(p.Status.Conditions) == 0 || p.Status.Conditions[0].Reason != corev1.PodReasonUnschedulable {
				return fmt.Errorf("the scheduler says %v", p.Status.Conditions)
			}
		}
		return nil
	})
	text, err := os.ReadFile(filepath.Join(s.dir, "logs", "proa.log"))
	if err != nil || !strings.Contains(string(text), "failed to read one or more secrets") || !strings.Contains(string(text), "/registry/secrets/default/lost") {
		t.Errorf("the log does not name it: %v", err)
	}
	token := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "token", Annotations: map[string]string{corev1.ServiceAccountNameKey: "default"}}, Type: corev1.SecretTypeServiceAccountToken,
	}
	if _, err := client.CoreV1().Secrets("new").Create(t.Context(), token, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := client.CoreV1().Secrets("default").Delete(t.Context(), "lost", unsafely); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		got, err := client.CoreV1().Secrets("new").Get(t.Context(), "token", metav1.GetOptions{})
		if err == nil && len(got.Data[corev1.ServiceAccountTokenKey]) == 0 {
			err = errors.New("nobody has filled the Secret")
		}
		return err
	})
}
