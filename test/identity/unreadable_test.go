package identity

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
)

// unsafely is how an administrator deletes what cannot be read.
var unsafely = metav1.DeleteOptions{IgnoreStoreReadErrorWithClusterBreakingPotential: ptr.To(true)}

// statusOf is what an error says.
func statusOf(t *testing.T, err error) metav1.Status {
	t.Helper()
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		t.Fatalf("no status: %v", err)
	}
	return status.Status()
}

// A key is lost: the server starts all the same and names what it cannot read, and
// who may can take it away, which nobody can by mistake (KEP-3926).
func TestObjectsThatCannotBeReadCanBeDeleted(t *testing.T) {
	t.Parallel()
	one := encryptionHead + encrypt("secrets", box("one"))
	config := file(t, "encryption.yaml", one)
	flags := []string{"--encryption-provider-config", config, "--encryption-provider-config-automatic-reload"}
	s := start(t, flags...)
	s.makeSecrets(t, "a", "b")
	kept := s.secret(t, "a")
	kept.Finalizers = []string{"example.com/keep"}
	if _, err := s.admin(t).CoreV1().Secrets("default").Update(t.Context(), kept, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.stop(t)
	two := encryptionHead + encrypt("secrets", box("two"))
	replace(t, config, two)
	s.run(t, flags...)
	secrets := s.admin(t).CoreV1().Secrets("default")
	s.makeSecrets(t, "healthy")

	_, err := secrets.List(t.Context(), metav1.ListOptions{})
	status := statusOf(t, err)
	var named []string
	for _, cause := range status.Details.Causes {
		named = append(named, string(cause.Type)+" "+cause.Field)
	}
	if status.Reason != metav1.StatusReasonStoreReadError || status.Code != 500 || !slices.Equal(named, []string{
		"UnexpectedServerResponse /registry/secrets/default/a", "UnexpectedServerResponse /registry/secrets/default/b",
	}) || !strings.HasPrefix(status.Message, "failed to read one or more secrets from the storage: StorageError: corrupt object, Code: 7, Key: /registry/secrets/default/a") ||
		!strings.HasSuffix(status.Message, "(and 1 more)") {
		t.Errorf("a list says %+v", status)
	}
	if _, err := secrets.Watch(t.Context(), metav1.ListOptions{}); statusOf(t, err).Reason != metav1.StatusReasonStoreReadError {
		t.Errorf("a watch from the start: %v", err)
	}
	if _, err := s.admin(t).CoreV1().Secrets("kube-system").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("another namespace cannot be listed: %v", err)
	}
	for verb, do := range map[string]func() error{
		"get":    func() error { _, err := secrets.Get(t.Context(), "a", metav1.GetOptions{}); return err },
		"update": func() error { _, err := secrets.Update(t.Context(), kept, metav1.UpdateOptions{}); return err },
		"delete": func() error { return secrets.Delete(t.Context(), "a", metav1.DeleteOptions{}) },
	} {
		if status := statusOf(t, do()); status.Code != 500 || !strings.Contains(status.Message, "data from the storage is not transformable") {
			t.Errorf("%s: %+v", verb, status)
		}
	}
	if _, err := secrets.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("its name is taken: %v", err)
	}

	s.allow(t, "eve", rbacv1.PolicyRule{Verbs: []string{"delete"}, APIGroups: []string{""}, Resources: []string{"secrets"}})
	eve, err := s.client("", "eve")
	if err != nil {
		t.Fatal(err)
	}
	if err := eve.CoreV1().Secrets("default").Delete(t.Context(), "a", unsafely); !apierrors.IsForbidden(err) ||
		!strings.Contains(err.Error(), `not permitted to do "unsafe-delete-ignore-read-errors"`) {
		t.Errorf("who may only delete is told %v", err)
	}
	for name, opts := range map[string]metav1.DeleteOptions{
		"gracePeriodSeconds": {GracePeriodSeconds: ptr.To[int64](0)}, "orphanDependents": {OrphanDependents: ptr.To(true)},
		"preconditions": {Preconditions: &metav1.Preconditions{}}, "propagationPolicy": {PropagationPolicy: ptr.To(metav1.DeletePropagationForeground)},
	} {
		opts.IgnoreStoreReadErrorWithClusterBreakingPotential = ptr.To(true)
		if err := secrets.Delete(t.Context(), "a", opts); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), name) {
			t.Errorf("together with %s: %v", name, err)
		}
	}
	if err := secrets.DeleteCollection(t.Context(), unsafely, metav1.ListOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("a collection: %v", err)
	}
	if err := secrets.Delete(t.Context(), "healthy", unsafely); !apierrors.IsConflict(err) ||
		!strings.Contains(err.Error(), "unsafe deletion is not allowed because the object is decodable from storage") {
		t.Errorf("a healthy object: %v", err)
	}
	if err := secrets.Delete(t.Context(), "nobody", unsafely); !apierrors.IsNotFound(err) {
		t.Errorf("no object: %v", err)
	}

	earlier, err := secrets.Watch(t.Context(), metav1.ListOptions{ResourceVersion: s.secret(t, "healthy").ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer earlier.Stop()
	if err := secrets.Delete(t.Context(), "a", unsafely); err != nil {
		t.Fatal(err)
	}
	if _, err := secrets.Get(t.Context(), "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("it is still there: %v", err)
	}
	if e := <-earlier.ResultChan(); e.Type != watch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(e.Object)) {
		t.Errorf("a watch of before goes on with %v", e)
	}

	replace(t, config, encryptionHead+encrypt("secrets", box("two"), box("one")))
	eventually(t, func() error { _, err := secrets.List(t.Context(), metav1.ListOptions{}); return err })
	if got := s.secret(t, "b"); string(got.Data["k"]) != plainText {
		t.Error("what can be read again is not what it was")
	}
	s.stop(t)
	replace(t, config, two)
	s.run(t, flags...)
	secrets = s.admin(t).CoreV1().Secrets("default")
	if err := secrets.Delete(t.Context(), "b", unsafely); err != nil {
		t.Fatal(err)
	}
	s.stop(t)
	s.run(t, flags...)
	if list, err := s.admin(t).CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 1 {
		t.Errorf("after all that: %v, %v", list, err)
	}
}

// Where the gate is off the option does nothing.
func TestUnsafeDeletionCanBeSwitchedOff(t *testing.T) {
	t.Parallel()
	config := file(t, "encryption.yaml", encryptionHead+encrypt("secrets", box("one")))
	s := &server{dir: filepath.Join(t.TempDir(), "data"), port: freePort(t)}
	t.Cleanup(func() { s.stop(t) })
	s.run(t, "--encryption-provider-config", config, "--feature-gates", "AllowUnsafeMalformedObjectDeletion=false")
	s.makeSecrets(t, "a")
	if err := s.admin(t).CoreV1().Secrets("default").Delete(t.Context(), "a", unsafely); err != nil {
		t.Errorf("a healthy object is not deleted: %v", err)
	}
}

// allow gives a user rights everywhere.
func (s *server) allow(t *testing.T, name string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	rbac := s.admin(t).RbacV1()
	_, roleErr := rbac.ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}, metav1.CreateOptions{})
	_, err := rbac.ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: name}},
	}, metav1.CreateOptions{})
	if err := errors.Join(roleErr, err); err != nil {
		t.Fatal(err)
	}
}
