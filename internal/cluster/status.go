package cluster

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"proa/internal/apis/builtin"
	"proa/internal/client"
)

// Part is one part of a cluster and whether it is well.
type Part struct {
	Name    string
	Healthy bool
	Detail  string
}

const askTimeout = 5 * time.Second

// Describe returns how to use the running cluster of l. It asks the API server,
// so an error means that it does not answer.
func Describe(ctx context.Context, l Layout) (*Summary, error) {
	settings, err := readSettings(l)
	if err != nil {
		return nil, err
	}
	if settings == nil {
		return nil, fmt.Errorf("there is no cluster in %s", l.Data)
	}
	if err := askReady(ctx, l); err != nil {
		return nil, err
	}
	summary := summarize(l, *settings, Options{Node: true, Merge: true})
	return &summary, nil
}

func restConfig(l Layout) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", l.Kubeconfig())
	if err != nil {
		return nil, err
	}
	config.Timeout = askTimeout
	return config, nil
}

func askReady(ctx context.Context, l Layout) error {
	config, err := restConfig(l)
	if err != nil {
		return err
	}
	config.GroupVersion = &corev1.SchemeGroupVersion
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	c, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return err
	}
	return c.Get().AbsPath("/readyz").Do(ctx).Error()
}

// Status says what of the cluster of l is well: process, API server, nodes, and
// the pods that should be ready.
func Status(ctx context.Context, l Layout) ([]Part, error) {
	settings, err := readSettings(l)
	if err != nil {
		return nil, err
	}
	if settings == nil {
		return nil, fmt.Errorf("there is no cluster in %s; start one with: proa up", l.Data)
	}
	pid, err := Running(l)
	if err != nil {
		return nil, err
	}
	start := "proa up"
	if settings.Server != "" {
		start = "proa agent"
	}
	process := Part{Name: "process", Healthy: pid != 0, Detail: fmt.Sprintf("pid %d, data in %s", pid, l.Data)}
	if pid == 0 {
		process.Detail = "not running; start it with: " + start
		return []Part{process}, nil
	}
	api := Part{Name: "API server", Healthy: true, Detail: settings.server()}
	if err := askReady(ctx, l); err != nil {
		api.Healthy, api.Detail = false, err.Error()
		return []Part{process, api}, nil
	}
	config, err := restConfig(l)
	if err != nil {
		return nil, err
	}
	c, err := client.NewHTTP(config, builtin.Catalogue())
	if err != nil {
		return nil, err
	}
	parts := []Part{process, api}
	theirs, running := metav1.ListOptions{}, metav1.ListOptions{}
	if settings.Server != "" { // of an agent that is its own node, and the pods there
		theirs.FieldSelector = fields.OneTermEqualSelector("metadata.name", settings.NodeName).String()
		running.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", settings.NodeName).String()
	}
	nodes, err := client.Of[*corev1.Node](c).List(ctx, "", theirs)
	if err != nil {
		return nil, err
	}
	for _, n := range nodes {
		parts = append(parts, nodePart(n))
	}
	pods, err := client.Of[*corev1.Pod](c).List(ctx, "", running)
	if err != nil {
		return nil, err
	}
	return append(parts, podsPart(pods)), nil
}

// server is the API server's address for this host.
func (s Settings) server() string {
	if s.Server != "" {
		return s.Server
	}
	return s.localServer()
}

func nodePart(n *corev1.Node) Part {
	part := Part{Name: "node " + n.Name, Detail: "reports no Ready condition"}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			part.Healthy, part.Detail = c.Status == corev1.ConditionTrue, c.Message
		}
	}
	return part
}

func podsPart(pods []*corev1.Pod) Part {
	readyPods, expected := 0, 0
	for _, pod := range pods {
		if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed || pod.DeletionTimestamp != nil {
			continue
		}
		expected++
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
				readyPods++
			}
		}
	}
	return Part{Name: "pods", Healthy: readyPods == expected, Detail: fmt.Sprintf("%d of %d ready", readyPods, expected)}
}
