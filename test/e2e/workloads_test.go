package e2e

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

const rollout = 90 * time.Second

// fetch is one HTTP request to this machine; it reports anything but 200 as an error.
func fetch(method, url, body string) (string, error) {
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Close = true // every request is balanced anew
	client := http.Client{Timeout: 5 * time.Second}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("%s %s: %s: %s", method, url, resp.Status, data)
	}
	return string(data), err
}

// The example application: nginx, a Go API, Redis, PostgreSQL with a claim.
func TestGuestbook(t *testing.T) {
	ns := shared.namespace(t)
	shared.kubectl(t, "apply", "-n", ns, "-f", repo("examples/guestbook"))
	shared.kubectl(t, "rollout", "status", "-n", ns, "statefulset/guestbook-postgres", "--timeout=120s")
	shared.kubectl(t, "rollout", "status", "-n", ns, "deployment/guestbook-web", "--timeout=120s")
	shared.kubectl(t, "rollout", "status", "-n", ns, "deployment/guestbook-api", "--timeout=120s")
	url := "http://127.0.0.1:30080/api/entries"
	const entry = `{"author":"e2e","text":"kept"}`
	eventually(t, rollout, func() error {
		_, err := fetch("POST", url, entry)
		return err
	})
	read := func() error {
		body, err := fetch("GET", url, "")
		if err == nil && !strings.Contains(body, "kept") {
			err = fmt.Errorf("entry is not there: %s", body)
		}
		return err
	}
	eventually(t, 10*time.Second, read)

	t.Run("by Service name from inside", func(t *testing.T) {
		shared.kubectl(t, "run", "client", "-n", ns, "--image=busybox:1.35", "--restart=Never", "--",
			"wget", "-qO-", "http://guestbook."+ns+".svc.cluster.local/api/entries")
		shared.kubectl(t, "wait", "-n", ns, "--for=jsonpath={.status.phase}=Succeeded", "pod/client", "--timeout=30s")
		if out := shared.kubectl(t, "logs", "-n", ns, "client"); !strings.Contains(out, "kept") {
			t.Errorf("from a pod: %q", out)
		}
	})
	t.Run("survives deleting the database pod", func(t *testing.T) {
		shared.kubectl(t, "delete", "pod", "-n", ns, "guestbook-postgres-0", "--wait=true")
		shared.kubectl(t, "rollout", "status", "-n", ns, "statefulset/guestbook-postgres", "--timeout=120s")
		eventually(t, rollout, read)
	})
	t.Run("survives a restart of proa", func(t *testing.T) {
		before := containers(t)
		shared.kill(t)
		if err := shared.start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, rollout, read)
		if after := containers(t); after != before {
			t.Errorf("containers changed over a restart\nbefore:\n%s\nafter:\n%s", before, after)
		}
	})
}

// containers are the ids and restart counts of every running container.
func containers(t *testing.T) string {
	t.Helper()
	return shared.kubectl(t, "get", "pods", "-A", "-o",
		`jsonpath={range .items[*]}{.metadata.name}{" "}{range .status.containerStatuses[*]}{.containerID}{" "}{.restartCount}{"\n"}{end}{end}`)
}

func webDeployment(replicas int) string {
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: %d
  selector: {matchLabels: {app: web}}
  strategy: {rollingUpdate: {maxUnavailable: 0, maxSurge: 1}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: server
        image: proa.dev/testserver:1
        args: [serve]
        ports: [{name: http, containerPort: 8080}]
        readinessProbe: {httpGet: {path: /healthz, port: http}, periodSeconds: 1}
        lifecycle: {preStop: {sleep: {seconds: 2}}}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  selector: {app: web}
  ports: [{port: 80, targetPort: http, nodePort: 30090}]
`, replicas)
}

func TestDeployment(t *testing.T) {
	ns := shared.namespace(t)
	shared.apply(t, webDeployment(2), "-n", ns)
	wait := func(t *testing.T) {
		t.Helper()
		shared.kubectl(t, "rollout", "status", "-n", ns, "deployment/web", "--timeout=90s")
	}
	wait(t)
	const url = "http://127.0.0.1:30090/hostname"
	eventually(t, rollout, func() error { _, err := fetch("GET", url, ""); return err })
	ready := func(want string) func() error {
		return func() error {
			out := shared.kubectl(t, "get", "deployment", "web", "-n", ns, "-o", "jsonpath={.status.replicas}/{.status.readyReplicas}")
			if out != want+"/"+want {
				return fmt.Errorf("replicas %s, want %s", out, want)
			}
			return nil
		}
	}
	t.Run("a killed pod is replaced", func(t *testing.T) {
		pod := strings.Fields(shared.kubectl(t, "get", "pods", "-n", ns, "-o", "name"))[0]
		shared.kubectl(t, "delete", "-n", ns, pod)
		eventually(t, rollout, ready("2"))
		if out := shared.kubectl(t, "get", "pods", "-n", ns, "-o", "name"); strings.Contains(out, pod) {
			t.Errorf("%s is still there", pod)
		}
	})
	t.Run("scales from 2 to 5 and back to 1", func(t *testing.T) {
		shared.kubectl(t, "scale", "-n", ns, "deployment/web", "--replicas=5")
		eventually(t, rollout, ready("5"))
		shared.kubectl(t, "scale", "-n", ns, "deployment/web", "--replicas=1")
		eventually(t, rollout, ready("1"))
		shared.kubectl(t, "scale", "-n", ns, "deployment/web", "--replicas=3")
		eventually(t, rollout, ready("3"))
	})
	t.Run("rolls without one failed request, and back", func(t *testing.T) {
		var sent, failed atomic.Int64
		var last atomic.Value
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			for {
				select {
				case <-stop:
					return
				case <-time.After(5 * time.Millisecond):
				}
				sent.Add(1)
				if _, err := fetch("GET", url, ""); err != nil {
					failed.Add(1)
					last.Store(err.Error())
				}
			}
		}()
		shared.kubectl(t, "set", "env", "-n", ns, "deployment/web", "ROLLED=yes")
		wait(t)
		shared.kubectl(t, "rollout", "undo", "-n", ns, "deployment/web")
		wait(t)
		close(stop)
		<-stopped
		if failed.Load() > 0 || sent.Load() == 0 {
			t.Errorf("%d of %d requests failed, the last with %v", failed.Load(), sent.Load(), last.Load())
		}
		if out := shared.kubectl(t, "get", "deployment", "web", "-n", ns, "-o", "jsonpath={.spec.template.spec.containers[0].env}"); out != "" {
			t.Errorf("undo left env %s", out)
		}
	})
}
