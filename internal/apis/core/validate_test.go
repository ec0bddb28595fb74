package core

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"proa/internal/apis"
)

func messages(errs field.ErrorList) []string {
	var all []string
	for _, e := range errs {
		first, _, _ := strings.Cut(e.Error(), "\n")
		all = append(all, first)
	}
	return all
}

const goodPod = `
metadata: {name: a, namespace: d, labels: {app: a}}
spec:
  nodeSelector: {disk: ssd}
  hostname: h
  subdomain: s
  priorityClassName: high
  runtimeClassName: kata
  activeDeadlineSeconds: 60
  shareProcessNamespace: true
  securityContext: {runAsUser: 1, runAsGroup: 2, fsGroup: 3, supplementalGroups: [4], sysctls: [{name: net.core.somaxconn, value: "1"}], seccompProfile: {type: RuntimeDefault}}
  dnsPolicy: None
  dnsConfig: {nameservers: [10.0.0.1], searches: [a.b, .], options: [{name: ndots}]}
  hostAliases: [{ip: 10.0.0.2, hostnames: [x.y]}]
  readinessGates: [{conditionType: example.com/ok}]
  tolerations: [{operator: Exists}, {key: a, operator: Equal, value: b, effect: NoExecute, tolerationSeconds: 3}]
  topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: a}}, minDomains: 2}]
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: In, values: [b]}], matchFields: [{key: metadata.name, operator: In, values: [n]}]}]}
      preferredDuringSchedulingIgnoredDuringExecution: [{weight: 5, preference: {matchExpressions: [{key: a, operator: Exists}]}}]
    podAntiAffinity:
      requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: zone, labelSelector: {matchLabels: {tier: a}}, matchLabelKeys: [app]}]
  overhead: {cpu: 10m}
  volumes:
  - {name: e, emptyDir: {sizeLimit: 1Gi}}
  - {name: c, configMap: {name: c, items: [{key: k, path: p}]}}
  - {name: p, persistentVolumeClaim: {claimName: c}}
  - {name: t, ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}}}
  - {name: i, image: {reference: busybox, pullPolicy: Always}}
  initContainers:
  - {name: sidecar, image: i, restartPolicy: Always, startupProbe: {exec: {command: [a]}}}
  containers:
  - name: c
    image: i
    ports: [{name: web, containerPort: 80, hostPort: 8080}]
    env: [{name: A, value: a}, {name: B, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 1m}}}, {name: C, valueFrom: {configMapKeyRef: {name: c, key: k}}}]
    envFrom: [{prefix: P, secretRef: {name: s}}]
    resources: {limits: {cpu: 1, memory: 1Gi, example.com/gpu: 1}}
    volumeMounts: [{name: e, mountPath: /e, subPath: a/b}, {name: c, mountPath: /c, readOnly: true}]
    volumeDevices: [{name: p, devicePath: /dev/x}]
    lifecycle: {preStop: {sleep: {seconds: 3}}}
    readinessProbe: {httpGet: {port: web}}
    securityContext: {runAsNonRoot: true, capabilities: {drop: [ALL]}, appArmorProfile: {type: RuntimeDefault}}
`

func TestGoodObjectsAreValid(t *testing.T) {
	tests := []struct {
		name     string
		resource *apis.Resource
		manifest string
	}{
		{"a minimal pod", &Pods, "{metadata: {name: a}, spec: {containers: [{name: c, image: i}]}}"},
		{"a pod with much in it", &Pods, goodPod},
		{"a service", &Services, "{metadata: {name: a}, spec: {ports: [{port: 80}]}}"},
		{"a headless service without ports", &Services, "{metadata: {name: a}, spec: {clusterIP: None, clusterIPs: [None]}}"},
		{"an external name", &Services, "{metadata: {name: a}, spec: {type: ExternalName, externalName: example.com.}}"},
		{"a load balancer", &Services, "{metadata: {name: a}, spec: {type: LoadBalancer, externalTrafficPolicy: Local, loadBalancerSourceRanges: [10.0.0.0/8], ports: [{name: a, port: 80, nodePort: 30000}, {name: b, port: 80, protocol: UDP}]}}"},
		{"a config map", &ConfigMaps, "{metadata: {name: a}, data: {a.b_c-d: x}}"},
		{"a secret", &Secrets, "{metadata: {name: a}, type: kubernetes.io/tls, data: {tls.crt: '', tls.key: ''}}"},
		{"a namespace", &Namespaces, "{metadata: {name: a}}"},
		{"a node", &Nodes, "{metadata: {name: a}, spec: {podCIDR: 10.0.0.0/24, podCIDRs: [10.0.0.0/24], taints: [{key: a, effect: NoSchedule}]}, status: {capacity: {cpu: 1, pods: 110, hugepages-2Mi: 0}}}"},
		{"a claim", &PersistentVolumeClaims, "{metadata: {name: a}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}"},
		{"a volume", &PersistentVolumes, "{metadata: {name: a}, spec: {accessModes: [ReadWriteOnce], capacity: {storage: 1Gi}, hostPath: {path: /x}}}"},
		{"a quota", &ResourceQuotas, "{metadata: {name: a}, spec: {hard: {cpu: 1, requests.memory: 1Gi, count/deployments.apps: 3, services.nodeports: 1, requests.example.com/gpu: 1}, scopes: [NotTerminating]}}"},
		{"a limit range", &LimitRanges, "{metadata: {name: a}, spec: {limits: [{type: Container, max: {cpu: 2}, min: {cpu: 1}}, {type: PersistentVolumeClaim, max: {storage: 1Gi}}]}}"},
		{"a replication controller", &ReplicationControllers, "{metadata: {name: a}, spec: {template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}"},
		{"endpoints", &Endpoints, "{metadata: {name: a}, subsets: [{addresses: [{ip: 10.0.0.1}], ports: [{port: 80}]}]}"},
		{"an event", &Events, "{metadata: {name: a, namespace: default}, involvedObject: {kind: Node, name: n}}"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			obj := parse(t, tt.resource, tt.manifest, true)
			if tt.resource.PrepareCreate != nil {
				tt.resource.PrepareCreate(obj)
			}
			if errs := tt.resource.Validate(t.Context(), obj); len(errs) > 0 {
				t.Error(errs.ToAggregate())
			}
		})
	}
}

// pod is a manifest with a spec besides one good container.
func pod(spec string) string {
	return "{metadata: {name: a}, spec: {containers: [{name: c, image: i}], " + spec + "}}"
}

// container is a manifest of a pod whose container has more to it.
func container(rest string) string {
	return "{metadata: {name: a}, spec: {volumes: [{name: v}], containers: [{name: c, image: i, " + rest + "}]}}"
}

func TestBadObjectsAreRefused(t *testing.T) {
	const at = "spec.containers[0]."
	tests := []struct {
		name     string
		resource *apis.Resource
		manifest string
		want     []string
	}{
		{"no containers", &Pods, "{metadata: {name: a}}", []string{"spec.containers: Required value"}},
		{"no image", &Pods, "{spec: {containers: [{name: c}]}}", []string{at + "image: Required value"}},
		{"twice the same name", &Pods, "{spec: {containers: [{name: c, image: i}, {name: c, image: i}]}}", []string{`spec.containers[1].name: Duplicate value: "c"`}},
		{"an unknown restart policy", &Pods, pod("restartPolicy: Sometimes"), []string{`spec.restartPolicy: Unsupported value: "Sometimes": supported values: "Always", "OnFailure", "Never"`}},
		{"an unknown DNS policy", &Pods, pod("dnsPolicy: X"), []string{`spec.dnsPolicy: Unsupported value: "X": supported values: "ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"`}},
		{"no name servers", &Pods, pod("dnsPolicy: None"), []string{"spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None"}},
		{"a port out of range", &Pods, container("ports: [{containerPort: 70000}]"), []string{at + "ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive"}},
		{"a host port twice", &Pods, container("ports: [{containerPort: 80, hostPort: 80}, {containerPort: 81, hostPort: 80}]"), []string{at + `ports[1].hostPort: Duplicate value: "TCP//80"`}},
		{"requests above limits", &Pods, container("resources: {limits: {cpu: 1}, requests: {cpu: 2}}"), []string{at + `resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1`}},
		{"a devices request without limit", &Pods, container("resources: {requests: {example.com/gpu: 1}}"), []string{at + "resources.limits: Required value: Limit must be set for non overcommitable resources"}},
		{"an unknown resource", &Pods, container("resources: {limits: {foo: 1}}"), []string{
			at + `resources.limits[foo]: Invalid value: "foo": must be a standard resource type or fully qualified`,
			at + `resources.limits[foo]: Invalid value: "foo": must be a standard resource for containers`,
			at + `resources.requests[foo]: Invalid value: "foo": must be a standard resource type or fully qualified`,
			at + `resources.requests[foo]: Invalid value: "foo": must be a standard resource for containers`,
		}},
		{"a mount of nothing", &Pods, container("volumeMounts: [{name: x, mountPath: /x}]"), []string{at + `volumeMounts[0].name: Not found: "x"`}},
		{"a mount that climbs", &Pods, container("volumeMounts: [{name: v, mountPath: /x, subPath: ../x}]"), []string{at + `volumeMounts[0].subPath: Invalid value: "../x": must not contain '..'`}},
		{"propagation without privilege", &Pods, container("volumeMounts: [{name: v, mountPath: /x, mountPropagation: Bidirectional}]"), []string{at + "volumeMounts.mountPropagation: Forbidden: Bidirectional mount propagation is available only to privileged containers"}},
		{"two volume sources", &Pods, pod("volumes: [{name: v, emptyDir: {}, hostPath: {path: /x}}]"), []string{"spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type"}},
		{"a handler of two kinds", &Pods, container("livenessProbe: {exec: {command: [a]}, tcpSocket: {port: 1}}"), []string{at + "livenessProbe.tcpSocket: Forbidden: may not specify more than 1 handler type"}},
		{"liveness needing two successes", &Pods, container("livenessProbe: {tcpSocket: {port: 1}, successThreshold: 2}"), []string{at + "livenessProbe.successThreshold: Invalid value: 2: must be 1"}},
		{"an environment field that is none", &Pods, container("env: [{name: A, valueFrom: {fieldRef: {fieldPath: spec.x}}}]"), []string{at + `env[0].valueFrom.fieldRef.fieldPath: Invalid value: "spec.x": error converting fieldPath: field label not supported: spec.x`}},
		{"an environment from nowhere", &Pods, container("envFrom: [{}]"), []string{at + `envFrom: Invalid value: "": must specify one of: ` + "`configMapRef` or `secretRef`"}},
		{"privilege that may not escalate", &Pods, container("securityContext: {privileged: true, allowPrivilegeEscalation: false}"), []string{at + `securityContext: Invalid value: {"privileged":true,"allowPrivilegeEscalation":false}: cannot set ` + "`allowPrivilegeEscalation` to false and `privileged` to true"}},
		{"a toleration without key", &Pods, pod("tolerations: [{value: a}]"), []string{`spec.tolerations[0].operator: Invalid value: "": operator must be Exists when ` + "`key`" + ` is empty, which means "match all values and all keys"`}},
		{"skew of nothing", &Pods, pod("topologySpreadConstraints: [{maxSkew: 0, topologyKey: z, whenUnsatisfiable: DoNotSchedule}]"), []string{"spec.topologySpreadConstraints[0].maxSkew: Invalid value: 0: must be greater than zero"}},
		{"affinity without topology", &Pods, pod("affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{}]}}"), []string{"spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey: Required value: can not be empty", "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey: Invalid value: \"\": name part must be non-empty", "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey: Invalid value: \"\": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"}},
		{"a probe of an init container", &Pods, pod("initContainers: [{name: x, image: i, livenessProbe: {tcpSocket: {port: 1}}}]"), []string{"spec.initContainers[0].livenessProbe: Forbidden: may not be set for init containers without restartPolicy=Always"}},
		{"host processes shared twice", &Pods, pod("hostPID: true, shareProcessNamespace: true"), []string{"spec.shareProcessNamespace: Invalid value: true: ShareProcessNamespace and HostPID cannot both be enabled"}},
		{"an assigned pod with gates", &Pods, pod("nodeName: n, schedulingGates: [{name: a}]"), []string{"spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared"}},
		{"ephemeral containers from the start", &Pods, pod("ephemeralContainers: [{name: e, image: i}]"), []string{"spec.ephemeralContainers: Forbidden: cannot be set on create"}},

		{"a service without ports", &Services, "{spec: {}}", []string{"spec.ports: Required value"}},
		{"node ports of an inner service", &Services, "{spec: {ports: [{port: 80, nodePort: 30000}]}}", []string{"spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'"}},
		{"two ports without names", &Services, "{spec: {ports: [{port: 80}, {port: 81}]}}", []string{"spec.ports[0].name: Required value", "spec.ports[1].name: Required value"}},
		{"a headless node port", &Services, "{spec: {type: NodePort, clusterIP: None, clusterIPs: [None], ports: [{port: 80}]}}", []string{`spec.clusterIPs[0]: Invalid value: "None": may not be set to 'None' for NodePort services`}},
		{"an unknown type", &Services, "{spec: {type: X, ports: [{port: 80}]}}", []string{`spec.type: Unsupported value: "X": supported values: "ClusterIP", "ExternalName", "LoadBalancer", "NodePort"`}},

		{"a key with a slash", &ConfigMaps, "{data: {a/b: x}}", []string{`data[a/b]: Invalid value: "a/b": a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')`}},
		{"more than a mebibyte", &ConfigMaps, "{data: {a: " + strings.Repeat("x", 1<<20+1) + "}}", []string{"[]: Too long: may not be more than 1048576 bytes"}},
		{"half a certificate", &Secrets, "{type: kubernetes.io/tls, data: {tls.crt: ''}}", []string{"data[tls.key]: Required value"}},
		{"a claim for nothing", &PersistentVolumeClaims, "{}", []string{"spec.accessModes: Required value: at least 1 access mode is required", "spec.resources[storage]: Required value"}},
		{"a volume of nothing", &PersistentVolumes, "{spec: {accessModes: [ReadWriteOnce]}}", []string{"spec.capacity: Required value", `spec.capacity: Unsupported value: null: supported values: "storage"`, "spec: Required value: must specify a volume type"}},
		{"a quota of what is not", &ResourceQuotas, "{spec: {hard: {foo: 1}}}", []string{
			`spec.hard[foo]: Invalid value: "foo": must be a standard resource type or fully qualified`,
			`spec.hard[foo]: Invalid value: "foo": must be a standard resource for quota`,
		}},
		{"limits upside down", &LimitRanges, "{spec: {limits: [{type: Pod, max: {cpu: 1}, min: {cpu: 2}}]}}", []string{`spec.limits[0].min[cpu]: Invalid value: "2": min value 2 is greater than max value 1`}},
		{"a template that is not selected", &ReplicationControllers, "{spec: {selector: {a: b}, template: {metadata: {labels: {a: c}}, spec: {containers: [{name: c, image: i}]}}}}", []string{
			`spec.template.metadata.labels: Invalid value: {"a":"c"}: ` + "`selector` does not match template `labels`",
		}},
		{"a loop-back endpoint", &Endpoints, "{subsets: [{addresses: [{ip: 127.0.0.1}], ports: [{port: 80}]}]}", []string{`subsets[0].addresses[0].ip: Invalid value: "127.0.0.1": may not be in the loopback range (127.0.0.0/8, ::1/128)`}},
		{"an event of another namespace", &Events, "{metadata: {namespace: a}, involvedObject: {namespace: b}}", []string{`involvedObject.namespace: Invalid value: "b": does not match event.namespace`}},
		{"a taint twice", &Nodes, "{spec: {taints: [{key: a, effect: NoSchedule}, {key: a, effect: NoSchedule}]}}", []string{`metadata.taints[1]: Duplicate value: {"key":"a","effect":"NoSchedule"}: taints must be unique by key and effect pair`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := messages(tt.resource.Validate(t.Context(), parse(t, tt.resource, tt.manifest, true)))
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("differs (-want +got):\n%s", d)
			}
		})
	}
}

func TestUpdates(t *testing.T) {
	const gated = "schedulingGates: [{name: g}], nodeSelector: {a: b}"
	tests := []struct {
		name        string
		resource    *apis.Resource
		subresource string
		old, new    string
		want        []string
	}{
		{"an image may change", &Pods, "", pod(""), "{metadata: {name: a}, spec: {containers: [{name: c, image: j}]}}", nil},
		{"a hostname may not", &Pods, "", pod(""), pod("hostname: h"), []string{"spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"}},
		{"containers stay as many", &Pods, "", pod(""), "{spec: {containers: [{name: c, image: i}, {name: d, image: i}]}}", []string{"spec.containers: Forbidden: pod updates may not add or remove containers"}},
		{"tolerations are added", &Pods, "", pod("tolerations: [{key: a, operator: Exists}]"), pod("tolerations: [{key: a, operator: Exists}, {key: b, operator: Exists}]"), nil},
		{"tolerations are not removed", &Pods, "", pod("tolerations: [{key: a, operator: Exists}]"), pod(""), []string{"spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds"}},
		{"gates are removed", &Pods, "", pod(gated), pod("nodeSelector: {a: b}"), nil},
		{"gates are not added", &Pods, "", pod(""), pod("schedulingGates: [{name: g}]"), []string{"spec.schedulingGates[0].name: Forbidden: only deletion is allowed, but found new scheduling gate 'g'"}},
		{"a gated pod is narrowed", &Pods, "", pod(gated), pod("schedulingGates: [{name: g}], nodeSelector: {a: b, c: d}"), nil},
		{"a gated pod is not moved", &Pods, "", pod(gated), pod("schedulingGates: [{name: g}], nodeSelector: {a: c}"), []string{`spec.nodeSelector: Invalid value: {"a":"c"}: only additions to spec.nodeSelector are allowed (no mutations or deletions)`}},
		{"debugging is added", &Pods, "ephemeralcontainers", pod(""), pod("ephemeralContainers: [{name: d, image: i, targetContainerName: c}]"), nil},
		{"debugging stays", &Pods, "ephemeralcontainers", pod("ephemeralContainers: [{name: d, image: i}]"), pod(""), []string{`spec.ephemeralContainers: Forbidden: existing ephemeral containers "d" may not be removed`}},
		{"cpu is resized", &Pods, "resize", container("resources: {requests: {cpu: 1}}"), container("resources: {requests: {cpu: 2}}"), nil},
		{"a request stays one", &Pods, "resize", container("resources: {requests: {cpu: 1, memory: 1Gi}}"), container("resources: {requests: {cpu: 1}}"), []string{at + "resources.requests: Forbidden: resource requests cannot be removed"}},
		{"best effort stays so", &Pods, "resize", container(""), container("resources: {requests: {cpu: 1}}"), []string{`spec: Invalid value: "": Pod QOS Class may not change as a result of resizing`}},
		{"a cluster address stays", &Services, "", "{spec: {clusterIP: 10.0.0.1, clusterIPs: [10.0.0.1], ports: [{port: 80}]}}", "{spec: {clusterIP: 10.0.0.2, clusterIPs: [10.0.0.2], ports: [{port: 80}]}}", []string{`spec.clusterIPs[0]: Invalid value: ["10.0.0.2"]: may not change once set`}},
		{"a type may change", &Services, "", "{spec: {type: NodePort, clusterIP: 10.0.0.1, clusterIPs: [10.0.0.1], ports: [{port: 80, nodePort: 30000}]}}", "{spec: {clusterIP: 10.0.0.1, clusterIPs: [10.0.0.1], ports: [{port: 80, nodePort: 30000}]}}", nil},
		{"an immutable map", &ConfigMaps, "", "{immutable: true, data: {a: b}}", "{data: {a: c}}", []string{"immutable: Forbidden: field is immutable when `immutable` is set", "data: Forbidden: field is immutable when `immutable` is set"}},
		{"a secret keeps its type", &Secrets, "", "{type: a}", "{type: b}", []string{`type: Invalid value: "b": field is immutable`}},
		{"a claim keeps its class", &PersistentVolumeClaims, "", "{spec: {storageClassName: a, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}", "{spec: {storageClassName: b, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}", []string{"spec: Forbidden: spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"}},
		{"a bound claim grows", &PersistentVolumeClaims, "", "{spec: {volumeName: v, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}, status: {phase: Bound, capacity: {storage: 1Gi}}}", "{spec: {volumeName: v, accessModes: [ReadWriteOnce], resources: {requests: {storage: 2Gi}}}, status: {phase: Bound}}", nil},
		{"a bound claim does not shrink", &PersistentVolumeClaims, "", "{spec: {volumeName: v, accessModes: [ReadWriteOnce], resources: {requests: {storage: 2Gi}}}, status: {phase: Bound, capacity: {storage: 2Gi}}}", "{spec: {volumeName: v, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}, status: {phase: Bound}}", []string{"spec.resources.requests.storage: Forbidden: field can not be less than status.capacity"}},
		{"a node keeps its range", &Nodes, "", "{spec: {podCIDR: 10.0.0.0/24, podCIDRs: [10.0.0.0/24]}}", "{spec: {podCIDR: 10.0.1.0/24, podCIDRs: [10.0.1.0/24]}}", []string{`spec.podCIDRs: Forbidden: node updates may not change podCIDR except from "" to valid`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			old, obj := parse(t, tt.resource, tt.old, true), parse(t, tt.resource, tt.new, true)
			prepare, check := tt.resource.PrepareUpdate, tt.resource.ValidateUpdate
			if tt.subresource != "" {
				s := tt.resource.Subresource(tt.subresource)
				prepare, check = s.PrepareUpdate, s.ValidateUpdate
			}
			if prepare != nil {
				prepare(obj, old)
			}
			if d := cmp.Diff(tt.want, messages(check(t.Context(), obj, old))); d != "" {
				t.Errorf("differs (-want +got):\n%s", d)
			}
		})
	}
}

const at = "spec.containers[0]."

func TestStatusIsKeptApart(t *testing.T) {
	for _, r := range Resources() {
		s := r.Subresource("status")
		if s == nil {
			continue
		}
		t.Run(r.Plural, func(t *testing.T) {
			old := parse(t, r, "{metadata: {name: a}}", true)
			spec := parse(t, r, "{metadata: {name: a}}", true)
			s.PrepareUpdate(spec, old)
			if d := cmp.Diff(show(t, old), show(t, spec)); d != "" {
				t.Errorf("an unchanged status update changes (-want +got):\n%s", d)
			}
		})
	}
}
