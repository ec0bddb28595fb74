package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Pods that take more of the node's disk than they may are ended (KEP-361).
func TestPodsThatExceedTheirStorageAreEvicted(t *testing.T) {
	l := newLab(t)
	fill := func(name, where string) string {
		return busybox(name, "dd if=/dev/zero of="+where+" bs=1M count=20; sleep 3600")
	}
	limited := func(container, limit string) string {
		return strings.TrimSuffix(container, "}") + ", resources: {limits: {ephemeral-storage: " + limit + "}}}"
	}
	mounted := func(container string) string {
		return strings.TrimSuffix(container, "}") + ", volumeMounts: [{name: v, mountPath: /v}]}"
	}
	const scratch = "  volumes: [{name: v, emptyDir: {%s}}]\n"
	l.apply(podManifest("container", "  containers: ["+limited(fill("c", "/f"), "10Mi")+", "+limited(busybox("d", "sleep 3600"), "1Gi")+"]") +
		podManifest("logs", "  containers: ["+limited(busybox("c", "dd if=/dev/zero bs=1M count=6 | tr '\\\\0' x | fold -w 100; sleep 3600"), "4Mi")+", "+limited(busybox("d", "sleep 3600"), "1Gi")+"]") +
		podManifest("whole", fmt.Sprintf(scratch, "")+"  containers: ["+limited(mounted(fill("c", "/v/f")), "10Mi")+"]") +
		podManifest("volume", fmt.Sprintf(scratch, "sizeLimit: 10Mi")+"  containers: ["+mounted(fill("c", "/v/f"))+"]") +
		podManifest("within", fmt.Sprintf(scratch, "sizeLimit: 100Mi")+"  containers: ["+limited(mounted(fill("c", "/v/f")), "100Mi")+"]"))
	for name, message := range map[string]string{
		"container": `Container c exceeded its local ephemeral storage limit "10Mi". `,
		"logs":      `Container c exceeded its local ephemeral storage limit "4Mi". `,
		"whole":     "Pod ephemeral local storage usage exceeds the total limit of containers 10Mi. ",
		"volume":    `Usage of EmptyDir volume "v" exceeds the limit "10Mi". `,
	} {
		p := l.await(name, "evicted", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
		l.is("reason of "+name, p.Status.Reason, "Evicted")
		l.is("message of "+name, p.Status.Message, message)
		if status(p, "c").State.Terminated == nil {
			t.Errorf("%s: the container has not ended: %+v", name, status(p, "c"))
		}
		if c := podCondition(p, corev1.DisruptionTarget); c != nil {
			t.Errorf("%s: %+v, though it is the pod's own fault", name, c)
		}
		l.event(name, "Evicted", message)
	}
	if p := l.pod("within"); !isReady(p) {
		t.Errorf("within its limits: %+v", p.Status)
	}
}

// evicting is a cluster of its own, in a directory, whose node is told when to evict pods.
func evicting(t *testing.T, dir, configuration string) *cluster {
	t.Helper()
	c := &cluster{dir: filepath.Join(dir, "evicting"), port: freePort(), kubeletPort: freePort()}
	file := filepath.Join(t.TempDir(), "kubelet.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"+configuration), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			c.printLog()
		}
		if out, err := c.proa("down", "--delete"); err != nil {
			t.Errorf("proa down --delete: %v\n%s", err, out)
		}
	})
	if out, err := c.proa("up", "--detach", "--port", fmt.Sprint(c.port), "--kubelet-port", fmt.Sprint(c.kubeletPort), "--kubelet-config", file); err != nil {
		t.Fatalf("proa up: %v\n%s", err, out)
	}
	c.load(t, "busybox")
	return c
}

func (c *cluster) load(t *testing.T, image string) {
	t.Helper()
	if out, err := c.proa("image", "load", imageFile(image)); err != nil {
		t.Fatalf("load %s: %v\n%s", image, err, out)
	}
}

func (c *cluster) object(t *testing.T, into any, args ...string) error {
	t.Helper()
	out, stderr, err := c.tryKubectl("", append([]string{"get", "-o", "json"}, args...)...)
	if err != nil {
		return fmt.Errorf("%w: %s", err, stderr)
	}
	return json.Unmarshal([]byte(out), into)
}

// memoryOf this machine.
func memoryOf(t *testing.T) resource.Quantity {
	t.Helper()
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	q, err := resource.ParseQuantity(strings.Fields(string(text))[1] + "Ki")
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// A node that is short of memory says so, takes no pods that have asked for none, and
// ends others. A Job does not count what the node ended (KEP-3329).
func TestANodeShortOfMemoryEvictsPods(t *testing.T) {
	t.Parallel()
	total := memoryOf(t)
	c := evicting(t, t.TempDir(), fmt.Sprintf("evictionHard: {memory.available: 1Mi}\nevictionSoft: {memory.available: %q}\nevictionSoftGracePeriod: {memory.available: 30s}\nevictionMaxPodGracePeriod: 1\n", total.String()))
	var nodes corev1.NodeList
	eventually(t, settle, func() error {
		if err := c.object(t, &nodes, "nodes"); err != nil {
			return err
		}
		for _, cond := range nodes.Items[0].Status.Conditions {
			if cond.Type == corev1.NodeMemoryPressure && cond.Status == corev1.ConditionTrue {
				if cond.Reason != "KubeletHasInsufficientMemory" || cond.Message != "kubelet has insufficient memory available" {
					return fmt.Errorf("condition %+v", cond)
				}
				return nil
			}
		}
		return fmt.Errorf("no memory pressure: %+v", nodes.Items[0].Status.Conditions)
	})
	if q := nodes.Items[0].Status.Allocatable[corev1.ResourceMemory]; q.Value() < total.Value()/2 {
		t.Errorf("a soft threshold is kept from pods: %s left", q.String())
	}
	asks := func(container string) string {
		return strings.TrimSuffix(container, "}") + ", resources: {requests: {memory: 1Ki}}}"
	}
	job := "---\napiVersion: batch/v1\nkind: Job\nmetadata: {name: work}\nspec:\n  backoffLimit: 0\n" +
		"  podFailurePolicy: {rules: [{action: FailJob, onExitCodes: {containerName: c, operator: In, values: [42]}}, {action: Ignore, onPodConditions: [{type: DisruptionTarget}]}]}\n" +
		"  template:\n    spec: {restartPolicy: Never, terminationGracePeriodSeconds: 1, tolerations: [{key: node.kubernetes.io/memory-pressure, operator: Exists}], containers: [" + asks(busybox("c", "sleep 3600")) + "]}\n"
	c.apply(t, podManifest("idle", "  nodeName: "+nodes.Items[0].Name+"\n  containers: ["+busybox("c", "sleep 3600")+"]")+
		podManifest("vital", "  priorityClassName: system-node-critical\n  tolerations: [{key: node.kubernetes.io/memory-pressure, operator: Exists}]\n  containers: ["+busybox("c", "sleep 3600")+"]"), "-n", "kube-system")
	c.apply(t, job)

	var idle corev1.Pod
	eventually(t, settle, func() error {
		if err := c.object(t, &idle, "pod", "idle", "-n", "kube-system"); err != nil {
			return err
		}
		if idle.Status.Phase != corev1.PodFailed {
			return fmt.Errorf("phase %s", idle.Status.Phase)
		}
		return nil
	})
	if s := idle.Status; s.Reason != "Evicted" || s.Message != "Pod was rejected: The node had condition: [MemoryPressure]. " {
		t.Errorf("a pod that asks for no memory: %s: %s", s.Reason, s.Message)
	}

	var pods corev1.PodList
	var evicted *corev1.Pod
	eventually(t, settle, func() error {
		if err := c.object(t, &pods, "pods", "-l", "job-name=work"); err != nil {
			return err
		}
		evicted = nil
		for i := range pods.Items {
			s := &pods.Items[i].Status
			if s.Phase == corev1.PodFailed && strings.Contains(s.Message, "Container c was using ") { // others were gone before they ran
				evicted = &pods.Items[i]
			}
		}
		if evicted == nil || len(pods.Items) < 2 {
			return fmt.Errorf("none of %d pods was evicted while it ran, and replaced", len(pods.Items))
		}
		return nil
	})
	begin := fmt.Sprintf("The node was low on resource: memory. Threshold quantity: %s, available: ", total.String())
	s := evicted.Status
	if s.Reason != "Evicted" || !strings.HasPrefix(s.Message, begin) || !strings.HasSuffix(s.Message, ", request is 1Ki, has larger consumption of memory. ") {
		t.Errorf("%s: %s", s.Reason, s.Message)
	}
	if cond := podCondition(evicted, corev1.DisruptionTarget); cond == nil || cond.Status != corev1.ConditionTrue || cond.Reason != "TerminationByKubelet" || cond.Message != s.Message {
		t.Errorf("condition %+v", cond)
	}
	var work batchv1.Job
	if err := c.object(t, &work, "job", "work"); err != nil {
		t.Fatal(err)
	}
	if s := work.Status; s.Failed != 0 || len(s.Conditions) != 0 {
		t.Errorf("the Job counts the eviction: %+v", s)
	}
	var events corev1.EventList
	if err := c.object(t, &events, "events", "-A"); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, e := range events.Items {
		seen[e.InvolvedObject.Kind+" "+e.Reason] = true
		if e.Reason == "Evicted" && e.InvolvedObject.Name == evicted.Name && e.Annotations["starved_resource"] != "memory" {
			t.Errorf("annotations %v", e.Annotations)
		}
	}
	for _, want := range []string{"Node EvictionThresholdMet", "Node NodeHasInsufficientMemory", "Pod Evicted"} {
		if !seen[want] {
			t.Errorf("no event %s", want)
		}
	}
	var vital corev1.Pod
	if err := c.object(t, &vital, "pod", "vital", "-n", "kube-system"); err != nil || vital.Status.Phase != corev1.PodRunning {
		t.Errorf("the critical pod is %s (%v)", vital.Status.Phase, err)
	}
}

// A node short of disk removes images that nothing uses, then ends the pod that takes most,
// and clears what it left. Images of image volumes are in use (KEP-4639).
func TestANodeShortOfDiskMakesRoom(t *testing.T) {
	t.Parallel()
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=1200m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	c := evicting(t, disk, "evictionHard: {nodefs.available: 50%}\n")
	c.load(t, "testserver")
	c.load(t, "guestbook-api")
	// Images that the agent finds when it starts have no age that protects them.
	for _, again := range [][]string{{"down"}, {"up", "--detach"}} {
		if out, err := c.proa(again...); err != nil {
			t.Fatalf("proa %v: %v\n%s", again, err, out)
		}
	}
	images := func() string {
		out, err := c.proa("image", "ls")
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return out
	}
	unused, volume := nameIn(t, images(), "testserver"), nameIn(t, images(), "guestbook-api")
	c.apply(t, podManifest("keeper", "  volumes: [{name: v, image: {reference: '"+volume+"', pullPolicy: Never}}]\n  containers: ["+
		strings.TrimSuffix(busybox("c", "sleep 3600"), "}")+", volumeMounts: [{name: v, mountPath: /v}], resources: {requests: {ephemeral-storage: 10Mi}}}]")+
		podManifest("writer", "  containers: ["+busybox("c", "dd if=/dev/zero of=/f bs=1M count=600; sleep 3600")+"]"))
	var writer, keeper corev1.Pod
	eventually(t, settle, func() error {
		if err := c.object(t, &writer, "pod", "writer"); err != nil {
			return err
		}
		if writer.Status.Phase != corev1.PodFailed {
			return fmt.Errorf("phase %s", writer.Status.Phase)
		}
		return nil
	})
	s := writer.Status
	if s.Reason != "Evicted" || !strings.HasPrefix(s.Message, "The node was low on resource: ephemeral-storage. Threshold quantity: ") ||
		!strings.Contains(s.Message, "Container c was using ") || !strings.HasSuffix(s.Message, ", request is 0, has larger consumption of ephemeral-storage. ") {
		t.Errorf("%s: %s", s.Reason, s.Message)
	}
	if cond := podCondition(&writer, corev1.DisruptionTarget); cond == nil || cond.Reason != "TerminationByKubelet" {
		t.Errorf("condition %+v", cond)
	}
	if left := images(); strings.Contains(left, unused) || !strings.Contains(left, volume) {
		t.Errorf("images left:\n%s", left)
	}
	eventually(t, settle, func() error {
		var st unix.Statfs_t
		if err := unix.Statfs(disk, &st); err != nil {
			return err
		}
		if st.Bavail*2 < st.Blocks {
			return fmt.Errorf("%d of %d blocks are free", st.Bavail, st.Blocks)
		}
		return nil
	})
	if err := c.object(t, &keeper, "pod", "keeper"); err != nil || !isReady(&keeper) {
		t.Errorf("the other pod is %s (%v)", keeper.Status.Phase, err)
	}
	var nodes corev1.NodeList
	if err := c.object(t, &nodes, "nodes"); err != nil {
		t.Fatal(err)
	}
	short := false
	for _, cond := range nodes.Items[0].Status.Conditions {
		short = short || cond.Type == corev1.NodeDiskPressure && cond.Status == corev1.ConditionTrue && cond.Reason == "KubeletHasDiskPressure"
	}
	if !short {
		t.Errorf("no disk pressure: %+v", nodes.Items[0].Status.Conditions)
	}
}

// nameIn is the first word of the line that names an image.
func nameIn(t *testing.T, list, image string) string {
	t.Helper()
	for line := range strings.Lines(list) {
		if f := strings.Fields(line); len(f) > 0 && strings.Contains(f[0], image) {
			return f[0]
		}
	}
	t.Fatalf("no image %s in\n%s", image, list)
	return ""
}
