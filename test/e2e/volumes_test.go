package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// fileSources are the volumes whose files come from a ConfigMap or Secret named
// data; %s is replaced by more fields of the source, and the default mode is
// that of the volume.
var fileSources = []struct{ name, items, mode string }{
	{"cm", "configMap: {name: data, items: %s}", "configMap: {name: data, defaultMode: %d}"},
	{"secret", "secret: {secretName: data, items: %s}", "secret: {secretName: data, defaultMode: %d}"},
	{"pcm", "projected: {sources: [{configMap: {name: data, items: %s}}]}", "projected: {sources: [{configMap: {name: data}}], defaultMode: %d}"},
	{"psecret", "projected: {sources: [{secret: {name: data, items: %s}}]}", "projected: {sources: [{secret: {name: data}}], defaultMode: %d}"},
}

const dataObjects = `
apiVersion: v1
kind: ConfigMap
metadata: {name: data}
data: {one: value-1, two: value-2}
binaryData: {binary: 3q2+7w==}
---
apiVersion: v1
kind: Secret
metadata: {name: data}
stringData: {one: value-1, two: value-2}
`

// Files of ConfigMaps and Secrets, plain and projected: content, modes, chosen
// keys and paths, readable by others than root.
func TestFileVolumes(t *testing.T) {
	l := newLab(t)
	const script = "cd /v; find -L . -type f | grep -v '/[.][.]' | sort | while read f; do echo $f $(stat -L -c %a $f) $(cat $f 2>&1 | od -An -c | tr -d ' \\n'); done"
	var volumes, mounts []string
	var want []string
	file := func(path, mode, content string) { want = append(want, "./"+path+" "+mode+" "+content) }
	volume := func(name, source string) {
		volumes = append(volumes, "{name: "+name+", "+source+"}")
		mounts = append(mounts, "{name: "+name+", mountPath: /v/"+name+"}")
	}
	for _, s := range fileSources {
		volume(s.name+"-default", strings.Replace(s.items, ", items: %s", "", 1))
		volume(s.name+"-again", strings.Replace(s.items, ", items: %s", "", 1))
		volume(s.name+"-mode", fmt.Sprintf(s.mode, 0o400))
		volume(s.name+"-items", fmt.Sprintf(s.items, "[{key: two, path: path/to/second}]"))
		volume(s.name+"-itemmode", fmt.Sprintf(s.items, "[{key: two, path: second, mode: 256}]"))
		for _, dir := range []string{"-default", "-again"} {
			file(s.name+dir+"/one", "644", "value-1")
			file(s.name+dir+"/two", "644", "value-2")
		}
		file(s.name+"-mode/one", "400", "value-1")
		file(s.name+"-items/path/to/second", "644", "value-2")
		file(s.name+"-itemmode/second", "400", "value-2")
	}
	file("cm-default/binary", "644", `336255276357`) // od's octal of de ad be ef
	volume("all", `projected: {sources: [
    {secret: {name: data, items: [{key: one, path: secret/one}]}}, {configMap: {name: data, items: [{key: one, path: config/one}]}},
    {downwardAPI: {items: [{path: podname, fieldRef: {fieldPath: metadata.name}}, {path: cpu, resourceFieldRef: {containerName: root, resource: limits.cpu}}, {path: memory, resourceFieldRef: {containerName: root, resource: requests.memory}}]}}]}`)
	for path, content := range map[string]string{"secret/one": "value-1", "config/one": "value-1", "podname": "p", "cpu": "1", "memory": "16777216"} {
		file("all/"+path, "644", content)
	}
	container := func(name, more string) string {
		return fmt.Sprintf("\n  - {name: %s, image: 'busybox:1.35', command: [sh, -c, %q], volumeMounts: [%s], %s}", name, strings.ReplaceAll(script, "$", "$$"), strings.Join(mounts, ", "), more)
	}
	l.apply(dataObjects + podManifest("p", "  restartPolicy: Never\n  containers:"+
		container("root", "resources: {limits: {cpu: 500m}, requests: {memory: 16Mi}}")+container("user", "securityContext: {runAsUser: 1000}")+
		"\n  volumes: [\n    "+strings.Join(volumes, ",\n    ")+"]"))
	l.ended("p", corev1.PodSucceeded)
	plain := strings.NewReplacer(`\0`, "", `\`, "")
	l.lines(plain.Replace(l.logs("p", "root")), want...)
	user := plain.Replace(l.logs("p", "user"))
	for _, line := range want {
		if strings.Contains(line, " 400 ") {
			path, _, _ := strings.Cut(line, " ")
			l.contains(user, path+" 400 cat:can'topen")
		} else {
			l.lines(user, line)
		}
	}
	for _, key := range []string{"", "..", "a/b", strings.Repeat("x", 254)} {
		for _, kind := range []string{"ConfigMap", "Secret"} {
			_, stderr, err := shared.tryKubectl(fmt.Sprintf("{apiVersion: v1, kind: %s, metadata: {name: bad}, data: {%q: 'eA=='}}", kind, key), "create", "-n", l.ns, "-f", "-")
			if err == nil || !strings.Contains(stderr, "data[") {
				t.Errorf("%s with key %q: %s", kind, key, stderr)
			}
		}
	}
}

// Files of a Secret for a user and a group of the pod; another namespace's
// Secret of the same name stays there.
func TestFileVolumesOfAGroup(t *testing.T) {
	l := newLab(t)
	other := "other-" + l.ns
	shared.kubectl(t, "create", "namespace", other)
	t.Cleanup(func() { shared.tryKubectl("", "delete", "namespace", other, "--wait=false") })
	shared.kubectl(t, "create", "secret", "generic", "data", "-n", other, "--from-literal=one=foreign")
	l.apply(dataObjects + podManifest("p", `
  restartPolicy: Never
  securityContext: {runAsUser: 1000, fsGroup: 1001}
  containers: [{name: c, image: 'busybox:1.35', command: [sh, -c, "for f in /s/one /p/one; do echo $(stat -L -c '%a %g' $f) $(cat $f); done; stat -c '%a %g' /e; touch /e/f && stat -c '%u %g' /e/f"],
    volumeMounts: [{name: s, mountPath: /s}, {name: p, mountPath: /p}, {name: e, mountPath: /e}]}]
  volumes: [{name: s, secret: {secretName: data, defaultMode: 288}}, {name: p, projected: {sources: [{secret: {name: data}}], defaultMode: 288}}, {name: e, emptyDir: {}}]`))
	l.ended("p", corev1.PodSucceeded)
	l.is("files", l.logs("p", ""), "440 1001 value-1\n440 1001 value-1\n2777 1001\n1000 1001\n")
}

// What changes in the API changes in the files of a running pod.
func TestVolumeUpdates(t *testing.T) {
	l := newLab(t)
	l.apply(`
{apiVersion: v1, kind: ConfigMap, metadata: {name: changes}, data: {key: old}}
---
{apiVersion: v1, kind: Secret, metadata: {name: changes}, stringData: {key: old}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: goes}, data: {key: old}}
---
{apiVersion: v1, kind: Secret, metadata: {name: goes}, stringData: {key: old}}
` + podManifest("p", `
  containers: [{name: c, image: 'busybox:1.35', command: [sleep, '3600'], env: [{name: MAP, valueFrom: {configMapKeyRef: {name: changes, key: key}}}], volumeMounts: [{name: cm, mountPath: /cm}, {name: s, mountPath: /s}, {name: late, mountPath: /cm-late}, {name: slate, mountPath: /s-late},
    {name: goes, mountPath: /cm-goes}, {name: sgoes, mountPath: /s-goes}, {name: all, mountPath: /all}, {name: d, mountPath: /d}, {name: sub, mountPath: /sub, subPath: key}]}]
  volumes:
  - {name: cm, configMap: {name: changes}}
  - {name: sub, configMap: {name: changes}}
  - {name: s, secret: {secretName: changes}}
  - {name: late, configMap: {name: late, optional: true}}
  - {name: slate, secret: {secretName: late, optional: true}}
  - {name: goes, configMap: {name: goes, optional: true}}
  - {name: sgoes, secret: {secretName: goes, optional: true}}
  - {name: d, downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}, {path: annotations, fieldRef: {fieldPath: metadata.annotations}}]}}
  - name: all
    projected:
      sources:
      - {configMap: {name: changes, items: [{key: key, path: cm}]}}
      - {secret: {name: changes, items: [{key: key, path: s}]}}
      - {configMap: {name: late, optional: true, items: [{key: key, path: cm-late}]}}
      - {secret: {name: late, optional: true, items: [{key: key, path: s-late}]}}
      - {configMap: {name: goes, optional: true, items: [{key: key, path: cm-goes}]}}
      - {secret: {name: goes, optional: true, items: [{key: key, path: s-goes}]}}
      - {downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}, {path: annotations, fieldRef: {fieldPath: metadata.annotations}}]}}`))
	l.ready("p")
	const show = "cd /; for f in cm/key s/key cm-late/key s-late/key cm-goes/key s-goes/key all/cm all/s all/cm-late all/s-late all/cm-goes all/s-goes sub; do echo $f $(cat $f 2>/dev/null); done; cat /d/labels /all/labels; echo; grep -h note /d/annotations /all/annotations; true"
	state := func(changes, late, goes, label string) string {
		return strings.ReplaceAll(fmt.Sprintf("cm/key %[1]s\ns/key %[1]s\ncm-late/key %[2]s\ns-late/key %[2]s\ncm-goes/key %[3]s\ns-goes/key %[3]s\nall/cm %[1]s\nall/s %[1]s\nall/cm-late %[2]s\nall/s-late %[2]s\nall/cm-goes %[3]s\nall/s-goes %[3]s\nsub old\n", changes, late, goes), " \n", "\n") + label
	}
	l.is("at first", l.exec("p", "sh", "-c", show), state("old", "", "old", "app=\"p\"app=\"p\"\n"))
	l.apply(`
{apiVersion: v1, kind: ConfigMap, metadata: {name: changes}, data: {key: new}}
---
{apiVersion: v1, kind: Secret, metadata: {name: changes}, stringData: {key: new}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: late}, data: {key: here}}
---
{apiVersion: v1, kind: Secret, metadata: {name: late}, stringData: {key: here}}`)
	l.kubectl("delete", "configmap/goes", "secret/goes")
	l.kubectl("label", "pod", "p", "tier=front")
	l.kubectl("annotate", "pod", "p", "note=seen")
	want := state("new", "here", "", "app=\"p\"\ntier=\"front\"app=\"p\"\ntier=\"front\"\nnote=\"seen\"\nnote=\"seen\"\n")
	eventually(t, settle, func() error {
		if out := l.exec("p", "sh", "-c", show); out != want {
			return fmt.Errorf("files are\n%s\nwant\n%s", out, want)
		}
		return nil
	})
	l.is("a variable, which does not change", l.exec("p", "sh", "-c", "echo $MAP"), "old\n")
}

// A volume whose object is not there holds the pod back until it comes.
func TestMissingVolumes(t *testing.T) {
	l := newLab(t)
	pod := func(name, source string) string {
		return podManifest(name, "  containers: [{name: c, image: 'busybox:1.35', command: [sleep, '3600'], volumeMounts: [{name: v, mountPath: /v}]}]\n  volumes: [{name: v, "+source+"}]")
	}
	l.apply(pod("cm", "configMap: {name: late}") + pod("secret", "secret: {secretName: late}") +
		pod("key", "configMap: {name: late, items: [{key: absent, path: x}]}"))
	l.event("cm", "FailedMount", `MountVolume.SetUp failed for volume "v" : configmap "late" not found`)
	l.event("secret", "FailedMount", `MountVolume.SetUp failed for volume "v" : secret "late" not found`)
	if s := status(l.pod("cm"), "c"); s.State.Waiting == nil || s.State.Waiting.Reason != "ContainerCreating" {
		t.Errorf("%+v", s)
	}
	l.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: late}, data: {a: b}}\n---\n{apiVersion: v1, kind: Secret, metadata: {name: late}}")
	l.ready("cm")
	l.ready("secret")
	l.event("key", "FailedMount", `MountVolume.SetUp failed for volume "v" : configmap references non-existent config key: absent`)
}

// Fields and resources of the pod in files.
func TestDownwardVolumes(t *testing.T) {
	l := newLab(t)
	item := func(name, resource string) string {
		return "{path: " + name + ", resourceFieldRef: {containerName: " + strings.Split(name, "-")[0] + ", resource: " + resource + "}}"
	}
	items := "[{path: name, fieldRef: {fieldPath: metadata.name}}, {path: uid, mode: 256, fieldRef: {fieldPath: metadata.uid}}, " +
		strings.Join([]string{item("set-cpu-limit", "limits.cpu"), item("set-cpu-request", "requests.cpu"), item("set-memory-limit", "limits.memory"), item("set-memory-request", "requests.memory"),
			item("unset-cpu", "limits.cpu"), item("unset-memory", "limits.memory")}, ", ") + "]"
	const name = "items: [{path: name, fieldRef: {fieldPath: metadata.name}}]"
	l.apply(podManifest("p", `
  restartPolicy: Never
  containers:
  - {name: set, image: 'busybox:1.35', command: [sh, -c, "for d in /d /p; do cd $d; for f in *; do echo $f $(stat -L -c %a $f) $(cat $f); done; stat -L -c %a /m$d/name; done"], resources: {requests: {cpu: 250m, memory: 32Mi}, limits: {cpu: 1250m, memory: 64Mi}},
     volumeMounts: [{name: d, mountPath: /d}, {name: p, mountPath: /p}, {name: md, mountPath: /m/d}, {name: mp, mountPath: /m/p}]}
  - {name: unset, image: 'busybox:1.35', command: ['true']}
  volumes:
  - {name: d, downwardAPI: {items: `+items+`}}
  - {name: p, projected: {sources: [{downwardAPI: {items: `+items+`}}]}}
  - {name: md, downwardAPI: {defaultMode: 256, `+name+`}}
  - {name: mp, projected: {defaultMode: 256, sources: [{downwardAPI: {`+name+"}}]}}"))
	pod := l.ended("p", corev1.PodSucceeded)
	node, err := clients().CoreV1().Nodes().Get(t.Context(), pod.Spec.NodeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("name 644 p\nset-cpu-limit 644 2\nset-cpu-request 644 1\nset-memory-limit 644 67108864\nset-memory-request 644 33554432\nuid 400 %s\nunset-cpu 644 %d\nunset-memory 644 %d\n400\n",
		pod.UID, node.Status.Allocatable.Cpu().Value(), node.Status.Allocatable.Memory().Value())
	l.is("files, plain and projected", l.logs("p", "set"), want+want)
}

// Empty directories on disk and in memory: modes, owners, sizes, sharing.
func TestEmptyDirs(t *testing.T) {
	l := newLab(t)
	const script = "umask 0; stat -c %a /d /m; for m in 644 666 777; do for v in d m; do f=/$v/$NAME-$m; echo content >$f; chmod $m $f; echo $(stat -c '%a %u' $f) $(cat $f); done; done; grep -c ' /m tmpfs ' /proc/mounts; grep -c ' /d tmpfs ' /proc/mounts; true"
	container := func(name, more string) string {
		return fmt.Sprintf("\n  - {name: %[1]s, image: 'busybox:1.35', command: [sh, -c, %[2]q], env: [{name: NAME, value: %[1]s}], volumeMounts: [{name: d, mountPath: /d}, {name: m, mountPath: /m}], %[3]s}", name, script, more)
	}
	l.apply(podManifest("p", "  restartPolicy: Never\n  containers:"+container("root", "securityContext: {runAsUser: 0}")+container("user", "securityContext: {runAsUser: 1001}")+
		"\n  volumes: [{name: d, emptyDir: {}}, {name: m, emptyDir: {medium: Memory}}]") + podManifest("shared", `
  restartPolicy: Never
  containers:
  - {name: one, image: 'busybox:1.35', command: [sh, -c, "echo shared >/v/f; sleep 3600"], volumeMounts: [{name: v, mountPath: /v}]}
  - {name: two, image: 'busybox:1.35', command: [sh, -c, "until cat /v/f 2>/dev/null; do sleep 0.1; done; sleep 3600"], volumeMounts: [{name: v, mountPath: /v}]}
  volumes: [{name: v, emptyDir: {}}]`) + podManifest("sizes", `
  restartPolicy: Never
  containers: [{name: c, image: 'busybox:1.35', command: [sh, -c, "df -k /limit /memory | awk '/tmpfs/{print $2}'"], resources: {limits: {memory: 48Mi}}, volumeMounts: [{name: limit, mountPath: /limit}, {name: memory, mountPath: /memory}]}]
  volumes: [{name: limit, emptyDir: {medium: Memory, sizeLimit: 16Mi}}, {name: memory, emptyDir: {medium: Memory}}]`))
	l.ended("p", corev1.PodSucceeded)
	for container, uid := range map[string]string{"root": "0", "user": "1001"} {
		want := "777\n1777\n"
		for _, mode := range []string{"644", "666", "777"} {
			want += strings.Repeat(mode+" "+uid+" content\n", 2)
		}
		l.is("what "+container+" sees", l.logs("p", container), want+"1\n0\n")
	}
	l.ended("sizes", corev1.PodSucceeded)
	l.is("sizes of memory", l.logs("sizes", ""), "16384\n49152\n")
	l.ready("shared")
	eventually(t, settle, func() error {
		if out := l.logs("shared", "two"); out != "shared\n" {
			return fmt.Errorf("the other container's file: %q", out)
		}
		return nil
	})
}

// Paths of the node, which are what their type says or are made so.
func TestHostPaths(t *testing.T) {
	l := newLab(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("on the node\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	pod := func(name, path, kind string) string {
		return podManifest(name, "  restartPolicy: Never\n  containers: [{name: c, image: 'busybox:1.35', command: [sh, -c, 'cat /v/file /v 2>/dev/null; true'], volumeMounts: [{name: v, mountPath: /v}]}]\n  volumes: [{name: v, hostPath: {path: '"+filepath.Join(dir, path)+"', type: "+kind+"}}]")
	}
	l.apply(pod("dir", "", "Directory") + pod("file", "file", "File") + pod("any", "", "''") +
		pod("newdir", "new/dir", "DirectoryOrCreate") + pod("newfile", "newfile", "FileOrCreate") + pod("device", "../../../../../../dev/null", "CharDevice") +
		pod("nodir", "absent", "Directory") + pod("nofile", "", "File") + pod("nosocket", "file", "Socket"))
	for _, name := range []string{"dir", "file", "any"} {
		l.ended(name, corev1.PodSucceeded)
		l.is("content", l.logs(name, ""), "on the node\n")
	}
	for _, name := range []string{"newdir", "newfile", "device"} {
		l.ended(name, corev1.PodSucceeded)
	}
	for path, want := range map[string]os.FileMode{"new/dir": os.ModeDir | 0o755, "newfile": 0o644} {
		if info, err := os.Stat(filepath.Join(dir, path)); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v", path, info, err)
		}
	}
	l.event("nodir", "FailedMount", `MountVolume.SetUp failed for volume "v" : hostPath type check failed: `+dir+`/absent is not a directory`)
	l.event("nofile", "FailedMount", `hostPath type check failed: `+dir+` is not a file`)
	l.event("nosocket", "FailedMount", `hostPath type check failed: `+dir+`/file is not a socket file`)
}

// Parts of volumes, by name and by expression.
func TestSubPaths(t *testing.T) {
	l := newLab(t)
	l.apply(dataObjects + podManifest("p", `
  restartPolicy: Never
  containers:
  - name: c
    image: busybox:1.35
    command: [sh, -c, "for f in /cm /secret /d /p /etc/passwd /dir/second; do cat $f; echo; done; echo written >/e/f; ls /whole"]
    env: [{name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
    volumeMounts:
    - {name: cm, mountPath: /cm, subPath: one}
    - {name: cm, mountPath: /etc/passwd, subPath: two}
    - {name: items, mountPath: /dir, subPath: path/to}
    - {name: secret, mountPath: /secret, subPath: one}
    - {name: d, mountPath: /d, subPath: name}
    - {name: p, mountPath: /p, subPath: one}
    - {name: e, mountPath: /e, subPathExpr: "$(POD_NAME)/logs"}
    - {name: e, mountPath: /whole}
  volumes:
  - {name: cm, configMap: {name: data}}
  - {name: items, configMap: {name: data, items: [{key: two, path: path/to/second}]}}
  - {name: secret, secret: {secretName: data}}
  - {name: d, downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}
  - {name: p, projected: {sources: [{configMap: {name: data}}]}}
  - {name: e, emptyDir: {}}`))
	expression := func(name, expression, value string) string {
		return podManifest(name, `
  containers: [{name: c, image: 'busybox:1.35', command: [sh, -c, "echo x >/sub/f; cat /e/ok/f/f; sleep 3600"], env: [{name: V, `+value+`}], volumeMounts: [{name: e, mountPath: /sub, subPathExpr: `+expression+`}, {name: e, mountPath: /e}]}]
  volumes: [{name: e, emptyDir: {}}]`)
	}
	l.apply(expression("absolute", "$(V)", "value: /tmp") + expression("back", "$(V)", "value: ..") +
		expression("backticks", "$(V)", "value: '`ok`'") + expression("recovers", "$(V)/f", `valueFrom: {fieldRef: {fieldPath: "metadata.annotations['sub']"}}`))
	l.ended("p", corev1.PodSucceeded)
	l.is("contents", l.logs("p", ""), "value-1\nvalue-1\np\nvalue-1\nvalue-2\nvalue-2\np\n")
	l.contains(l.waiting("absolute", "c", "CreateContainerConfigError"), "must not be an absolute path")
	l.contains(l.waiting("back", "c", "CreateContainerConfigError"), "must not contain '..'")
	l.ready("backticks") // a name like any other; nothing runs it
	l.waiting("recovers", "c", "CreateContainerConfigError")
	l.kubectl("annotate", "pod", "recovers", "sub=ok")
	l.ready("recovers")
	eventually(t, settle, func() error {
		if out := l.logs("recovers", ""); out != "x\n" {
			return fmt.Errorf("the file through the expression: %q", out)
		}
		return nil
	})
	l.kubectl("annotate", "pod", "recovers", "sub-")
	l.kubectl("delete", "pod", "recovers", "absolute")
	l.gone("recovers")
}

// Objects that are marked immutable keep their data.
func TestImmutableObjects(t *testing.T) {
	l := newLab(t)
	l.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: o}, data: {a: b}}\n---\n{apiVersion: v1, kind: Secret, metadata: {name: o}, stringData: {a: b}}")
	for _, kind := range []string{"configmap", "secret"} {
		l.kubectl("patch", kind, "o", "-p", `{"data":{"a":"Yg=="}}`)
		l.kubectl("patch", kind, "o", "-p", `{"immutable":true}`)
		for _, patch := range []string{`{"data":{"a":"Yw=="}}`, `{"immutable":false}`, `{"immutable":null}`} {
			if out, err := l.tryKubectl("patch", kind, "o", "-p", patch); err == nil || !strings.Contains(out, "field is immutable when `immutable` is set") {
				t.Errorf("%s took %s: %s", kind, patch, out)
			}
		}
		l.kubectl("label", kind, "o", "x=y")
		l.kubectl("delete", kind, "o")
	}
}

// Many volumes of the kinds that are set up in directories of their own.
func TestManyVolumes(t *testing.T) {
	l := newLab(t)
	var manifest, volumes, mounts strings.Builder
	for i := range 50 {
		fmt.Fprintf(&manifest, "---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: c%d}, data: {key: value}}\n", i)
		fmt.Fprintf(&volumes, "{name: v%d, configMap: {name: c%d}}, ", i, i)
		fmt.Fprintf(&mounts, "{name: v%d, mountPath: /v/%d}, ", i, i)
	}
	for i := range 5 {
		manifest.WriteString(podManifest(fmt.Sprintf("p%d", i), "  containers: [{name: c, "+testserver+", args: [sleep], volumeMounts: ["+mounts.String()+"{name: s, mountPath: /s}]}]\n  volumes: ["+volumes.String()+"{name: s, secret: {secretName: s}}]"))
	}
	l.apply(manifest.String() + "---\n{apiVersion: v1, kind: Secret, metadata: {name: s}}")
	for i := range 5 {
		l.ready(fmt.Sprintf("p%d", i))
	}
}

// The files of the service account, and tokens of other kinds.
func TestServiceAccountFiles(t *testing.T) {
	l := newLab(t)
	l.apply(podManifest("p", `
  containers: [{name: c, image: 'busybox:1.35', command: [sleep, '3600'], volumeMounts: [{name: t, mountPath: /t}]}]
  volumes: [{name: t, projected: {sources: [{serviceAccountToken: {path: vault, audience: vault, expirationSeconds: 600}}]}}]`) +
		podManifest("none", "  automountServiceAccountToken: false\n  containers: ["+busybox("c", "ls /var/run/secrets; sleep 3600")+"]") +
		podManifest("user", "  securityContext: {runAsUser: 1000}\n  containers: ["+busybox("c", "stat -L -c '%a %u' /var/run/secrets/kubernetes.io/serviceaccount/token; cat /var/run/secrets/kubernetes.io/serviceaccount/namespace; echo; sleep 3600")+"]"))
	pod := l.ready("p")
	const dir = "/var/run/secrets/kubernetes.io/serviceaccount/"
	l.is("namespace", l.exec("p", "cat", dir+"namespace"), l.ns)
	config := rest.AnonymousClientConfig(clusterConfig())
	config.BearerToken = l.exec("p", "cat", dir+"token")
	config.CAData = []byte(l.exec("p", "cat", dir+"ca.crt"))
	review, err := kubernetes.NewForConfigOrDie(config).AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	user := review.Status.UserInfo
	if user.Username != "system:serviceaccount:"+l.ns+":default" || fmt.Sprint(user.Extra["authentication.kubernetes.io/pod-uid"]) != "["+string(pod.UID)+"]" {
		t.Errorf("the token is %+v", user)
	}
	reviewed, err := clients().AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{
		Token: l.exec("p", "cat", "/t/vault"), Audiences: []string{"vault"}}}, metav1.CreateOptions{})
	if err != nil || !reviewed.Status.Authenticated {
		t.Errorf("the token for vault: %+v, %v", reviewed.Status, err)
	}
	l.ready("none")
	l.contains(l.logs("none", ""), "No such file or directory")
	l.ready("user")
	eventually(t, settle, func() error {
		if out := l.logs("user", ""); out != "600 1000\n"+l.ns+"\n" {
			return fmt.Errorf("what a user sees: %q", out)
		}
		return nil
	})
}

// Claims of the default class: bound when a pod wants them, kept over pods,
// protected while in use, and taken away with their data.
func TestClaims(t *testing.T) {
	l := newLab(t)
	user := func(name, script string) string {
		return podManifest(name, "  restartPolicy: Never\n  containers: [{name: c, image: 'busybox:1.35', command: [sh, -c, '"+script+"'], volumeMounts: [{name: v, mountPath: /v}]}]\n  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]")
	}
	l.apply(`
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 8Mi}}}
`)
	l.event("data", "WaitForFirstConsumer", "waiting for first consumer to be created before binding")
	l.apply(user("writer", "echo kept >/v/f"))
	l.ended("writer", corev1.PodSucceeded)
	l.kubectl("delete", "pod", "writer")
	l.apply(user("reader", "cat /v/f; sleep 3600"))
	l.ready("reader")
	eventually(t, settle, func() error {
		if out := l.logs("reader", ""); out != "kept\n" {
			return fmt.Errorf("the claim's file: %q", out)
		}
		return nil
	})
	claim, err := clients().CoreV1().PersistentVolumeClaims(l.ns).Get(t.Context(), "data", metav1.GetOptions{})
	if err != nil || claim.Status.Phase != corev1.ClaimBound || claim.Status.Capacity.Storage().Value() != 8<<20 {
		t.Fatalf("%+v, %v", claim.Status, err)
	}
	volume, err := clients().CoreV1().PersistentVolumes().Get(t.Context(), claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil || volume.Status.Phase != corev1.VolumeBound || volume.Status.LastPhaseTransitionTime == nil || volume.Spec.ClaimRef.UID != claim.UID {
		t.Fatalf("%+v, %v", volume, err)
	}
	l.kubectl("delete", "pvc", "data", "--wait=false")
	l.contains(l.kubectl("get", "pvc", "data"), "Terminating")
	l.kubectl("delete", "pod", "reader")
	eventually(t, settle, func() error {
		out, err := l.tryKubectl("get", "pvc/data", "pv/"+volume.Name)
		if err == nil || strings.Count(out, "NotFound") != 2 {
			return fmt.Errorf("the claim and its volume: %s", out)
		}
		return nil
	})
	if path := hostPathOf(volume); path == "" {
		t.Errorf("volume source %+v", volume.Spec.PersistentVolumeSource)
	} else if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("%s: %v", path, err)
	}

	l.apply(podManifest("ephemeral", `
  containers: [{name: c, `+testserver+`, args: [sleep], volumeMounts: [{name: scratch, mountPath: /v}]}]
  volumes: [{name: scratch, ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}}}}]`))
	l.ready("ephemeral")
	l.contains(l.kubectl("get", "pvc"), "ephemeral-scratch")
	l.kubectl("delete", "pod", "ephemeral")
	eventually(t, settle, func() error {
		if out := l.kubectl("get", "pvc", "-o", "name"); out != "" {
			return fmt.Errorf("claims are left: %s", out)
		}
		return nil
	})
}

func hostPathOf(v *corev1.PersistentVolume) string {
	if v.Spec.HostPath != nil {
		return v.Spec.HostPath.Path
	}
	if v.Spec.Local != nil {
		return v.Spec.Local.Path
	}
	return ""
}

// Recursive read-only mounts (KEP-3857).
func TestRecursiveReadOnly(t *testing.T) {
	l := newLab(t)
	dir := t.TempDir()
	sub := filepath.Join(dir, "sub")
	if err := os.Mkdir(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", sub, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(sub, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	l.apply(podManifest("p", `
  containers: [{name: c, image: 'busybox:1.35', command: [sh, -c, "for d in rro ro rw; do touch /$d/sub/$d 2>/dev/null && echo $d; done; touch /ro/top 2>&1 || echo refused; exec sleep 3600"], volumeMounts: [
    {name: v, mountPath: /rro, readOnly: true, recursiveReadOnly: Enabled}, {name: v, mountPath: /ro, readOnly: true}, {name: v, mountPath: /rw}]}]
  volumes: [{name: v, hostPath: {path: '`+dir+`'}}]`))
	pod := l.ready("p")
	eventually(t, settle, func() error {
		if out := l.logs("p", ""); out != "ro\nrw\ntouch: /ro/top: Read-only file system\nrefused\n" {
			return fmt.Errorf("what could be written: %s", out)
		}
		return nil
	})
	for _, m := range status(pod, "c").VolumeMounts {
		want := map[string]string{"/rro": "Enabled", "/ro": "Disabled"}[m.MountPath]
		if m.RecursiveReadOnly != nil && string(*m.RecursiveReadOnly) != want && want != "" || m.RecursiveReadOnly == nil && want != "" {
			t.Errorf("status of %s: %v", m.MountPath, m.RecursiveReadOnly)
		}
	}
}

// Users of a pod that are nobody on the node (KEP-127).
func TestUserNamespaces(t *testing.T) {
	l := newLab(t)
	pod := func(name string) string {
		return podManifest(name, `
  hostUsers: false
  containers: [{name: c, image: 'busybox:1.35', command: [sh, -c, "cat /proc/self/uid_map; stat -L -c %u /cm/one; echo x >/e/f && stat -c %u /e/f; exec sleep 3600"], volumeMounts: [{name: cm, mountPath: /cm}, {name: e, mountPath: /e}]}]
  volumes: [{name: cm, configMap: {name: data}}, {name: e, emptyDir: {}}]`)
	}
	l.apply(dataObjects + pod("one") + pod("two"))
	ranges := map[string]bool{}
	for _, name := range []string{"one", "two"} {
		l.ready(name)
		var inside, outside, size, owner, own int
		eventually(t, settle, func() error {
			_, err := fmt.Sscan(l.logs(name, ""), &inside, &outside, &size, &owner, &own)
			return err
		})
		if inside != 0 || outside == 0 || outside%65536 != 0 || size != 65536 || owner != 0 || own != 0 {
			t.Errorf("%s: %d %d %d, files of %d and %d", name, inside, outside, size, owner, own)
		}
		ranges[fmt.Sprint(outside)] = true
	}
	if len(ranges) != 2 {
		t.Errorf("the pods share a range: %v", ranges)
	}
}
