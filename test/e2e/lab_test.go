package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// settle is how long a test waits for something that takes a few seconds on a
// machine with nothing else to do.
const settle = 90 * time.Second

// clusterConfig is how client-go reaches the shared cluster.
var clusterConfig = sync.OnceValue(func() *rest.Config {
	config, err := clientcmd.BuildConfigFromFlags("", shared.kubeconfig())
	if err != nil {
		panic(err)
	}
	config.QPS = -1
	return config
})

// clients are stock clients of the shared cluster.
var clients = sync.OnceValue(func() *kubernetes.Clientset {
	return kubernetes.NewForConfigOrDie(clusterConfig())
})

// lab is a namespace of the shared cluster that belongs to one test, which runs
// beside others.
type lab struct {
	*testing.T
	ns string
}

func newLab(t *testing.T) *lab {
	t.Helper()
	t.Parallel()
	made, err := clients().CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "lab-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{T: t, ns: made.Name}
	t.Cleanup(func() {
		if t.Failed() {
			out, _, _ := shared.tryKubectl("", "get", "all,endpointslices,pvc,events", "-n", l.ns, "-o", "wide")
			t.Logf("state of namespace %s:\n%s\nproa.log:\n%s", l.ns, out, shared.logAbout(l.ns))
		}
		err := clients().CoreV1().Namespaces().Delete(context.Background(), l.ns, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("delete namespace %s: %v", l.ns, err)
		}
	})
	return l
}

// apply creates or changes what a manifest says.
func (l *lab) apply(manifest string) {
	l.Helper()
	shared.apply(l.T, manifest, "-n", l.ns)
}

// kubectl runs kubectl in the namespace; it must succeed.
func (l *lab) kubectl(verb string, args ...string) string {
	l.Helper()
	return shared.kubectl(l.T, append([]string{verb, "-n", l.ns}, args...)...)
}

// tryKubectl runs kubectl in the namespace and returns all it printed.
func (l *lab) tryKubectl(verb string, args ...string) (string, error) {
	out, stderr, err := shared.tryKubectl("", append([]string{verb, "-n", l.ns}, args...)...)
	return out + stderr, err
}

// podManifest is a pod whose spec is written in YAML, indented by two spaces. It ends
// at once when it is deleted, unless the spec says otherwise.
func podManifest(name, spec string) string {
	if !strings.Contains(spec, "terminationGracePeriodSeconds") {
		spec = "  terminationGracePeriodSeconds: 1\n" + strings.TrimPrefix(spec, "\n")
	}
	return "---\napiVersion: v1\nkind: Pod\nmetadata: {name: " + name + ", labels: {app: " + name + "}}\nspec:\n" + spec + "\n"
}

// busybox is a container of the busybox image that runs a script.
func busybox(name, script string) string {
	return fmt.Sprintf("{name: %s, image: 'busybox:1.35', command: [sh, -c, %q]}", name, script)
}

func (l *lab) pod(name string) *corev1.Pod {
	l.Helper()
	pod, err := clients().CoreV1().Pods(l.ns).Get(l.Context(), name, metav1.GetOptions{})
	if err != nil {
		l.Fatal(err)
	}
	return pod
}

// await returns the pod once it is there and as wanted.
func (l *lab) await(name, what string, is func(*corev1.Pod) bool) *corev1.Pod {
	l.Helper()
	deadline := time.Now().Add(settle)
	for {
		pod, err := clients().CoreV1().Pods(l.ns).Get(l.Context(), name, metav1.GetOptions{})
		if err == nil && is(pod) {
			return pod
		}
		if err != nil && !apierrors.IsNotFound(err) {
			l.Fatal(err)
		}
		if time.Now().After(deadline) {
			status, _ := json.MarshalIndent(pod.Status, "", " ")
			l.Fatalf("pod %s is not %s within %s:\n%s", name, what, settle, status)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (l *lab) ready(name string) *corev1.Pod {
	l.Helper()
	return l.await(name, "ready", isReady)
}

func isReady(pod *corev1.Pod) bool { return conditionIs(pod, corev1.PodReady, corev1.ConditionTrue) }

func conditionIs(pod *corev1.Pod, kind corev1.PodConditionType, status corev1.ConditionStatus) bool {
	c := podCondition(pod, kind)
	return c != nil && c.Status == status
}

func podCondition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == kind {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// ended waits for the pod's last phase.
func (l *lab) ended(name string, phase corev1.PodPhase) *corev1.Pod {
	l.Helper()
	pod := l.await(name, "ended", func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	})
	if pod.Status.Phase != phase {
		l.Fatalf("pod %s ended %s, want %s: %s\n%s", name, pod.Status.Phase, phase, pod.Status.Message, l.logs(name, ""))
	}
	return pod
}

// gone waits until the API has no such pod.
func (l *lab) gone(name string) {
	l.Helper()
	eventually(l.T, settle, func() error {
		_, err := clients().CoreV1().Pods(l.ns).Get(l.Context(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("pod %s is still there (%v)", name, err)
	})
}

// status of a container, init and ephemeral ones included; an empty one before
// the node has said anything.
func status(pod *corev1.Pod, container string) corev1.ContainerStatus {
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses} {
		for _, s := range list {
			if s.Name == container {
				return s
			}
		}
	}
	return corev1.ContainerStatus{}
}

// waiting waits until a container waits for this reason, and returns its message.
func (l *lab) waiting(name, container, reason string) string {
	l.Helper()
	pod := l.await(name, "waiting: "+reason, func(p *corev1.Pod) bool {
		w := status(p, container).State.Waiting
		return w != nil && w.Reason == reason
	})
	return status(pod, container).State.Waiting.Message
}

// logs of a container, or of the only one.
func (l *lab) logs(name, container string) string {
	l.Helper()
	stream, err := clients().CoreV1().Pods(l.ns).GetLogs(name, &corev1.PodLogOptions{Container: container}).Stream(l.Context())
	if err != nil {
		return err.Error()
	}
	defer stream.Close()
	data, err := io.ReadAll(stream)
	if err != nil {
		l.Fatal(err)
	}
	return string(data)
}

// exec runs a command in the pod's default container; it must succeed.
func (l *lab) exec(name string, command ...string) string {
	l.Helper()
	return l.kubectl("exec", append([]string{name, "--"}, command...)...)
}

// event waits for an event about an object.
func (l *lab) event(object, reason, message string) corev1.Event {
	l.Helper()
	var found corev1.Event
	eventually(l.T, settle, func() error {
		list, err := clients().CoreV1().Events(l.ns).List(l.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + object})
		if err != nil {
			return err
		}
		seen := ""
		for _, e := range list.Items {
			if e.Reason == reason && strings.Contains(e.Message, message) {
				found = e
				return nil
			}
			seen += "\n" + e.Reason + ": " + e.Message
		}
		return fmt.Errorf("no event %s %q about %s, only%s", reason, message, object, seen)
	})
	return found
}

// events of a reason about an object so far.
func (l *lab) events(object, reason string) []corev1.Event {
	l.Helper()
	list, err := clients().CoreV1().Events(l.ns).List(l.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + object + ",reason=" + reason})
	if err != nil {
		l.Fatal(err)
	}
	return list.Items
}

// contains reports every wanted part that out lacks.
func (l *lab) contains(out string, want ...string) {
	l.Helper()
	for _, w := range want {
		if !strings.Contains(out, w) {
			l.Errorf("no %q in\n%s", w, out)
		}
	}
}

// lines reports every wanted line that out lacks.
func (l *lab) lines(out string, want ...string) {
	l.Helper()
	for _, w := range want {
		if !strings.Contains("\n"+out+"\n", "\n"+w+"\n") {
			l.Errorf("no line %q in\n%s", w, out)
		}
	}
}

// is compares two strings.
func (l *lab) is(what, got, want string) {
	l.Helper()
	if got != want {
		l.Errorf("%s is %q, want %q", what, got, want)
	}
}
