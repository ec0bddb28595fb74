package environment

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

type objects map[string]map[string]string

func (o objects) ConfigMap(_ context.Context, _, name string) (*corev1.ConfigMap, error) {
	if data, ok := o["configmap/"+name]; ok {
		return &corev1.ConfigMap{Data: data}, nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource("configmaps"), name)
}

func (o objects) Secret(_ context.Context, _, name string) (*corev1.Secret, error) {
	data, ok := o["secret/"+name]
	if !ok {
		return nil, apierrors.NewNotFound(corev1.Resource("secrets"), name)
	}
	s := &corev1.Secret{Data: map[string][]byte{}}
	for k, v := range data {
		s.Data[k] = []byte(v)
	}
	return s, nil
}

func service(namespace, name, ip string, ports ...corev1.ServicePort) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.ServiceSpec{ClusterIP: ip, Ports: ports},
	}
}

func TestFor(t *testing.T) {
	tests := []struct {
		name      string
		container string // YAML
		pod       string
		want      string // NAME=value lines, service variables left out
		err       string
	}{
		{"plain values keep their order", `env: [{name: B, value: "2"}, {name: A, value: "1"}]`, ``, "B=2 A=1", ""},
		{"a later value wins in the first place", `env: [{name: A, value: x}, {name: B, value: w}, {name: A, value: z}]`, ``, "A=z B=w", ""},
		{"earlier variables expand, later ones do not", `env: [{name: A, value: "$(B)"}, {name: B, value: b}, {name: C, value: "$(B)-$$(B)-$(A"}]`, ``,
			"A=$(B) B=b C=b-$(B)-$(A", ""},
		{"service variables expand", `env: [{name: A, value: "$(KUBERNETES_SERVICE_HOST)"}]`, ``, "A=10.0.0.1", ""},
		{"envFrom with a prefix, then env", `{envFrom: [{prefix: "p-", configMapRef: {name: cm}}, {secretRef: {name: s}}], env: [{name: p-k, value: own}]}`, ``,
			"p-k=own p-z=zed password=pw", ""},
		{"optional references that are missing set nothing", `
envFrom: [{configMapRef: {name: absent, optional: true}}]
env:
- {name: A, valueFrom: {configMapKeyRef: {name: absent, key: k, optional: true}}}
- {name: B, valueFrom: {secretKeyRef: {name: s, key: absent, optional: true}}}
- {name: C, value: c}`, ``, "C=c", ""},
		{"keys", `env: [{name: A, valueFrom: {configMapKeyRef: {name: cm, key: k}}}, {name: B, valueFrom: {secretKeyRef: {name: s, key: password}}}]`, ``, "A=v B=pw", ""},
		{"a missing config map", `envFrom: [{configMapRef: {name: absent}}]`, ``, "", `configmap "absent" not found`},
		{"a missing secret", `env: [{name: A, valueFrom: {secretKeyRef: {name: absent, key: k}}}]`, ``, "", `secret "absent" not found`},
		{"a missing key", `env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: absent}}}]`, ``, "", `couldn't find key absent in Secret ns/s`},
		{"a missing config map key", `env: [{name: A, valueFrom: {configMapKeyRef: {name: cm, key: absent}}}]`, ``, "", `couldn't find key absent in ConfigMap ns/cm`},
		{"pod fields", `
env:
- {name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
- {name: LABEL, valueFrom: {fieldRef: {fieldPath: "metadata.labels['a/b']"}}}
- {name: HOSTS, valueFrom: {fieldRef: {fieldPath: status.hostIPs}}}
- {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
- {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}`, ``, "NAME=p LABEL=l HOSTS=192.0.2.1,2001:db8::1 IP=10.1.0.5 NODE=n", ""},
		{"an unknown field", `env: [{name: A, valueFrom: {fieldRef: {fieldPath: spec.hostname}}}]`, ``, "", "unsupported fieldPath: spec.hostname"},
		{"resources, rounded up", `
resources: {requests: {cpu: 250m, memory: 32Mi, hugepages-2Mi: 4Mi}, limits: {memory: 64Mi}}
env:
- {name: REQ, valueFrom: {resourceFieldRef: {resource: requests.cpu}}}
- {name: MILLI, valueFrom: {resourceFieldRef: {resource: requests.cpu, divisor: 1m}}}
- {name: MEM, valueFrom: {resourceFieldRef: {resource: limits.memory, divisor: 1Mi}}}
- {name: HUGE, valueFrom: {resourceFieldRef: {resource: requests.hugepages-2Mi, divisor: 1Mi}}}
- {name: NODE, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}`, ``, "REQ=1 MILLI=250 MEM=64 HUGE=4 NODE=4", ""},
		{"a limit of the pod", `env: [{name: A, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}]`, `resources: {limits: {cpu: "3"}}`, "A=3", ""},
		{"an env file", `env: [{name: A, valueFrom: {fileKeyRef: {volumeName: v, path: f, key: K}}}]`, ``, "A=a b", ""},
		{"an env file without the key", `env: [{name: A, valueFrom: {fileKeyRef: {volumeName: v, path: f, key: NONE}}}]`, ``, "", `environment variable key "NONE" not found in file`},
	}
	source := objects{"configmap/cm": {"k": "v", "z": "zed"}, "secret/s": {"password": "pw"}}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var c corev1.Container
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", Labels: map[string]string{"a/b": "l"}}}
			if err := yaml.UnmarshalStrict([]byte(tt.container), &c); err != nil {
				t.Fatal(err)
			}
			if err := yaml.UnmarshalStrict([]byte(tt.pod), &pod.Spec); err != nil {
				t.Fatal(err)
			}
			pod.Spec.NodeName = "n"
			vars, err := For(t.Context(), pod, &c, Inputs{
				Source:      source,
				Services:    []*corev1.Service{service("default", "kubernetes", "10.0.0.1", corev1.ServicePort{Port: 443})},
				Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")},
				HostIPs:     []string{"192.0.2.1", "2001:db8::1"}, PodIPs: []string{"10.1.0.5"},
				ReadVolumeFile: func(string, string) ([]byte, error) { return []byte("# c\nK='a b'\n"), nil },
			})
			if tt.err != "" {
				if err == nil || err.Error() != tt.err {
					t.Errorf("got %v, want %s", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, v := range vars {
				if !strings.HasPrefix(v.Name, "KUBERNETES_") {
					got = append(got, v.Name+"="+v.Value)
				}
			}
			if s := strings.Join(got, " "); s != tt.want {
				t.Errorf("got  %s\nwant %s", s, tt.want)
			}
		})
	}
}

func TestServiceVariables(t *testing.T) {
	services := []*corev1.Service{
		service("ns", "foo-service", "10.0.0.7", corev1.ServicePort{Name: "web-ui", Port: 8765, Protocol: corev1.ProtocolTCP}, corev1.ServicePort{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP}),
		service("ns", "headless", "None", corev1.ServicePort{Port: 1}),
		service("ns", "external", "", corev1.ServicePort{Port: 1}),
		service("default", "other", "10.0.0.8", corev1.ServicePort{Port: 1}),
		service("default", "kubernetes", "fd00::1", corev1.ServicePort{Name: "https", Port: 443}),
	}
	want := map[string]string{
		"FOO_SERVICE_SERVICE_HOST": "10.0.0.7", "FOO_SERVICE_SERVICE_PORT": "8765",
		"FOO_SERVICE_SERVICE_PORT_WEB_UI": "8765", "FOO_SERVICE_SERVICE_PORT_DNS": "53",
		"FOO_SERVICE_PORT": "tcp://10.0.0.7:8765", "FOO_SERVICE_PORT_8765_TCP": "tcp://10.0.0.7:8765",
		"FOO_SERVICE_PORT_8765_TCP_PROTO": "tcp", "FOO_SERVICE_PORT_8765_TCP_PORT": "8765", "FOO_SERVICE_PORT_8765_TCP_ADDR": "10.0.0.7",
		"FOO_SERVICE_PORT_53_UDP": "udp://10.0.0.7:53", "FOO_SERVICE_PORT_53_UDP_PROTO": "udp",
		"FOO_SERVICE_PORT_53_UDP_PORT": "53", "FOO_SERVICE_PORT_53_UDP_ADDR": "10.0.0.7",
	}
	master := map[string]string{
		"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443", "KUBERNETES_SERVICE_PORT_HTTPS": "443",
		"KUBERNETES_PORT": "tcp://[fd00::1]:443", "KUBERNETES_PORT_443_TCP": "tcp://[fd00::1]:443",
		"KUBERNETES_PORT_443_TCP_PROTO": "tcp", "KUBERNETES_PORT_443_TCP_PORT": "443", "KUBERNETES_PORT_443_TCP_ADDR": "fd00::1",
	}
	if got := serviceVariables(services, "ns", false); fmt.Sprint(got) != fmt.Sprint(master) {
		t.Errorf("without links: got %v", got)
	}
	for k, v := range master {
		want[k] = v
	}
	if got := serviceVariables(services, "ns", true); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("with links:\ngot  %v\nwant %v", got, want)
	}
}

func TestExpand(t *testing.T) {
	vars := []Variable{{"A", "1"}, {"B", "$(A)"}, {"E", ""}}
	for in, want := range map[string]string{
		"$(A)": "1", "x$(A)y$(A)": "x1y1", "$(B)": "$(A)", "$(E)": "", "$$(A)": "$(A)", "$$$(A)": "$1", "$": "$", "$A": "$A",
		"$(NO)": "$(NO)", "$(A": "$(A", "$($(A))": "$($(A))", "$()": "$()", "a$$": "a$", "${A}": "${A}",
	} {
		if got := Expand([]string{in}, vars)[0]; got != want {
			t.Errorf("Expand(%q) = %q, want %q", in, got, want)
		}
	}
}

func FuzzExpand(f *testing.F) {
	f.Add("$(A)$$(")
	f.Fuzz(func(t *testing.T, s string) {
		got := Expand([]string{s}, nil)[0]
		if !strings.Contains(s, "$$") && got != s {
			t.Errorf("without variables %q became %q", s, got)
		}
	})
}

func TestParseEnvFile(t *testing.T) {
	tests := []struct {
		name, in, want, err string
	}{
		{"assignments, comments and blank lines", "# c\n\n  A='1'\nB='x y' # tail\n", "map[A:1 B:x y]", ""},
		{"a value over lines, taken literally", "A='1\n$B\\n'\nC=''", "map[A:1\n$B\\n C:]", ""},
		{"no quotes", "A=1", "", "invalid environment variable format at line 1: value must be enclosed in single quotes"},
		{"no name", "\n='1'", "", "invalid environment variable format at line 2"},
		{"no end", "A='1", "", "unterminated single-quoted value starting at line 1"},
		{"text after the quote", "A='1'2", "", "unexpected content after closing quote at line 1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseEnvFile(tt.in)
			if tt.err != "" {
				if err == nil || err.Error() != tt.err {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil || fmt.Sprint(got) != tt.want {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

func FuzzParseEnvFile(f *testing.F) {
	f.Add("A='1'\n#\nB='")
	f.Fuzz(func(t *testing.T, s string) {
		values, err := parseEnvFile(s)
		for name := range values {
			if err != nil || name == "" {
				t.Errorf("%q with error %v", name, err)
			}
		}
	})
}

func TestEnableServiceLinksDefaultsToTrue(t *testing.T) {
	services := []*corev1.Service{service("ns", "a", "10.0.0.2", corev1.ServicePort{Port: 80})}
	for links, want := range map[*bool]int{nil: 7, ptr.To(false): 0} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}, Spec: corev1.PodSpec{EnableServiceLinks: links}}
		vars, err := For(t.Context(), pod, &corev1.Container{}, Inputs{Services: services})
		if err != nil || len(vars) != want {
			t.Errorf("got %v, %v", vars, err)
		}
	}
}
