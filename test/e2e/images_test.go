package e2e

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"proa/test/registry"
)

const imageUser, imagePassword = "puller", "s3cret"

// startRegistry serves the test server's image as app:1 of a registry of the
// test's own.
func startRegistry(t *testing.T, config registry.Config) (r *registry.Registry, image string) {
	t.Helper()
	r, err := registry.Start(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	if image, err = r.Push(t.Context(), imageFile("testserver"), "team/app:1"); err != nil {
		t.Fatal(err)
	}
	return r, image
}

// pulled is a pod that runs an image.
func pulled(name, image, policy, more string) string {
	return podManifest(name, "  containers: [{name: c, image: '"+image+"', imagePullPolicy: "+policy+", args: [sleep]}]\n"+more)
}

func TestImagePullPolicies(t *testing.T) {
	l := newLab(t)
	r, image := startRegistry(t, registry.Config{})
	asked := func(f func()) bool {
		before := r.Requests()
		f()
		return r.Requests() != before
	}
	if asked(func() {
		l.apply(pulled("never-yet", image, "Never", ""))
		l.is("message", l.waiting("never-yet", "c", "ErrImageNeverPull"), fmt.Sprintf("Container image %q is not present with pull policy of Never", image))
		l.event("never-yet", "ErrImageNeverPull", "is not present with pull policy of Never")
		l.event("never-yet", "Failed", "Error: ErrImageNeverPull")
	}) {
		t.Error("Never asked the registry")
	}
	if !asked(func() {
		l.apply(pulled("absent", image, "IfNotPresent", ""))
		l.ready("absent")
	}) {
		t.Error("IfNotPresent did not pull an image that was absent")
	}
	l.event("absent", "Pulling", fmt.Sprintf("Pulling image %q", image))
	e := l.event("absent", "Pulled", fmt.Sprintf("Successfully pulled image %q in ", image))
	l.contains(e.Message, " including waiting). Image size: ", " bytes.")
	if asked(func() {
		l.apply(pulled("present", image, "IfNotPresent", "") + pulled("never", image, "Never", ""))
		l.ready("present")
		l.ready("never")
	}) {
		t.Error("an image that was present was asked for")
	}
	l.event("present", "Pulled", fmt.Sprintf("Container image %q already present on machine and can be accessed by the pod", image))
	if !asked(func() {
		l.apply(pulled("always", image, "Always", ""))
		l.ready("always")
	}) {
		t.Error("Always did not ask the registry")
	}
	l.await("never-yet", "started, the image being there by now", isReady)

	id := status(l.pod("absent"), "c").ImageID
	_, digest, found := strings.Cut(id, "/team/app@sha256:") // of this registry, or another that has the same image
	if !found {
		t.Fatalf("imageID is %q", id)
	}
	l.apply(pulled("digest", r.Host()+"/team/app@sha256:"+digest, "Always", ""))
	if got := status(l.ready("digest"), "c").ImageID; !strings.HasSuffix(got, "/team/app@sha256:"+digest) {
		t.Errorf("imageID of a pull by digest is %q, want sha256:%s", got, digest)
	}
}

func TestImagePullFailures(t *testing.T) {
	l := newLab(t)
	r, image := startRegistry(t, registry.Config{})
	missing := r.Host() + "/team/app:missing"
	l.apply(pulled("missing", missing, "IfNotPresent", "") + pulled("invalid", "UPPER//case", "IfNotPresent", "") +
		pulled("refused", "127.0.0.1:1/app:1", "IfNotPresent", ""))
	pull := l.waiting("missing", "c", "ErrImagePull")
	l.contains(pull, missing, "not found")
	l.event("missing", "Failed", fmt.Sprintf("Failed to pull image %q: ", missing))
	l.event("missing", "Failed", "Error: ErrImagePull")
	l.is("message", l.waiting("missing", "c", "ImagePullBackOff"), fmt.Sprintf("Back-off pulling image %q: ErrImagePull: %s", missing, pull))
	l.event("missing", "BackOff", fmt.Sprintf("Back-off pulling image %q", missing))
	l.event("missing", "Failed", "Error: ImagePullBackOff")
	l.contains(l.kubectl("get", "pods"), "ImagePullBackOff", "InvalidImageName")

	l.is("message", l.waiting("invalid", "c", "InvalidImageName"), `Failed to apply default image tag "UPPER//case": couldn't parse image name "UPPER//case": invalid reference format`)
	l.event("invalid", "InspectFailed", "Failed to apply default image tag")
	l.event("invalid", "Failed", "Error: InvalidImageName")
	l.contains(l.waiting("refused", "c", "ImagePullBackOff"), "connection refused")

	l.kubectl("set", "image", "pod/missing", "c="+image)
	l.ready("missing")
}

// Credentials come from the pod's secrets, and those of its service account.
func TestImagePullSecrets(t *testing.T) {
	l := newLab(t)
	r, image := startRegistry(t, registry.Config{Username: imageUser, Password: imagePassword})
	auth := base64.StdEncoding.EncodeToString([]byte(imageUser + ":" + imagePassword))
	l.kubectl("create", "secret", "docker-registry", "good", "--docker-server="+r.Host(), "--docker-username="+imageUser, "--docker-password="+imagePassword)
	l.kubectl("create", "secret", "docker-registry", "bad", "--docker-server="+r.Host(), "--docker-username="+imageUser, "--docker-password=wrong")
	l.apply(`
apiVersion: v1
kind: ServiceAccount
metadata: {name: puller}
imagePullSecrets: [{name: old}]
---
apiVersion: v1
kind: Secret
metadata: {name: old}
type: kubernetes.io/dockercfg
stringData: {.dockercfg: '{"` + r.Host() + `/team":{"auth":"` + auth + `"}}'}
` + pulled("none", image, "Always", "") + pulled("wrong", image, "Always", "  imagePullSecrets: [{name: bad}]") +
		pulled("lost", image, "Always", "  imagePullSecrets: [{name: absent}]"))
	for _, name := range []string{"none", "wrong", "lost"} {
		l.contains(l.waiting(name, "c", "ImagePullBackOff"), "ErrImagePull: failed to pull and unpack image")
	}
	l.event("lost", "FailedToRetrieveImagePullSecret", "Unable to retrieve some image pull secrets (absent); attempting to pull the image may not succeed.")
	l.apply(pulled("secret", image, "Always", "  imagePullSecrets: [{name: good}]") +
		pulled("both", image, "Always", "  imagePullSecrets: [{name: bad}, {name: good}]") +
		pulled("account", image, "Always", "  serviceAccountName: puller"))
	for _, name := range []string{"secret", "both", "account"} {
		l.ready(name)
	}
	if got := l.pod("account").Spec.ImagePullSecrets; len(got) != 1 || got[0].Name != "old" {
		t.Errorf("pull secrets from the account: %v", got)
	}
}

func TestImageCommand(t *testing.T) {
	t.Parallel()
	image := func(args ...string) string {
		t.Helper()
		out, err := shared.proa(append([]string{"image"}, args...)...)
		if err != nil {
			t.Fatalf("proa image %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return out
	}
	list := image("ls")
	for _, want := range []string{"docker.io/library/busybox:1.35", "proa.dev/testserver:1", "NAME", "SIZE"} {
		if !strings.Contains(list, want) {
			t.Errorf("no %s in\n%s", want, list)
		}
	}
	if out := image("rm", "proa.dev/guestbook-api:1"); !strings.Contains(out, "Removed proa.dev/guestbook-api:1") {
		t.Error(out)
	}
	if out, err := shared.proa("image", "rm", "proa.dev/guestbook-api:1"); err == nil || !strings.Contains(out, "proa.dev/guestbook-api:1: image not found") {
		t.Errorf("an image that is not there was removed: %s", out)
	}
	if list := image("ls"); strings.Contains(list, "guestbook-api") {
		t.Errorf("a removed image is listed:\n%s", list)
	}
	if out := image("load", imageFile("guestbook-api")); !strings.Contains(out, "Loaded proa.dev/guestbook-api:1") {
		t.Error(out)
	}
	if list := image("ls"); !strings.Contains(list, "proa.dev/guestbook-api:1") {
		t.Errorf("a loaded image is not listed:\n%s", list)
	}
	if out, err := shared.proa("image", "load", repo("Makefile")); err == nil {
		t.Errorf("a file that is no archive was loaded: %s", out)
	}
}

// An image as a volume (KEP-4639).
func TestImageVolume(t *testing.T) {
	l := newLab(t)
	r, image := startRegistry(t, registry.Config{})
	mount := func(name, reference, policy string) string {
		return podManifest(name, `
  restartPolicy: Never
  containers: [{name: c, image: 'busybox:1.35', command: [sh, -c, "ls -l /v/testserver && /v/testserver uid; touch /v/x 2>&1 || echo readonly"], volumeMounts: [{name: v, mountPath: /v}]}]
  volumes: [{name: v, image: {reference: '`+reference+`', pullPolicy: `+policy+`}}]`)
	}
	l.apply(mount("p", image, "Always") + mount("bad", r.Host()+"/no/image:1", "IfNotPresent"))
	l.ended("p", corev1.PodSucceeded)
	l.contains(l.logs("p", ""), "/v/testserver\n0\n", "Read-only file system", "readonly")
	l.event("bad", "Failed", "Failed to pull image")
	l.waiting("bad", "c", "ImagePullBackOff")
	pod := l.pod("bad")
	l.is("phase", string(pod.Status.Phase), "Pending")
	if w := status(pod, "c").State.Waiting; w == nil || w.Reason != "ErrImagePull" && w.Reason != "ImagePullBackOff" {
		t.Errorf("%+v", w)
	}
}
