package resourcequota

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
)

func run(t *testing.T, test func(w *controllertest.World)) {
	t.Helper()
	controllertest.Run(t, func(w *controllertest.World) {
		defer w.Start(func(c controllers.Config) []controllertest.Runner {
			return []controllertest.Runner{New(c, w.Catalogue)}
		})()
		test(w)
	})
}

func quotaOf(w *controllertest.World, hard ...string) {
	list := corev1.ResourceList{}
	for _, h := range hard {
		name, value, _ := strings.Cut(h, "=")
		list[corev1.ResourceName(name)] = resource.MustParse(value)
	}
	w.Create(&corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: corev1.ResourceQuotaSpec{Hard: list}})
	w.Settle()
}

func want(w *controllertest.World, used string) {
	w.T.Helper()
	status := controllertest.Get[*corev1.ResourceQuota](w, "q").Status
	var out []string
	for _, name := range slices.Sorted(maps.Keys(status.Used)) {
		q := status.Used[name]
		out = append(out, fmt.Sprintf("%s=%s", name, q.String()))
	}
	if got := strings.Join(out, " "); got != used {
		w.T.Errorf("used %q, want %q", got, used)
	}
}

func pod(w *controllertest.World, name, cpu string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "c", Image: "i", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}},
	}}}}
	w.Create(p)
	return p
}

func TestUsageFollowsWhatIsThere(t *testing.T) {
	run(t, func(w *controllertest.World) {
		p := pod(w, "a", "100m")
		pod(w, "b", "200m")
		for _, name := range []string{"x", "y"} {
			w.Create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}})
		}
		quotaOf(w, "pods=10", "requests.cpu=1", "configmaps=5", "count/secrets=3", "count/widgets.example.com=2")
		want(w, "configmaps=2 count/secrets=0 pods=2 requests.cpu=300m")
		if hard := controllertest.Get[*corev1.ResourceQuota](w, "q").Status.Hard; len(hard) != 5 {
			t.Errorf("hard %v", hard)
		}
		w.Report(p, corev1.PodSucceeded, false)
		want(w, "configmaps=2 count/secrets=0 pods=1 requests.cpu=200m")
		controllertest.Delete[*corev1.ConfigMap](w, "x")
		want(w, "configmaps=1 count/secrets=0 pods=1 requests.cpu=200m")
		controllertest.Delete[*corev1.Pod](w, "b")
		want(w, "configmaps=1 count/secrets=0 pods=0 requests.cpu=0")
		w.Writes()
		controllertest.Delete[*corev1.Pod](w, "a")
		time.Sleep(time.Hour)
		w.Settle()
		if got := w.Writes(); len(got) != 0 {
			t.Errorf("wrote %v while nothing changed", got)
		}
	})
}

func TestAChangedQuotaAndAForeignStatusAreCorrected(t *testing.T) {
	run(t, func(w *controllertest.World) {
		pod(w, "a", "100m")
		quotaOf(w, "pods=10")
		controllertest.Change(w, "q", func(q *corev1.ResourceQuota) {
			q.Spec.Hard = corev1.ResourceList{corev1.ResourceServices: resource.MustParse("1")}
		})
		want(w, "services=0")
		controllertest.ChangeStatus(w, "q", func(q *corev1.ResourceQuota) {
			q.Status.Used = corev1.ResourceList{corev1.ResourceServices: resource.MustParse("7")}
		})
		want(w, "services=0")
	})
}
