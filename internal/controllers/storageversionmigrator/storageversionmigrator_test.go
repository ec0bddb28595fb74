package storageversionmigrator_test

import (
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
	"proa/internal/controllers/storageversionmigrator"
)

func run(t *testing.T, test func(w *controllertest.World)) {
	t.Helper()
	controllertest.Run(t, func(w *controllertest.World) {
		defer w.Start(func(c controllers.Config) []controllertest.Runner {
			return []controllertest.Runner{storageversionmigrator.New(c, w.Catalogue)}
		})()
		test(w)
	})
}

func migrate(w *controllertest.World, group, resource string) {
	w.T.Helper()
	_, err := client.Of[*storagemigrationv1.StorageVersionMigration](w.API).Create(w.T.Context(), &storagemigrationv1.StorageVersionMigration{
		ObjectMeta: metav1.ObjectMeta{Name: "m"},
		Spec:       storagemigrationv1.StorageVersionMigrationSpec{Resource: metav1.GroupResource{Group: group, Resource: resource}},
	})
	if err != nil {
		w.T.Fatal(err)
	}
	w.Settle()
}

func conditions(w *controllertest.World) string {
	w.T.Helper()
	text := ""
	for _, c := range controllertest.List[*storagemigrationv1.StorageVersionMigration](w)[0].Status.Conditions {
		text += fmt.Sprintf("%s=%s %s %q; ", c.Type, c.Status, c.Reason, c.Message)
	}
	return text
}

const succeeded = `Running=False StorageVersionMigrationInProgress ""; Succeeded=True StorageVersionMigrationSucceeded ""; `

func TestEveryObjectIsWrittenAndNoneChanges(t *testing.T) {
	run(t, func(w *controllertest.World) {
		const many = 700 // more than one page
		versions := func() map[string]string {
			found := map[string]string{}
			for _, cm := range controllertest.List[*corev1.ConfigMap](w) {
				found[cm.Name] = cm.ResourceVersion
			}
			return found
		}
		for i := range many {
			w.Create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("c", i)}})
		}
		before := versions()
		migrate(w, "", "configmaps")
		if got := conditions(w); got != succeeded {
			t.Error(got)
		}
		if n := w.Writes()["patch configmaps"]; n != many {
			t.Errorf("%d objects written", n)
		}
		if after := versions(); !maps.Equal(after, before) {
			t.Errorf("objects changed: %v", after)
		}
		if rv := controllertest.List[*storagemigrationv1.StorageVersionMigration](w)[0].Status.ResourceVersion; rv == "" {
			t.Error("no resourceVersion")
		}
	})
}

func TestAMigrationIsTakenUpAgain(t *testing.T) {
	run(t, func(w *controllertest.World) {
		for i := range 5 {
			w.Create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("c", i)}})
		}
		w.FailWrites(func(n int) (before, after error) {
			if n >= 3 {
				return errors.New("the server is gone"), nil
			}
			return nil, nil
		})
		migrate(w, "", "configmaps")
		if got, want := conditions(w), `Running=True StorageVersionMigrationInProgress ""; `; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		w.FailWrites(nil)
		time.Sleep(time.Minute)
		w.Settle()
		if got := conditions(w); got != succeeded {
			t.Error(got)
		}
	})
}

func TestMigrationsThatFail(t *testing.T) {
	for _, tt := range []struct{ name, group, resource, message string }{
		{"of no resource", "example.com", "none", "resource does not exist in discovery"},
		{"of what is not stored", "authorization.k8s.io", "subjectaccessreviews", `resource "authorization.k8s.io/v1, Resource=subjectaccessreviews" does not support discovery operations: [update patch list]`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			run(t, func(w *controllertest.World) {
				migrate(w, tt.group, tt.resource)
				time.Sleep(time.Minute) // an unknown resource may still appear
				w.Settle()
				if got, want := conditions(w), fmt.Sprintf("Failed=True StorageVersionMigrationFailed %q; ", tt.message); got != want {
					t.Errorf("got %s, want %s", got, want)
				}
			})
		})
	}
}

func TestObjectsThatChangeOrGoDuringAMigrationNeedNoMore(t *testing.T) {
	run(t, func(w *controllertest.World) {
		maps := client.Of[*corev1.ConfigMap](w.API)
		for _, name := range []string{"a", "b", "c", "d"} {
			w.Create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}})
		}
		meanwhile := ""
		w.FailWrites(func(n int) (before, after error) {
			if n != 1 { // 0 says that the migration runs, 1 is the first object's
				return nil, nil
			}
			b := controllertest.Get[*corev1.ConfigMap](w, "b").DeepCopy()
			b.Data = map[string]string{"changed": "meanwhile"}
			b, err := maps.Update(w.T.Context(), b)
			if err == nil {
				meanwhile = b.ResourceVersion
				_, err = maps.Delete(w.T.Context(), controllertest.Namespace, "c", metav1.DeleteOptions{})
			}
			return err, nil
		})
		migrate(w, "", "configmaps")
		if got := conditions(w); got != succeeded {
			t.Errorf("conditions: %s", got)
		}
		if b := controllertest.Get[*corev1.ConfigMap](w, "b"); b.ResourceVersion != meanwhile || b.Data["changed"] != "meanwhile" {
			t.Errorf("the object that changed: %+v", b)
		}
		if n := len(controllertest.List[*corev1.ConfigMap](w)); n != 3 {
			t.Errorf("%d objects: one that went came back", n)
		}
		if n := w.Writes()["patch configmaps"]; n != 2 {
			t.Errorf("%d objects written, want the first and the last", n)
		}
	})
}
