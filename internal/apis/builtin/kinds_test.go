package builtin

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"proa/internal/apis"
)

const template = "{metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}"

const once = "{spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}"

// minimal holds the least that is valid of every stored kind.
var minimal = map[string]string{
	"configmaps":               "{}",
	"endpoints":                "{}",
	"events":                   "{metadata: {name: x, namespace: default}}",
	"limitranges":              "{}",
	"namespaces":               "{}",
	"nodes":                    "{}",
	"persistentvolumeclaims":   "{spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1}}}}",
	"persistentvolumes":        "{spec: {accessModes: [ReadWriteOnce], capacity: {storage: 1}, hostPath: {path: /x}}}",
	"pods":                     "{spec: {containers: [{name: c, image: i}]}}",
	"podtemplates":             "{template: {spec: {containers: [{name: c, image: i}]}}}",
	"replicationcontrollers":   "{spec: {template: " + template + "}}",
	"resourcequotas":           "{}",
	"secrets":                  "{}",
	"serviceaccounts":          "{}",
	"services":                 "{spec: {ports: [{port: 80}]}}",
	"controllerrevisions.apps": "{data: {}}",
	"daemonsets.apps":          "{spec: {selector: {matchLabels: {a: b}}, template: " + template + "}}",
	"deployments.apps":         "{spec: {selector: {matchLabels: {a: b}}, template: " + template + "}}",
	"replicasets.apps":         "{spec: {selector: {matchLabels: {a: b}}, template: " + template + "}}",
	"statefulsets.apps":        "{spec: {selector: {matchLabels: {a: b}}, template: " + template + "}}",
	"cronjobs.batch":           "{spec: {schedule: '* * * * *', jobTemplate: {spec: {template: " + once + "}}}}",
	"jobs.batch":               "{metadata: {name: x, uid: u}, spec: {template: " + once + "}}",
	"certificatesigningrequests.certificates.k8s.io":                 "",
	"leases.coordination.k8s.io":                                     "{}",
	"endpointslices.discovery.k8s.io":                                "{addressType: IPv4}",
	"ingressclasses.networking.k8s.io":                               "{spec: {controller: example.com/x}}",
	"ingresses.networking.k8s.io":                                    "{spec: {defaultBackend: {service: {name: s, port: {number: 80}}}}}",
	"ipaddresses.networking.k8s.io":                                  "{spec: {parentRef: {resource: services, namespace: d, name: s}}}",
	"servicecidrs.networking.k8s.io":                                 "{spec: {cidrs: [10.0.0.0/16]}}",
	"runtimeclasses.node.k8s.io":                                     "{handler: runc}",
	"poddisruptionbudgets.policy":                                    "{}",
	"clusterrolebindings.rbac.authorization.k8s.io":                  "{roleRef: {kind: ClusterRole, name: r}}",
	"clusterroles.rbac.authorization.k8s.io":                         "{}",
	"rolebindings.rbac.authorization.k8s.io":                         "{roleRef: {kind: Role, name: r}, subjects: [{kind: User, name: u}]}",
	"roles.rbac.authorization.k8s.io":                                "{}",
	"priorityclasses.scheduling.k8s.io":                              "{value: 1}",
	"csidrivers.storage.k8s.io":                                      "{metadata: {name: x}}",
	"csinodes.storage.k8s.io":                                        "{}",
	"csistoragecapacities.storage.k8s.io":                            "{storageClassName: c}",
	"storageclasses.storage.k8s.io":                                  "{provisioner: example.com/x}",
	"volumeattachments.storage.k8s.io":                               "{spec: {attacher: x, nodeName: n, source: {persistentVolumeName: v}}}",
	"mutatingadmissionpolicies.admissionregistration.k8s.io":         "{spec: {reinvocationPolicy: Never, matchConstraints: {resourceRules: [{apiGroups: [apps], apiVersions: [v1], operations: [CREATE], resources: [deployments]}]}, mutations: [{patchType: ApplyConfiguration, applyConfiguration: {expression: 'Object{}'}}]}}",
	"mutatingadmissionpolicybindings.admissionregistration.k8s.io":   "{spec: {policyName: p}}",
	"mutatingwebhookconfigurations.admissionregistration.k8s.io":     "{}",
	"validatingadmissionpolicies.admissionregistration.k8s.io":       "{spec: {matchConstraints: {resourceRules: [{apiGroups: [apps], apiVersions: [v1], operations: [CREATE], resources: [deployments]}]}, validations: [{expression: 'true'}]}}",
	"validatingadmissionpolicybindings.admissionregistration.k8s.io": "{spec: {policyName: p, validationActions: [Deny]}}",
	"validatingwebhookconfigurations.admissionregistration.k8s.io":   "{}",
	"customresourcedefinitions.apiextensions.k8s.io":                 "",
	"apiservices.apiregistration.k8s.io":                             "{metadata: {name: v1.example.com}, spec: {group: example.com, version: v1, groupPriorityMinimum: 1, versionPriority: 1, service: {namespace: n, name: s}}}",
	"volumeattributesclasses.storage.k8s.io":                         "{driverName: example.com/x, parameters: {a: b}}",
	"horizontalpodautoscalers.autoscaling":                           "{spec: {maxReplicas: 1, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: d}}}",
	"clustertrustbundles.certificates.k8s.io":                        "",
	"podcertificaterequests.certificates.k8s.io":                     "",
	"leasecandidates.coordination.k8s.io":                            "{spec: {leaseName: l, binaryVersion: 1.37.0, strategy: example.com/x}}",
	"flowschemas.flowcontrol.apiserver.k8s.io":                       "{spec: {priorityLevelConfiguration: {name: p}}}",
	"prioritylevelconfigurations.flowcontrol.apiserver.k8s.io":       "{spec: {type: Limited, limited: {limitResponse: {type: Reject}}}}",
	"storageversions.internal.apiserver.k8s.io":                      "{metadata: {name: core.pods}}",
	"evictionrequests.lifecycle.k8s.io":                              "{spec: {intent: Eviction, requester: example.com/x, target: {pod: {name: p, uid: 00000000-0000-0000-0000-000000000000}}}}",
	"evictions.lifecycle.k8s.io":                                     "{spec: {target: {pod: {name: p, uid: 00000000-0000-0000-0000-000000000000}}}}",
	"networkpolicies.networking.k8s.io":                              "{spec: {podSelector: {}}}",
	"deviceclasses.resource.k8s.io":                                  "{}",
	"devicetaintrules.resource.k8s.io":                               "{spec: {taint: {key: k, effect: NoSchedule}}}",
	"resourceclaims.resource.k8s.io":                                 "{spec: {devices: {requests: [{name: r, exactly: {deviceClassName: c}}]}}}",
	"resourceclaimtemplates.resource.k8s.io":                         "{spec: {spec: {devices: {requests: [{name: r, exactly: {deviceClassName: c}}]}}}}",
	"resourcepoolstatusrequests.resource.k8s.io":                     "{spec: {driver: d.example.com}}",
	"resourceslices.resource.k8s.io":                                 "{spec: {driver: d.example.com, pool: {name: p, resourceSliceCount: 1}, nodeName: n}}",
	"compositepodgroups.scheduling.k8s.io":                           "{spec: {schedulingPolicy: {basic: {}}, workloadRef: {workloadName: w, templateName: t}}}",
	"podgroups.scheduling.k8s.io":                                    "{spec: {schedulingPolicy: {gang: {minCount: 2}}}}",
	"workloads.scheduling.k8s.io":                                    "{spec: {podGroupTemplates: [{name: g, schedulingPolicy: {basic: {}}}]}}",
	"storageversionmigrations.storagemigration.k8s.io":               "{spec: {resource: {resource: pods}}}",
}

// allOn serves every kind and version with every feature gate on.
var allOn = sync.OnceValue(func() *apis.Catalogue {
	gates, runtime, err := Options{"AllAlpha=true,AllBeta=true", "api/all=true"}.Parse()
	if err != nil {
		panic(err)
	}
	return Serving(gates, runtime)
})

func lookup(t *testing.T, name string) *apis.Resource {
	t.Helper()
	r, ok := allOn().Stored(schema.ParseGroupResource(name))
	if !ok {
		t.Fatalf("no %s", name)
	}
	return r
}

// made reads a manifest and takes it through defaulting and preparation.
func made(t *testing.T, r *apis.Resource, manifest string) apis.Object {
	t.Helper()
	obj := r.New()
	if err := yaml.UnmarshalStrict([]byte(manifest), obj); err != nil {
		t.Fatalf("%v in\n%s", err, manifest)
	}
	if r.Default != nil {
		r.Default(obj)
	}
	if r.PrepareCreate != nil {
		r.PrepareCreate(obj)
	}
	return obj
}

func messages(errs field.ErrorList) []string {
	var all []string
	for _, e := range errs {
		first, _, _ := strings.Cut(e.Error(), "\n")
		all = append(all, first)
	}
	return all
}

func TestTheLeastOfEveryKindIsValid(t *testing.T) {
	for _, r := range allOn().All() {
		if r.NewList == nil {
			continue
		}
		name := r.GroupResource().String()
		t.Run(name, func(t *testing.T) {
			manifest, ok := minimal[name]
			if !ok {
				t.Fatal("nothing known to be valid")
			}
			if manifest == "" || r.Validate == nil {
				return
			}
			obj := made(t, r, manifest)
			if errs := r.Validate(t.Context(), obj); len(errs) > 0 {
				t.Fatal(errs.ToAggregate())
			}
			obj.SetResourceVersion("1")
			if r.ValidateUpdate == nil {
				return
			}
			same := obj.DeepCopyObject().(apis.Object)
			if r.PrepareUpdate != nil {
				r.PrepareUpdate(same, obj)
			}
			if errs := r.ValidateUpdate(t.Context(), same, obj); len(errs) > 0 {
				t.Errorf("an update that changes nothing: %v", errs.ToAggregate())
			}
		})
	}
}

func TestDefaultsOfOtherGroups(t *testing.T) {
	tests := []struct{ name, resource, in, want string }{
		{"a deployment rolls by a quarter", "deployments.apps", "{spec: {template: {}}}", `
spec:
  replicas: 1
  progressDeadlineSeconds: 600
  revisionHistoryLimit: 10
  selector: null
  strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 25%, maxUnavailable: 25%}}
  template: {spec: {containers: null, dnsPolicy: ClusterFirst, restartPolicy: Always, schedulerName: default-scheduler, securityContext: {}, terminationGracePeriodSeconds: 30}}
status: {}
`},
		{"a stateful set goes in order", "statefulsets.apps", "{spec: {template: {}, volumeClaimTemplates: [{metadata: {name: d}}]}}", `
spec:
  replicas: 1
  revisionHistoryLimit: 10
  podManagementPolicy: OrderedReady
  persistentVolumeClaimRetentionPolicy: {whenDeleted: Retain, whenScaled: Retain}
  selector: null
  serviceName: ""
  updateStrategy: {type: RollingUpdate, rollingUpdate: {partition: 0, maxUnavailable: 1}}
  template: {spec: {containers: null, dnsPolicy: ClusterFirst, restartPolicy: Always, schedulerName: default-scheduler, securityContext: {}, terminationGracePeriodSeconds: 30}}
  volumeClaimTemplates: [{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: d}, spec: {resources: {}, volumeMode: Filesystem}, status: {phase: Pending}}]
status: {replicas: 0, availableReplicas: 0}
`},
		{"a daemon set replaces one by one", "daemonsets.apps", "{spec: {template: {}}}", `
metadata: {annotations: {deprecated.daemonset.template.generation: "1"}}
spec:
  revisionHistoryLimit: 10
  selector: null
  updateStrategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 0, maxUnavailable: 1}}
  template: {spec: {containers: null, dnsPolicy: ClusterFirst, restartPolicy: Always, schedulerName: default-scheduler, securityContext: {}, terminationGracePeriodSeconds: 30}}
status: {currentNumberScheduled: 0, desiredNumberScheduled: 0, numberMisscheduled: 0, numberReady: 0}
`},
		{"a job selects its own pods", "jobs.batch", "{metadata: {name: j, uid: u}, spec: {template: {}}}", `
metadata: {name: j, uid: u, labels: {batch.kubernetes.io/controller-uid: u, batch.kubernetes.io/job-name: j, controller-uid: u, job-name: j}}
spec:
  backoffLimit: 6
  completionMode: NonIndexed
  completions: 1
  manualSelector: false
  parallelism: 1
  podReplacementPolicy: TerminatingOrFailed
  selector: {matchLabels: {batch.kubernetes.io/controller-uid: u}}
  suspend: false
  template:
    metadata: {labels: {batch.kubernetes.io/controller-uid: u, batch.kubernetes.io/job-name: j, controller-uid: u, job-name: j}}
    spec: {containers: null, dnsPolicy: ClusterFirst, restartPolicy: Always, schedulerName: default-scheduler, securityContext: {}, terminationGracePeriodSeconds: 30}
status: {}
`},
		{"a cron job keeps some history", "cronjobs.batch", "{spec: {schedule: x, jobTemplate: {}}}", `
spec:
  concurrencyPolicy: Allow
  failedJobsHistoryLimit: 1
  successfulJobsHistoryLimit: 3
  suspend: false
  schedule: x
  jobTemplate: {spec: {template: {spec: {containers: null, dnsPolicy: ClusterFirst, restartPolicy: Always, schedulerName: default-scheduler, securityContext: {}, terminationGracePeriodSeconds: 30}}}}
status: {}
`},
		{"a binding is of this group", "rolebindings.rbac.authorization.k8s.io", "{roleRef: {kind: Role, name: r}, subjects: [{kind: User, name: u}, {kind: ServiceAccount, name: s}]}",
			"{roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: r}, subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: u}, {kind: ServiceAccount, name: s}]}"},
		{"a storage class binds at once and deletes", "storageclasses.storage.k8s.io", "{provisioner: x}", "{provisioner: x, reclaimPolicy: Delete, volumeBindingMode: Immediate}"},
		{"a priority preempts", "priorityclasses.scheduling.k8s.io", "{value: 1}", "{value: 1, preemptionPolicy: PreemptLowerPriority}"},
		{"a slice is of TCP", "endpointslices.discovery.k8s.io", "{addressType: IPv4, ports: [{port: 1}]}", `{addressType: IPv4, endpoints: null, ports: [{name: "", port: 1, protocol: TCP}]}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := lookup(t, tt.resource)
			want := r.New()
			if err := yaml.UnmarshalStrict([]byte(tt.want), want); err != nil {
				t.Fatal(err)
			}
			expected, _ := yaml.Marshal(want)
			obj := made(t, r, tt.in)
			if r.Settle != nil {
				r.Settle(obj)
			}
			got, _ := yaml.Marshal(obj)
			if d := cmp.Diff(string(expected), string(got)); d != "" {
				t.Errorf("differs (-want +got):\n%s", d)
			}
		})
	}
}

func TestBadObjectsOfOtherGroupsAreRefused(t *testing.T) {
	const selected = "selector: {matchLabels: {a: b}}, template: " + template
	tests := []struct {
		name, resource, manifest string
		want                     []string
	}{
		{"a deployment without selector", "deployments.apps", "{spec: {template: " + template + "}}", []string{"spec.selector: Required value", `spec.template.metadata.labels: Invalid value: {"a":"b"}: ` + "`selector` does not match template `labels`"}},
		{"a deployment of others' pods", "deployments.apps", "{spec: {selector: {matchLabels: {a: c}}, template: " + template + "}}", []string{`spec.template.metadata.labels: Invalid value: {"a":"b"}: ` + "`selector` does not match template `labels`"}},
		{"a roll that cannot move", "deployments.apps", "{spec: {strategy: {rollingUpdate: {maxSurge: 0, maxUnavailable: 0}}, " + selected + "}}", []string{"spec.strategy.rollingUpdate.maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0"}},
		{"fewer than no replicas", "replicasets.apps", "{spec: {replicas: -1, " + selected + "}}", []string{"spec.replicas: Invalid value: -1: must be greater than or equal to 0"}},
		{"a deadline too near", "deployments.apps", "{spec: {minReadySeconds: 700, " + selected + "}}", []string{"spec.progressDeadlineSeconds: Invalid value: 600: must be greater than minReadySeconds"}},
		{"a daemon that both surges and leaves", "daemonsets.apps", "{spec: {updateStrategy: {rollingUpdate: {maxSurge: 1}}, " + selected + "}}", []string{"spec.updateStrategy.rollingUpdate.maxSurge: Invalid value: 1: may not be set when maxUnavailable is non-zero"}},
		{"a job that always restarts", "jobs.batch", "{metadata: {name: x, uid: u}, spec: {template: {spec: {containers: [{name: c, image: i}]}}}}", []string{`spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"`}},
		{"an indexed job without end", "jobs.batch", "{metadata: {name: x, uid: u}, spec: {completionMode: Indexed, parallelism: 1, template: " + once + "}}", []string{"spec.completions: Required value: when completion mode is Indexed"}},
		{"a job of another's pods", "jobs.batch", "{metadata: {name: x, uid: u}, spec: {template: {metadata: {labels: {job-name: other}}, spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}", []string{`spec.template.metadata.labels[job-name]: Invalid value: "other": must be 'x'`}},
		{"a schedule that is none", "cronjobs.batch", "{spec: {schedule: soon, jobTemplate: {spec: {template: " + once + "}}}}", []string{`spec.schedule: Invalid value: "soon": expected exactly 5 fields, found 1: [soon]`}},
		{"a zone that is none", "cronjobs.batch", "{spec: {schedule: '@daily', timeZone: Mars/Base, jobTemplate: {spec: {template: " + once + "}}}}", []string{`spec.timeZone: Invalid value: "Mars/Base": unknown time zone Mars/Base`}},
		{"a budget of two minds", "poddisruptionbudgets.policy", "{spec: {minAvailable: 1, maxUnavailable: 1}}", []string{`spec: Invalid value: {"MinAvailable":1,"Selector":null,"MaxUnavailable":1,"UnhealthyPodEvictionPolicy":null}: minAvailable and maxUnavailable cannot be both set`}},
		{"a lease of no time", "leases.coordination.k8s.io", "{spec: {leaseDurationSeconds: 0}}", []string{"spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0"}},
		{"a rule without verbs", "roles.rbac.authorization.k8s.io", "{rules: [{apiGroups: [''], resources: [pods]}]}", []string{"rules[0].verbs: Required value"}},
		{"a namespaced rule of paths", "roles.rbac.authorization.k8s.io", "{rules: [{verbs: [get], nonResourceURLs: [/x]}]}", []string{`rules[0].nonResourceURLs: Invalid value: ["/x"]: namespaced rules cannot apply to non-resource URLs`}},
		{"a subject of no kind", "rolebindings.rbac.authorization.k8s.io", "{roleRef: {kind: Role, name: r}, subjects: [{kind: X, name: u}]}", []string{`subjects[0].kind: Unsupported value: "X": supported values: "ServiceAccount", "User", "Group"`}},
		{"a class without provisioner", "storageclasses.storage.k8s.io", "{}", []string{"provisioner: Required value"}},
		{"a priority too high", "priorityclasses.scheduling.k8s.io", "{value: 1000000001}", []string{"value: Forbidden: maximum allowed value of a user defined priority is 1000000000"}},
		{"a priority of the system", "priorityclasses.scheduling.k8s.io", "{metadata: {name: system-x}, value: 1}", []string{"metadata.name: Forbidden: priority class names with 'system-' prefix are reserved for system use only. error: system-x is not a known system priority class"}},
		{"an ingress to nowhere", "ingresses.networking.k8s.io", "{}", []string{"spec: Invalid value: null: either `defaultBackend` or `rules` must be specified"}},
		{"a path without type", "ingresses.networking.k8s.io", "{spec: {rules: [{http: {paths: [{path: /, backend: {service: {name: s, port: {number: 80}}}}]}}]}}", []string{"spec.rules[0].http.paths[0].pathType: Required value: pathType must be specified"}},
		{"a slice of mixed addresses", "endpointslices.discovery.k8s.io", "{addressType: IPv4, endpoints: [{addresses: ['fd00::1']}]}", []string{`endpoints[0].addresses: Invalid value: "fd00::1": must be an IPv4 address`}},
		{"a request that is none", "certificatesigningrequests.certificates.k8s.io", "{spec: {request: eA==, signerName: example.com/x, usages: [client auth]}}", []string{`spec.request: Invalid value: "eA==": PEM block type must be CERTIFICATE REQUEST`}},
		{"an attachment of nothing", "volumeattachments.storage.k8s.io", "{spec: {attacher: x, nodeName: n}}", []string{"spec.source: Required value: must specify exactly one of inlineVolumeSpec and persistentVolumeName"}},
		{"a review of nothing", "selfsubjectaccessreviews.authorization.k8s.io", "{}", []string{"spec: Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be specified"}},
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

func TestUpdatesOfOtherGroups(t *testing.T) {
	const labelled = "template: {metadata: {labels: {a: b, c: d}}, spec: {containers: [{name: c, image: i}]}}"
	tests := []struct {
		name, resource, old, new string
		want                     []string
	}{
		{"a selector stays", "deployments.apps", "{spec: {selector: {matchLabels: {a: b}}, " + labelled + "}}", "{spec: {selector: {matchLabels: {c: d}}, " + labelled + "}}", []string{`spec.selector: Invalid value: {"matchLabels":{"c":"d"}}: field is immutable`}},
		{"a stateful set keeps its service", "statefulsets.apps", "{spec: {serviceName: s, selector: {matchLabels: {a: b}}, " + labelled + "}}", "{spec: {serviceName: t, selector: {matchLabels: {a: b}}, " + labelled + "}}", []string{`spec.serviceName: Invalid value: "t": field is immutable`}},
		{"a stateful set is scaled", "statefulsets.apps", "{spec: {selector: {matchLabels: {a: b}}, " + labelled + "}}", "{spec: {replicas: 3, selector: {matchLabels: {a: b}}, " + labelled + "}}", nil},
		{"a job keeps its completions", "jobs.batch", "{metadata: {name: x, uid: u}, spec: {completions: 1, template: " + once + "}}", "{metadata: {name: x, uid: u}, spec: {completions: 2, template: " + once + "}}", []string{"spec.completions: Invalid value: 2: field is immutable"}},
		{"an elastic job may grow", "jobs.batch", "{metadata: {name: x, uid: u}, spec: {completionMode: Indexed, completions: 1, parallelism: 1, template: " + once + "}}", "{metadata: {name: x, uid: u}, spec: {completionMode: Indexed, completions: 2, parallelism: 2, template: " + once + "}}", nil},
		{"a binding keeps its role", "rolebindings.rbac.authorization.k8s.io", "{roleRef: {kind: Role, name: r}}", "{roleRef: {kind: Role, name: s}}", []string{`roleRef: Invalid value: {"APIGroup":"rbac.authorization.k8s.io","Kind":"Role","Name":"s"}: field is immutable`}},
		{"a priority keeps its value", "priorityclasses.scheduling.k8s.io", "{value: 1}", "{value: 2}", []string{"value: Forbidden: may not be changed in an update."}},
		{"a class keeps its provisioner", "storageclasses.storage.k8s.io", "{provisioner: a}", "{provisioner: b}", []string{"provisioner: Invalid value: null: field is immutable"}},
		{"a slice keeps its address type", "endpointslices.discovery.k8s.io", "{addressType: IPv4}", "{addressType: IPv6}", []string{"addressType: Invalid value: null: field is immutable"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := lookup(t, tt.resource)
			old, obj := made(t, r, tt.old), made(t, r, tt.new)
			if r.PrepareUpdate != nil {
				r.PrepareUpdate(obj, old)
			}
			if d := cmp.Diff(tt.want, messages(r.ValidateUpdate(t.Context(), obj, old))); d != "" {
				t.Errorf("differs (-want +got):\n%s", d)
			}
		})
	}
}

func TestEventsConvertWithoutLoss(t *testing.T) {
	r := lookup(t, "events")
	event := r.New()
	if err := yaml.UnmarshalStrict([]byte(`
metadata: {name: x, namespace: default}
involvedObject: {kind: Pod, name: p, fieldPath: f}
reason: R
message: M
source: {component: c, host: h}
firstTimestamp: "2026-01-01T00:00:00Z"
lastTimestamp: "2026-01-01T00:01:00Z"
count: 3
type: Normal
eventTime: "2026-01-01T00:00:00.123456Z"
series: {count: 4, lastObservedTime: "2026-01-01T00:00:01.000001Z"}
action: A
related: {kind: Node, name: n}
reportingComponent: rc
reportingInstance: ri
`), event); err != nil {
		t.Fatal(err)
	}
	served, err := r.Also[0].FromHub(event)
	if err != nil {
		t.Fatal(err)
	}
	back, err := r.Also[0].ToHub(served)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(event, back); d != "" {
		t.Errorf("differs (-want +got):\n%s", d)
	}
}

func TestNamesThatAreNoLabelsWarn(t *testing.T) {
	for _, resource := range []string{"pods", "replicationcontrollers", "deployments.apps", "replicasets.apps", "jobs.batch", "cronjobs.batch"} {
		t.Run(resource, func(t *testing.T) {
			r := lookup(t, resource)
			obj := made(t, r, minimal[resource])
			for name, want := range map[string]int{"a": 0, "a.b": 1} {
				obj.SetName(name)
				if got := r.Warnings(obj, nil); len(got) != want {
					t.Errorf("%q warns %q", name, got)
				}
			}
			if got := r.Warnings(obj, obj); len(got) != 0 {
				t.Errorf("an update warns %q", got)
			}
		})
	}
}

func TestRowsOfOtherKinds(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	tests := []struct {
		name, resource, manifest string
		want                     []any
	}{
		{"a service with node ports", "services", "{metadata: {name: s}, spec: {type: LoadBalancer, clusterIP: 10.0.0.1, ports: [{port: 80, nodePort: 30000, protocol: TCP}]}}", []any{"s", "LoadBalancer", "10.0.0.1", "<pending>", "80:30000/TCP"}},
		{"a node out of service", "nodes", "{metadata: {name: n1, labels: {node-role.kubernetes.io/control-plane: ''}, creationTimestamp: '2026-01-01T11:00:00Z'}, spec: {unschedulable: true}, status: {conditions: [{type: Ready, status: 'False'}], nodeInfo: {kubeletVersion: v1}}}", []any{"n1", "NotReady,SchedulingDisabled", "control-plane", "60m", "v1", "<none>"}},
		{"a deployment", "deployments.apps", "{metadata: {name: d, creationTimestamp: '2026-01-01T11:59:00Z'}, spec: {replicas: 3}, status: {readyReplicas: 2, updatedReplicas: 3}}", []any{"d", "2/3", int64(3), int64(0), "60s"}},
		{"a finished job", "jobs.batch", "{metadata: {name: j}, spec: {completions: 2}, status: {succeeded: 2, conditions: [{type: Complete, status: 'True'}], startTime: '2026-01-01T11:00:00Z', completionTime: '2026-01-01T11:00:07Z'}}", []any{"j", "Complete", "2/2", "7s"}},
		{"an event", "events", "{metadata: {name: e}, involvedObject: {kind: Pod, name: p}, type: Normal, reason: R, lastTimestamp: '2026-01-01T11:59:00Z'}", []any{"60s", "Normal", "R", "pod/p"}},
		{"a bound claim", "persistentvolumeclaims", "{metadata: {name: c}, spec: {volumeName: v, storageClassName: s}, status: {phase: Bound, capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce]}}", []any{"c", "Bound", "v", "1Gi", "RWO", "s", "<unset>"}},
		{"a default class", "storageclasses.storage.k8s.io", "{metadata: {name: c, annotations: {storageclass.kubernetes.io/is-default-class: 'true'}}, provisioner: p}", []any{"c (default)", "p", "Delete", "Immediate", false}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := lookup(t, tt.resource)
			obj := r.New()
			if err := yaml.UnmarshalStrict([]byte(tt.manifest), obj); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, r.Row(obj, now)[:len(tt.want)]); d != "" {
				t.Errorf("differs (-want +got):\n%s", d)
			}
		})
	}
}

func TestApprovalOfCertificates(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "u"}}, key)
	if err != nil {
		t.Fatal(err)
	}
	r := lookup(t, "certificatesigningrequests.certificates.k8s.io")
	asked := &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{
		Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
		SignerName: certificatesv1.KubeAPIServerClientSignerName, Usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth},
	}}
	if errs := r.Validate(t.Context(), asked); len(errs) > 0 {
		t.Fatal(errs.ToAggregate())
	}
	approved := asked.DeepCopy()
	approved.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue}}
	now := time.Unix(1_000_000, 0)
	approval, status := r.Subresource("approval"), r.Subresource("status")
	approval.PrepareUpdate(approved, asked)
	r.Stamp(approved, asked, now)
	if errs := approval.ValidateUpdate(t.Context(), approved, asked); len(errs) > 0 {
		t.Error(errs.ToAggregate())
	}
	if c := approved.Status.Conditions[0]; !c.LastTransitionTime.Time.Equal(now) || !c.LastUpdateTime.Time.Equal(now) {
		t.Errorf("condition not stamped: %v", c)
	}
	tests := []struct {
		name string
		errs field.ErrorList
		want []string
	}{
		{"status does not approve", status.ValidateUpdate(t.Context(), approved, asked), []string{`status.conditions: Forbidden: updates may not add a condition of type "Approved"`}},
		{"approval is for ever", approval.ValidateUpdate(t.Context(), asked, approved), []string{`status.conditions: Forbidden: updates may not remove a condition of type "Approved"`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if d := cmp.Diff(tt.want, messages(tt.errs)); d != "" {
				t.Errorf("differs (-want +got):\n%s", d)
			}
		})
	}
}
