// Package extender asks programs outside of the process, over HTTP, about where a
// pod may run: the older way to extend the scheduler, with the bodies of
// k8s.io/kube-scheduler/extender/v1. Each verb is a POST to URLPrefix/verb.
package extender

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	configv1 "k8s.io/kube-scheduler/config/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
)

// Name stands for all extenders where a plugin's name is asked for.
const Name = "Extender"

const (
	defaultTimeout = 5 * time.Second
	// maxAnswer bounds an answer, in bytes: it may hold every node of a cluster.
	maxAnswer = 512 << 20
)

// Extender is one such program.
type Extender struct {
	config  configv1.Extender
	client  *http.Client
	managed map[corev1.ResourceName]struct{}
}

// New prepares the connection to an extender; it does not connect yet.
func New(c configv1.Extender) (*Extender, error) {
	transport, err := transportFor(&c)
	if err != nil {
		return nil, err
	}
	e := &Extender{
		config:  c,
		client:  &http.Client{Transport: transport, Timeout: cmp.Or(c.HTTPTimeout.Duration, defaultTimeout)},
		managed: map[corev1.ResourceName]struct{}{},
	}
	for _, r := range c.ManagedResources {
		e.managed[corev1.ResourceName(r.Name)] = struct{}{}
	}
	return e, nil
}

func transportFor(c *configv1.Extender) (http.RoundTripper, error) {
	var conf rest.Config
	if t := c.TLSConfig; t != nil {
		conf.TLSClientConfig = rest.TLSClientConfig{
			Insecure: t.Insecure, ServerName: t.ServerName,
			CertFile: t.CertFile, KeyFile: t.KeyFile, CAFile: t.CAFile,
			CertData: t.CertData, KeyData: t.KeyData, CAData: t.CAData,
		}
	}
	if c.EnableHTTPS && conf.CAFile == "" && len(conf.CAData) == 0 {
		conf.Insecure = true // as upstream: without a CA the server is not verified
	}
	tls, err := rest.TLSConfigFor(&conf)
	if err != nil {
		return nil, fmt.Errorf("extender %s: %w", c.URLPrefix, err)
	}
	return utilnet.SetTransportDefaults(&http.Transport{TLSClientConfig: tls}), nil
}

// Name is the URL that identifies the extender.
func (e *Extender) Name() string { return e.config.URLPrefix }

// Ignorable tells whether pods are placed without the extender when it fails.
func (e *Extender) Ignorable() bool { return e.config.Ignorable }

// Filters, Prioritizes, Preempts and Binds tell which verbs the extender has.
func (e *Extender) Filters() bool     { return e.config.FilterVerb != "" }
func (e *Extender) Prioritizes() bool { return e.config.PrioritizeVerb != "" }
func (e *Extender) Preempts() bool    { return e.config.PreemptVerb != "" }
func (e *Extender) Binds() bool       { return e.config.BindVerb != "" }

// Interested tells whether the extender wants to be asked about a pod: about
// those that use a resource it manages, or about all when it manages none.
func (e *Extender) Interested(pod *corev1.Pod) bool {
	if len(e.managed) == 0 {
		return true
	}
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if e.manages(list[i].Resources.Requests) || e.manages(list[i].Resources.Limits) {
				return true
			}
		}
	}
	return false
}

func (e *Extender) manages(list corev1.ResourceList) bool {
	for name := range list {
		if _, ok := e.managed[name]; ok {
			return true
		}
	}
	return false
}

// Filtered is what an extender says about nodes: the names of those that fit, and
// why others do not. Preemption cannot help on the nodes of Unresolvable.
type Filtered struct {
	Fits                 []string
	Failed, Unresolvable map[string]string
}

// Filter asks which of the nodes fit.
func (e *Extender) Filter(ctx context.Context, pod *corev1.Pod, nodes []*corev1.Node) (*Filtered, error) {
	var result extenderv1.ExtenderFilterResult
	if err := e.send(ctx, e.config.FilterVerb, e.args(pod, nodes), &result); err != nil {
		return nil, err
	}
	if result.Error != "" {
		return nil, errors.New(result.Error)
	}
	f := &Filtered{Failed: result.FailedNodes, Unresolvable: result.FailedAndUnresolvableNodes}
	switch {
	case e.config.NodeCacheCapable && result.NodeNames != nil:
		f.Fits = *result.NodeNames
	case result.Nodes != nil:
		for i := range result.Nodes.Items {
			f.Fits = append(f.Fits, result.Nodes.Items[i].Name)
		}
	}
	known := make(map[string]struct{}, len(nodes))
	for _, n := range nodes {
		known[n.Name] = struct{}{}
	}
	for _, name := range f.Fits {
		if _, ok := known[name]; !ok {
			return nil, fmt.Errorf("extender %q claims a filtered node %q which is not found in the input node list", e.Name(), name)
		}
	}
	return f, nil
}

// Prioritize returns the points that the extender gives to nodes, times its weight.
func (e *Extender) Prioritize(ctx context.Context, pod *corev1.Pod, nodes []*corev1.Node) (map[string]int64, error) {
	var result extenderv1.HostPriorityList
	if err := e.send(ctx, e.config.PrioritizeVerb, e.args(pod, nodes), &result); err != nil {
		return nil, err
	}
	points := make(map[string]int64, len(result))
	for _, h := range result {
		points[h.Host] = h.Score * e.config.Weight
	}
	return points, nil
}

func (e *Extender) args(pod *corev1.Pod, nodes []*corev1.Node) *extenderv1.ExtenderArgs {
	args := &extenderv1.ExtenderArgs{Pod: pod}
	if e.config.NodeCacheCapable {
		names := make([]string, len(nodes))
		for i, n := range nodes {
			names[i] = n.Name
		}
		args.NodeNames = &names
		return args
	}
	args.Nodes = &corev1.NodeList{Items: make([]corev1.Node, len(nodes))}
	for i, n := range nodes {
		args.Nodes.Items[i] = *n
	}
	return args
}

// Preempt asks which of the plans to make room are good, by node; the extender may
// drop nodes and change the victims.
func (e *Extender) Preempt(ctx context.Context, pod *corev1.Pod, victims map[string]*extenderv1.Victims) (map[string]*extenderv1.MetaVictims, error) {
	args := &extenderv1.ExtenderPreemptionArgs{Pod: pod}
	if e.config.NodeCacheCapable {
		args.NodeNameToMetaVictims = map[string]*extenderv1.MetaVictims{}
		for node, v := range victims {
			meta := &extenderv1.MetaVictims{NumPDBViolations: v.NumPDBViolations, Pods: []*extenderv1.MetaPod{}}
			for _, p := range v.Pods {
				meta.Pods = append(meta.Pods, &extenderv1.MetaPod{UID: string(p.UID)})
			}
			args.NodeNameToMetaVictims[node] = meta
		}
	} else {
		args.NodeNameToVictims = victims
	}
	var result extenderv1.ExtenderPreemptionResult
	err := e.send(ctx, e.config.PreemptVerb, args, &result)
	return result.NodeNameToMetaVictims, err
}

// Bind has the extender write the binding.
func (e *Extender) Bind(ctx context.Context, pod *corev1.Pod, node string) error {
	var result extenderv1.ExtenderBindingResult
	args := &extenderv1.ExtenderBindingArgs{PodName: pod.Name, PodNamespace: pod.Namespace, PodUID: pod.UID, Node: node}
	if err := e.send(ctx, e.config.BindVerb, args, &result); err != nil {
		return err
	}
	if result.Error != "" {
		return errors.New(result.Error)
	}
	return nil
}

func (e *Extender) send(ctx context.Context, verb string, args, result any) error {
	body, err := json.Marshal(args)
	if err != nil {
		return err
	}
	url := strings.TrimRight(e.config.URLPrefix, "/") + "/" + verb
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := e.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("failed %v with extender at URL %v, code %v", verb, url, resp.StatusCode)
	}
	return json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(result)
}
