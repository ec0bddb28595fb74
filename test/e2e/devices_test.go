package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
)

// A pod whose claim has a device waits until the device's driver is there, and says
// so, instead of running without what it was promised.
func TestAPodDoesNotRunWithoutItsDevices(t *testing.T) {
	l := newLab(t)
	name := l.offer("{name: d}")
	l.apply(`{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: one}, spec: {devices: {requests: [{name: r, exactly: {deviceClassName: ` + l.ns + `}}]}}}`)
	pod := podManifest("p", "  resourceClaims: [{name: c, resourceClaimName: one}]\n  containers: ["+claiming("c", "{name: c}")+"]")
	l.apply(pod)
	l.event("p", "FailedPrepareDynamicResources", "Failed to prepare dynamic resources: DRA driver "+name+" is not registered")
	if p := l.pod("p"); p.Status.Phase != corev1.PodPending {
		t.Errorf("the pod is %s", p.Status.Phase)
	}
	if held := l.kubectl("get", "resourceclaim", "one", "-o", "jsonpath={.status.allocation.devices.results[0].device} {.status.reservedFor[0].name}"); held != "d p" {
		t.Errorf("the claim holds %q", held)
	}
	l.kubectl("delete", "pod", "p") // nothing was prepared, so that nobody need give it back
	l.released("one")

	l.apply(pod)
	driver := l.startDriver(name, "d")
	l.ready("p")
	l.is("the devices", l.devices("p", "c"), "d")
	if n := driver.inUse(); n != 1 {
		t.Errorf("%d claims are prepared", n)
	}
	l.kubectl("delete", "pod", "p")
	l.released("one")
	if n := driver.inUse(); n != 0 {
		t.Errorf("%d claims are still prepared", n)
	}
}

// claiming is a container that uses claims, each written in YAML.
func claiming(name string, claims ...string) string {
	return strings.TrimSuffix(busybox(name, "sleep 3600"), "}") + ", resources: {claims: [" + strings.Join(claims, ", ") + "]}}"
}

// Pods of one template have devices of their own; a claim that no device meets waits.
func TestPodsGetDevicesOfTheirOwn(t *testing.T) {
	l := newLab(t)
	driver := l.startDriver(l.offer("{name: a}", "{name: b}"), "a", "b")
	template := func(name, selector string) string {
		return `---
{apiVersion: resource.k8s.io/v1, kind: ResourceClaimTemplate, metadata: {name: ` + name + `}, spec: {spec: {devices: {requests: [{name: r, exactly: {deviceClassName: ` + l.ns + selector + `}}]}}}}
`
	}
	pod := func(name, of string) string {
		return podManifest(name, "  resourceClaims: [{name: c, resourceClaimTemplateName: "+of+"}]\n  containers: ["+claiming("c", "{name: c}")+"]")
	}
	l.apply(template("any", "") + template("large", `, selectors: [{cel: {expression: '"size" in device.attributes["`+driver.name+`"]'}}]`) + pod("one", "any") + pod("two", "any") + pod("none", "large"))
	l.ready("one")
	l.ready("two")
	given := []string{l.devices("one", "c"), l.devices("two", "c")}
	if slices.Sort(given); !slices.Equal(given, []string{"a", "b"}) {
		t.Errorf("the pods have %q", given)
	}
	l.await("none", "unschedulable", func(p *corev1.Pod) bool {
		return conditionIs(p, corev1.PodScheduled, corev1.ConditionFalse)
	})
	l.kubectl("delete", "pod", "one", "two", "none")
	eventually(t, settle, func() error {
		list, err := clients().ResourceV1().ResourceClaims(l.ns).List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) > 0 || driver.inUse() > 0 {
			return fmt.Errorf("%d claims are left, %d prepared: %v", len(list.Items), driver.inUse(), err)
		}
		return nil
	})
}

// A container names a request of a claim and gets its devices only. What the claim
// says to the driver reaches it, and an administrator sees devices in use.
func TestContainersGetTheDevicesOfTheirRequests(t *testing.T) {
	l := newLab(t)
	driver := l.startDriver(l.offer("{name: a}", "{name: b}"), "a", "b")
	l.kubectl("label", "namespace", l.ns, "resource.kubernetes.io/admin-access=true")
	request := func(name, more string) string {
		return `{name: ` + name + `, exactly: {deviceClassName: ` + l.ns + `, selectors: [{cel: {expression: 'device.driver == "` + driver.name + `"'}}]` + more + `}}`
	}
	l.apply(`{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: both}, spec: {devices: {requests: [` + request("left", "") + `, ` + request("right", "") + `],
  config: [{requests: [left], opaque: {driver: ` + driver.name + `, parameters: {mode: fast, unknown: [1, 2]}}}]}}}
---
{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: admin}, spec: {devices: {requests: [` + request("all", ", adminAccess: true, allocationMode: All") + `]}}}
` + podManifest("p", "  resourceClaims: [{name: c, resourceClaimName: both}]\n  containers: ["+claiming("left", "{name: c, request: left}")+", "+claiming("right", "{name: c, request: right}")+", "+claiming("all", "{name: c}")+", "+busybox("none", "sleep 3600")+"]"))
	l.ready("p")
	left, right := l.devices("p", "left"), l.devices("p", "right")
	if left == right || len(left) != 1 || len(right) != 1 {
		t.Errorf("the requests have %q and %q", left, right)
	}
	l.is("the devices of the whole claim", l.devices("p", "all"), "a b")
	l.is("the devices of a container that claims none", l.devices("p", "none"), "")
	if got := driver.seen(); !slices.Equal(got, []string{`{"mode":"fast","unknown":[1,2]}`}) {
		t.Errorf("the driver was told %q", got)
	}
	l.apply(podManifest("monitor", "  resourceClaims: [{name: c, resourceClaimName: admin}]\n  containers: ["+claiming("c", "{name: c}")+"]"))
	l.ready("monitor")
	l.is("what an administrator sees", l.devices("monitor", "c"), "a b")
}

// The status of a container tells of its devices' health, as the driver reports it,
// while the driver is there.
func TestTheHealthOfDevicesIsReported(t *testing.T) {
	l := newLab(t)
	driver := l.startDriver(l.offer("{name: d}"), "d")
	l.apply(`{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: one}, spec: {devices: {requests: [{name: r, exactly: {deviceClassName: ` + l.ns + `}}]}}}
` + podManifest("p", "  resourceClaims: [{name: c, resourceClaimName: one}]\n  containers: ["+claiming("c", "{name: c, request: r}")+"]"))
	l.ready("p")
	healthy := func(want corev1.ResourceHealthStatus) corev1.ResourceHealth {
		t.Helper()
		var found corev1.ResourceHealth
		l.await("p", "with a device that is "+string(want), func(p *corev1.Pod) bool {
			list := status(p, "c").AllocatedResourcesStatus
			if len(list) != 1 || list[0].Name != "claim:c/r" || len(list[0].Resources) != 1 {
				return false
			}
			found = list[0].Resources[0]
			return found.Health == want
		})
		return found
	}
	if id := healthy(corev1.ResourceHealthStatusUnknown).ResourceID; string(id) != driver.name+"/p/d" {
		t.Errorf("the device is %q", id)
	}
	driver.report("d", kubeletplugin.HealthStatusHealthy, "")
	healthy(corev1.ResourceHealthStatusHealthy)
	driver.report("d", kubeletplugin.HealthStatusUnhealthy, "too hot")
	healthy(corev1.ResourceHealthStatusUnhealthy)
	driver.stop()
	healthy(corev1.ResourceHealthStatusUnknown)
	l.startDriver(driver.name, "d") // which gives the device back
}

// KEP-4004: nobody fills in the version of a service proxy that may not be there.
func TestTheNodeSaysNothingOfAServiceProxy(t *testing.T) {
	t.Parallel()
	versions := shared.kubectl(t, "get", "nodes", "-o", "jsonpath={.items[0].status.nodeInfo.kubeProxyVersion}|{.items[0].status.nodeInfo.kubeletVersion}")
	if proxy, kubelet, _ := strings.Cut(versions, "|"); proxy != "" || !strings.HasPrefix(kubelet, "v1.") {
		t.Errorf("versions %q", versions)
	}
}
