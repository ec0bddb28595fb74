package admission

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/store"
)

func list(pairs ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		out[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return out
}

func resources(requests, limits corev1.ResourceList) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: requests, Limits: limits}
	}
}

// whole gives a pod resources of its own, besides those of its containers.
func whole(requests, limits corev1.ResourceList) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Resources = &corev1.ResourceRequirements{Requests: requests, Limits: limits}
	}
}

func limits(items ...corev1.LimitRangeItem) *corev1.LimitRange {
	return &corev1.LimitRange{ObjectMeta: meta("ns", "l"), Spec: corev1.LimitRangeSpec{Limits: items}}
}

func claim(size string, change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: meta("ns", "c"), Spec: corev1.PersistentVolumeClaimSpec{
		Resources: corev1.VolumeResourceRequirements{Requests: list("storage", size)}}}
	for _, f := range change {
		f(c)
	}
	return c
}

func TestLimitRanger(t *testing.T) {
	container := func(i corev1.LimitRangeItem) *corev1.LimitRange {
		i.Type = corev1.LimitTypeContainer
		return limits(i)
	}
	tests := []struct {
		name  string
		limit *corev1.LimitRange
		obj   store.Object
		want  string
	}{
		{"no request where there is a minimum", container(corev1.LimitRangeItem{Min: list("cpu", "100m")}), pod(),
			`pods "p" is forbidden: minimum cpu usage per Container is 100m.  No request is specified`},
		{"a request below the minimum", container(corev1.LimitRangeItem{Min: list("cpu", "100m")}), pod(resources(list("cpu", "50m"), nil)),
			`pods "p" is forbidden: minimum cpu usage per Container is 100m, but request is 50m`},
		{"a limit above the maximum", container(corev1.LimitRangeItem{Max: list("memory", "1Gi")}), pod(resources(nil, list("memory", "2Gi"))),
			`pods "p" is forbidden: maximum memory usage per Container is 1Gi, but limit is 2Gi`},
		{"two breaches", container(corev1.LimitRangeItem{Min: list("cpu", "1"), Max: list("memory", "1Gi")}), pod(),
			`pods "p" is forbidden: [minimum cpu usage per Container is 1.  No request is specified, maximum memory usage per Container is 1Gi.  No limit is specified]`},
		{"a limit too far above the request", container(corev1.LimitRangeItem{MaxLimitRequestRatio: list("cpu", "2")}), pod(resources(list("cpu", "1"), list("cpu", "3"))),
			`pods "p" is forbidden: cpu max limit to request ratio per Container is 2, but provided ratio is 3.000000`},
		{"within", container(corev1.LimitRangeItem{Min: list("cpu", "1"), Max: list("cpu", "2")}), pod(resources(list("cpu", "1"), list("cpu", "2"))), ""},
		{"a pod's sum above the maximum", limits(corev1.LimitRangeItem{Type: corev1.LimitTypePod, Max: list("cpu", "1")}), pod(resources(list("cpu", "1"), list("cpu", "2"))),
			`pods "p" is forbidden: maximum cpu usage per Pod is 1, but limit is 2`},
		{"a pod as a whole above the maximum", limits(corev1.LimitRangeItem{Type: corev1.LimitTypePod, Max: list("cpu", "1")}),
			pod(resources(list("cpu", "100m"), list("cpu", "500m")), whole(list("cpu", "1"), list("cpu", "2"))),
			`pods "p" is forbidden: maximum cpu usage per Pod is 1, but limit is 2`},
		{"a pod as a whole that asks for more than its containers do", limits(corev1.LimitRangeItem{Type: corev1.LimitTypePod, Min: list("memory", "1Gi")}),
			pod(resources(list("memory", "1Mi"), nil), whole(list("memory", "2Gi"), nil)), ""},
		{"a claim above the maximum", limits(corev1.LimitRangeItem{Type: corev1.LimitTypePersistentVolumeClaim, Max: list("storage", "1Gi")}), claim("2Gi"),
			`persistentvolumeclaims "c" is forbidden: maximum storage usage per PersistentVolumeClaim is 1Gi, but request is 2Gi`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			checkError(t, newWorld(t, nil, tt.limit).run(t, write{obj: tt.obj}.attributes(t), false), tt.want)
		})
	}
	p := pod()
	w := newWorld(t, nil, container(corev1.LimitRangeItem{Default: list("cpu", "1"), DefaultRequest: list("cpu", "500m", "memory", "1Gi")}))
	checkError(t, w.run(t, write{obj: p}.attributes(t), false), "")
	if got := p.Annotations[limitRangerAnnotation]; got != "LimitRanger plugin set: cpu, memory request for container c; cpu limit for container c" {
		t.Errorf("annotation %q", got)
	}
	if q := p.Spec.Containers[0].Resources.Requests["cpu"]; q.String() != "500m" {
		t.Errorf("request %v", p.Spec.Containers[0].Resources)
	}
}

func TestPriority(t *testing.T) {
	class := func(name string, value int32, global bool) *schedulingv1.PriorityClass {
		return &schedulingv1.PriorityClass{ObjectMeta: meta("", name), Value: value, GlobalDefault: global}
	}
	named := func(name string) *corev1.Pod { return pod(func(p *corev1.Pod) { p.Spec.PriorityClassName = name }) }
	tests := []struct {
		name     string
		classes  []store.Object
		pod      *corev1.Pod
		priority int32
		want     string
	}{
		{"no class", nil, pod(), 0, ""},
		{"a class", []store.Object{class("high", 7, false)}, named("high"), 7, ""},
		{"the default class", []store.Object{class("high", 7, false), class("usual", 5, true)}, pod(), 5, ""},
		{"a missing class", nil, named("none"), 0, `pods "p" is forbidden: no PriorityClass with name none was found`},
		{"a number of its own", nil, pod(func(p *corev1.Pod) { p.Spec.Priority = new(int32(9)) }), 0,
			`pods "p" is forbidden: the integer value of priority (9) must not be provided in pod spec; priority admission controller computed 0 from the given PriorityClass name`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			checkError(t, newWorld(t, nil, tt.classes...).run(t, write{obj: tt.pod}.attributes(t), false), tt.want)
			if tt.want == "" && (*tt.pod.Spec.Priority != tt.priority || *tt.pod.Spec.PreemptionPolicy != corev1.PreemptLowerPriority) {
				t.Errorf("priority %d", *tt.pod.Spec.Priority)
			}
		})
	}
	w := newWorld(t, nil, class("usual", 5, true))
	checkError(t, w.run(t, write{obj: class("other", 6, true)}.attributes(t), false),
		`priorityclasses.scheduling.k8s.io "other" is forbidden: PriorityClass usual is already marked as default. Only one default can exist`)
	checkError(t, w.run(t, write{obj: class("usual", 6, true), old: class("usual", 5, true)}.attributes(t), false), "")
}

func TestDefaultTolerationSeconds(t *testing.T) {
	w := newWorld(t, nil)
	p := pod(func(p *corev1.Pod) {
		p.Spec.Tolerations = []corev1.Toleration{{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}}
	})
	checkError(t, w.run(t, write{obj: p}.attributes(t), false), "")
	if len(p.Spec.Tolerations) != 2 || p.Spec.Tolerations[1].Key != corev1.TaintNodeUnreachable || *p.Spec.Tolerations[1].TolerationSeconds != 300 {
		t.Errorf("tolerations %v", p.Spec.Tolerations)
	}
}

func TestStorage(t *testing.T) {
	class := func(name string, age int, expand bool) *storagev1.StorageClass {
		return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Unix(int64(1000-age), 0)),
			Annotations: map[string]string{defaultClass: "true"}}, AllowVolumeExpansion: &expand}
	}
	w := newWorld(t, nil, class("old", 9, false), class("new", 1, true))
	c := claim("1Gi")
	checkError(t, w.run(t, write{obj: c}.attributes(t), false), "")
	if c.Spec.StorageClassName == nil || *c.Spec.StorageClassName != "new" || len(c.Finalizers) != 1 || c.Finalizers[0] != "kubernetes.io/pvc-protection" {
		t.Errorf("class %v, finalizers %v", c.Spec.StorageClassName, c.Finalizers)
	}
	none := claim("1Gi", func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = new("") })
	checkError(t, w.run(t, write{obj: none}.attributes(t), false), "")
	if *none.Spec.StorageClassName != "" {
		t.Errorf("a claim without class got %s", *none.Spec.StorageClassName)
	}

	bound := func(class string) func(*corev1.PersistentVolumeClaim) {
		return func(c *corev1.PersistentVolumeClaim) {
			c.Spec.StorageClassName = &class
			c.Status.Phase = corev1.ClaimBound
		}
	}
	tests := []struct {
		name     string
		obj, old *corev1.PersistentVolumeClaim
		want     string
	}{
		{"grow where the class allows", claim("2Gi", bound("new")), claim("1Gi", bound("new")), ""},
		{"grow where it does not", claim("2Gi", bound("old")), claim("1Gi", bound("old")),
			`persistentvolumeclaims "c" is forbidden: only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize`},
		{"grow before it is bound", claim("2Gi"), claim("1Gi"), `persistentvolumeclaims "c" is forbidden: Only bound persistent volume claims can be expanded`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			checkError(t, w.run(t, write{obj: tt.obj, old: tt.old}.attributes(t), false), tt.want)
		})
	}
}

func TestRuntimeClass(t *testing.T) {
	class := &nodev1.RuntimeClass{ObjectMeta: meta("", "vm"), Handler: "vm", Overhead: &nodev1.Overhead{PodFixed: list("cpu", "100m")},
		Scheduling: &nodev1.Scheduling{NodeSelector: map[string]string{"vm": "yes"}, Tolerations: []corev1.Toleration{{Key: "vm"}}}}
	w := newWorld(t, nil, class)
	in := func(change ...func(*corev1.Pod)) *corev1.Pod {
		return pod(append(change, func(p *corev1.Pod) { p.Spec.RuntimeClassName = new("vm") })...)
	}
	p := in()
	checkError(t, w.run(t, write{obj: p}.attributes(t), false), "")
	if q := p.Spec.Overhead["cpu"]; q.String() != "100m" || p.Spec.NodeSelector["vm"] != "yes" || p.Spec.Tolerations[len(p.Spec.Tolerations)-1].Key != "vm" {
		t.Errorf("spec %v", p.Spec)
	}
	checkError(t, w.run(t, write{obj: in(func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"vm": "no"} })}.attributes(t), false),
		`pods "p" is forbidden: conflict: runtimeClass.scheduling.nodeSelector[vm] = yes; pod.spec.nodeSelector[vm] = no`)
	checkError(t, w.run(t, write{obj: pod(func(p *corev1.Pod) { p.Spec.RuntimeClassName = new("none") })}.attributes(t), false),
		`pods "p" is forbidden: pod rejected: RuntimeClass "none" not found`)
	checkError(t, w.run(t, write{obj: pod(func(p *corev1.Pod) { p.Spec.Overhead = list("cpu", "1") })}.attributes(t), false),
		`pods "p" is forbidden: pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead`)
}

func TestDefaultIngressClass(t *testing.T) {
	w := newWorld(t, nil, &networkingv1.IngressClass{ObjectMeta: metav1.ObjectMeta{Name: "nginx", Annotations: map[string]string{networkingv1.AnnotationIsDefaultIngressClass: "true"}}})
	i := &networkingv1.Ingress{ObjectMeta: meta("ns", "i")}
	checkError(t, w.run(t, write{obj: i}.attributes(t), false), "")
	if i.Spec.IngressClassName == nil || *i.Spec.IngressClassName != "nginx" {
		t.Errorf("class %v", i.Spec.IngressClassName)
	}
}

func request(t *testing.T, cn string, orgs ...string) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: cn, Organization: orgs}}, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func TestCertificates(t *testing.T) {
	csr := func(signer string, orgs ...string) *certificatesv1.CertificateSigningRequest {
		return &certificatesv1.CertificateSigningRequest{ObjectMeta: meta("", "r"), Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: signer, Request: request(t, "x", orgs...)}}
	}
	signed := csr("example.com/a")
	signed.Status.Certificate = []byte("c")
	tests := []struct {
		name string
		may  stand
		write
		want string
	}{
		{"approve without the verb", nil, write{sub: "approval", obj: csr("example.com/a"), old: csr("example.com/a")},
			`certificatesigningrequests.certificates.k8s.io "r" is forbidden: user not permitted to approve requests with signerName "example.com/a"`},
		{"approve with the verb on the signer", stand{"approve signers example.com/a": true}, write{sub: "approval", obj: csr("example.com/a"), old: csr("example.com/a")}, ""},
		{"approve with the verb on the domain", stand{"approve signers example.com/*": true}, write{sub: "approval", obj: csr("example.com/a"), old: csr("example.com/a")}, ""},
		{"sign without the verb", nil, write{sub: "status", obj: signed, old: csr("example.com/a")},
			`certificatesigningrequests.certificates.k8s.io "r" is forbidden: user not permitted to sign requests with signerName "example.com/a"`},
		{"sign with the verb", stand{"sign signers example.com/a": true}, write{sub: "status", obj: signed, old: csr("example.com/a")}, ""},
		{"ask for everything", nil, write{obj: csr("kubernetes.io/kube-apiserver-client", "system:masters")},
			`certificatesigningrequests.certificates.k8s.io "r" is forbidden: use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed`},
		{"ask for less", nil, write{obj: csr("kubernetes.io/kube-apiserver-client", "dev")}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, func(c *Config) { c.Authorizer = tt.may.authorizer() })
			checkError(t, w.run(t, tt.attributes(t), false), tt.want)
		})
	}
}

func TestPodSecurity(t *testing.T) {
	privileged := pod(func(p *corev1.Pod) {
		p.Namespace = "strict"
		p.Spec.HostNetwork = true
	})
	w := newWorld(t, nil, namespace("strict", "pod-security.kubernetes.io/enforce", "baseline"),
		&corev1.ServiceAccount{ObjectMeta: meta("strict", "default")})
	checkError(t, w.run(t, write{obj: privileged}.attributes(t), false),
		`pods "p" is forbidden: violates PodSecurity "baseline:latest": host namespaces (hostNetwork=true)`)
	checkError(t, w.run(t, write{obj: pod(func(p *corev1.Pod) { p.Namespace = "strict" })}.attributes(t), false), "")
	checkError(t, w.run(t, write{obj: pod(func(p *corev1.Pod) { p.Spec.HostNetwork = true })}.attributes(t), false), "")
	checkError(t, w.run(t, write{obj: namespace("bad", "pod-security.kubernetes.io/enforce", "loose")}.attributes(t), false),
		`Namespace "bad" is invalid: metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: "loose": must be one of privileged, baseline, restricted`)
}

func TestRBACEscalation(t *testing.T) {
	reader := &rbacv1.ClusterRole{ObjectMeta: meta("", "reader"), Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}}}
	give := &rbacv1.ClusterRoleBinding{ObjectMeta: meta("", "give"), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "reader"}}
	mine := &rbacv1.RoleBinding{ObjectMeta: meta("ns", "mine"), RoleRef: give.RoleRef, Subjects: []rbacv1.Subject{{Kind: "User", Name: "jane"}}}
	missing := &rbacv1.ClusterRoleBinding{ObjectMeta: meta("", "give"), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "none"}}
	relabelled := reader.DeepCopy()
	relabelled.Labels = map[string]string{"a": "b"}
	w := newWorld(t, nil, reader, mine)
	const held = `user "jane" (groups=["system:authenticated"]) is attempting to grant RBAC permissions not currently held:
{APIGroups:[""], Resources:["pods"], Verbs:["get"]}`
	tests := []struct {
		name string
		write
		want string
	}{
		{"a role with more than one has", write{obj: reader}, `clusterroles.rbac.authorization.k8s.io "reader" is forbidden: ` + held},
		{"a change of labels", write{obj: relabelled, old: reader}, ""},
		{"a binding to more than one has", write{obj: give}, `clusterrolebindings.rbac.authorization.k8s.io "give" is forbidden: ` + held},
		{"a binding to a missing role", write{obj: missing}, `clusterroles.rbac.authorization.k8s.io "none" not found`},
		{"a binding within what one has in the namespace", write{obj: mine}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { checkError(t, w.run(t, tt.attributes(t), false), tt.want) })
	}
	may := newWorld(t, func(c *Config) {
		c.Authorizer = stand{"escalate clusterroles reader": true, "bind clusterroles reader": true}.authorizer()
	}, reader)
	checkError(t, may.run(t, write{obj: reader}.attributes(t), false), "")
	checkError(t, may.run(t, write{obj: give}.attributes(t), false), "")
}

func TestOptionalPlugins(t *testing.T) {
	w := newWorld(t, func(c *Config) {
		c.Enable = []string{"AlwaysPullImages", "DenyServiceExternalIPs", "OwnerReferencesPermissionEnforcement"}
		c.Disable = []string{"ServiceAccount"}
	})
	p := pod(func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "i", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{}}}}
	})
	checkError(t, w.run(t, write{obj: p}.attributes(t), false), "")
	if p.Spec.Containers[0].ImagePullPolicy != corev1.PullAlways || p.Spec.Volumes[0].Image.PullPolicy != corev1.PullAlways || p.Spec.ServiceAccountName != "" {
		t.Errorf("spec %v", p.Spec)
	}
	s := &corev1.Service{ObjectMeta: meta("ns", "s"), Spec: corev1.ServiceSpec{ExternalIPs: []string{"1.2.3.4"}}}
	checkError(t, w.run(t, write{obj: s}.attributes(t), false), `services "s" is forbidden: Use of external IPs is denied by admission control.`)
	checkError(t, w.run(t, write{obj: s, old: s}.attributes(t), false), "")
	owned := &corev1.ConfigMap{ObjectMeta: meta("ns", "m")}
	owned.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "p", BlockOwnerDeletion: new(true)}}
	checkError(t, w.run(t, write{obj: owned}.attributes(t), false),
		`configmaps "m" is forbidden: cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: , <nil>`)
}

// hook is a plugin that users configure.
type hook struct{ name string }

func (h hook) Name() string { return h.name }

func (h hook) Admit(context.Context, *Attributes) error { return errors.New(h.name) }

func TestPluginsAreChosenByName(t *testing.T) {
	for _, tt := range []struct {
		name            string
		enable, disable []string
		want            string // of New
		first           string // that the hooks say
	}{
		{name: "by default", first: "MutatingAdmissionPolicy"},
		{name: "without one", disable: []string{"MutatingAdmissionPolicy"}, first: "MutatingAdmissionWebhook"},
		{name: "enabled twice", enable: []string{"MutatingAdmissionWebhook"}, first: "MutatingAdmissionPolicy"},
		{name: "disabled although never here", disable: []string{"ImagePolicyWebhook"}, first: "MutatingAdmissionPolicy"},
		{name: "an unknown one enabled", enable: []string{"SecurityContextDeny"}, want: `enable-admission-plugins plugin "SecurityContextDeny" is unknown`},
		{name: "an unknown one disabled", disable: []string{"Nothing"}, want: `disable-admission-plugins plugin "Nothing" is unknown`},
		{name: "both", enable: []string{"AlwaysPullImages"}, disable: []string{"AlwaysPullImages"}, want: "[AlwaysPullImages] in enable-admission-plugins and disable-admission-plugins overlapped"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			chain, err := New(Config{
				Store: newWorld(t, nil).store, Authorizer: stand{}.authorizer(), Enable: tt.enable, Disable: tt.disable,
				Policies: []any{hook{"MutatingAdmissionPolicy"}}, Webhooks: []any{hook{"MutatingAdmissionWebhook"}},
			})
			if err == nil {
				err = chain.Admit(t.Context(), write{obj: &corev1.ConfigMap{ObjectMeta: meta("ns", "m")}}.attributes(t))
			}
			if got := err.Error(); got != tt.want+tt.first {
				t.Errorf("got %q, want %q", got, tt.want+tt.first)
			}
		})
	}
}
