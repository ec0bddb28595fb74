package registry

import (
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/randfill"
	"sigs.k8s.io/yaml"

	"proa/internal/apis"
	"proa/internal/client"
)

// valid are objects that validation lets pass, each a start for what it should not.
const valid = `
{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: default}, data: {k: v}}
{apiVersion: v1, kind: Secret, metadata: {name: a, namespace: default}, type: Opaque, data: {k: dg==}}
{apiVersion: v1, kind: Service, metadata: {name: a, namespace: default}, spec: {type: NodePort, selector: {a: b}, ports: [{name: p, port: 80, targetPort: http}]}}
{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: default}, spec: {securityContext: {runAsUser: 1}, affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}]}}}, tolerations: [{key: a, operator: Exists}], topologySpreadConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: DoNotSchedule}], initContainers: [{name: i, image: i, restartPolicy: Always}], containers: [{name: c, image: i, ports: [{containerPort: 1}], env: [{name: E, valueFrom: {fieldRef: {fieldPath: metadata.name}}}], resources: {limits: {cpu: 1}}, livenessProbe: {httpGet: {port: 1, path: /}}, lifecycle: {preStop: {sleep: {seconds: 1}}}, volumeMounts: [{name: v, mountPath: /v}]}], volumes: [{name: v, projected: {sources: [{configMap: {name: a}}]}}]}}
{apiVersion: v1, kind: Node, metadata: {name: a}, spec: {podCIDR: 10.0.0.0/24, taints: [{key: a, effect: NoSchedule}]}, status: {capacity: {cpu: 1}}}
{apiVersion: v1, kind: Namespace, metadata: {name: b}}
{apiVersion: v1, kind: PersistentVolume, metadata: {name: a}, spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], hostPath: {path: /x}}}
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: a, namespace: default}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}
{apiVersion: v1, kind: LimitRange, metadata: {name: a, namespace: default}, spec: {limits: [{type: Container, max: {cpu: 2}, default: {cpu: 1}}]}}
{apiVersion: v1, kind: ResourceQuota, metadata: {name: a, namespace: default}, spec: {hard: {pods: 1}, scopeSelector: {matchExpressions: [{scopeName: PriorityClass, operator: Exists}]}}}
{apiVersion: v1, kind: ServiceAccount, metadata: {name: a, namespace: default}}
{apiVersion: v1, kind: Endpoints, metadata: {name: a, namespace: default}, subsets: [{addresses: [{ip: 1.2.3.4}], ports: [{port: 1}]}]}
{apiVersion: v1, kind: ReplicationController, metadata: {name: a, namespace: default}, spec: {selector: {a: b}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}
{apiVersion: apps/v1, kind: Deployment, metadata: {name: a, namespace: default}, spec: {strategy: {rollingUpdate: {maxSurge: 1}}, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}
{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: a, namespace: default}, spec: {serviceName: s, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}, volumeClaimTemplates: [{metadata: {name: v}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]}}
{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: a, namespace: default}, spec: {updateStrategy: {rollingUpdate: {maxUnavailable: 1}}, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}
{apiVersion: apps/v1, kind: ControllerRevision, metadata: {name: a, namespace: default}, revision: 1, data: {a: 1}}
{apiVersion: batch/v1, kind: Job, metadata: {name: a, namespace: default}, spec: {completions: 2, completionMode: Indexed, podFailurePolicy: {rules: [{action: FailJob, onExitCodes: {operator: In, values: [1]}}]}, successPolicy: {rules: [{succeededIndexes: "0"}]}, template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}
{apiVersion: batch/v1, kind: CronJob, metadata: {name: a, namespace: default}, spec: {schedule: "1 * * * *", timeZone: Etc/UTC, jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}}}
{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {name: a, namespace: default}, spec: {maxReplicas: 3, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: d}, metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 1}}}], behavior: {scaleDown: {policies: [{type: Pods, value: 1, periodSeconds: 1}]}}}}
{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: a, namespace: default}, spec: {minAvailable: 1, selector: {matchLabels: {a: b}}}}
{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: a, namespace: default}, spec: {rules: [{host: a.b, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: s, port: {number: 1}}}}]}}], tls: [{hosts: [a.b]}]}}
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: a, namespace: default}, spec: {podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}], ports: [{port: 1, endPort: 2}]}]}}
{apiVersion: networking.k8s.io/v1, kind: IngressClass, metadata: {name: a}, spec: {controller: a.b/c, parameters: {apiGroup: g.h, kind: K, name: n}}}
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: a, namespace: default}, addressType: IPv4, endpoints: [{addresses: [10.1.2.3], conditions: {ready: true}, hints: {forZones: [{name: z}]}}], ports: [{name: p, port: 1}]}
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: a}, rules: [{apiGroups: [""], resources: [pods], verbs: [get]}], aggregationRule: {clusterRoleSelectors: [{matchLabels: {a: b}}]}}
{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: a, namespace: default}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: a}, subjects: [{kind: User, apiGroup: rbac.authorization.k8s.io, name: u}]}
{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: a}, provisioner: p.q/r, allowedTopologies: [{matchLabelExpressions: [{key: a, values: [b]}]}]}
{apiVersion: storage.k8s.io/v1, kind: CSIDriver, metadata: {name: a}, spec: {tokenRequests: [{audience: a}]}}
{apiVersion: storage.k8s.io/v1, kind: CSINode, metadata: {name: a}, spec: {drivers: [{name: d, nodeID: n, topologyKeys: [k]}]}}
{apiVersion: storage.k8s.io/v1, kind: VolumeAttachment, metadata: {name: a}, spec: {attacher: x, nodeName: n, source: {persistentVolumeName: v}}}
{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: a}, value: 1}
{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: a}, handler: h, overhead: {podFixed: {cpu: 1}}, scheduling: {tolerations: [{key: a, operator: Exists}]}}
{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: a, namespace: default}, spec: {holderIdentity: h, leaseDurationSeconds: 1}}
{apiVersion: certificates.k8s.io/v1, kind: CertificateSigningRequest, metadata: {name: a}, spec: {request: LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0KTUlIR01HNENBUUF3RERFS01BZ0dBMVVFQXd3QmRUQlpNQk1HQnlxR1NNNDlBZ0VHQ0NxR1NNNDlBd0VIQTBJQQpCSkh1blVCUzl4VHAvZXgySDFyOGsrWVBaYXFDNTl6NExrakZaVldjMjd1dTlGMnpTL3E2WUdiRHlDVW9xVFM1CjVYTWxrZWpNU0hIVHBsWkg2MTRrV3ZtZ0FEQUtCZ2dxaGtqT1BRUURBZ05JQURCRkFpQTAzQzlQZlBpcUw4eDkKc3BIYmRGM3FWdHNDWHV1eTJiMldBUE9UVStpK0R3SWhBSXAwWi9GbWlvRUs0eS9EelgvM3hpQzY1b2tmRGt5egozVHROcWNoMUVzM0MKLS0tLS1FTkQgQ0VSVElGSUNBVEUgUkVRVUVTVC0tLS0tCg==, signerName: a.b/c, usages: [client auth]}}
{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {name: a}, webhooks: [{name: a.b.c, clientConfig: {url: "https://a/b"}, sideEffects: None, admissionReviewVersions: [v1], matchConditions: [{name: m, expression: "true"}], rules: [{operations: [CREATE], apiGroups: [""], apiVersions: [v1], resources: [pods]}]}]}
{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicy, metadata: {name: a}, spec: {matchConstraints: {resourceRules: [{operations: [CREATE], apiGroups: [""], apiVersions: [v1], resources: [pods]}]}, variables: [{name: x, expression: "1"}], validations: [{expression: "object.metadata.name == 'a'", messageExpression: "'a'"}], auditAnnotations: [{key: a, valueExpression: "'b'"}]}}
{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicyBinding, metadata: {name: a}, spec: {policyName: a, validationActions: [Deny]}}
{apiVersion: flowcontrol.apiserver.k8s.io/v1, kind: FlowSchema, metadata: {name: a}, spec: {matchingPrecedence: 99, priorityLevelConfiguration: {name: p}, rules: [{subjects: [{kind: User, user: {name: u}}], nonResourceRules: [{verbs: [get], nonResourceURLs: [/x]}]}]}}
{apiVersion: flowcontrol.apiserver.k8s.io/v1, kind: PriorityLevelConfiguration, metadata: {name: a}, spec: {type: Limited, limited: {limitResponse: {type: Queue, queuing: {queues: 1, handSize: 1, queueLengthLimit: 1}}}}}
{apiVersion: events.k8s.io/v1, kind: Event, metadata: {name: a, namespace: default}, eventTime: "2026-01-01T00:00:00.000000Z", type: Normal, reason: r, action: a, reportingController: a.b/c, reportingInstance: i, regarding: {kind: Pod, namespace: default, name: p}}
{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: a, namespace: default}, spec: {devices: {requests: [{name: r, exactly: {deviceClassName: c, selectors: [{cel: {expression: "true"}}]}}], constraints: [{requests: [r], matchAttribute: a.b/c}], config: [{requests: [r], opaque: {driver: d.e, parameters: {a: 1}}}]}}}
{apiVersion: resource.k8s.io/v1, kind: ResourceSlice, metadata: {name: a}, spec: {driver: d.example.com, nodeName: n, pool: {name: p, resourceSliceCount: 1}, devices: [{name: x, attributes: {a: {string: b}}, capacity: {m: {value: 1}}}]}}
`

// mutator makes values that a field can hold, but should not.
func mutator(seed int64) *randfill.Filler {
	return randfill.NewWithSeed(seed).NilChance(0.3).NumElements(0, 3).MaxDepth(6).Funcs(
		func(s *string, c randfill.Continue) {
			*s = []string{"", "a", "b", "/", "..", "a/b", "a.b/c", "-1", "0", "10.0.0.1", "::1", "10.0.0.0/33", "*", "=", "\x00", "1e3", "Always", "100%", "TZ=", "TZ=0 * * * * *", "@every 1s", "((", "{{", c.String(9)}[c.Intn(24)]
		},
		func(n *int32, c randfill.Continue) { *n = []int32{0, 1, -1, 1 << 30, -1 << 31, c.Int31()}[c.Intn(6)] },
		func(n *int64, c randfill.Continue) { *n = []int64{0, 1, -1, 1 << 62, -1 << 63, c.Int63()}[c.Intn(6)] },
		func(q *resource.Quantity, c randfill.Continue) {
			*q = []resource.Quantity{{}, resource.MustParse("1"), resource.MustParse("-1"), resource.MustParse("1e99"), resource.MustParse("1m"), resource.MustParse("0.1")}[c.Intn(6)]
		},
		func(t *metav1.Time, c randfill.Continue) { *t = metav1.Unix(int64(c.Int31()), 0) },
		func(t *metav1.MicroTime, c randfill.Continue) {
			*t = metav1.NewMicroTime(time.Unix(int64(c.Int31()), 0))
		},
		func(d *metav1.Duration, c randfill.Continue) {
			d.Duration = []time.Duration{0, 1, -1, time.Hour, 1<<63 - 1}[c.Intn(5)]
		},
		func(v *intstr.IntOrString, c randfill.Continue) {
			*v = []intstr.IntOrString{intstr.FromInt32(-1), intstr.FromInt32(1), intstr.FromString("1%"), intstr.FromString(""), intstr.FromString("a")}[c.Intn(5)]
		},
		func(f *metav1.FieldsV1, c randfill.Continue) {
			f.Raw = [][]byte{[]byte(`{"f:a":{".":{}}}`), []byte(`{"k:{":{}}`), []byte("{}"), nil, []byte("[")}[c.Intn(5)]
		},
		func(r *runtime.RawExtension, c randfill.Continue) {
			r.Raw = [][]byte{nil, []byte("{}"), []byte("1"), []byte("{")}[c.Intn(4)]
		},
		func(j *apiextensionsv1.JSON, c randfill.Continue) { j.Raw = []byte(`[1]`) },
		func(o *runtime.Object, _ randfill.Continue) {},
	)
}

// mutate changes a few places of an object.
func mutate(obj any, seed int64) {
	rng, fill := rand.New(rand.NewPCG(uint64(seed), 1)), mutator(seed)
	for range 1 + rng.IntN(3) {
		v := reflect.ValueOf(obj).Elem()
	down:
		for rng.IntN(8) > 0 {
			switch v.Kind() {
			case reflect.Struct:
				if v.NumField() == 0 || v.Type() == reflect.TypeFor[resource.Quantity]() || v.Type() == reflect.TypeFor[metav1.Time]() {
					break down
				}
				next := v.Field(rng.IntN(v.NumField()))
				if !next.CanSet() {
					break down
				}
				v = next
			case reflect.Pointer:
				if v.IsNil() {
					break down
				}
				v = v.Elem()
			case reflect.Slice:
				if v.Len() == 0 {
					break down
				}
				v = v.Index(rng.IntN(v.Len()))
			default:
				break down
			}
		}
		if v.CanAddr() && v.Kind() != reflect.Interface {
			fill.Fill(v.Addr().Interface())
		}
	}
}

// start is an object of the list above, and how it is named.
type start struct {
	ref client.Ref
	obj client.Object
}

func starts(t testing.TB, catalogue *apis.Catalogue) (all []start) {
	t.Helper()
	views := map[schema.GroupVersionKind]apis.View{}
	for _, r := range catalogue.All() {
		views[r.GroupVersionKind()] = apis.View{Resource: r}
	}
	for line := range strings.Lines(strings.TrimSpace(valid)) {
		var meta metav1.PartialObjectMetadata
		if err := yaml.Unmarshal([]byte(line), &meta); err != nil {
			t.Fatal(err)
		}
		view, ok := views[meta.GroupVersionKind()]
		if !ok {
			continue // not served by default
		}
		obj := view.New()
		if err := yaml.UnmarshalStrict([]byte(line), obj); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
		all = append(all, start{client.Ref{Resource: view.GroupVersionResource(), Namespace: meta.Namespace, Name: meta.Name}, obj})
	}
	return all
}

// A start that is refused tests little.
func TestObjectsThatFuzzingStartsFromAreValid(t *testing.T) {
	w := newWorld(t)
	w.create(namespaces, read[corev1.Namespace](t, `{"metadata":{"name":"default"}}`))
	for _, s := range starts(t, w.config.Catalogue) {
		ref := s.ref
		ref.Name = ""
		if _, err := w.admin.Create(w.ctx, ref, s.obj.DeepCopyObject().(client.Object), metav1.CreateOptions{}); err != nil {
			t.Errorf("%s: %v", s.ref.Resource.Resource, err)
		}
	}
}

// FuzzObjects: whatever a field holds, defaulting, validation and storage neither
// panic nor fail in a way that is not the client's fault, and what was refused or
// only tried changes nothing.
func FuzzObjects(f *testing.F) {
	for i := range 40 {
		f.Add(uint8(i), int64(i))
	}
	w := newWorld(f)
	w.create(namespaces, read[corev1.Namespace](f, `{"metadata":{"name":"default"}}`))
	all := starts(f, w.config.Catalogue)
	for _, s := range all {
		ref := s.ref
		ref.Name = ""
		if _, err := w.admin.Create(w.ctx, ref, s.obj.DeepCopyObject().(client.Object), metav1.CreateOptions{}); err != nil {
			f.Fatalf("%s: %v", s.ref.Resource.Resource, err)
		}
	}
	f.Fuzz(func(t *testing.T, kind uint8, seed int64) {
		s, before := all[int(kind)%len(all)], w.config.Store.Revision()
		judge := func(what string, err error) {
			if apierrors.IsInternalError(err) || err != nil && apierrors.ReasonForError(err) == metav1.StatusReasonUnknown {
				t.Errorf("%s of %s, seed %d: %v", what, s.ref.Resource.Resource, seed, err)
			}
		}
		const try = metav1.DryRunAll
		obj := s.obj.DeepCopyObject().(client.Object)
		mutate(obj, seed)
		if _, err := json.Marshal(obj); err != nil {
			return // no decoder makes such an object
		}
		obj.SetName("other")
		obj.SetNamespace(s.ref.Namespace)
		ref := s.ref
		ref.Name = ""
		_, err := w.admin.Create(t.Context(), ref, obj, metav1.CreateOptions{DryRun: []string{try}})
		judge("create", err)

		stored, err := w.admin.Get(t.Context(), s.ref, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		obj = stored.DeepCopyObject().(client.Object)
		mutate(obj, seed)
		if _, err := json.Marshal(obj); err != nil {
			return
		}
		obj.SetName(s.ref.Name)
		obj.SetNamespace(s.ref.Namespace)
		for _, sub := range []string{"", "status"} {
			ref := s.ref
			ref.Subresource = sub
			_, err = w.admin.Update(t.Context(), ref, obj.DeepCopyObject().(client.Object), metav1.UpdateOptions{DryRun: []string{try}})
			judge("update of "+sub, err)
		}
		if patch, err := json.Marshal(obj); err == nil {
			_, err = w.admin.Patch(t.Context(), s.ref, types.ApplyYAMLPatchType, patch, metav1.PatchOptions{DryRun: []string{try}, FieldManager: "m", Force: new(true)})
			judge("apply", err)
		}
		if now := w.config.Store.Revision(); now != before {
			t.Errorf("revision %d became %d", before, now)
		}
	})
}
