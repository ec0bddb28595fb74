package builtin

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"

	"proa/internal/apis"
	"proa/internal/apis/flowcontrol"
)

func TestBadObjectsOfTheOtherKindsAreRefused(t *testing.T) {
	const target = "scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: d}"
	tests := []struct {
		name, resource, manifest string
		want                     []string
	}{
		{"an autoscaler without bounds", "horizontalpodautoscalers.autoscaling", "{spec: {" + target + "}}",
			[]string{"spec.maxReplicas: Invalid value: 0: must be greater than or equal to `minReplicas`", "spec.maxReplicas: Required value"}},
		{"an autoscaler upside down", "horizontalpodautoscalers.autoscaling", "{spec: {minReplicas: 3, maxReplicas: 2, " + target + "}}",
			[]string{"spec.maxReplicas: Invalid value: 2: must be greater than or equal to `minReplicas`"}},
		{"an autoscaler of nothing", "horizontalpodautoscalers.autoscaling", "{spec: {maxReplicas: 2, scaleTargetRef: {}}}",
			[]string{"spec.scaleTargetRef.kind: Required value", "spec.scaleTargetRef.name: Required value", `spec.scaleTargetRef.apiVersion: Invalid value: "": apiVersion must specify API group`}},
		{"an autoscaler to zero by CPU", "horizontalpodautoscalers.autoscaling", "{spec: {minReplicas: 0, maxReplicas: 2, " + target + "}}",
			[]string{"spec.metrics: Forbidden: must specify at least one Object or External metric to support scaling to zero replicas"}},
		{"a metric of another type", "horizontalpodautoscalers.autoscaling", "{spec: {maxReplicas: 2, " + target + ", metrics: [{type: Pods, resource: {name: cpu, target: {type: Utilization, averageUtilization: 1}}}]}}",
			[]string{"spec.metrics[0].pods: Required value: must populate information for the given metric source"}},
		{"a metric without aim", "horizontalpodautoscalers.autoscaling", "{spec: {maxReplicas: 2, " + target + ", metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization}}}]}}",
			[]string{"spec.metrics[0].resource.target.averageUtilization: Required value: must set either a target raw value or a target utilization"}},
		{"behavior too slow", "horizontalpodautoscalers.autoscaling", "{spec: {maxReplicas: 2, " + target + ", behavior: {scaleUp: {stabilizationWindowSeconds: 4000, policies: [{type: Pods, value: 0, periodSeconds: 2000}]}}}}",
			[]string{"spec.behavior.scaleUp.stabilizationWindowSeconds: Invalid value: 4000: must be less than or equal to 3600", "spec.behavior.scaleUp.policies[0].value: Invalid value: 0: must be greater than zero", "spec.behavior.scaleUp.policies[0].periodSeconds: Invalid value: 2000: must be less than or equal to 1800"}},

		{"a flow schema without level", "flowschemas.flowcontrol.apiserver.k8s.io", "{spec: {matchingPrecedence: 20000}}",
			[]string{"spec.matchingPrecedence: Invalid value: 20000: must not be greater than 10000", "spec.priorityLevelConfiguration.name: Required value: must reference a priority level"}},
		{"a flow schema of nobody", "flowschemas.flowcontrol.apiserver.k8s.io", "{spec: {priorityLevelConfiguration: {name: p}, rules: [{subjects: [{kind: User}]}]}}",
			[]string{"spec.rules[0].subjects[0].user: Required value: user is required when subject kind is 'User'", "spec.rules[0]: Required value: at least one of resourceRules and nonResourceRules has to be non-empty"}},
		{"the exempt level, limited", "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io", "{metadata: {name: exempt}, spec: {type: Limited, limited: {limitResponse: {type: Reject}}}}",
			[]string{"spec.type: Invalid value: \"Limited\": must be 'Exempt' for the priority level named 'exempt'"}},
		{"a level with too large a hand", "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io", "{spec: {type: Limited, limited: {limitResponse: {type: Queue, queuing: {queues: 4, handSize: 8}}}}}",
			[]string{"spec.limited.limitResponse.queuing.handSize: Invalid value: 8: should not be greater than queues (4)"}},

		{"a claim of nothing", "resourceclaims.resource.k8s.io", "{spec: {devices: {requests: [{name: r}]}}}",
			[]string{"spec.devices.requests[0]: Required value: exactly one of `exactly` or `firstAvailable` is required"}},
		{"a claim of some of all", "resourceclaims.resource.k8s.io", "{spec: {devices: {requests: [{name: r, exactly: {deviceClassName: c, allocationMode: All, count: 2}}]}}}",
			[]string{"spec.devices.requests[0].exactly.count: Invalid value: 2: must not be specified when allocationMode is 'All'"}},
		{"a claim with the same request twice", "resourceclaims.resource.k8s.io", "{spec: {devices: {requests: [{name: r, exactly: {deviceClassName: c}}, {name: r, exactly: {deviceClassName: c}}]}}}",
			[]string{`spec.devices.requests[1]: Duplicate value: {"name":"r","exactly":{"deviceClassName":"c","allocationMode":"ExactCount","count":1}}`}},
		{"a selector that is no expression", "deviceclasses.resource.k8s.io", "{spec: {selectors: [{cel: {expression: '1 + '}}]}}",
			[]string{`spec.selectors[0].cel.expression: Invalid value: "1 + ": compilation failed: ERROR: <input>:1:5: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}`}},
		{"a selector that is not true or false", "deviceclasses.resource.k8s.io", "{spec: {selectors: [{cel: {expression: device.driver}}]}}",
			[]string{`spec.selectors[0].cel.expression: Invalid value: "device.driver": must evaluate to bool or the unknown type, not string`}},
		{"a constraint on a request that is not there", "resourceclaims.resource.k8s.io", "{spec: {devices: {requests: [{name: r, exactly: {deviceClassName: c}}], constraints: [{requests: [x], matchAttribute: a/b}]}}}",
			[]string{`spec.devices.constraints[0].requests[0]: Invalid value: "x": must be the name of a request in the claim or the name of a request and a subrequest separated by '/'`}},
		{"a slice of nowhere", "resourceslices.resource.k8s.io", "{spec: {driver: d.example.com, pool: {name: p, resourceSliceCount: 1}}}",
			[]string{"spec: Required value: exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"}},
		{"a slice with a bad device", "resourceslices.resource.k8s.io", "{spec: {driver: d.example.com, pool: {name: p, resourceSliceCount: 1}, nodeName: n, devices: [{name: A, attributes: {a: {version: x}}}]}}",
			[]string{"spec.devices[0].name: Invalid value: \"A\": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')", `spec.devices[0].attributes[a].version: Invalid value: "x": must be a string compatible with semver.org spec 2.0.0`}},
		{"a taint of no effect", "devicetaintrules.resource.k8s.io", "{spec: {taint: {key: k, effect: Maybe}}}",
			[]string{`spec.taint.effect: Unsupported value: "Maybe": supported values: "NoExecute", "NoSchedule", "None"`}},

		{"a bundle of no certificates", "clustertrustbundles.certificates.k8s.io", "{metadata: {name: x}, spec: {trustBundle: hello}}",
			[]string{`spec.trustBundle: Invalid value: "<value omitted>": at least one trust anchor must be provided`}},
		{"a signer's bundle by another name", "clustertrustbundles.certificates.k8s.io", "{metadata: {name: x}, spec: {signerName: example.com/s, trustBundle: hello}}",
			[]string{`metadata.name: Invalid value: "x": ClusterTrustBundle for signerName example.com/s must be named with prefix example.com:s:`, `spec.trustBundle: Invalid value: "<value omitted>": at least one trust anchor must be provided`}},
		{"a pod's request without key", "podcertificaterequests.certificates.k8s.io", "{spec: {signerName: example.com/s, podName: p, podUID: u, serviceAccountName: s, serviceAccountUID: u, nodeName: n, nodeUID: u, maxExpirationSeconds: 60}}",
			[]string{"spec.maxExpirationSeconds: Invalid value: 60: must be in the range [3600, 7862400]", "spec: Invalid value: exactly one of (stubPKCS10Request) or (pkixPublicKey, proofOfPossession) must be set"}},

		{"a workload without groups", "workloads.scheduling.k8s.io", "{spec: {}}",
			[]string{"spec: Invalid value: \"\": must specify one of: `podGroupTemplates`, `compositePodGroupTemplates`"}},
		{"a group of two minds", "podgroups.scheduling.k8s.io", "{spec: {schedulingPolicy: {basic: {}, gang: {minCount: 1}}}}",
			[]string{"spec.schedulingPolicy: Invalid value: \"{basic, gang}\": must specify exactly one of: `basic`, `gang`"}},
		{"a gang of nobody", "podgroups.scheduling.k8s.io", "{spec: {schedulingPolicy: {gang: {minCount: 0}}}}",
			[]string{"spec.schedulingPolicy.gang.minCount: Required value"}},
		{"an eviction that nobody may ask for", "evictionrequests.lifecycle.k8s.io", "{spec: {intent: Maybe, requester: k8s.io/x, target: {pod: {name: p, uid: x}}}}",
			[]string{
				`spec.requester: Invalid value: "k8s.io/x": domain names *.k8s.io, *.kubernetes.io are reserved`,
				`spec.target.pod.uid: Invalid value: "x": must be a lowercase UUID in 8-4-4-4-12 format`,
				`spec.intent: Unsupported value: "Maybe": supported values: "Eviction", "Withdrawn"`,
			}},
		{"a migration of nothing", "storageversionmigrations.storagemigration.k8s.io", "{}", []string{"spec.resource.resource: Required value: resource is required to be set"}},
		{"an attributes class without attributes", "volumeattributesclasses.storage.k8s.io", "{driverName: x}", []string{"parameters: Required value: must contain at least one key/value pair"}},
		{"a workload of several priorities", "workloads.scheduling.k8s.io", "{spec: {podGroupTemplates: [{name: g, priority: 5, schedulingPolicy: {basic: {}}}, {name: h, schedulingPolicy: {basic: {}}}]}}",
			[]string{"spec: Invalid value: null: detected multiple priority configurations"}},
		{"a candidate of an unknown strategy", "leasecandidates.coordination.k8s.io", "{spec: {leaseName: l, binaryVersion: 1.2.3, strategy: other-9}}",
			[]string{`spec.strategy.strategy: Unsupported value: "other-9": supported values: "OldestEmulationVersion"`}},
		{"a candidate that emulates what is newer", "leasecandidates.coordination.k8s.io", "{spec: {leaseName: l, binaryVersion: 1.1.0, emulationVersion: 1.2.0, strategy: OldestEmulationVersion}}",
			[]string{"spec.binaryVersion: Invalid value: \"1.1.0\": must be greater than or equal to `emulationVersion`"}},
		{"a candidate without a version", "leasecandidates.coordination.k8s.io", "{spec: {leaseName: l, emulationVersion: 1.2.0, strategy: OldestEmulationVersion}}",
			[]string{"spec.binaryVersion: Required value"}},
		{"a candidate of no version", "leasecandidates.coordination.k8s.io", "{spec: {leaseName: l, binaryVersion: x, strategy: OldestEmulationVersion}}",
			[]string{`spec.binaryVersion: Invalid value: "x": must be a valid semantic version`, "spec.emulationVersion: Required value: must be specified when `strategy` is 'OldestEmulationVersion'"}},
		{"a policy of no kind of traffic", "networkpolicies.networking.k8s.io", "{spec: {podSelector: {}, policyTypes: [Sideways]}}",
			[]string{`spec.policyTypes[0]: Unsupported value: "Sideways": supported values: "Ingress", "Egress"`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := lookup(t, tt.resource)
			if d := cmp.Diff(tt.want, messages(r.Validate(t.Context(), made(t, r, tt.manifest)))); d != "" {
				t.Errorf("differs (-want +got):\n%s", d)
			}
		})
	}
}

func TestUpdatesOfTheOtherKinds(t *testing.T) {
	const claim = "{spec: {devices: {requests: [{name: r, exactly: {deviceClassName: c}}]}}}"
	tests := []struct {
		name, resource, old, new string
		want                     []string
	}{
		{"a claim stays what it is", "resourceclaims.resource.k8s.io", claim, "{spec: {devices: {requests: [{name: q, exactly: {deviceClassName: c}}]}}}", []string{"spec: Invalid value: null: field is immutable"}},
		{"an attributes class stays", "volumeattributesclasses.storage.k8s.io", "{driverName: x, parameters: {a: b}}", "{driverName: x, parameters: {a: c}}", []string{"parameters: Forbidden: updates to parameters are forbidden."}},
		{"a gang may grow", "podgroups.scheduling.k8s.io", "{spec: {schedulingPolicy: {gang: {minCount: 2}}}}", "{spec: {schedulingPolicy: {gang: {minCount: 3}}}}", nil},
		{"a gang stays a gang", "podgroups.scheduling.k8s.io", "{spec: {schedulingPolicy: {gang: {minCount: 2}}}}", "{spec: {schedulingPolicy: {basic: {}}}}", []string{"spec.schedulingPolicy.basic: Invalid value: null: field is immutable", "spec.schedulingPolicy.gang: Invalid value: null: field cannot be cleared once set"}},
		{"a workload gets no more groups", "workloads.scheduling.k8s.io", "{spec: {podGroupTemplates: [{name: g, schedulingPolicy: {basic: {}}}]}}", "{spec: {podGroupTemplates: [{name: h, schedulingPolicy: {basic: {}}}]}}",
			[]string{"spec.podGroupTemplates[0]: Forbidden: item may not be added", "spec.podGroupTemplates: Forbidden: item may not be removed"}},
		{"an eviction keeps its target", "evictions.lifecycle.k8s.io", "{spec: {target: {pod: {name: p, uid: 00000000-0000-0000-0000-000000000000}}}}", "{spec: {target: {pod: {name: q, uid: 00000000-0000-0000-0000-000000000000}}}}", []string{"spec.target: Invalid value: null: field is immutable"}},
		{"what was bad before may stay", "podgroups.scheduling.k8s.io", "{spec: {schedulingPolicy: {gang: {minCount: 0}}}}", "{metadata: {labels: {a: b}}, spec: {schedulingPolicy: {gang: {minCount: 0}}}}", nil},
		{"a lease is checked again", "leases.coordination.k8s.io", "{spec: {leaseDurationSeconds: 1}}", "{spec: {leaseDurationSeconds: 0}}", []string{"spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := lookup(t, tt.resource)
			old, obj := made(t, r, tt.old), made(t, r, tt.new)
			r.PrepareUpdate(obj, old)
			if d := cmp.Diff(tt.want, messages(r.ValidateUpdate(t.Context(), obj, old))); d != "" {
				t.Errorf("differs (-want +got):\n%s", d)
			}
		})
	}
}

func TestStatusOfTheOtherKindsIsKeptApart(t *testing.T) {
	tests := []struct{ resource, manifest string }{
		{"horizontalpodautoscalers.autoscaling", "{spec: {maxReplicas: 1, scaleTargetRef: {kind: D, name: d}}, status: {currentReplicas: 3, desiredReplicas: 1, currentMetrics: null}}"},
		{"flowschemas.flowcontrol.apiserver.k8s.io", "{status: {conditions: [{type: Dangling, status: 'True'}]}}"},
		{"resourceclaims.resource.k8s.io", "{status: {reservedFor: [{resource: pods, name: p, uid: u}]}}"},
		{"podgroups.scheduling.k8s.io", "{status: {conditions: [{type: x, status: 'True', reason: r, message: m, lastTransitionTime: null}]}}"},
		{"storageversionmigrations.storagemigration.k8s.io", "{status: {resourceVersion: '5'}}"},
		{"evictions.lifecycle.k8s.io", "{status: {observedGeneration: 4}}"},
	}
	for _, tt := range tests {
		t.Run(tt.resource, func(t *testing.T) {
			r := lookup(t, tt.resource)
			full := decoded(t, r, tt.manifest)
			created := decoded(t, r, tt.manifest)
			r.PrepareCreate(created)
			if cmp.Equal(full, created) {
				t.Error("a create keeps the status")
			}
			updated := decoded(t, r, tt.manifest)
			r.PrepareUpdate(updated, created)
			if d := cmp.Diff(created, updated); d != "" {
				t.Errorf("an update changes the status: %s", d)
			}
			changed := decoded(t, r, tt.manifest)
			r.Subresource("status").PrepareUpdate(changed, created)
			if d := cmp.Diff(full, changed); d != "" {
				t.Errorf("an update of status does not: %s", d)
			}
		})
	}
}

func decoded(t *testing.T, r *apis.Resource, manifest string) apis.Object {
	t.Helper()
	bare := *r
	bare.Default, bare.PrepareCreate = nil, nil
	return made(t, &bare, manifest)
}

func TestSharesOfAPriorityLevel(t *testing.T) {
	r := lookup(t, "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io")
	for manifest, want := range map[string]int32{
		"{spec: {type: Limited, limited: {limitResponse: {type: Reject}}}}":                              30,
		"{spec: {type: Limited, limited: {nominalConcurrencyShares: 0, limitResponse: {type: Reject}}}}": 0,
	} {
		level := made(t, r, manifest).(*flowcontrolv1.PriorityLevelConfiguration)
		if n := level.Spec.Limited.NominalConcurrencyShares; n == nil || *n != want {
			t.Errorf("%s has %v shares, want %d", manifest, n, want)
		}
		if errs := r.Validate(t.Context(), level); len(errs) > 0 {
			t.Error(errs.ToAggregate())
		}
	}
}

func TestObjectsThatEveryClusterHasAreValid(t *testing.T) {
	levels, schemas := flowcontrol.Mandatory()
	moreLevels, moreSchemas := flowcontrol.Suggested()
	check := func(resource string, obj apis.Object) {
		r := lookup(t, resource)
		obj = obj.DeepCopyObject().(apis.Object)
		r.Default(obj)
		if errs := r.Validate(t.Context(), obj); len(errs) > 0 {
			t.Errorf("%s: %v", obj.GetName(), errs.ToAggregate())
		}
	}
	for _, l := range append(levels[:len(levels):len(levels)], moreLevels...) {
		check("prioritylevelconfigurations.flowcontrol.apiserver.k8s.io", l)
	}
	for _, s := range append(schemas[:len(schemas):len(schemas)], moreSchemas...) {
		check("flowschemas.flowcontrol.apiserver.k8s.io", s)
	}
}
