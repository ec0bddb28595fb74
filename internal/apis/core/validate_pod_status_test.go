package core

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// podWith is a pod of two containers, of which the first runs before the other.
func podWith(t *testing.T, spec, status string) *corev1.Pod {
	t.Helper()
	p := &corev1.Pod{Spec: corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyAlways, Containers: []corev1.Container{{Name: "c"}}, InitContainers: []corev1.Container{{Name: "i"}},
	}}
	for of, text := range map[any]string{&p.Spec: spec, &p.Status: status} {
		if err := yaml.UnmarshalStrict([]byte("{"+text+"}"), of); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

func TestStatusesOfPods(t *testing.T) {
	const claims = `resourceClaims: [{name: a}, {name: b}]`
	const asks = `containers: [{name: c, resources: {requests: {example.com/gpu: 1}, claims: [{name: a}, {name: b, request: r}]}}]`
	health := func(name, rest string) string {
		return `containerStatuses: [{name: c, allocatedResourcesStatus: [{name: "` + name + `", resources: [{resourceID: x, health: Healthy` + rest + `}]}]}]`
	}
	user := func(rest string) string { return `containerStatuses: [{name: c, user: {linux: {` + rest + `}}}]` }
	const ids = "status.containerStatuses[0].user.linux."
	const at = "status.containerStatuses[0].allocatedResourcesStatus[0]."
	const extended = "status.extendedResourceClaimStatus."
	tests := []struct {
		name         string
		spec         string
		before, then string
		want         []string
	}{
		{"a condition's generation", "", "", `conditions: [{type: Ready, status: "True", observedGeneration: -1}]`,
			[]string{"status.conditions[0].observedGeneration: Invalid value: -1: must be a non-negative integer"}},
		{"the pod's generation", "", "", `observedGeneration: -1`, []string{"status.observedGeneration: Invalid value: -1: must be a non-negative integer"}},
		{"an address of each family", "", "", `podIPs: [{ip: 10.0.0.1}, {ip: "fd00::1"}]`, nil},
		{"two addresses of one family", "", "", `podIPs: [{ip: 10.0.0.1}, {ip: 10.0.0.2}]`,
			[]string{`status.podIPs: Invalid value: [{"ip":"10.0.0.1"},{"ip":"10.0.0.2"}]: may specify no more than one IP for each IP family`}},
		{"an address that was written so", "", `podIPs: [{ip: 010.0.0.1}]`, `podIPs: [{ip: 010.0.0.1}]`, nil},
		{"an address that is written so now", "", "", `podIPs: [{ip: 010.0.0.1}]`,
			[]string{`status.podIPs[0]: Invalid value: "010.0.0.1": must not have leading 0s`}},
		{"no address", "", "", `podIPs: [{ip: x}, {ip: 10.0.0.1}]`, []string{
			`status.podIPs[0]: Invalid value: "x": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)`,
			`status.podIPs: Internal error: failed to check for dual stack with error:invalid IP[0]: x`,
			`status.podIPs: Invalid value: [{"ip":"x"},{"ip":"10.0.0.1"}]: may specify no more than one IP for each IP family`,
		}},
		{"addresses of the host", "", "", `{hostIP: 10.0.0.1, hostIPs: [{ip: 10.0.0.1}, {ip: "fd00::1"}]}`, nil},
		{"another first address of the host", "", "", `{hostIP: 10.0.0.1, hostIPs: [{ip: 10.0.0.2}]}`,
			[]string{"status.hostIPs[0].ip: Invalid value: \"10.0.0.2\": must be equal to `hostIP`"}},
		{"two addresses of the host of one family", "", "", `{hostIP: 10.0.0.1, hostIPs: [{ip: 10.0.0.1}, {ip: 10.0.0.2}]}`,
			[]string{`status.hostIPs: Invalid value: [{"ip":"10.0.0.1"},{"ip":"10.0.0.2"}]: may specify no more than one IP for each IP family`}},
		{"a mount that is no image", "", "", `containerStatuses: [{name: c, volumeMounts: [{name: v, mountPath: /v}]}]`, nil},
		{"ids", "", "", user(`uid: 0, gid: 2147483647, supplementalGroups: [1]`), nil},
		{"impossible ids", "", "", user(`uid: -1, gid: 2147483648, supplementalGroups: [1, -2]`), []string{
			ids + "uid: Invalid value: -1: must be between 0 and 2147483647, inclusive",
			ids + "gid: Invalid value: 2147483648: must be between 0 and 2147483647, inclusive",
			ids + "supplementalGroups[1]: Invalid value: -2: must be between 0 and 2147483647, inclusive",
		}},
		{"ids on Windows", `os: {name: windows}`, "", user(`uid: -1, gid: 0`), []string{"status.containerStatuses[0].user.linux: Forbidden: cannot be set for a windows pod"}},
		{"a mounted image", "", "", `containerStatuses: [{name: c, volumeMounts: [{name: v, mountPath: /v, volumeStatus: {image: {imageRef: ""}}}]}]`,
			[]string{"status.containerStatuses[0].volumeMounts[0].volumeStatus.imageVolumeStatus.imageRef: Required value: imageRef must not be empty"}},
		{"devices that were asked for", asks, "", health("example.com/gpu", ""), nil},
		{"a claim", asks, "", health("claim:a", ""), nil},
		{"a request of a claim", asks, "", health("claim:b/r", ""), nil},
		{"devices of no container", "", "", strings.ReplaceAll(health("example.com/tpu", ""), "name: c", "name: x"), nil},
		{"other devices", asks, "", health("example.com/tpu", ""),
			[]string{at + `name: Invalid value: "example.com/tpu": must match one of the container's resource requests`}},
		{"another request of a claim", asks, "", health("claim:b", ""),
			[]string{at + `name: Invalid value: "claim:b": must match one of the container's resource claims in a format 'claim:<claimName>/<request>' or 'claim:<claimName>' if request is empty`}},
		{"wrong health", asks, "", health("claim:a", `}, {resourceID: x, health: Bad, message: ""`), []string{
			at + `resources[1].health: Unsupported value: "Bad": supported values: "Healthy", "Unhealthy", "Unknown"`,
			at + `resources[1].message: Required value: must be non-empty if specified`,
			at + `resources[1].resourceID: Duplicate value: "x"`,
		}},
		{"devices of an ephemeral container", "", "", `ephemeralContainerStatuses: [{name: e, allocatedResourcesStatus: [{name: x}]}]`,
			[]string{"status.ephemeralContainerStatuses[0].allocatedResourcesStatus: Forbidden: must not be specified in container status"}},
		{"claims", claims, "", `resourceClaimStatuses: [{name: a, resourceClaimName: x-y}, {name: b}]`, nil},
		{"other claims", claims, "", `resourceClaimStatuses: [{name: a, resourceClaimName: X}, {name: a}, {name: z}]`, []string{
			`status.resourceClaimStatuses[0].resourceClaimName: Invalid value: "X": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')`,
			`status.resourceClaimStatuses[1].name: Duplicate value: "a"`,
			"status.resourceClaimStatuses[2].name: Invalid value: \"z\": must match the name of an entry in `spec.resourceClaims`",
		}},
		{"a claim for extended resources", asks, "", `extendedResourceClaimStatus: {resourceClaimName: x, requestMappings: [{containerName: c, resourceName: example.com/gpu, requestName: r}]}`, nil},
		{"a claim for none", asks, "", `extendedResourceClaimStatus: {resourceClaimName: ""}`,
			[]string{extended + "requestMappings: Required value: at least one request mapping is required", extended + "resourceClaimName: Required value"}},
		{"a claim for others", asks, "", `extendedResourceClaimStatus: {resourceClaimName: x, requestMappings: [
			{containerName: c, resourceName: example.com/tpu, requestName: r}, {containerName: z, resourceName: example.com/gpu, requestName: r},
			{containerName: z, resourceName: example.com/gpu, requestName: r}]}`, []string{
			extended + `requestMappings[0].resourceName: Invalid value: "example.com/tpu": must match the extended resource name of an entry in spec.initContainers.resources.requests or spec.containers.resources.requests`,
			extended + `requestMappings[1].containerName: Invalid value: "z": must match the name of an entry in spec.initContainers.name or spec.containers.name`,
			extended + `requestMappings[2].containerName: Invalid value: "z": must match the name of an entry in spec.initContainers.name or spec.containers.name`,
			extended + `requestMappings[2].containerName: Duplicate value: "z"`,
			extended + `requestMappings[2].resourceName: Duplicate value: "example.com/gpu"`,
			extended + `requestMappings[2].requestName: Duplicate value: "r"`,
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			trim := func(s string) string { return strings.TrimSuffix(strings.TrimPrefix(s, "{"), "}") }
			then := tt.then
			if strings.HasPrefix(then, "{") {
				then = trim(then)
			}
			got := messages(validatePodStatusUpdate(podWith(t, tt.spec, then), podWith(t, tt.spec, tt.before)))
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("differs (-want +got):\n%s", d)
			}
		})
	}
}

func TestContainersThatEnded(t *testing.T) {
	const rule = `restartPolicy: Never, restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [42]}}]`
	tests := []struct {
		name string
		spec string
		code int32
		main bool // whether the container may come back
		init bool
	}{
		{"always restarted", "restartPolicy: Always", 0, true, true},
		{"restarted on failure, failed", "restartPolicy: OnFailure", 1, true, true},
		{"restarted on failure, done", "restartPolicy: OnFailure", 0, false, false},
		{"never restarted", "restartPolicy: Never", 1, false, false},
		{"with a policy of their own", "restartPolicy: Never, containers: [{name: c, restartPolicy: OnFailure}], initContainers: [{name: i, restartPolicy: Always}]", 1, true, true},
		{"with a policy that is stricter", "restartPolicy: Always, containers: [{name: c, restartPolicy: Never}], initContainers: [{name: i, restartPolicy: Never}]", 1, false, false},
		{"with a rule for the code", "restartPolicy: Never, containers: [{name: c, " + rule + "}], initContainers: [{name: i}]", 42, true, false},
		{"with a rule for another code", "restartPolicy: Never, containers: [{name: c, " + rule + "}], initContainers: [{name: i}]", 41, false, false},
		{"beside one that restarts all", "restartPolicy: Never, initContainers: [{name: i}, {name: j, restartPolicy: Never, restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: In, values: [9]}}]}]", 0, true, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			old, p := podWith(t, tt.spec, ""), podWith(t, tt.spec, "")
			ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: tt.code}}
			old.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: ended}}
			old.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "i", State: ended}}
			old.Status.EphemeralContainerStatuses = []corev1.ContainerStatus{{Name: "d"}, {Name: "e", State: ended}}
			running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: running}}
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "i", State: running}}
			p.Status.EphemeralContainerStatuses = []corev1.ContainerStatus{{Name: "d", State: running}, {Name: "e", State: running}}
			refused := func(field string) string {
				return "status." + field + ".state: Forbidden: may not be transitioned to non-terminated state"
			}
			var want []string
			if !tt.main {
				want = append(want, refused("containerStatuses[0]"))
			}
			if !tt.init {
				want = append(want, refused("initContainerStatuses[0]"))
			}
			want = append(want, refused("ephemeralContainerStatuses[1]"))
			if d := cmp.Diff(want, messages(validatePodStatusUpdate(p, old))); d != "" {
				t.Errorf("differs (-want +got):\n%s", d)
			}
		})
	}
}

func TestObservedGenerationsAreKept(t *testing.T) {
	old := podWith(t, "", `observedGeneration: 3, conditions: [{type: Ready, observedGeneration: 1}, {type: Ready, observedGeneration: 2}, {type: X, observedGeneration: 4}]`)
	p := podWith(t, "", `conditions: [{type: X, observedGeneration: 5}, {type: Ready}, {type: Ready}, {type: Ready}, {type: Y}]`)
	preparePodStatus(p, old)
	var got []int64
	for _, c := range p.Status.Conditions {
		got = append(got, c.ObservedGeneration)
	}
	if d := cmp.Diff([]int64{5, 1, 2, 0, 0}, got); d != "" || p.Status.ObservedGeneration != 3 {
		t.Errorf("the pod's is %d, those of conditions differ (-want +got):\n%s", p.Status.ObservedGeneration, d)
	}
}

func TestAnnotationsOfPods(t *testing.T) {
	const at = "metadata.annotations"
	const confined = "container.apparmor.security.beta.kubernetes.io/"
	tests := []struct {
		name        string
		annotations map[string]string
		want        []string
	}{
		{"a mirror without a node", map[string]string{corev1.MirrorPodAnnotationKey: "x"},
			[]string{at + `[kubernetes.io/config.mirror]: Invalid value: "x": must set spec.nodeName if mirror pod annotation is set`}},
		{"tolerations", map[string]string{tolerationsAnnotation: `[{"key": "a", "operator": "Exists"}]`}, nil},
		{"wrong tolerations", map[string]string{tolerationsAnnotation: `[{"operator": "Equal"}]`},
			[]string{at + `.scheduler.alpha.kubernetes.io/tolerations[0].operator: Invalid value: "Equal": operator must be Exists when ` + "`key`" + ` is empty, which means "match all values and all keys"`}},
		{"a deletion cost", map[string]string{corev1.PodDeletionCost: "-5"}, nil},
		{"no deletion cost", map[string]string{corev1.PodDeletionCost: "05"}, []string{at + `[controller.kubernetes.io/pod-deletion-cost]: Invalid value: "05": must be a 32bit integer`}},
		{"seccomp profiles", map[string]string{"seccomp.security.alpha.kubernetes.io/pod": "runtime/default", "container.seccomp.security.alpha.kubernetes.io/c": "localhost/a"}, nil},
		{"no seccomp profiles", map[string]string{"seccomp.security.alpha.kubernetes.io/pod": "x", "container.seccomp.security.alpha.kubernetes.io/c": "localhost/../a"}, []string{
			at + `.container.seccomp.security.alpha.kubernetes.io/c: Invalid value: "../a": must not contain '..'`,
			at + `.seccomp.security.alpha.kubernetes.io/pod: Invalid value: "x": must be a valid seccomp profile`,
		}},
		{"AppArmor profiles", map[string]string{confined + "c": "runtime/default", confined + "i": "localhost/a"}, nil},
		{"no AppArmor profiles", map[string]string{confined + "c": "x", confined + "z": "unconfined"}, []string{
			at + `[` + confined + `c]: Invalid value: "x": invalid AppArmor profile name: "x"`,
			at + `[` + confined + `z]: Invalid value: "z": container not found`,
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := podWith(t, "", "")
			p.Annotations = tt.annotations
			if d := cmp.Diff(tt.want, messages(validatePodAnnotations(p.Annotations, &p.Spec, metadataAnnotations))); d != "" {
				t.Errorf("differs (-want +got):\n%s", d)
			}
		})
	}
}

func TestAnnotationsThatPodsKeep(t *testing.T) {
	const confined = "container.apparmor.security.beta.kubernetes.io/c"
	const at = "metadata.annotations"
	tests := []struct {
		name    string
		is, was map[string]string
		want    []string
	}{
		{"others come and go", map[string]string{"a": "1"}, map[string]string{"b": "2"}, nil},
		{"mirrors stay mirrors", nil, map[string]string{corev1.MirrorPodAnnotationKey: "x"}, []string{at + "[kubernetes.io/config.mirror]: Forbidden: may not remove or update mirror pod annotation"}},
		{"none becomes a mirror", map[string]string{corev1.MirrorPodAnnotationKey: "x"}, nil, []string{at + "[kubernetes.io/config.mirror]: Forbidden: may not add mirror pod annotation"}},
		{"profiles do not change", map[string]string{confined: "unconfined"}, map[string]string{confined: "runtime/default"},
			[]string{at + "[" + confined + "]: Forbidden: may not remove or update AppArmor annotations"}},
		{"profiles are not added", map[string]string{confined: "unconfined"}, nil, []string{at + "[" + confined + "]: Forbidden: may not add AppArmor annotations"}},
		{"a wrong cost stays", map[string]string{corev1.PodDeletionCost: "x"}, map[string]string{corev1.PodDeletionCost: "x"}, nil},
		{"a wrong cost does not come", map[string]string{corev1.PodDeletionCost: "x"}, nil, []string{at + `[controller.kubernetes.io/pod-deletion-cost]: Invalid value: "x": must be a 32bit integer`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, old := podWith(t, "nodeName: n", ""), podWith(t, "nodeName: n", "")
			p.Annotations, old.Annotations = tt.is, tt.was
			if d := cmp.Diff(tt.want, messages(validatePodAnnotationsUpdate(p, old, metadataAnnotations))); d != "" {
				t.Errorf("differs (-want +got):\n%s", d)
			}
		})
	}
}

func TestResizesOfPods(t *testing.T) {
	const one = `containers: [{name: c, resources: {requests: {cpu: 1}}}]`
	tests := []struct {
		name      string
		was, is   string
		oldStatus string
		want      []string
	}{
		{"the pod as a whole", one + `, resources: {requests: {cpu: 1}}`, one + `, resources: {requests: {cpu: 2}}`, "", nil},
		{"the pod as a whole for the first time", one, one + `, resources: {requests: {cpu: 2}}`, "", nil},
		{"nothing of the pod as a whole", one + `, resources: {requests: {cpu: 1}}`, one, "", []string{"spec.resources: Forbidden: pod-level resources cannot be removed"}},
		{"less of the pod as a whole", one + `, resources: {requests: {cpu: 1, memory: 1Gi}}`, one + `, resources: {requests: {cpu: 1}}`, "",
			[]string{"spec.resources.requests: Forbidden: pod-level resource requests cannot be removed"}},
		{"an empty whole", one, one + `, resources: {}`, "", []string{"spec: Forbidden: only cpu and memory resources are mutable"}},
		{"another class of the pod as a whole", one + `, resources: {requests: {cpu: 1}}`, one + `, resources: {requests: {cpu: 1, memory: 1Gi}, limits: {cpu: 1, memory: 1Gi}}`, "",
			[]string{`spec: Invalid value: "": Pod QOS Class may not change as a result of resizing`}},
		{"another class than the pod was made with", one, one, "qosClass: Guaranteed",
			[]string{`spec: Invalid value: "": Pod QOS Class may not change as a result of resizing`}},
		{"beside devices of the node's own resources", one, one, "nodeAllocatableResourceClaimStatuses: [{resourceClaimName: x}]",
			[]string{"spec: Forbidden: pods with node allocatable resource claims cannot be resized"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			old, p := podWith(t, tt.was+", initContainers: []", tt.oldStatus), podWith(t, tt.is+", initContainers: []", "")
			for _, p := range []*corev1.Pod{old, p} {
				for i := range p.Spec.Containers {
					p.Spec.Containers[i].Image = "i"
				}
				DefaultPod(p)
			}
			if d := cmp.Diff(tt.want, messages(validateResizeUpdate(p, old))); d != "" {
				t.Errorf("differs (-want +got):\n%s", d)
			}
		})
	}
}
