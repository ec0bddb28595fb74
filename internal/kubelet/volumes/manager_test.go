package volumes

import (
	"context"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"proa/internal/client"
	"proa/internal/kubelet/environment"
	"proa/internal/kubelet/tokens"
)

// cluster answers the reads of a Manager from maps.
type cluster struct {
	client.API
	configMaps map[string]*corev1.ConfigMap
	secrets    map[string]*corev1.Secret
	objects    map[string]client.Object // resource/name
}

func (c *cluster) ConfigMap(_ context.Context, _, name string) (*corev1.ConfigMap, error) {
	if cm := c.configMaps[name]; cm != nil {
		return cm, nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource("configmaps"), name)
}

func (c *cluster) Secret(_ context.Context, _, name string) (*corev1.Secret, error) {
	if s := c.secrets[name]; s != nil {
		return s, nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource("secrets"), name)
}

func (c *cluster) Get(_ context.Context, ref client.Ref, _ metav1.GetOptions) (client.Object, error) {
	if obj := c.objects[ref.Resource.Resource+"/"+ref.Name]; obj != nil {
		return obj, nil
	}
	return nil, apierrors.NewNotFound(ref.Resource.GroupResource(), ref.Name)
}

func (c *cluster) Named(_ context.Context, name string) (*certificatesv1.ClusterTrustBundle, error) {
	if b, ok := c.objects["clustertrustbundles/"+name].(*certificatesv1.ClusterTrustBundle); ok {
		return b, nil
	}
	return nil, apierrors.NewNotFound(certificatesv1.Resource("clustertrustbundles"), name)
}

func (c *cluster) Signed(_ context.Context, signer string, selector labels.Selector) ([]*certificatesv1.ClusterTrustBundle, error) {
	var found []*certificatesv1.ClusterTrustBundle
	for _, obj := range c.objects {
		b, ok := obj.(*certificatesv1.ClusterTrustBundle)
		if ok && b.Spec.SignerName == signer && selector.Matches(labels.Set(b.Labels)) {
			found = append(found, b)
		}
	}
	return found, nil
}

func newManager(t *testing.T, c *cluster) *Manager {
	t.Helper()
	root := t.TempDir()
	t.Cleanup(func() { unmountBelow(root) })
	return New(Config{
		API: c, Source: c, RootDir: root, NodeName: "n1",
		Tokens: tokens.New(tokens.Config{API: c}), TrustBundles: c, Clock: clocktesting.NewFakeClock(epoch),
		Node: func() (*corev1.Node, error) {
			return &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{corev1.LabelHostname: "n1"}},
				Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("1Gi"),
				}},
			}, nil
		},
	})
}

func podWith(volumes ...corev1.Volume) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "uid-1", Labels: map[string]string{"app": "x"}},
		Spec:       corev1.PodSpec{Volumes: volumes, Containers: []corev1.Container{{Name: "c"}}},
	}
}

func volume(name string, source corev1.VolumeSource) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: source}
}

func TestMountReportsUpstreamsErrors(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "file"), "")
	tests := []struct {
		name   string
		source corev1.VolumeSource
		want   string
	}{
		{"a missing config map", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "y"}}},
			`MountVolume.SetUp failed for volume "x" : configmap "y" not found`},
		{"a missing secret", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "y"}},
			`MountVolume.SetUp failed for volume "x" : secret "y" not found`},
		{"a missing key", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}, Items: []corev1.KeyToPath{{Key: "k", Path: "p"}}}},
			`MountVolume.SetUp failed for volume "x" : configmap references non-existent config key: k`},
		{"a host path of the wrong type", corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{
			Path: filepath.Join(dir, "file"), Type: ptr.To(corev1.HostPathDirectory)}},
			`MountVolume.SetUp failed for volume "x" : hostPath type check failed: ` + filepath.Join(dir, "file") + ` is not a directory`},
		{"an unbound claim", corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "unbound"}},
			`MountVolume.SetUp failed for volume "x" : error processing PVC ns/unbound: PVC is not bound`},
		{"a volume kind that is not supported", corev1.VolumeSource{RBD: &corev1.RBDVolumeSource{}},
			`MountVolume.SetUp failed for volume "x" : no volume plugin matched: volume source rbd is not supported by this node`},
	}
	c := &cluster{
		configMaps: map[string]*corev1.ConfigMap{"cm": {}},
		objects: map[string]client.Object{
			"persistentvolumeclaims/unbound": &corev1.PersistentVolumeClaim{Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := newManager(t, c).Mount(t.Context(), podWith(volume("x", tt.source)))
			if err == nil || err.Error() != tt.want {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
		})
	}
}

func TestProjectedFilesFollowTheirObjects(t *testing.T) {
	needRoot(t)
	c := &cluster{configMaps: map[string]*corev1.ConfigMap{"cm": {Data: map[string]string{"k": "v1"}}}}
	m := newManager(t, c)
	pod := podWith(volume("all", corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		DefaultMode: ptr.To[int32](0o400),
		Sources: []corev1.VolumeProjection{
			{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}}},
			{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "late"}, Optional: ptr.To(true)}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{
				{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"}},
				{Path: "cpu", ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: "c", Resource: "limits.cpu"}, Mode: ptr.To[int32](0o644)},
			}}},
		},
	}}))
	ctx := t.Context()
	if err := m.Mount(ctx, pod); err != nil {
		t.Fatal(err)
	}
	dir := m.volumeDir(pod.UID, "projected", "all")
	check := func(name, want string) {
		t.Helper()
		if got := read(t, filepath.Join(dir, name)); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	check("k", "v1")
	check("labels", `app="x"`)
	check("cpu", "2")
	if info, err := os.Stat(filepath.Join(dir, "k")); err != nil || info.Mode().Perm() != 0o400 {
		t.Errorf("mode %v, err %v", info.Mode(), err)
	}
	if mounted, err := isMountPoint(dir); err != nil || !mounted {
		t.Errorf("a volume with secrets is not in memory: %v", err)
	}
	c.configMaps["cm"] = &corev1.ConfigMap{Data: map[string]string{"k": "v2"}}
	c.secrets = map[string]*corev1.Secret{"late": {Data: map[string][]byte{"password": []byte("pw")}}}
	pod = pod.DeepCopy()
	pod.Labels["app"] = "y"
	if err := m.Refresh(ctx, pod); err != nil {
		t.Fatal(err)
	}
	check("k", "v2")
	check("labels", `app="y"`)
	check("password", "pw")
	c.secrets = nil
	if err := m.Refresh(ctx, pod); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "password")); !os.IsNotExist(err) {
		t.Errorf("the file of a deleted secret stays: %v", err)
	}
}

func TestFSGroup(t *testing.T) {
	needRoot(t)
	c := &cluster{secrets: map[string]*corev1.Secret{"s": {Data: map[string][]byte{"k": []byte("v")}}}}
	m := newManager(t, c)
	pod := podWith(
		volume("e", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}),
		volume("s", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s", DefaultMode: ptr.To[int32](0o440)}}),
	)
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: ptr.To[int64](1001)}
	if err := m.Mount(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]os.FileMode{
		m.volumeDir(pod.UID, "empty-dir", "e"):                  0o777 | os.ModeDir | os.ModeSetgid,
		filepath.Join(m.volumeDir(pod.UID, "secret", "s"), "k"): 0o440,
	} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if gid := info.Sys().(*syscall.Stat_t).Gid; info.Mode() != want || gid != 1001 {
			t.Errorf("%s: mode %v group %d, want %v 1001", path, info.Mode(), gid, want)
		}
	}
}

func TestOwnershipNeverLeavesTheVolume(t *testing.T) {
	needRoot(t)
	base := t.TempDir()
	outside := filepath.Join(base, "outside")
	write(t, outside, "")
	dir := filepath.Join(base, "volume")
	mkdir(t, filepath.Join(dir, "sub"))
	symlink(t, outside, filepath.Join(dir, "sub", "link"))
	pod := podWith()
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: ptr.To[int64](7)}
	if err := own(dir, pod, false); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(outside)
	if err != nil || info.Sys().(*syscall.Stat_t).Gid == 7 || info.Mode().Perm() != 0o644 {
		t.Errorf("changed what a link points to: %v %v", info.Mode(), err)
	}
	link, err := os.Lstat(filepath.Join(dir, "sub", "link"))
	if err != nil || link.Sys().(*syscall.Stat_t).Gid != 7 {
		t.Errorf("the link itself keeps its group: %v", err)
	}
}

func TestModesOfEmptyDirs(t *testing.T) {
	needRoot(t)
	memory := corev1.StorageMediumMemory
	for _, tt := range []struct {
		name   string
		source corev1.EmptyDirVolumeSource
		group  *int64
		want   os.FileMode
	}{
		{"on disk", corev1.EmptyDirVolumeSource{}, nil, 0o777},
		{"in memory", corev1.EmptyDirVolumeSource{Medium: memory}, nil, os.ModeSticky | 0o777},
		{"in memory with a group", corev1.EmptyDirVolumeSource{Medium: memory}, ptr.To[int64](123), os.ModeSticky | os.ModeSetgid | 0o777},
		{"as asked", corev1.EmptyDirVolumeSource{Mode: ptr.To[int32](0o1750)}, nil, os.ModeSticky | 0o750},
		{"as asked, in memory", corev1.EmptyDirVolumeSource{Medium: memory, Mode: ptr.To[int32](0o700)}, nil, 0o700},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newManager(t, &cluster{})
			pod := podWith(volume("e", corev1.VolumeSource{EmptyDir: &tt.source}))
			pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: tt.group}
			if err := m.Mount(t.Context(), pod); err != nil {
				t.Fatal(err)
			}
			info, err := os.Stat(m.volumeDir(pod.UID, "empty-dir", "e"))
			if err != nil || info.Mode() != os.ModeDir|tt.want {
				t.Errorf("mode %v (%v), want %v", info.Mode(), err, tt.want)
			}
		})
	}
}

func TestMemoryVolume(t *testing.T) {
	needRoot(t)
	m := newManager(t, &cluster{})
	pod := podWith(volume("m", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
		Medium: corev1.StorageMediumMemory, SizeLimit: ptr.To(resource.MustParse("8Mi")),
	}}))
	for range 2 {
		if err := m.Mount(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	dir := m.volumeDir(pod.UID, "empty-dir", "m")
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	if size := int64(st.Blocks) * st.Bsize; size != 8<<20 {
		t.Errorf("size %d, want 8Mi", size)
	}
	if info, _ := os.Stat(dir); info.Mode() != os.ModeDir|os.ModeSticky|0o777 {
		t.Errorf("mode %v", info.Mode())
	}
	if below, _ := mountsBelow(dir); len(below) != 1 {
		t.Errorf("mounted %d times", len(below))
	}
}

func TestUnmountTakesEverythingAway(t *testing.T) {
	needRoot(t)
	host := t.TempDir()
	write(t, filepath.Join(host, "precious"), "p")
	m := newManager(t, &cluster{})
	pod := podWith(
		volume("m", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}),
		volume("h", corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: host}}),
	)
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{
		{Name: "m", MountPath: "/m", SubPathExpr: "$(DIR)/b"},
		{Name: "h", MountPath: "h", ReadOnly: true, SubPath: "precious"},
	}
	if err := m.Mount(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	mounts, _, err := m.ContainerMounts(t.Context(), pod, &pod.Spec.Containers[0], []environment.Variable{{Name: "DIR", Value: "a"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := mounts[1]; got.ContainerPath != "/h" || !got.Readonly || read(t, got.HostPath) != "p" {
		t.Errorf("host path mount: %v", got)
	}
	orphans, err := m.Orphans(sets.New(pod.UID))
	if err != nil || len(orphans) != 0 {
		t.Errorf("orphans %v, err %v", orphans, err)
	}
	// As after a restart: nothing is known but what is on disk.
	m2 := New(Config{RootDir: filepath.Dir(m.podsDir)})
	orphans, err = m2.Orphans(nil)
	if err != nil || len(orphans) != 1 {
		t.Fatalf("orphans %v, err %v", orphans, err)
	}
	for range 2 {
		if err := m2.Unmount(t.Context(), orphans[0]); err != nil {
			t.Fatal(err)
		}
	}
	if err := m2.RemovePodDir(orphans[0]); err != nil {
		t.Fatal(err)
	}
	if left, _ := mountsBelow(m.podsDir); len(left) != 0 {
		t.Errorf("mounts left: %v", left)
	}
	if _, err := os.Stat(m.PodDir(pod.UID)); !os.IsNotExist(err) {
		t.Errorf("pod directory left: %v", err)
	}
	if got := read(t, filepath.Join(host, "precious")); got != "p" {
		t.Errorf("host path content: %q", got)
	}
}

func TestContainerMounts(t *testing.T) {
	m := newManager(t, &cluster{})
	rro := false
	m.rro = func(*corev1.Pod) bool { return rro }
	pod := podWith(volume("h", corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/srv"}}))
	enabled, possible := ptr.To(corev1.RecursiveReadOnlyEnabled), ptr.To(corev1.RecursiveReadOnlyIfPossible)
	tests := []struct {
		name      string
		mount     corev1.VolumeMount
		supported bool
		want      *runtimeapi.Mount
		err       string
	}{
		{"plain", corev1.VolumeMount{Name: "h", MountPath: "/a"}, false, &runtimeapi.Mount{ContainerPath: "/a", HostPath: "/srv"}, ""},
		{"bidirectional", corev1.VolumeMount{Name: "h", MountPath: "/a", MountPropagation: ptr.To(corev1.MountPropagationBidirectional)}, false,
			&runtimeapi.Mount{ContainerPath: "/a", HostPath: "/srv", Propagation: runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL}, ""},
		{"recursively read-only", corev1.VolumeMount{Name: "h", MountPath: "/a", ReadOnly: true, RecursiveReadOnly: enabled}, true,
			&runtimeapi.Mount{ContainerPath: "/a", HostPath: "/srv", Readonly: true, RecursiveReadOnly: true}, ""},
		{"recursively read-only if possible, and it is not", corev1.VolumeMount{Name: "h", MountPath: "/a", ReadOnly: true, RecursiveReadOnly: possible}, false,
			&runtimeapi.Mount{ContainerPath: "/a", HostPath: "/srv", Readonly: true}, ""},
		{"recursively read-only without support", corev1.VolumeMount{Name: "h", MountPath: "/a", ReadOnly: true, RecursiveReadOnly: enabled}, false, nil,
			`volume "h" requested recursive read-only mode, but it is not supported by the runtime`},
		{"an unknown volume", corev1.VolumeMount{Name: "z", MountPath: "/a"}, false, nil, `cannot find volume "z" to mount into container "c"`},
		{"an absolute subPathExpr", corev1.VolumeMount{Name: "h", MountPath: "/a", SubPathExpr: "$(ABS)"}, false, nil,
			"error SubPath `/tmp` must not be an absolute path"},
		{"a subPathExpr with backsteps", corev1.VolumeMount{Name: "h", MountPath: "/a", SubPathExpr: "$(UP)/x"}, false, nil,
			"unable to provision SubPath `../x`: must not contain '..'"},
		{"a subPathExpr with an unset variable", corev1.VolumeMount{Name: "h", MountPath: "/a", SubPathExpr: "$(NO)"}, false, nil, `missing value for "NO"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			rro = tt.supported
			c := &corev1.Container{Name: "c", VolumeMounts: []corev1.VolumeMount{tt.mount}}
			got, _, err := m.ContainerMounts(t.Context(), pod, c, []environment.Variable{{Name: "ABS", Value: "/tmp"}, {Name: "UP", Value: ".."}})
			if tt.err != "" {
				if err == nil || err.Error() != tt.err {
					t.Errorf("got %v, want %s", err, tt.err)
				}
				return
			}
			if err != nil || len(got) != 1 || got[0].String() != tt.want.String() {
				t.Errorf("got %v %v, want %v", got, err, tt.want)
			}
		})
	}
}

func TestLocalClaims(t *testing.T) {
	dir := t.TempDir()
	pvc := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "data", Namespace: "ns", UID: "c1"},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv"},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}
	node := func(name string) *corev1.VolumeNodeAffinity {
		return &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{name}}},
		}}}}
	}
	pv := func(uid, host, path string) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: path}},
			ClaimRef:               &corev1.ObjectReference{UID: "c1"}, NodeAffinity: node(host),
		}}
	}
	other := pv("c1", "n1", dir)
	other.Spec.ClaimRef.UID = "c2"
	tests := []struct {
		name string
		pv   *corev1.PersistentVolume
		want string // part of the error
	}{
		{"mounts a bound volume of this node", pv("c1", "n1", dir), ""},
		{"refuses a volume of another node", pv("c1", "n2", dir), `MountVolume.NodeAffinity check failed for volume "pv"`},
		{"refuses a volume bound to another claim", other, "but expected c1"},
		{"refuses a missing directory", pv("c1", "n1", filepath.Join(dir, "no")), "does not exist"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := newManager(t, &cluster{objects: map[string]client.Object{"persistentvolumeclaims/data": pvc, "persistentvolumes/pv": tt.pv}})
			pod := podWith(volume("v", corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}))
			pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/d"}}
			err := m.Mount(t.Context(), pod)
			if tt.want != "" {
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("got %v, want %q", err, tt.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			mounts, _, err := m.ContainerMounts(t.Context(), pod, &pod.Spec.Containers[0], nil)
			if err != nil || mounts[0].HostPath != dir {
				t.Errorf("got %v, %v", mounts, err)
			}
		})
	}
}

func TestLocalPathVolumes(t *testing.T) {
	root := filepath.Join(t.TempDir(), "local")
	pvc := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "data", Namespace: "ns", UID: "c1"},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pvc-1"},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-1"}, Spec: corev1.PersistentVolumeSpec{
		PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: filepath.Join(root, "pvc-1")}},
		ClaimRef:               &corev1.ObjectReference{UID: "c1"},
	}}
	m := newManager(t, &cluster{objects: map[string]client.Object{"persistentvolumeclaims/data": pvc, "persistentvolumes/pvc-1": pv}})
	m.local = root
	pod := podWith(volume("v", corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}))
	if err := m.Mount(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(root, "pvc-1")); err != nil || info.Mode().Perm() != 0o777 {
		t.Fatalf("the directory was not made: %v %v", info, err)
	}
	if err := m.RemoveLocal("pvc-1"); err == nil {
		t.Error("removed a volume in use")
	}
	if err := m.Unmount(t.Context(), pod.UID); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", ".", "..", "a/b", "../outside", "/etc"} {
		if err := m.RemoveLocal(name); err == nil {
			t.Errorf("accepted the name %q", name)
		}
	}
	for range 2 {
		if err := m.RemoveLocal("pvc-1"); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(filepath.Join(root, "pvc-1")); !os.IsNotExist(err) {
		t.Errorf("still there: %v", err)
	}
}

func TestTrustBundles(t *testing.T) {
	cert := func(s string) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(s)}))
	}
	bundle := func(signer, label, text string) *certificatesv1.ClusterTrustBundle {
		return &certificatesv1.ClusterTrustBundle{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"live": label}},
			Spec:       certificatesv1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: text},
		}
	}
	m := newManager(t, &cluster{objects: map[string]client.Object{
		"clustertrustbundles/b1": bundle("x.io/s", "yes", cert("2")+"comment\n"+cert("1")),
		"clustertrustbundles/b2": bundle("x.io/s", "yes", cert("3")+cert("1")),
		"clustertrustbundles/b3": bundle("x.io/s", "no", cert("4")),
		"clustertrustbundles/b4": bundle("x.io/other", "yes", cert("5")),
	}})
	live := &metav1.LabelSelector{MatchLabels: map[string]string{"live": "yes"}}
	tests := []struct {
		name   string
		source corev1.ClusterTrustBundleProjection
		want   string
		err    string
	}{
		{"by name, sorted and without comments", corev1.ClusterTrustBundleProjection{Name: ptr.To("b1")}, cert("1") + cert("2"), ""},
		{"by signer and label, each certificate once", corev1.ClusterTrustBundleProjection{SignerName: ptr.To("x.io/s"), LabelSelector: live}, cert("1") + cert("2") + cert("3"), ""},
		{"an empty selector takes all of the signer", corev1.ClusterTrustBundleProjection{SignerName: ptr.To("x.io/s"), LabelSelector: &metav1.LabelSelector{}}, cert("1") + cert("2") + cert("3") + cert("4"), ""},
		{"no selector takes none", corev1.ClusterTrustBundleProjection{SignerName: ptr.To("x.io/s")}, "", "matched zero ClusterTrustBundles"},
		{"an optional one that matches none is empty", corev1.ClusterTrustBundleProjection{SignerName: ptr.To("x.io/s"), Optional: ptr.To(true)}, "", ""},
		{"a missing name", corev1.ClusterTrustBundleProjection{Name: ptr.To("b9")}, "", `clustertrustbundles.certificates.k8s.io "b9" not found`},
		{"an optional missing name", corev1.ClusterTrustBundleProjection{Name: ptr.To("b9"), Optional: ptr.To(true)}, "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.source.Path = "ca.pem"
			p, err := m.trustBundleFile(t.Context(), &tt.source, 0o644)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("got %v, want %s", err, tt.err)
				}
				return
			}
			if err != nil || string(p["ca.pem"].Data) != tt.want {
				t.Errorf("got %q, %v", p["ca.pem"].Data, err)
			}
		})
	}
}

func TestUsage(t *testing.T) {
	m := newManager(t, &cluster{})
	clk := m.clock.(*clocktesting.FakeClock)
	pod := podWith(volume("e", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}))
	if err := m.Mount(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	dir := m.volumeDir(pod.UID, "empty-dir", "e")
	write(t, filepath.Join(dir, "f"), strings.Repeat("x", 100<<10))
	if err := os.Link(filepath.Join(dir, "f"), filepath.Join(dir, "again")); err != nil {
		t.Fatal(err)
	}
	got := m.Usage(pod.UID)
	if len(got) != 1 || *got[0].UsedBytes < 100<<10 || *got[0].UsedBytes > 150<<10 || *got[0].InodesUsed != 2 {
		t.Fatalf("got %v", got)
	}
	write(t, filepath.Join(dir, "g"), "")
	if again := m.Usage(pod.UID); *again[0].InodesUsed != 2 {
		t.Error("measured again at once")
	}
	clk.Step(minUsageAge)
	if later := m.Usage(pod.UID); *later[0].InodesUsed != 3 {
		t.Errorf("got %d inodes", *later[0].InodesUsed)
	}
}
