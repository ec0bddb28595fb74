package peers

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/util/cert"
)

// Upstream's webhook for Pod Security is installed as it is published, in the place of
// the admission plugin, and judges all of its own samples as their directories say.
func TestAPolicyEngineJudgesItsSamples(t *testing.T) {
	image := "build/peers/podsecurity.tar"
	built(t, filepath.Base(image))
	c := node(t, []string{image}, "--disable-admission-plugins=PodSecurity")
	module := published(t, "podsecurity", "k8s.io/pod-security-admission")
	const ns = "pod-security-webhook"
	certificate, key, err := cert.GenerateSelfSignedCertKey("webhook."+ns+".svc", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	encode := base64.StdEncoding.EncodeToString
	c.apply(t, `
apiVersion: v1
kind: Namespace
metadata: {name: `+ns+`}
---
apiVersion: v1
kind: Secret
metadata: {name: `+ns+`, namespace: `+ns+`}
data: {tls.crt: `+encode(certificate)+`, tls.key: `+encode(key)+`}
`, "--server-side")
	c.install(t, filepath.Join(module, "webhook/manifests"), ns, ns, "proa.dev/podsecurity:1", `caBundle: ""`, "caBundle: "+encode(certificate))
	for _, level := range []string{"baseline", "restricted"} {
		t.Run(level, func(t *testing.T) {
			eventually(t, func() error { // it is ready before it listens
				out, err := c.try(t, `
apiVersion: v1
kind: Namespace
metadata: {name: `+level+`, labels: {pod-security.kubernetes.io/enforce: `+level+`, pod-security.kubernetes.io/warn: restricted}}
`, "apply", "-f", "-")
				if err != nil {
					return fmt.Errorf("%w: %s", err, out)
				}
				return nil
			})
			samples := newest(t, filepath.Join(module, "test/testdata", level))
			c.judged(t, filepath.Join(samples, "pass"), level, " created (server dry run)", false)
			c.judged(t, filepath.Join(samples, "fail"), level, `admission webhook "pod-security-webhook.kubernetes.io" denied the request: pods "`, true)
		})
	}
	t.Run("namespaces and warnings", func(t *testing.T) {
		c.refused(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: wrong, labels: {pod-security.kubernetes.io/enforce: strict}}\n",
			`must be one of privileged, baseline, restricted`)
		out, err := c.try(t, "", "create", "deployment", "web", "--image=web", "-n", "baseline", "--dry-run=server")
		if err != nil || !strings.Contains(out, `Warning: would violate PodSecurity "restricted:latest"`) {
			t.Errorf("%v\n%s", err, out)
		}
	})
}

// newest is the directory of the newest version.
func newest(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	latest := slices.MaxFunc(entries, func(a, b os.DirEntry) int {
		order, err := utilversion.MustParseGeneric(a.Name()).Compare(b.Name())
		if err != nil {
			t.Fatal(err)
		}
		return order
	})
	return filepath.Join(dir, latest.Name())
}

// unmasked is what validation, which comes before webhooks, says of two of the samples.
const unmasked = "`hostUsers` must be false to use `Unmasked`"

// judged applies all samples of a directory in a dry run: the answer to each has the
// words. Some are named as no object may be.
func (c *cluster) judged(t *testing.T, dir, namespace, words string, refused bool) {
	t.Helper()
	samples, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil || len(samples) == 0 {
		t.Fatalf("%s has no samples: %v", dir, err)
	}
	var manifests []string
	for _, sample := range samples {
		text, err := os.ReadFile(sample)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(filepath.Base(sample), ".yaml")
		manifests = append(manifests, strings.Replace(string(text), "name: "+name, "name: "+strings.ReplaceAll(name, "_", "-"), 1))
	}
	out, err := c.try(t, strings.Join(manifests, "\n---\n"), "apply", "--dry-run=server", "-n", namespace, "-f", "-")
	if n := strings.Count(out, words) + strings.Count(out, unmasked); n != len(samples) || (err != nil) != refused {
		t.Errorf("%d of %d answers say %q: %v\n%s", n, len(samples), words, err, out)
	}
}
