package objects

import (
	"testing"

	"proa/pkg/proatest"
)

var nodeKinds = []kind{
	{gvr: resourceOf("", "v1", "configmaps"), kind: "ConfigMap", object: "data: {a: '1'}", change: "data: {a: '2'}"},
	{gvr: resourceOf("", "v1", "secrets"), kind: "Secret", object: "{type: Opaque, data: {a: MQ==}}", change: "data: {a: Mg==}"},
	{
		gvr: resourceOf("coordination.k8s.io", "v1", "leases"), kind: "Lease",
		object: "spec: {holderIdentity: a, leaseDurationSeconds: 30, leaseTransitions: 0, acquireTime: '2026-01-01T00:00:00.000000Z', renewTime: '2026-01-01T00:00:05.000000Z'}",
		change: "spec: {holderIdentity: b, leaseDurationSeconds: 40, leaseTransitions: 1}",
	},
	{
		gvr: resourceOf("", "v1", "nodes"), kind: "Node", clustered: true,
		object: "spec: {providerID: 'example://n'}",
		change: "spec: {unschedulable: true}",
		status: `{"status":{"conditions":[{"type":"Ready","status":"True","reason":"Test","message":"m","lastHeartbeatTime":"2026-01-01T00:00:00Z","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`,
	},
	{
		gvr: resourceOf("", "v1", "podtemplates"), kind: "PodTemplate", first: 1, counts: true,
		object: "template: {metadata: {labels: {app: a}}, spec: {containers: [{name: c, image: nginx}]}}",
		change: "template: {metadata: {labels: {app: b}}}",
	},
	{
		gvr: resourceOf("node.k8s.io", "v1", "runtimeclasses"), kind: "RuntimeClass", clustered: true,
		object: "{handler: runc, overhead: {podFixed: {cpu: 1m}}}",
		change: "overhead: {podFixed: {cpu: 2m}}",
	},
	{
		gvr: resourceOf("", "v1", "limitranges"), kind: "LimitRange",
		object: "spec: {limits: [{type: Pod, max: {cpu: '1'}}]}",
		change: "spec: {limits: [{type: Pod, max: {cpu: '2'}}]}",
	},
	{
		gvr: resourceOf("", "v1", "resourcequotas"), kind: "ResourceQuota",
		object: "spec: {hard: {cpu: '1'}}",
		change: "spec: {hard: {cpu: '2'}}",
		status: `{"status":{"hard":{"cpu":"1"},"used":{"cpu":"0"}}}`,
	},
	{
		gvr: resourceOf("scheduling.k8s.io", "v1", "priorityclasses"), kind: "PriorityClass", clustered: true, first: 1,
		object: "{value: 100, description: a}",
		change: "description: b",
	},
}

func TestEveryVerbOfNodeAndSchedulingKinds(t *testing.T) {
	t.Parallel()
	everyVerb(t, newServer(t, proatest.Options{}), nodeKinds)
}
