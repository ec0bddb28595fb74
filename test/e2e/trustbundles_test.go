package e2e

import (
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// anchors are the certificates of a PEM text, in an order of their own.
func anchors(text string) []string {
	var out []string
	for block, rest := pem.Decode([]byte(text)); block != nil; block, rest = pem.Decode(rest) {
		out = append(out, string(block.Bytes))
	}
	slices.Sort(out)
	return out
}

// shows reports a file that does not hold exactly these certificates.
func (l *lab) shows(pod, path string, want ...*authority) {
	l.Helper()
	text := ""
	for _, a := range want {
		text += a.pem
	}
	if got := anchors(l.exec(pod, "cat", path)); !slices.Equal(got, anchors(text)) {
		l.Errorf("%s holds %d certificates that are not the %d wanted", path, len(got), len(want))
	}
}

// signerOf returns a signer's name of the lab, and that of a bundle of it.
func (l *lab) signerOf(name string) (signer string, bundle func(string) string) {
	signer = l.ns + ".example.com/" + name
	return signer, func(of string) string { return strings.ReplaceAll(signer, "/", ":") + ":" + of }
}

// Bundles are chosen by name, or by signer and labels, and follow their objects.
func TestTrustBundlesInPods(t *testing.T) {
	l := newLab(t)
	one, two, three, four := newAuthority(t, "1"), newAuthority(t, "2"), newAuthority(t, "3"), newAuthority(t, "4")
	signer, bundle := l.signerOf("s")
	other, ofOther := l.signerOf("other")
	l.bundle("", l.ns, nil, "# of nobody\n"+one.pem+two.pem)
	l.bundle(signer, bundle("a"), map[string]string{"live": "yes"}, two.pem)
	l.bundle(signer, bundle("b"), map[string]string{"live": "yes"}, two.pem+three.pem)
	l.bundle(signer, bundle("c"), map[string]string{"live": "no"}, four.pem)
	l.bundle(other, ofOther("a"), map[string]string{"live": "yes"}, one.pem)
	l.apply(podManifest("p", `
  containers: [{name: c, image: 'busybox:1.35', command: [sleep, '3600'], volumeMounts: [{name: v, mountPath: /v}, {name: w, mountPath: /w}]}]
  volumes:
  - name: v
    projected:
      sources:
      - clusterTrustBundle: {name: `+l.ns+`, path: named.pem}
      - clusterTrustBundle: {signerName: `+signer+`, labelSelector: {}, path: all.pem}
      - clusterTrustBundle: {signerName: `+signer+`, labelSelector: {matchLabels: {live: "yes"}}, path: live.pem}
      - clusterTrustBundle: {name: `+l.ns+`-absent, optional: true, path: absent.pem}
      - clusterTrustBundle: {signerName: `+signer+`, labelSelector: {matchLabels: {live: never}}, optional: true, path: nothing.pem}
      - clusterTrustBundle: {signerName: `+signer+`, optional: true, path: nil.pem}
  - name: w
    projected: {sources: [{clusterTrustBundle: {signerName: `+other+`, labelSelector: {matchExpressions: [{key: live, operator: Exists}]}, path: ca.pem}}]}
`))
	l.ready("p")
	l.shows("p", "/v/named.pem", one, two)
	l.shows("p", "/v/all.pem", two, three, four)
	l.shows("p", "/v/live.pem", two, three)
	l.shows("p", "/w/ca.pem", one)
	l.is("sizes of those that match nothing", l.exec("p", "sh", "-c", "cd /v; wc -c < absent.pem; wc -c < nothing.pem; wc -c < nil.pem"), "0\n0\n0\n")
	if text := l.exec("p", "cat", "/v/named.pem"); strings.Contains(text, "nobody") {
		t.Errorf("more than certificates is written:\n%s", text)
	}

	l.kubectl("label", "clustertrustbundle", bundle("c"), "live=yes", "--overwrite")
	l.bundle("", l.ns+"-absent", nil, four.pem)
	eventually(t, settle, func() error {
		if n := len(anchors(l.exec("p", "cat", "/v/live.pem", "/v/absent.pem"))); n != 4 {
			return fmt.Errorf("%d certificates after the change", n)
		}
		return nil
	})
	l.shows("p", "/v/live.pem", two, three, four)
	l.shows("p", "/v/absent.pem", four)
	if n := status(l.pod("p"), "c").RestartCount; n != 0 {
		t.Errorf("restarted %d times", n)
	}
}

// A pod waits for bundles that are not optional, and starts when they come.
func TestPodsWaitForTrustBundles(t *testing.T) {
	l := newLab(t)
	signer, bundle := l.signerOf("s")
	ca := newAuthority(t, "1")
	for name, source := range map[string]string{
		"missing": "name: " + l.ns + "-missing, optional: false",
		"nomatch": "signerName: " + signer + ", labelSelector: {matchLabels: {live: \"yes\"}}, optional: false",
	} {
		l.apply(podManifest(name, `
  containers: [`+mounted(busybox("c", "sleep 3600"), "v")+`]
  volumes: [{name: v, projected: {sources: [{clusterTrustBundle: {`+source+`, path: ca.pem}}]}}]`))
	}
	l.event("missing", "FailedMount", `clustertrustbundles.certificates.k8s.io "`+l.ns+`-missing" not found`)
	l.event("nomatch", "FailedMount", "combination of signerName and labelSelector matched zero ClusterTrustBundles")
	for _, name := range []string{"missing", "nomatch"} {
		l.await(name, "kept from running", func(p *corev1.Pod) bool {
			c := podCondition(p, corev1.PodReady)
			return c != nil && c.Status == corev1.ConditionFalse && c.Reason == "ContainersNotReady" && p.Status.Phase == corev1.PodPending
		})
	}
	l.bundle("", l.ns+"-missing", nil, ca.pem)
	l.bundle(signer, bundle("a"), map[string]string{"live": "yes"}, ca.pem)
	for _, name := range []string{"missing", "nomatch"} {
		l.ready(name)
		l.shows(name, "/v/ca.pem", ca)
	}
}

// More bundles than anyone has: in one volume, in as many volumes, in one file.
func TestManyTrustBundles(t *testing.T) {
	const many = 150
	l := newLab(t)
	signer, bundle := l.signerOf("s")
	cas := make([]*authority, many)
	var sources, volumes, mounts strings.Builder
	for i := range cas {
		cas[i] = newAuthority(t, fmt.Sprint(i))
		name := bundle(fmt.Sprint(i))
		l.bundle(signer, name, nil, cas[i].pem)
		fmt.Fprintf(&sources, "      - clusterTrustBundle: {name: '%s', path: %d.pem}\n", name, i)
		fmt.Fprintf(&volumes, "  - {name: v%d, projected: {sources: [{clusterTrustBundle: {name: '%s', path: ca.pem}}]}}\n", i, name)
		fmt.Fprintf(&mounts, ", {name: v%d, mountPath: /v/%d}", i, i)
	}
	l.apply(podManifest("p", `
  containers: [{name: c, image: 'busybox:1.35', command: [sleep, '3600'], volumeMounts: [{name: one, mountPath: /one}, {name: joined, mountPath: /joined}`+mounts.String()+`]}]
  volumes:
  - name: one
    projected:
      sources:
`+sources.String()+`  - {name: joined, projected: {sources: [{clusterTrustBundle: {signerName: `+signer+`, labelSelector: {}, path: ca.pem}}]}}
`+volumes.String()))
	l.ready("p")
	l.shows("p", "/joined/ca.pem", cas...)
	for dir, files := range map[string]string{"one volume": "/one/*.pem", "a volume each": "/v/*/ca.pem"} {
		if got := anchors(l.exec("p", "sh", "-c", "cat "+files)); len(slices.Compact(got)) != many {
			t.Errorf("%s: %d certificates", dir, len(got))
		}
	}
}
