package main

import (
	"context"
	"fmt"
	"net"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/app"
	"k8s.io/cloud-provider/app/config"
	genericcontrollermanager "k8s.io/controller-manager/app"
	"k8s.io/controller-manager/controller"
	"k8s.io/klog/v2"
)

const nodeIPAM = "node-ipam-controller"

// startNodeIPAM gives nodes without one a range of pod addresses: a /24 of --cluster-cidr.
func startNodeIPAM(init app.ControllerInitContext, c *config.CompletedConfig, _ cloudprovider.Interface) app.InitFunc {
	return func(ctx context.Context, _ genericcontrollermanager.ControllerContext) (controller.Interface, bool, error) {
		shared := c.ComponentConfig.KubeCloudShared
		if !shared.AllocateNodeCIDRs {
			return nil, false, nil
		}
		_, cluster, err := net.ParseCIDR(shared.ClusterCIDR)
		if err != nil {
			return nil, false, err
		}
		a := &allocator{ctx: ctx, cluster: cluster.IP.To4(), client: c.ClientBuilder.ClientOrDie(init.ClientName)}
		nodes := c.SharedInformers.Core().V1().Nodes().Informer()
		_, err = nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    a.give,
			UpdateFunc: func(_, obj any) { a.give(obj) },
		})
		return nil, err == nil, err
	}
}

type allocator struct {
	ctx     context.Context
	cluster net.IP
	client  kubernetes.Interface
	next    int // of one handler, which is called for one event at a time
}

func (a *allocator) give(obj any) {
	node := obj.(*corev1.Node)
	if a.ctx.Err() != nil || node.Spec.PodCIDR != "" {
		return
	}
	a.next++
	cidr := fmt.Sprintf("%d.%d.%d.0/24", a.cluster[0], a.cluster[1], a.next)
	patch := fmt.Sprintf(`{"metadata":{"uid":%q},"spec":{"podCIDR":%q,"podCIDRs":[%q]}}`, node.UID, cidr, cidr)
	if _, err := a.client.CoreV1().Nodes().Patch(a.ctx, node.Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		klog.Errorf("node %s gets no range: %v", node.Name, err)
	}
}
