package node

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"proa/internal/auth/authtest"
	"proa/internal/store"
)

func meta(ns, name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: ns, Name: name} }

func nodeUser(name string) user.Info {
	return &user.DefaultInfo{Name: "system:node:" + name, Groups: []string{"system:nodes", "system:authenticated"}}
}

func podOn(node, name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: meta("ns", name), Spec: corev1.PodSpec{
		NodeName: node, ServiceAccountName: name + "-sa",
		Containers: []corev1.Container{{Name: "c", EnvFrom: []corev1.EnvFromSource{
			{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: name + "-map"}}},
		}}},
		Volumes: []corev1.Volume{
			{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name + "-secret"}}},
			{Name: "c", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name + "-claim"}}},
			{Name: "e", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
		},
		ResourceClaims: []corev1.PodResourceClaim{{Name: "r", ResourceClaimName: new(name + "-device")}},
	}}
}

func world() []store.Object {
	mirror := podOn("n1", "mirror")
	mirror.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
	slice := func(node string) store.Object {
		return &resourcev1.ResourceSlice{ObjectMeta: meta("", node+"-slice"), Spec: resourcev1.ResourceSliceSpec{NodeName: &node}}
	}
	attachment := func(node string) store.Object {
		return &storagev1.VolumeAttachment{ObjectMeta: meta("", node+"-va"), Spec: storagev1.VolumeAttachmentSpec{NodeName: node}}
	}
	return []store.Object{
		podOn("n1", "one"), podOn("n2", "two"), podOn("", "pending"), mirror,
		&corev1.PersistentVolumeClaim{ObjectMeta: meta("ns", "one-claim"), Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "one-pv"}},
		&corev1.PersistentVolume{ObjectMeta: meta("", "one-pv"), Spec: corev1.PersistentVolumeSpec{
			ClaimRef: &corev1.ObjectReference{Namespace: "ns", Name: "one-claim"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				NodeStageSecretRef:         &corev1.SecretReference{Namespace: "csi", Name: "stage"},
				ControllerPublishSecretRef: &corev1.SecretReference{Namespace: "csi", Name: "controller"},
			}},
		}},
		slice("n1"), slice("n2"), attachment("n1"), attachment("n2"),
	}
}

// ask reads "verb [group:]resource[/sub] [ns/]name [field=value]".
func ask(u user.Info, question string) authorizer.AttributesRecord {
	f := strings.Fields(question)
	a := authorizer.AttributesRecord{User: u, Verb: f[0], ResourceRequest: true}
	what := f[1]
	if group, rest, ok := strings.Cut(what, ":"); ok {
		a.APIGroup, what = group, rest
	}
	a.Resource, a.Subresource, _ = strings.Cut(what, "/")
	for _, part := range f[2:] {
		if strings.Contains(part, "=") {
			a.FieldSelectorRequirements = fields.ParseSelectorOrDie(part).Requirements()
		} else if ns, name, ok := strings.Cut(part, "/"); ok {
			a.Namespace, a.Name = ns, name
		} else {
			a.Name = part
		}
	}
	return a
}

func TestANodeSeesWhatItsPodsUse(t *testing.T) {
	a := New(authtest.Open(t, world()...))
	tests := []struct {
		question string
		allowed  bool
	}{
		{"get secrets ns/one-secret", true},
		{"list secrets ns/one-secret", true},
		{"get secrets ns/two-secret", false},
		{"get secrets other/one-secret", false},
		{"get secrets ns/pending-secret", false},
		{"get secrets ns/mirror-secret", false},
		{"update secrets ns/one-secret", false},
		{"list secrets ns/", false},
		{"get secrets csi/stage", true},
		{"get secrets csi/controller", false},
		{"get configmaps ns/one-map", true},
		{"get configmaps ns/two-map", false},
		{"get persistentvolumeclaims ns/one-claim", true},
		{"get persistentvolumeclaims ns/one-e", true},
		{"get persistentvolumeclaims ns/two-claim", false},
		{"list persistentvolumeclaims ns/", false},
		{"update persistentvolumeclaims/status ns/one-claim", true},
		{"update persistentvolumeclaims/status ns/two-claim", false},
		{"get persistentvolumes one-pv", true},
		{"get persistentvolumes other", false},
		{"create serviceaccounts/token ns/one-sa", true},
		{"create serviceaccounts/token ns/two-sa", false},
		{"create serviceaccounts ns/one-sa", false},
		{"get resource.k8s.io:resourceclaims ns/one-device", true},
		{"get resource.k8s.io:resourceclaims ns/two-device", false},
		{"get storage.k8s.io:volumeattachments n1-va", true},
		{"get storage.k8s.io:volumeattachments n2-va", false},
		{"get coordination.k8s.io:leases kube-node-lease/n1", true},
		{"create coordination.k8s.io:leases kube-node-lease/", true},
		{"update coordination.k8s.io:leases kube-node-lease/n2", false},
		{"update coordination.k8s.io:leases kube-system/n1", false},
		{"list coordination.k8s.io:leases kube-node-lease/", false},
		{"update storage.k8s.io:csinodes n1", true},
		{"update storage.k8s.io:csinodes n2", false},
		{"delete resource.k8s.io:resourceslices n1-slice", true},
		{"delete resource.k8s.io:resourceslices n2-slice", false},
		{"list resource.k8s.io:resourceslices spec.nodeName=n1", true},
		{"list resource.k8s.io:resourceslices", false},
		{"get pods ns/one", true},
		{"get pods ns/two", false},
		{"list pods spec.nodeName=n1", true},
		{"watch pods spec.nodeName=n1", true},
		{"list pods spec.nodeName=n2", false},
		{"list pods spec.nodeName!=n1", false},
		{"list pods", false},
		{"patch pods/status ns/two", true}, // admission compares the node
		{"create pods/eviction ns/one", true},
		{"get pods/log ns/one", false},
		{"create pods/exec ns/one", false},
		{"update pods ns/one", false},
		{"get nodes n1", true},
		{"get nodes n2", false},
		{"list nodes metadata.name=n1", true},
		{"list nodes", false},
		{"patch nodes/status n1", true},
		{"delete nodes n1", false},
		{"create events ns/x", true},
		{"list services", true},
		{"delete services ns/x", false},
	}
	for _, tt := range tests {
		t.Run(tt.question, func(t *testing.T) {
			d, reason, err := a.Authorize(t.Context(), ask(nodeUser("n1"), tt.question))
			if err != nil || (d == authorizer.DecisionAllow) != tt.allowed {
				t.Errorf("%v %q %v, want allowed %v", d, reason, err, tt.allowed)
			}
		})
	}
}

func TestRefusalsSayWhy(t *testing.T) {
	a := New(authtest.Open(t, world()...))
	tests := []struct {
		user     user.Info
		question string
		want     string
	}{
		{nodeUser("n1"), "get secrets ns/two-secret", "no relationship found between node 'n1' and this object"},
		{nodeUser("n1"), "update secrets ns/one-secret", "can only read resources of this type"},
		{nodeUser("n1"), "list pods", "can only list/watch pods with spec.nodeName field selector"},
		{nodeUser(""), "list pods", `unknown node for user "system:node:"`},
		{&user.DefaultInfo{Name: "system:node:n1"}, "get secrets ns/one-secret", ""},
		{&user.DefaultInfo{Name: "jane", Groups: []string{"system:nodes"}}, "get secrets ns/one-secret", ""},
	}
	for _, tt := range tests {
		d, reason, _ := a.Authorize(t.Context(), ask(tt.user, tt.question))
		if d != authorizer.DecisionNoOpinion || reason != tt.want {
			t.Errorf("%s of %s: %v %q, want %q", tt.question, tt.user.GetName(), d, reason, tt.want)
		}
	}
}

func TestThePodIndexFollowsTheStore(t *testing.T) {
	s := authtest.Open(t)
	a := New(s)
	allowed := func(node string) bool {
		d, _, err := a.Authorize(t.Context(), ask(nodeUser(node), "get secrets ns/p-secret"))
		if err != nil {
			t.Fatal(err)
		}
		return d == authorizer.DecisionAllow
	}
	check := func(step string, n1, n2 bool) {
		t.Helper()
		if allowed("n1") != n1 || allowed("n2") != n2 {
			t.Errorf("%s: n1 %v, n2 %v; want %v, %v", step, allowed("n1"), allowed("n2"), n1, n2)
		}
	}
	check("no pod", false, false)
	authtest.Put(t, s, podOn("", "p"))
	check("not bound", false, false)
	authtest.Put(t, s, podOn("n1", "p"))
	check("bound", true, false)
	authtest.Delete(t, s, podOn("n1", "p"))
	check("deleted", false, false)
	authtest.Put(t, s, podOn("n2", "p"))
	check("made again elsewhere", false, true)
	for range 600 { // more than one batch of events
		authtest.Put(t, s, podOn("n2", "q"))
		authtest.Delete(t, s, podOn("n2", "q"))
	}
	check("after many events", false, true)
}
