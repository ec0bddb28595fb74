package core

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

func TestPodsOfAnOperatingSystem(t *testing.T) {
	const notWindows, notLinux = ": Forbidden: cannot be set for a windows pod", ": Forbidden: windows options cannot be set for a linux pod"
	tests := []struct {
		name, spec string
		want       []string
	}{
		{"a plain windows pod", "{os: {name: windows}, containers: [{name: c, image: i}]}", nil},
		{"an unknown system", "{os: {name: plan9}, containers: [{name: c, image: i}]}", []string{`spec.os: Unsupported value: "plan9": supported values: "linux", "windows"`}},
		{"no system", "{os: {name: ''}, containers: [{name: c, image: i}]}", []string{"spec.os.name: Required value"}},
		{"a user id on windows", "{os: {name: windows}, securityContext: {runAsUser: 5}, containers: [{name: c, image: i, securityContext: {runAsUser: 5}}]}",
			[]string{"spec.securityContext.runAsUser" + notWindows, "spec.containers[0].securityContext.runAsUser" + notWindows}},
		{"namespaces of the host on windows", "{os: {name: windows}, hostPID: true, hostIPC: true, containers: [{name: c, image: i}]}",
			[]string{"spec.hostPID" + notWindows, "spec.hostIPC" + notWindows}},
		{"groups on windows", "{os: {name: windows}, securityContext: {fsGroup: 1, supplementalGroupsPolicy: Merge}, containers: [{name: c, image: i}]}",
			[]string{"spec.securityContext.fsGroup" + notWindows, "spec.securityContext.supplementalGroupsPolicy" + notWindows}},
		{"profiles on windows", "{os: {name: windows}, containers: [{name: c, image: i, securityContext: {seccompProfile: {type: RuntimeDefault}, appArmorProfile: {type: RuntimeDefault}, capabilities: {}, procMount: Default}}]}",
			[]string{"spec.containers[0].securityContext.appArmorProfile" + notWindows, "spec.containers[0].securityContext.seccompProfile" + notWindows, "spec.containers[0].securityContext.capabilities" + notWindows, "spec.containers[0].securityContext.procMount" + notWindows}},
		{"resources of the pod on windows", "{os: {name: windows}, resources: {limits: {cpu: 1}}, containers: [{name: c, image: i}]}", []string{"spec.resources: Forbidden: may not be set for a windows pod"}},
		{"sysctls on windows", "{os: {name: windows}, securityContext: {sysctls: [{name: kernel.shm_rmid_forced, value: '0'}]}, containers: [{name: c, image: i}]}", []string{"spec.securityContext.sysctls" + notWindows}},
		{"windows options on linux", "{os: {name: linux}, securityContext: {windowsOptions: {}}, containers: [{name: c, image: i, securityContext: {windowsOptions: {}}}]}",
			[]string{"spec.securityContext.windowsOptions" + notLinux, "spec.containers[0].securityContext.windowsOptions" + notLinux}},
		{"host processes", "{hostNetwork: true, securityContext: {windowsOptions: {hostProcess: true}}, containers: [{name: c, image: i}]}", nil},
		{"host processes outside the host's network", "{securityContext: {windowsOptions: {hostProcess: true}}, containers: [{name: c, image: i}]}",
			[]string{"spec.hostNetwork: Invalid value: false: hostNetwork must be true if pod contains any hostProcess containers"}},
		{"host processes beside containers", "{hostNetwork: true, containers: [{name: c, image: i, securityContext: {windowsOptions: {hostProcess: true}}}, {name: d, image: i}]}",
			[]string{`spec: Invalid value: "": If pod contains any hostProcess containers then all containers must be HostProcess containers`}},
		{"a pod and a container of two minds", "{hostNetwork: true, securityContext: {windowsOptions: {hostProcess: true}}, containers: [{name: c, image: i, securityContext: {windowsOptions: {hostProcess: false}}}]}",
			[]string{"spec.containers[0].securityContext.windowsOptions.hostProcess: Invalid value: false: pod hostProcess value must be identical if both are specified, was true"}},
		{"a group account", "{securityContext: {windowsOptions: {gmsaCredentialSpecName: Bad_Name, gmsaCredentialSpec: ''}}, containers: [{name: c, image: i}]}",
			[]string{`spec.securityContext.windowsOptions.gmsaCredentialSpecName: Invalid value: "Bad_Name": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')`,
				`spec.securityContext.windowsOptions.gmsaCredentialSpec: Invalid value: "": gmsaCredentialSpec cannot be an empty string`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := &corev1.Pod{}
			if err := yaml.UnmarshalStrict([]byte("spec: "+tt.spec), p); err != nil {
				t.Fatal(err)
			}
			DefaultPod(p)
			var got []string
			for _, e := range validatePod(p) {
				got = append(got, e.Error())
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("differs (-want +got):\n%s", d)
			}
		})
	}
}

func TestWindowsUserNames(t *testing.T) {
	for _, good := range []string{"Administrator", `DOMAIN\user`, `corp.example.com\user name`, `NT AUTHORITY\SYSTEM`} {
		if errs := validateUserName(good, nil); len(errs) > 0 {
			t.Errorf("%q: %v", good, errs)
		}
	}
	for bad, why := range map[string]string{
		"":                       "runAsUserName cannot be an empty string",
		"a\tb":                   "runAsUserName cannot contain control characters",
		`a\b\c`:                  "runAsUserName cannot contain more than one backslash",
		`\user`:                  "runAsUserName's Domain doesn't match the NetBios nor the DNS format",
		`DOMAIN\`:                "runAsUserName's User cannot be empty",
		`DOMAIN\. .`:             "runAsUserName's User cannot contain only periods or spaces",
		`us/er`:                  "runAsUserName's User cannot contain the following characters: \"/\\:;|=,+*?<>@[]",
		strings.Repeat("a", 105): "runAsUserName's User length must not be longer than 104 characters",
	} {
		errs := validateUserName(bad, nil)
		if len(errs) != 1 || errs[0].Detail != why {
			t.Errorf("%q: %v", bad, errs)
		}
	}
}

func TestWarningsAboutWhatIsOld(t *testing.T) {
	p := &corev1.Pod{}
	if err := yaml.UnmarshalStrict([]byte(`
metadata:
  name: p
  annotations:
    seccomp.security.alpha.kubernetes.io/pod: unconfined
    container.seccomp.security.alpha.kubernetes.io/c: unconfined
    container.apparmor.security.beta.kubernetes.io/c: unconfined
    scheduler.alpha.kubernetes.io/critical-pod: ""
spec:
  volumes: [{name: a, flocker: {}}, {name: b, scaleIO: {gateway: g, system: s, secretRef: {}}}, {name: c, rbd: {image: i, monitors: []}}]
  containers: [{name: c, image: i, ports: [{containerPort: 1}, {containerPort: 2}, {containerPort: 1}]}]
`), p); err != nil {
		t.Fatal(err)
	}
	want := []string{
		`metadata.annotations[container.apparmor.security.beta.kubernetes.io/c]: deprecated since v1.30; use the "appArmorProfile" field instead`,
		`metadata.annotations[container.seccomp.security.alpha.kubernetes.io/c]: non-functional in v1.27+; use the "seccompProfile" field instead`,
		`metadata.annotations[scheduler.alpha.kubernetes.io/critical-pod]: non-functional in v1.16+; use the "priorityClassName" field instead`,
		`metadata.annotations[seccomp.security.alpha.kubernetes.io/pod]: non-functional in v1.27+; use the "seccompProfile" field instead`,
		"spec.volumes[0].flocker: deprecated in v1.22, non-functional in v1.25+",
		"spec.volumes[1].scaleIO: deprecated in v1.16, non-functional in v1.22+",
		"spec.volumes[2].rbd: deprecated in v1.28, non-functional in v1.31+",
		"spec.containers[0].ports[2]: duplicate port definition with spec.containers[0].ports[0]",
	}
	if d := cmp.Diff(want, podWarnings(p, nil)); d != "" {
		t.Errorf("differs (-want +got):\n%s", d)
	}
}
