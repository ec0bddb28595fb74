package e2e

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// A pod whose claim has a device waits on a node that cannot prepare it, and says
// so, instead of running without what it was promised.
func TestAPodDoesNotRunWithoutItsDevices(t *testing.T) {
	l := newLab(t)
	node := strings.TrimSpace(shared.kubectl(t, "get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"))
	l.apply(`{apiVersion: resource.k8s.io/v1, kind: DeviceClass, metadata: {name: ` + l.ns + `}, spec: {selectors: [{cel: {expression: 'device.driver == "` + l.ns + `.example.com"'}}]}}
---
{apiVersion: resource.k8s.io/v1, kind: ResourceSlice, metadata: {name: ` + l.ns + `}, spec: {nodeName: ` + node + `, driver: ` + l.ns + `.example.com, pool: {name: p, generation: 1, resourceSliceCount: 1}, devices: [{name: d}]}}
---
{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: one}, spec: {devices: {requests: [{name: r, exactly: {deviceClassName: ` + l.ns + `}}]}}}`)
	t.Cleanup(func() {
		shared.tryKubectl("", "delete", "deviceclass/"+l.ns, "resourceslice/"+l.ns, "--ignore-not-found")
	})
	l.apply(podManifest("p", "  resourceClaims: [{name: c, resourceClaimName: one}]\n  containers: ["+busybox("c", "sleep 3600")+"]"))
	l.event("p", "FailedPrepareDynamicResources", "Failed to prepare dynamic resources: ResourceClaim one: this node has no DRA drivers")
	if p := l.pod("p"); p.Spec.NodeName != node || p.Status.Phase != corev1.PodPending {
		t.Errorf("on %q, %s", p.Spec.NodeName, p.Status.Phase)
	}
	if held := l.kubectl("get", "resourceclaim", "one", "-o", "jsonpath={.status.allocation.devices.results[0].device} {.status.reservedFor[0].name}"); held != "d p" {
		t.Errorf("the claim holds %q", held)
	}
	l.kubectl("delete", "pod", "p")
	eventually(t, settle, func() error {
		if held, err := l.tryKubectl("get", "resourceclaim", "one", "-o", "jsonpath={.status.reservedFor}{.status.allocation}"); err != nil || held != "" {
			return fmt.Errorf("the claim of a pod that is gone holds %s %v", held, err)
		}
		return nil
	})
}

// KEP-4004: nobody fills in the version of a service proxy that may not be there.
func TestTheNodeSaysNothingOfAServiceProxy(t *testing.T) {
	t.Parallel()
	versions := shared.kubectl(t, "get", "nodes", "-o", "jsonpath={.items[0].status.nodeInfo.kubeProxyVersion}|{.items[0].status.nodeInfo.kubeletVersion}")
	if proxy, kubelet, _ := strings.Cut(versions, "|"); proxy != "" || !strings.HasPrefix(kubelet, "v1.") {
		t.Errorf("versions %q", versions)
	}
}
