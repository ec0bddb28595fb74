package core

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"proa/internal/apis"
)

// parse reads a manifest into the resource's type and, on demand, completes it.
func parse(t *testing.T, r *apis.Resource, manifest string, defaulted bool) apis.Object {
	t.Helper()
	obj := r.New()
	if err := yaml.UnmarshalStrict([]byte(manifest), obj); err != nil {
		t.Fatalf("%v in\n%s", err, manifest)
	}
	if defaulted && r.Default != nil {
		r.Default(obj)
	}
	return obj
}

func show(t *testing.T, obj any) string {
	t.Helper()
	data, err := yaml.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestDefaults(t *testing.T) {
	tests := []struct {
		name     string
		resource *apis.Resource
		in, want string
	}{
		{"a minimal pod is completed", &Pods, `
metadata: {name: a}
spec:
  containers:
  - {name: c, image: nginx}
`, `
metadata: {name: a}
spec:
  containers:
  - name: c
    image: nginx
    imagePullPolicy: Always
    terminationMessagePath: /dev/termination-log
    terminationMessagePolicy: File
    resources: {}
  dnsPolicy: ClusterFirst
  enableServiceLinks: true
  restartPolicy: Always
  schedulerName: default-scheduler
  securityContext: {}
  terminationGracePeriodSeconds: 30
status: {}
`},
		{"ports, probes, limits, images and volumes are completed", &Pods, `
metadata: {name: a}
spec:
  hostNetwork: true
  serviceAccount: robot
  volumes:
  - {name: none}
  - {name: s, secret: {secretName: x}}
  - {name: h, hostPath: {path: /tmp}}
  - {name: p, projected: {sources: [{serviceAccountToken: {path: t}}, {downwardAPI: {items: [{path: "n", fieldRef: {fieldPath: metadata.name}}]}}]}}
  containers:
  - name: c
    image: registry.example/app@sha256:4d2bf8a1e5aa49d1cda0f7bcd3a2fbd7b6d3d8c3d41d1bd9b58e1f0f1d2c3b4a
    ports: [{containerPort: 80}]
    resources: {limits: {cpu: 1, memory: 1Gi}, requests: {cpu: 100m}}
    livenessProbe: {httpGet: {port: 80}}
    env: [{name: N, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
`, `
metadata: {name: a}
spec:
  hostNetwork: true
  serviceAccount: robot
  serviceAccountName: robot
  volumes:
  - {name: none, emptyDir: {}}
  - {name: s, secret: {secretName: x, defaultMode: 420}}
  - {name: h, hostPath: {path: /tmp, type: ""}}
  - name: p
    projected:
      defaultMode: 420
      sources:
      - serviceAccountToken: {path: t, expirationSeconds: 3600}
      - downwardAPI: {items: [{path: "n", fieldRef: {apiVersion: v1, fieldPath: metadata.name}}]}
  containers:
  - name: c
    image: registry.example/app@sha256:4d2bf8a1e5aa49d1cda0f7bcd3a2fbd7b6d3d8c3d41d1bd9b58e1f0f1d2c3b4a
    imagePullPolicy: IfNotPresent
    ports: [{containerPort: 80, hostPort: 80, protocol: TCP}]
    resources: {limits: {cpu: 1, memory: 1Gi}, requests: {cpu: 100m, memory: 1Gi}}
    livenessProbe: {httpGet: {path: /, port: 80, scheme: HTTP}, failureThreshold: 3, periodSeconds: 10, successThreshold: 1, timeoutSeconds: 1}
    env: [{name: N, valueFrom: {fieldRef: {apiVersion: v1, fieldPath: metadata.name}}}]
    terminationMessagePath: /dev/termination-log
    terminationMessagePolicy: File
  dnsPolicy: ClusterFirst
  enableServiceLinks: true
  restartPolicy: Always
  schedulerName: default-scheduler
  securityContext: {}
  terminationGracePeriodSeconds: 30
status: {}
`},
		{"a service listens in the cluster", &Services, `
metadata: {name: a}
spec: {ports: [{port: 80}]}
`, `
metadata: {name: a}
spec:
  type: ClusterIP
  sessionAffinity: None
  internalTrafficPolicy: Cluster
  ports: [{port: 80, protocol: TCP, targetPort: 80}]
status: {loadBalancer: {}}
`},
		{"a load balancer with affinity takes node ports", &Services, `
metadata: {name: a}
spec: {type: LoadBalancer, sessionAffinity: ClientIP, ports: [{port: 80, targetPort: web}]}
`, `
metadata: {name: a}
spec:
  type: LoadBalancer
  sessionAffinity: ClientIP
  sessionAffinityConfig: {clientIP: {timeoutSeconds: 10800}}
  allocateLoadBalancerNodePorts: true
  externalTrafficPolicy: Cluster
  internalTrafficPolicy: Cluster
  ports: [{port: 80, protocol: TCP, targetPort: web}]
status: {loadBalancer: {}}
`},
		{"written strings of a secret become data", &Secrets, `
metadata: {name: a}
stringData: {k: v}
`, `
metadata: {name: a}
type: Opaque
data: {k: dg==}
`},
		{"limits of containers follow from the maximum", &LimitRanges, `
metadata: {name: a}
spec: {limits: [{type: Container, max: {cpu: 2}, min: {memory: 1Mi}}]}
`, `
metadata: {name: a}
spec: {limits: [{type: Container, max: {cpu: 2}, min: {memory: 1Mi}, default: {cpu: 2}, defaultRequest: {cpu: 2, memory: 1Mi}}]}
`},
		{"a claim is for a file system", &PersistentVolumeClaims, `
metadata: {name: a}
`, `
metadata: {name: a}
spec: {resources: {}, volumeMode: Filesystem}
status: {phase: Pending}
`},
		{"a volume is kept", &PersistentVolumes, `
metadata: {name: a}
spec: {hostPath: {path: /x}}
`, `
metadata: {name: a}
spec: {hostPath: {path: /x, type: ""}, persistentVolumeReclaimPolicy: Retain, volumeMode: Filesystem}
status: {phase: Pending}
`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := show(t, parse(t, tt.resource, tt.in, true))
			want := show(t, parse(t, tt.resource, tt.want, false))
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("differs (-want +got):\n%s", d)
			}
		})
	}
}

func TestResourcesOfPodsAsAWhole(t *testing.T) {
	tests := []struct{ name, pod, want string }{
		{"what is not said of the pod is not made up", "containers: [{name: c, image: i, resources: {limits: {cpu: 1}}}]", "null"},
		{"requests are what containers ask for",
			"resources: {limits: {cpu: 4}}, containers: [{name: c, image: i, resources: {requests: {cpu: 1, memory: 1Gi}}}]",
			`{"limits":{"cpu":"4"},"requests":{"cpu":"1","memory":"1Gi"}}`},
		{"requests are else the limit", "resources: {limits: {cpu: 4}}, containers: [{name: c, image: i}]",
			`{"limits":{"cpu":"4"},"requests":{"cpu":"4"}}`},
		{"huge pages are limited to those of the containers",
			"resources: {limits: {cpu: 4}, requests: {cpu: 1}}, containers: [{name: c, image: i, resources: {limits: {hugepages-2Mi: 4Mi}}}]",
			`{"limits":{"cpu":"4","hugepages-2Mi":"4Mi"},"requests":{"cpu":"1","hugepages-2Mi":"4Mi"}}`},
		{"huge pages that the pod asks for are limited to the containers', too",
			"resources: {requests: {hugepages-2Mi: 2Mi}}, containers: [{name: c, image: i, resources: {limits: {hugepages-2Mi: 2Mi}}}]",
			`{"limits":{"hugepages-2Mi":"2Mi"},"requests":{"hugepages-2Mi":"2Mi"}}`},
		{"limits follow where every container has one",
			"resources: {requests: {cpu: 1}}, containers: [{name: c, image: i, resources: {limits: {cpu: 2}}}, {name: d, image: i, resources: {limits: {cpu: 3}}}]",
			`{"limits":{"cpu":"5"},"requests":{"cpu":"1"}}`},
		{"limits are not below requests",
			"resources: {requests: {cpu: 9}}, containers: [{name: c, image: i, resources: {limits: {cpu: 2}}}]",
			`{"limits":{"cpu":"9"},"requests":{"cpu":"9"}}`},
		{"one container without a limit leaves the pod without",
			"resources: {requests: {cpu: 5}}, containers: [{name: c, image: i, resources: {limits: {cpu: 2}}}, {name: d, image: i}]",
			`{"requests":{"cpu":"5"}}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := parse(t, &Pods, "spec: {"+tt.pod+"}", true).(*corev1.Pod)
			Pods.PrepareCreate(p)
			got, err := json.Marshal(p.Spec.Resources)
			if err != nil || string(got) != tt.want {
				t.Errorf("got %s (%v), want %s", got, err, tt.want)
			}
		})
	}
	t.Run("an update that leaves them out keeps them", func(t *testing.T) {
		old := parse(t, &Pods, "spec: {resources: {limits: {cpu: 4}}}", false).(*corev1.Pod)
		p := parse(t, &Pods, "spec: {}", false).(*corev1.Pod)
		Pods.PrepareUpdate(p, old)
		if d := cmp.Diff(old.Spec.Resources, p.Spec.Resources); d != "" {
			t.Error(d)
		}
	})
}

func TestQOSClass(t *testing.T) {
	pod := func(resources string) *corev1.Pod {
		return parse(t, &Pods, "spec: {containers: [{name: c, image: i, resources: "+resources+"}]}", true).(*corev1.Pod)
	}
	tests := []struct {
		name, resources string
		want            corev1.PodQOSClass
	}{
		{"nothing said is best effort", "{}", corev1.PodQOSBestEffort},
		{"limits alone guarantee", "{limits: {cpu: 1, memory: 1Gi}}", corev1.PodQOSGuaranteed},
		{"requests below limits burst", "{limits: {cpu: 1, memory: 1Gi}, requests: {cpu: 100m}}", corev1.PodQOSBurstable},
		{"one resource alone bursts", "{limits: {cpu: 1}}", corev1.PodQOSBurstable},
		{"other resources do not count", "{limits: {ephemeral-storage: 1Gi}}", corev1.PodQOSBestEffort},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := QOSClass(pod(tt.resources)); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestGraceOfPods(t *testing.T) {
	tests := []struct {
		name string
		pod  string
		ask  *int64
		want int64
	}{
		{"the pod's own", "{spec: {nodeName: n, terminationGracePeriodSeconds: 30}}", nil, 30},
		{"the caller's", "{spec: {nodeName: n, terminationGracePeriodSeconds: 30}}", new(int64(5)), 5},
		{"at once when nowhere", "{spec: {terminationGracePeriodSeconds: 30}}", nil, 0},
		{"at once when finished", "{spec: {nodeName: n, terminationGracePeriodSeconds: 30}, status: {phase: Succeeded}}", nil, 0},
		{"a second when negative", "{spec: {nodeName: n, terminationGracePeriodSeconds: -3}}", nil, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			pod := parse(t, &Pods, tt.pod, false)
			if got := Pods.GracefulDelete(pod, &metav1.DeleteOptions{GracePeriodSeconds: tt.ask}); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}

func TestPodRows(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	tests := []struct {
		name, pod string
		want      []any
	}{
		{"a pending pod", `
metadata: {name: a, creationTimestamp: "2026-01-01T11:59:50Z"}
spec: {containers: [{name: c}]}
status: {phase: Pending}
`, []any{"a", "0/1", "Pending", "0", "10s"}},
		{"a running pod that restarted", `
metadata: {name: a, creationTimestamp: "2026-01-01T11:00:00Z"}
spec: {containers: [{name: c}]}
status:
  phase: Running
  containerStatuses: [{name: c, ready: true, restartCount: 1, state: {running: {}}, lastState: {terminated: {finishedAt: "2026-01-01T11:55:00Z"}}}]
`, []any{"a", "1/1", "Running", "1 (5m ago)", "60m"}},
		{"a crashing pod", `
metadata: {name: a, creationTimestamp: "2026-01-01T11:00:00Z"}
spec: {containers: [{name: c}]}
status: {phase: Running, containerStatuses: [{name: c, state: {waiting: {reason: CrashLoopBackOff}}}]}
`, []any{"a", "0/1", "CrashLoopBackOff", "0", "60m"}},
		{"a pod that initializes", `
metadata: {name: a, creationTimestamp: "2026-01-01T11:00:00Z"}
spec: {initContainers: [{name: x}, {name: y}], containers: [{name: c}]}
status: {phase: Pending, initContainerStatuses: [{name: x, state: {terminated: {exitCode: 0}}}, {name: y, state: {running: {}}}]}
`, []any{"a", "0/1", "Init:1/2", "0", "60m"}},
		{"a pod that is deleted", `
metadata: {name: a, creationTimestamp: "2026-01-01T11:00:00Z", deletionTimestamp: "2026-01-01T11:59:00Z"}
spec: {containers: [{name: c}]}
status: {phase: Running}
`, []any{"a", "0/1", "Terminating", "0", "60m"}},
		{"a completed pod", `
metadata: {name: a, creationTimestamp: "2026-01-01T11:00:00Z"}
spec: {containers: [{name: c}]}
status: {phase: Succeeded, containerStatuses: [{name: c, state: {terminated: {reason: Completed}}}]}
`, []any{"a", "0/1", "Completed", "0", "60m"}},
		{"a pod with one container done and one unready", `
metadata: {name: a, creationTimestamp: "2026-01-01T11:00:00Z"}
spec: {containers: [{name: c}, {name: d}]}
status: {phase: Running, containerStatuses: [{name: c, state: {terminated: {reason: Completed}}}, {name: d, ready: true, state: {running: {}}}]}
`, []any{"a", "1/2", "NotReady", "0", "60m"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := Pods.Row(parse(t, &Pods, tt.pod, false), now)
			if d := cmp.Diff(tt.want, got[:5]); d != "" {
				t.Errorf("differs (-want +got):\n%s", d)
			}
		})
	}
}
