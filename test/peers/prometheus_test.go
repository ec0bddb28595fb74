package peers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// scrapes is for a server outside the cluster. Debian's Prometheus has no discovery of
// Kubernetes in it: targets are named.
const scrapes = `
global: {scrape_interval: 1s, scrape_timeout: 1s}
scrape_configs:
- job_name: apiserver
  static_configs: [{targets: ["APISERVER"]}]
  scheme: https
  tls_config: {ca_file: CA}
  authorization: {credentials_file: TOKEN}
- &node
  job_name: kubelet
  static_configs: [{targets: ["NODE"]}]
  scheme: https
  tls_config: {ca_file: CA}
  authorization: {credentials_file: TOKEN}
- {<<: *node, job_name: resource, metrics_path: /metrics/resource}
- {<<: *node, job_name: probes, metrics_path: /metrics/probes}
- &component
  job_name: scheduler
  static_configs: [{targets: ["127.0.0.1:SCHEDULER"]}]
  scheme: https
  tls_config: {insecure_skip_verify: true}
  authorization: {credentials_file: TOKEN}
- {<<: *component, job_name: controller-manager, static_configs: [{targets: ["127.0.0.1:MANAGER"]}]}
- job_name: prometheus
  static_configs: [{targets: ["127.0.0.1:PROMETHEUS"]}]
`

// probed is a pod whose probe, use and scheduling are measured.
const probed = `
apiVersion: v1
kind: Pod
metadata: {name: probed}
spec:
  schedulerName: second
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: busybox:1.35
    command: [sleep, "3600"]
    readinessProbe: {periodSeconds: 1, exec: {command: ["true"]}}
`

// Debian's Prometheus scrapes every component with the token of a service account that
// has the rights of Prometheus' documentation, and finds what dashboards look for.
func TestPrometheusScrapes(t *testing.T) {
	program := built(t, "prometheus")
	c := node(t, []string{busybox})
	c.allow(t, "prometheus",
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"nodes/metrics"}, Verbs: []string{"get"}},
		rbacv1.PolicyRule{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}},
	)
	scheduler, manager := c.daemon(t, "kube-scheduler", "--config", file(t, "scheduler.yaml", `
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: `+c.kubeconfig+`}
leaderElection: {leaderElect: false}
profiles: [{schedulerName: second}]
`)), c.daemon(t, "kube-controller-manager", "--controllers=token-cleaner-controller", "--leader-elect=false")
	c.apply(t, probed)
	p := &prometheus{port: freePort(t)}
	token := c.token(t, metav1.NamespaceSystem, "prometheus")
	config := strings.NewReplacer(
		"APISERVER", strings.TrimPrefix(c.access.Host, "https://"), "NODE", c.kubelet(t), "CA", file(t, "ca.pem", string(c.access.CAData)),
		"TOKEN", file(t, "token", token), "SCHEDULER", scheduler, "MANAGER", manager, "PROMETHEUS", p.port,
	).Replace(scrapes)
	start(t, program, "--config.file", file(t, "prometheus.yml", config), "--storage.tsdb.path", t.TempDir(), "--web.listen-address", "127.0.0.1:"+p.port)

	eventually(t, func() error {
		return p.allUp(t, "apiserver kubelet resource probes scheduler controller-manager prometheus")
	})
	for _, query := range []string{
		`apiserver_request_total{job="apiserver",code="201",component="apiserver",group="",resource="pods",subresource="",verb="POST",version="v1"} > 0`,
		`histogram_quantile(0.99, sum by (le) (apiserver_request_duration_seconds_bucket{job="apiserver",verb="POST"})) > 0`,
		`sum(apiserver_storage_objects{job="apiserver",resource="pods"}) > 0`,
		`scheduler_schedule_attempts_total{job="scheduler",profile="second",result="scheduled"} == 1`,
		`workqueue_depth{job="controller-manager",name="token_cleaner"} == 0`,
		`kubelet_active_pods{job="kubelet"} > 0`,
		`container_memory_working_set_bytes{job="resource",namespace="default",pod="probed",container="c"} > 0`,
		`rate(node_cpu_usage_seconds_total{job="resource"}[10s]) > 0`,
		`prober_probe_total{job="probes",namespace="default",pod="probed",container="c",probe_type="Readiness",result="successful"} > 0`,
		`go_goroutines{job="apiserver"} > 0`,
		`process_start_time_seconds{job="kubelet"} > 0`,
		// Nothing is told twice, or out of order.
		`prometheus_target_scrapes_sample_duplicate_timestamp_total{job="prometheus"} == 0`,
		`prometheus_target_scrapes_sample_out_of_order_total{job="prometheus"} == 0`,
	} {
		eventually(t, func() error { return p.holds(t, query) })
	}
}

// kubelet is where the node's agent answers.
func (c *cluster) kubelet(t *testing.T) string {
	t.Helper()
	return c.kubectl(t, "get", "nodes", "-o",
		`jsonpath={.items[0].status.addresses[?(@.type=="InternalIP")].address}:{.items[0].status.daemonEndpoints.kubeletEndpoint.Port}`)
}

// daemon runs a component by its name, and returns its port.
func (c *cluster) daemon(t *testing.T, name string, args ...string) (port string) {
	t.Helper()
	dir := t.TempDir()
	link := filepath.Join(dir, name)
	if err := os.Symlink(proa(t), link); err != nil {
		t.Fatal(err)
	}
	port = freePort(t)
	start(t, link, append([]string{"--kubeconfig", c.kubeconfig, "--bind-address=127.0.0.1", "--secure-port", port, "--cert-dir", dir}, args...)...)
	return port
}

type prometheus struct{ port string }

func (p *prometheus) get(t *testing.T, path string, into any) error {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:"+p.port+"/api/v1/"+path, nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", path, answer.Status)
	}
	return json.NewDecoder(answer.Body).Decode(into)
}

// allUp says what is wrong with the targets of all jobs.
func (p *prometheus) allUp(t *testing.T, jobs string) error {
	var answer struct {
		Data struct {
			ActiveTargets []struct {
				Labels                       map[string]string
				Health, LastError, ScrapeURL string
			}
		}
	}
	if err := p.get(t, "targets?state=active", &answer); err != nil {
		return err
	}
	found := map[string]bool{}
	var wrong []error
	for _, target := range answer.Data.ActiveTargets {
		found[target.Labels["job"]] = true
		if target.Health != "up" {
			wrong = append(wrong, fmt.Errorf("%s is %s: %s", target.ScrapeURL, target.Health, target.LastError))
		}
	}
	for _, job := range strings.Fields(jobs) {
		if !found[job] {
			wrong = append(wrong, fmt.Errorf("no target of %s", job))
		}
	}
	return errors.Join(wrong...)
}

// holds says whether a query has an answer.
func (p *prometheus) holds(t *testing.T, query string) error {
	var answer struct {
		Data struct{ Result []json.RawMessage }
	}
	if err := p.get(t, "query?query="+url.QueryEscape(query), &answer); err != nil {
		return err
	}
	if len(answer.Data.Result) == 0 {
		return fmt.Errorf("nothing is %s", query)
	}
	return nil
}
