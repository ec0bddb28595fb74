package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	cloudprovider "k8s.io/cloud-provider"
)

const (
	provider = "memory"

	// What a test says of an instance or of a load balancer.
	goneLabel      = "memory.example/gone" // of a node: its instance is no more
	modeAnnotation = "memory.example/mode" // of a Service: the ipMode of its address
	defaultMode    = corev1.LoadBalancerIPModeVIP
)

// cloud keeps all that it has in memory.
type cloud struct {
	mu        sync.Mutex // guards what follows
	balancers map[string]corev1.LoadBalancerStatus
	routes    map[string]*cloudprovider.Route
	given     int // addresses of load balancers so far
}

func newCloud() *cloud {
	return &cloud{balancers: map[string]corev1.LoadBalancerStatus{}, routes: map[string]*cloudprovider.Route{}}
}

func (c *cloud) Initialize(cloudprovider.ControllerClientBuilder, <-chan struct{}) {}
func (c *cloud) LoadBalancer() (cloudprovider.LoadBalancer, bool)                  { return c, true }
func (c *cloud) Instances() (cloudprovider.Instances, bool)                        { return nil, false }
func (c *cloud) InstancesV2() (cloudprovider.InstancesV2, bool)                    { return c, true }
func (c *cloud) Zones() (cloudprovider.Zones, bool)                                { return nil, false }
func (c *cloud) Clusters() (cloudprovider.Clusters, bool)                          { return nil, false }
func (c *cloud) Routes() (cloudprovider.Routes, bool)                              { return c, true }
func (c *cloud) ProviderName() string                                              { return provider }
func (c *cloud) HasClusterID() bool                                                { return true }

func (c *cloud) InstanceExists(_ context.Context, node *corev1.Node) (bool, error) {
	return node.Labels[goneLabel] == "", nil
}

func (c *cloud) InstanceShutdown(context.Context, *corev1.Node) (bool, error) { return false, nil }

func (c *cloud) InstanceMetadata(_ context.Context, node *corev1.Node) (*cloudprovider.InstanceMetadata, error) {
	return &cloudprovider.InstanceMetadata{
		ProviderID: provider + "://" + node.Name, InstanceType: "m1.memory", Zone: "zone-1", Region: "region-1",
		NodeAddresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: "192.0.2.10"}, {Type: corev1.NodeExternalIP, Address: "198.51.100.10"},
		},
		AdditionalLabels: map[string]string{"memory.example/rack": "r1"},
	}, nil
}

func (c *cloud) GetLoadBalancerName(_ context.Context, _ string, s *corev1.Service) string {
	return s.Namespace + "-" + s.Name
}

func (c *cloud) GetLoadBalancer(ctx context.Context, cluster string, s *corev1.Service) (*corev1.LoadBalancerStatus, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	status, ok := c.balancers[c.GetLoadBalancerName(ctx, cluster, s)]
	return &status, ok, nil
}

func (c *cloud) EnsureLoadBalancer(ctx context.Context, cluster string, s *corev1.Service, _ []*corev1.Node) (*corev1.LoadBalancerStatus, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	name, mode := c.GetLoadBalancerName(ctx, cluster, s), defaultMode
	if m := s.Annotations[modeAnnotation]; m != "" {
		mode = corev1.LoadBalancerIPMode(m)
	}
	status, ok := c.balancers[name]
	if !ok {
		c.given++
		status.Ingress = []corev1.LoadBalancerIngress{{IP: fmt.Sprintf("203.0.113.%d", c.given)}}
	}
	status.Ingress[0].IPMode = &mode
	c.balancers[name] = status
	return status.DeepCopy(), nil
}

func (c *cloud) UpdateLoadBalancer(context.Context, string, *corev1.Service, []*corev1.Node) error {
	return nil
}

func (c *cloud) EnsureLoadBalancerDeleted(ctx context.Context, cluster string, s *corev1.Service) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.balancers, c.GetLoadBalancerName(ctx, cluster, s))
	return nil
}

func (c *cloud) ListRoutes(context.Context, string) ([]*cloudprovider.Route, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.routes)), nil
}

func (c *cloud) CreateRoute(_ context.Context, _, _ string, route *cloudprovider.Route) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	made := *route
	made.Name = string(route.TargetNode) + "-" + route.DestinationCIDR
	c.routes[made.Name] = &made
	return nil
}

func (c *cloud) DeleteRoute(_ context.Context, _ string, route *cloudprovider.Route) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.routes, route.Name)
	return nil
}
