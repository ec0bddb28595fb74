package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// servers are test servers with one label; each tells its name.
func servers(app string, names ...string) string {
	var out strings.Builder
	for _, name := range names {
		out.WriteString(strings.Replace(podManifest(name, "  containers: [{name: c, "+testserver+", ports: [{name: http, containerPort: 8080}], readinessProbe: {httpGet: {path: /readyz, port: http}, "+often+"}}]"), "app: "+name, "app: "+app, 1))
	}
	return out.String()
}

func service(name, spec string) string {
	return "---\napiVersion: v1\nkind: Service\nmetadata: {name: " + name + "}\nspec: {" + spec + "}\n"
}

// from asks a test server in a pod to do something in the pod's network.
func (l *lab) from(pod, what string, values ...string) (string, error) {
	l.Helper()
	query := url.Values{}
	for i := 0; i < len(values); i += 2 {
		query.Set(values[i], values[i+1])
	}
	return fetch("GET", "http://"+l.pod(pod).Status.PodIP+":8080/"+what+"?"+query.Encode(), "")
}

// reaches waits until an URL answers from a pod, and returns the answer.
func (l *lab) reaches(pod, target string) (answer string) {
	l.Helper()
	eventually(l.T, settle, func() (err error) {
		answer, err = l.from(pod, "fetch", "url", target)
		return err
	})
	return strings.TrimSpace(answer)
}

// all asks until every name has answered, and fails when any other does.
func all(t *testing.T, ask func() (string, error), names ...string) {
	t.Helper()
	var heard []string
	eventually(t, settle, func() error {
		for range 10 {
			name, err := ask()
			if err != nil {
				return err
			}
			if name = strings.TrimSpace(name); !slices.Contains(heard, name) {
				heard = append(heard, name)
			}
		}
		sort.Strings(heard)
		if fmt.Sprint(heard) != fmt.Sprint(names) {
			return fmt.Errorf("heard %v, want %v", heard, names)
		}
		return nil
	})
}

// one asks ten times and wants the same answer each time.
func one(ask func() (string, error)) error {
	first, err := ask()
	for range 9 {
		next, again := ask()
		if err != nil || again != nil || next != first {
			return fmt.Errorf("%q, then %q (%v, %v)", first, next, err, again)
		}
	}
	return nil
}

// resolves waits for the answers of DNS in a pod.
func (l *lab) resolves(pod, kind, name string, want ...string) {
	l.Helper()
	sort.Strings(want)
	eventually(l.T, settle, func() error {
		got, err := l.from(pod, "lookup", "type", kind, "name", name)
		if err == nil && got != strings.Join(want, "\n") {
			err = fmt.Errorf("is %q", got)
		}
		if err != nil {
			return fmt.Errorf("%s %s, want %v: %w", kind, name, want, err)
		}
		return nil
	})
}

// Pods reach pods, nodes reach pods, and Services are in between.
func TestClusterIP(t *testing.T) {
	l := newLab(t)
	l.apply(servers("web", "a", "b", "c") + service("web", "selector: {app: web}, ports: [{name: http, port: 80, targetPort: http}, {name: tcp, port: 90, targetPort: 9000}, {name: udp, port: 90, protocol: UDP, targetPort: 9001}]") +
		podManifest("client", "  containers: [{name: c, "+testserver+"}]"))
	ips := map[string]string{}
	for _, name := range []string{"a", "b", "c", "client"} {
		ips[name] = l.ready(name).Status.PodIP
	}
	for _, name := range []string{"a", "b", "c"} {
		l.is("over HTTP, pod to pod", l.reaches("client", "http://"+ips[name]+":8080/hostname"), name)
		if out, err := l.from("client", "dial", "network", "udp", "address", ips[name]+":9001", "say", "hostname"); err != nil || out != name {
			t.Errorf("over UDP, pod to pod: %q, %v", out, err)
		}
		if out, err := fetch("GET", "http://"+ips[name]+":8080/hostname", ""); err != nil || out != name+"\n" {
			t.Errorf("over HTTP, node to pod: %q, %v", out, err)
		}
		if out, err := udp(ips[name]+":9001", "hostname"); err != nil || out != name {
			t.Errorf("over UDP, node to pod: %q, %v", out, err)
		}
	}
	web := "http://web." + l.ns + ".svc.cluster.local"
	all(t, func() (string, error) { return l.from("client", "fetch", "url", web+"/hostname") }, "a", "b", "c")
	all(t, func() (string, error) {
		return l.from("client", "dial", "network", "udp", "address", "web:90", "say", "hostname")
	}, "a", "b", "c")
	l.is("the client's address", strings.Split(l.reaches("client", web+"/client"), ":")[0], ips["client"])
	eventually(t, settle, func() error { // a pod reaches itself, and then sees its node
		if out, err := l.from("a", "fetch", "url", web+"/hostname"); out != "a\n" {
			return fmt.Errorf("%q, %v", out, err)
		}
		return nil
	})
	tcp := func() error {
		out, err := l.from("client", "dial", "network", "tcp", "address", "web:90", "say", "echo")
		if err == nil && out != "echo" {
			err = fmt.Errorf("answer %q", out)
		}
		return err
	}
	eventually(t, settle, tcp)
	l.kubectl("patch", "service", "web", "--type=json", "-p", `[{"op":"remove","path":"/spec/ports/2"}]`)
	eventually(t, settle, func() error {
		if out, err := l.from("client", "dial", "network", "udp", "address", "web:90", "say", "hostname"); err == nil {
			return fmt.Errorf("UDP still answers: %s", out)
		}
		return nil
	})
	if err := tcp(); err != nil {
		t.Errorf("TCP of the port that UDP had, too: %v", err)
	}
}

func udp(address, say string) (string, error) {
	conn, err := net.DialTimeout("udp", address, time.Second)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(3 * time.Second)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, say); err != nil {
		return "", err
	}
	buffer := make([]byte, 1024)
	n, err := conn.Read(buffer)
	return string(buffer[:n]), err
}

// Node ports: from the node, from pods, and with traffic that stays local.
func TestNodePorts(t *testing.T) {
	l := newLab(t)
	l.apply(servers("web", "a", "b") + service("web", "type: NodePort, selector: {app: web}, ports: [{name: http, port: 80, targetPort: http}, {name: udp, port: 80, protocol: UDP, targetPort: 9001}]") +
		service("local", "type: LoadBalancer, externalTrafficPolicy: Local, selector: {app: web}, ports: [{port: 80, targetPort: http}]") +
		podManifest("client", "  containers: [{name: c, "+testserver+"}]"))
	client, node := l.ready("client"), l.ready("a").Status.HostIP
	l.ready("b")
	port := func(name string, index int) string {
		return l.kubectl("get", "service", name, "-o", fmt.Sprintf("jsonpath={.spec.ports[%d].nodePort}", index))
	}
	for _, host := range []string{"127.0.0.1", node} {
		all(t, func() (string, error) { return fetch("GET", "http://"+host+":"+port("web", 0)+"/hostname", "") }, "a", "b")
	}
	all(t, func() (string, error) { return udp(node+":"+port("web", 1), "hostname") }, "a", "b")
	all(t, func() (string, error) {
		return l.from("client", "fetch", "url", "http://"+node+":"+port("web", 0)+"/hostname")
	}, "a", "b")
	l.is("client of a local port", strings.Split(l.reaches("client", "http://"+node+":"+port("local", 0)+"/client"), ":")[0], client.Status.PodIP)

	health := "http://" + node + ":" + l.kubectl("get", "service", "local", "-o", "jsonpath={.spec.healthCheckNodePort}")
	var answer struct {
		Service        struct{ Namespace, Name string }
		LocalEndpoints int
	}
	eventually(t, settle, func() error {
		out, err := fetch("GET", health, "")
		if err == nil {
			err = json.Unmarshal([]byte(out), &answer)
		}
		if err == nil && (answer.LocalEndpoints != 2 || answer.Service.Name != "local" || answer.Service.Namespace != l.ns) {
			err = fmt.Errorf("health is %s", out)
		}
		return err
	})
	l.kubectl("delete", "pod", "a", "b")
	eventually(t, settle, func() error {
		resp, err := http.Get(health)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusServiceUnavailable {
			return fmt.Errorf("health without endpoints: %s", resp.Status)
		}
		return nil
	})
	if _, err := fetch("GET", "http://"+node+":"+port("web", 0)+"/hostname", ""); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("a Service without endpoints: %v", err)
	}
}

// A Service changes its type and keeps answering as what it is now.
func TestServiceTypes(t *testing.T) {
	l := newLab(t)
	l.apply(servers("web", "a") + service("target", "clusterIP: None, selector: {app: web}, ports: [{port: 8080}]") +
		service("s", "selector: {app: web}, ports: [{port: 80, targetPort: http}]"))
	pod := l.ready("a")
	external := "target." + l.ns + ".svc.cluster.local"
	get := func(path string) string { return l.kubectl("get", "service", "s", "-o", "jsonpath="+path) }
	patch := func(spec string) { l.Helper(); l.kubectl("patch", "service", "s", "-p", `{"spec":`+spec+`}`) }
	toExternal := func() {
		l.Helper()
		patch(`{"type":"ExternalName","externalName":"` + external + `","clusterIP":null,"clusterIPs":null,"ports":null}`)
		l.is("cluster IP and ports of an ExternalName", get("{.spec.clusterIP}{.spec.ports[*].nodePort}"), "")
		l.resolves("a", "CNAME", "s."+l.ns+".svc.cluster.local", external+".")
		l.resolves("a", "A", "s", pod.Status.PodIP)
	}
	l.is("ClusterIP", l.reaches("a", "http://s/hostname"), "a")
	toExternal()
	patch(`{"type":"ClusterIP","externalName":null,"ports":[{"port":80,"targetPort":"http"}]}`)
	l.resolves("a", "A", "s", get("{.spec.clusterIP}"))
	l.is("ExternalName to ClusterIP", l.reaches("a", "http://"+get("{.spec.clusterIP}")+"/hostname"), "a")
	l.is("by name", l.reaches("a", "http://s/hostname"), "a")
	toExternal()
	l.kubectl("patch", "service", "s", "-p", `{"spec":{"externalName":"elsewhere.`+l.ns+`.svc.cluster.local"}}`)
	l.kubectl("create", "service", "externalname", "other", "--external-name=example.org")
	eventually(t, settle, func() error {
		if out, err := l.from("a", "lookup", "name", "s"); err == nil {
			return fmt.Errorf("a changed name still resolves to %s", out)
		}
		return nil
	})
	patch(`{"type":"NodePort","externalName":null,"ports":[{"port":80,"targetPort":"http"}]}`)
	for _, target := range []string{"s", get("{.spec.clusterIP}"), pod.Status.HostIP + ":" + get("{.spec.ports[0].nodePort}")} {
		l.is("ExternalName to NodePort: "+target, l.reaches("a", "http://"+target+"/hostname"), "a")
	}
	toExternal()
}

// Session affinity keeps a client with one pod, while it is on.
func TestSessionAffinity(t *testing.T) {
	l := newLab(t)
	l.apply(servers("web", "a", "b", "c") + service("web", "type: NodePort, sessionAffinity: ClientIP, selector: {app: web}, ports: [{port: 80, targetPort: http}]") +
		podManifest("client", "  containers: [{name: c, "+testserver+"}]"))
	for _, name := range []string{"a", "b", "c", "client"} {
		l.ready(name)
	}
	node := l.pod("a").Status.HostIP + ":" + l.kubectl("get", "service", "web", "-o", "jsonpath={.spec.ports[0].nodePort}")
	ways := []func() (string, error){
		func() (string, error) { return l.from("client", "fetch", "url", "http://web/hostname") },
		func() (string, error) { return l.from("client", "fetch", "url", "http://"+node+"/hostname") },
		func() (string, error) { return fetch("GET", "http://"+node+"/hostname", "") },
	}
	for _, affinity := range []string{"ClientIP", "None", "ClientIP"} {
		l.kubectl("patch", "service", "web", "-p", `{"spec":{"sessionAffinity":"`+affinity+`"}}`)
		for _, ask := range ways {
			if affinity == "None" {
				all(t, ask, "a", "b", "c")
			} else {
				eventually(t, settle, func() error { return one(ask) })
			}
		}
	}
}

// What a pod can look up.
func TestDNS(t *testing.T) {
	l := newLab(t)
	l.apply(servers("web", "a") + podManifest("named", "  hostname: busy\n  subdomain: web\n  containers: [{name: c, "+testserver+"}]") +
		podManifest("unready", "  hostname: late\n  subdomain: early\n  containers: [{name: c, "+testserver+", readinessProbe: {httpGet: {path: /nowhere, port: 1}, "+often+"}}]") +
		service("web", "clusterIP: None, selector: {app: web}, ports: [{name: http, port: 8080}]") +
		service("normal", "selector: {app: web}, ports: [{name: http, port: 80, targetPort: http}, {name: echo, port: 90, protocol: UDP, targetPort: 9001}]") +
		service("early", "clusterIP: None, publishNotReadyAddresses: true, selector: {app: unready}, ports: [{name: http, port: 8080}]") +
		service("strict", "clusterIP: None, selector: {app: unready}, ports: [{name: http, port: 8080}]") +
		service("away", "type: ExternalName, externalName: normal."+l.ns+".svc.cluster.local"))
	l.kubectl("label", "pod", "named", "app=web", "--overwrite")
	a, named := l.ready("a").Status.PodIP, l.ready("named").Status.PodIP
	unready := l.await("unready", "running", func(p *corev1.Pod) bool { return p.Status.PodIP != "" }).Status.PodIP
	normal := l.kubectl("get", "service", "normal", "-o", "jsonpath={.spec.clusterIP}")
	domain := "." + l.ns + ".svc.cluster.local"
	dashed := func(ip string) string { return strings.ReplaceAll(ip, ".", "-") }

	for _, name := range []string{"normal", "normal." + l.ns, "normal." + l.ns + ".svc", "normal" + domain, "normal" + domain + "."} {
		l.resolves("a", "A", name, normal)
	}
	for _, name := range []string{"web", "web." + l.ns, "web." + l.ns + ".svc", "web" + domain} {
		l.resolves("a", "A", name, a, named)
	}
	l.resolves("a", "SRV", "_http._tcp.normal"+domain, "0 100 80 normal"+domain+".")
	l.resolves("a", "SRV", "_echo._udp.normal."+l.ns+".svc", "0 100 90 normal"+domain+".")
	l.resolves("a", "SRV", "_http._tcp.web", "0 50 8080 busy.web"+domain+".", "0 50 8080 "+dashed(a)+".web"+domain+".")
	l.resolves("a", "A", "busy.web"+domain, named)
	l.resolves("named", "A", "busy", named)
	l.resolves("named", "A", "busy.web"+domain, named)
	l.resolves("a", "PTR", normal, "normal"+domain+".")
	l.resolves("a", "PTR", named, "busy.web"+domain+".")
	l.resolves("a", "A", dashed(a)+"."+l.ns+".pod.cluster.local", a)
	l.resolves("a", "A", "late.early", unready)
	l.resolves("a", "A", "early", unready)
	l.resolves("a", "CNAME", "away"+domain, "normal"+domain+".")
	l.resolves("a", "A", "away", normal)
	kubernetes := strings.TrimSpace(shared.kubectl(t, "get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}"))
	for _, name := range []string{"kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"} {
		l.resolves("a", "A", name, kubernetes)
	}
	for _, name := range []string{"strict", "absent", "normal.absent", "x.web"} {
		if out, err := l.from("a", "lookup", "name", name); err == nil {
			t.Errorf("%s resolves to %s", name, out)
		}
	}
	out := l.exec("named", "/testserver", "read", "/etc/hosts")
	l.contains(out, named+"\tbusy.web"+domain+"\tbusy\n")
}

// EndpointSlices and Endpoints follow the pods of a Service; those made by hand
// are used as they are.
func TestEndpoints(t *testing.T) {
	l := newLab(t)
	l.apply(servers("web", "a", "b") + podManifest("client", "  containers: [{name: c, "+testserver+"}]") +
		service("web", "selector: {app: web}, ports: [{name: http, port: 80, targetPort: http}, {name: echo, port: 81, targetPort: 9000}]") +
		service("empty", "selector: {app: nobody}, ports: [{port: 80}]") +
		podManifest("other", "  containers: [{name: c, "+testserver+"}]") + service("mirrored", "ports: [{port: 80, targetPort: 8080}]") +
		service("manual", "ports: [{name: one, port: 80, targetPort: 1}, {name: two, port: 81, targetPort: 2}]"))
	a, b := l.ready("a"), l.ready("b")
	l.ready("client")
	other := l.ready("other")
	slicesOf := func(name string) string {
		list, err := clients().DiscoveryV1().EndpointSlices(l.ns).List(t.Context(), metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=" + name})
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, s := range list.Items {
			for _, e := range s.Endpoints {
				for _, p := range s.Ports {
					out = append(out, fmt.Sprintf("%s:%d", e.Addresses[0], *p.Port))
				}
			}
			if len(s.Endpoints) == 0 {
				out = append(out, "empty")
			}
		}
		sort.Strings(out)
		return strings.Join(out, " ")
	}
	endpointsOf := func(name string) string {
		e, err := clients().CoreV1().Endpoints(l.ns).Get(t.Context(), name, metav1.GetOptions{}) //nolint:staticcheck // what is tested
		if err != nil {
			return err.Error()
		}
		var out []string
		for _, s := range e.Subsets {
			for _, address := range s.Addresses {
				for _, p := range s.Ports {
					out = append(out, fmt.Sprintf("%s:%d", address.IP, p.Port))
				}
			}
		}
		sort.Strings(out)
		return strings.Join(out, " ")
	}
	become := func(of func(string) string, name string, want ...string) {
		l.Helper()
		sort.Strings(want)
		eventually(t, settle, func() error {
			if got := of(name); got != strings.Join(want, " ") {
				return fmt.Errorf("endpoints of %s are %q, want %q", name, got, want)
			}
			return nil
		})
	}
	ip := func(p *corev1.Pod, port int) string { return fmt.Sprintf("%s:%d", p.Status.PodIP, port) }
	for _, of := range []func(string) string{slicesOf, endpointsOf} {
		become(of, "web", ip(a, 8080), ip(b, 8080), ip(a, 9000), ip(b, 9000))
	}
	become(slicesOf, "empty", "empty")
	become(endpointsOf, "empty", "")
	l.kubectl("delete", "pod", "b")
	for _, of := range []func(string) string{slicesOf, endpointsOf} {
		become(of, "web", ip(a, 8080), ip(a, 9000))
	}

	slice := func(name, port string, number int, addresses ...string) string {
		return fmt.Sprintf("---\n{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: %s, labels: {kubernetes.io/service-name: manual}}, addressType: IPv4, endpoints: [{addresses: [%q]}], ports: [{name: %s, port: %d}]}\n",
			name, strings.Join(addresses, `", "`), port, number)
	}
	l.apply(slice("one", "one", 8080, a.Status.PodIP) + slice("two", "two", 8080, other.Status.PodIP))
	l.is("the first port's slice", l.reaches("client", "http://manual/hostname"), "a")
	l.is("the second port's slice", l.reaches("client", "http://manual:81/hostname"), "other")
	l.kubectl("delete", "endpointslice", "two")
	l.apply(slice("two", "two", 9000, a.Status.PodIP))
	eventually(t, settle, func() error {
		out, err := l.from("client", "dial", "address", "manual:81", "say", "echo")
		if err == nil && out != "echo" {
			err = fmt.Errorf("answer %q", out)
		}
		return err
	})

	endpoints := func(ip string) string {
		return fmt.Sprintf("{apiVersion: v1, kind: Endpoints, metadata: {name: mirrored, labels: {mine: 'yes'}}, subsets: [{addresses: [{ip: %s}], ports: [{port: 8080}]}]}", ip)
	}
	l.apply(endpoints(a.Status.PodIP))
	become(slicesOf, "mirrored", ip(a, 8080))
	l.is("through mirrored Endpoints", l.reaches("client", "http://mirrored/hostname"), "a")
	l.apply(endpoints(l.pod("client").Status.PodIP))
	become(slicesOf, "mirrored", ip(l.pod("client"), 8080))
	l.kubectl("label", "endpoints", "mirrored", "more=labels")
	l.kubectl("patch", "endpoints", "mirrored", "-p", `{"subsets":[{"addresses":[{"ip":"192.0.2.77"}],"ports":[{"port":81}]}]}`)
	become(slicesOf, "mirrored", "192.0.2.77:81")
	l.kubectl("delete", "endpoints", "-l", "mine=yes")
	become(slicesOf, "mirrored", "")
	l.kubectl("delete", "service", "web", "empty")
	for _, name := range []string{"web", "empty"} {
		become(slicesOf, name, "")
		become(endpointsOf, name, `endpoints "`+name+`" not found`)
	}
	out := shared.kubectl(t, "get", "endpointslices,endpoints", "-n", "default", "-o", "name")
	l.contains(out, "endpointslice.discovery.k8s.io/kubernetes", "endpoints/kubernetes")
}

// Ports of the node that belong to pods: the same number, once for each address
// and protocol.
func TestHostPorts(t *testing.T) {
	l := newLab(t)
	port := freePort()
	pod := func(name, ip, protocol string, containerPort int) string {
		return podManifest(name, fmt.Sprintf("  containers: [{name: c, %s, ports: [{containerPort: %d, hostPort: %d, hostIP: '%s', protocol: %s}]}]", testserver, containerPort, port, ip, protocol))
	}
	l.apply(podManifest("client", "  containers: [{name: c, "+testserver+"}]"))
	node := l.ready("client").Status.HostIP
	l.apply(pod("loopback", "127.0.0.1", "TCP", 8080) + pod("node", node, "TCP", 8080) + pod("udp", node, "UDP", 9001))
	for _, name := range []string{"loopback", "node", "udp"} {
		l.ready(name)
	}
	for host, want := range map[string]string{"127.0.0.1": "loopback", node: "node"} {
		eventually(t, settle, func() error {
			out, err := fetch("GET", fmt.Sprintf("http://%s:%d/hostname", host, port), "")
			if err == nil && out != want+"\n" {
				err = fmt.Errorf("%s answers for %s", out, host)
			}
			return err
		})
	}
	l.is("from a pod", l.reaches("client", fmt.Sprintf("http://%s:%d/hostname", node, port)), "node")
	eventually(t, settle, func() error { // nobody says when it listens
		if out, err := udp(fmt.Sprintf("%s:%d", node, port), "hostname"); err != nil || out != "udp" {
			return fmt.Errorf("over UDP: %q, %v", out, err)
		}
		return nil
	})
	l.apply(pod("conflict", node, "TCP", 8080))
	l.event("conflict", "FailedScheduling", "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports.")
}

// The API server forwards to pods and Services, whatever the method.
func TestProxySubresources(t *testing.T) {
	l := newLab(t)
	l.apply(servers("web", "a") + service("web", "selector: {app: web}, ports: [{name: http, port: 80, targetPort: http}]") + service("plain", "selector: {app: web}, ports: [{port: 80, targetPort: http}]"))
	l.ready("a")
	client, err := rest.HTTPClientFor(clusterConfig())
	if err != nil {
		t.Fatal(err)
	}
	base := clusterConfig().Host + "/api/v1/namespaces/" + l.ns
	ask := func(method, path string) (string, error) {
		req, err := http.NewRequestWithContext(t.Context(), method, base+path, nil)
		if err != nil {
			return "", err
		}
		resp, err := client.Do(req)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err == nil && resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", resp.Status, body)
		}
		return string(body), err
	}
	for _, name := range []string{"web:http", "plain"} {
		eventually(t, settle, func() error { _, err := ask("GET", "/services/"+name+"/proxy/hostname"); return err })
	}
	if out, err := ask("GET", "/pods/a:http/proxy/hostname"); err == nil || !strings.Contains(err.Error(), "400 Bad Request") {
		t.Errorf("a named port of a pod: %q, %v", out, err)
	}
	for _, path := range []string{"/pods/a:8080/proxy", "/services/plain/proxy", "/pods/a:8080/proxy/some/path", "/services/plain/proxy/some/path"} {
		for _, method := range []string{"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"} {
			if out, err := ask(method, path+"?method="+method); err != nil || method != "HEAD" && out != "a\n" {
				t.Errorf("%s %s: %q, %v", method, path, out, err)
			}
		}
	}
	// A browser is sent to the path that its relative links need; nothing else is.
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	for _, path := range []string{"/pods/a:8080/proxy", "/services/plain/proxy"} {
		for method, moved := range map[string]bool{"GET": true, "HEAD": true, "DELETE": false, "OPTIONS": false, "PATCH": false, "POST": false, "PUT": false} {
			if _, err := ask(method, path); moved != (err != nil && strings.Contains(err.Error(), "301 Moved Permanently")) {
				t.Errorf("%s %s: %v", method, path, err)
			}
		}
	}
	for _, path := range []string{"/pods/a:8080/proxy/hostname", "/pods/http:a:8080/proxy/hostname", "/services/web:http/proxy/hostname", "/services/web:80/proxy/hostname", "/services/http:web:http/proxy/hostname"} {
		if out, err := ask("GET", path); err != nil || out != "a\n" {
			t.Errorf("%s: %q, %v", path, out, err)
		}
	}
}

// From a Service's creation to its endpoints.
func TestServiceLatency(t *testing.T) {
	l := newLab(t)
	l.apply(servers("web", "a"))
	l.ready("a")
	var took []time.Duration
	for i := range 100 {
		name := fmt.Sprintf("s%d", i)
		begin := time.Now()
		_, err := clients().CoreV1().Services(l.ns).Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for found := false; !found; {
			list, err := clients().DiscoveryV1().EndpointSlices(l.ns).List(t.Context(), metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=" + name})
			if err != nil {
				t.Fatal(err)
			}
			found = len(list.Items) == 1 && len(list.Items[0].Endpoints) == 1
			if time.Since(begin) > settle {
				t.Fatalf("no endpoints of %s after %s", name, settle)
			}
		}
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	if took[50] > 20*time.Second || took[90] > 50*time.Second {
		t.Errorf("p50 %s, p90 %s", took[50], took[90])
	}
}
