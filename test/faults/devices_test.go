package faults

import (
	"context"
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// The devices of the story: three on every node. Pods of "trained" take one each
// from a template, those of "sharing" have one together, which tolerates anything, and
// those of "served" ask for them as an extended resource.
const (
	driver   = "gpu.example.com"
	devices  = 3 // of a node
	recalled = "gpu-0"
	extended = "example.com/gpu"
)

func publish(t *testing.T, c *cluster) {
	ctx, api, must := t.Context(), c.user.ResourceV1(), must(t)
	must(api.DeviceClasses().Create(ctx, &resourcev1.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: "gpu"}, Spec: resourcev1.DeviceClassSpec{ExtendedResourceName: ptr.To(extended)},
	}, metav1.CreateOptions{}))
	for i := range nodes {
		node := fmt.Sprint("sim-", i)
		slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: resourcev1.ResourceSliceSpec{
			Driver: driver, NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
		}}
		for j := range devices {
			slice.Spec.Devices = append(slice.Spec.Devices, resourcev1.Device{Name: fmt.Sprint("gpu-", j)})
		}
		must(api.ResourceSlices().Create(ctx, slice, metav1.CreateOptions{}))
	}
	one := func(tolerations ...resourcev1.DeviceToleration) resourcev1.ResourceClaimSpec {
		return resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
			Name: "r", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu", Tolerations: tolerations},
		}}}}
	}
	must(api.ResourceClaimTemplates(work).Create(ctx, &resourcev1.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: "gpu"}, Spec: resourcev1.ResourceClaimTemplateSpec{Spec: one()},
	}, metav1.CreateOptions{}))
	must(api.ResourceClaims(work).Create(ctx, &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "shared"}, Spec: one(resourcev1.DeviceToleration{Operator: resourcev1.DeviceTolerationOpExists, Effect: resourcev1.DeviceTaintEffectNoExecute}),
	}, metav1.CreateOptions{}))
	for name, change := range map[string]func(*corev1.PodSpec){
		"trained": func(s *corev1.PodSpec) {
			s.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: ptr.To("gpu")}}
		},
		"sharing": func(s *corev1.PodSpec) {
			s.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: ptr.To("shared")}}
		},
		"served": func(s *corev1.PodSpec) {
			one := corev1.ResourceList{extended: resource.MustParse("1")}
			s.Containers[0].Resources = corev1.ResourceRequirements{Requests: one, Limits: one}
		},
	} {
		d := &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       appsv1.DeploymentSpec{Replicas: ptr.To[int32](2), Selector: selector(name), Template: template(name, "v1")},
		}
		change(&d.Spec.Template.Spec)
		must(c.user.AppsV1().Deployments(work).Create(ctx, d, metav1.CreateOptions{}))
	}
}

// equipped tells which pods that want devices have none yet.
func equipped(ctx context.Context, api kubernetes.Interface, trained int32) error {
	for name, replicas := range map[string]int32{"trained": trained, "sharing": 2, "served": 2} {
		d, err := api.AppsV1().Deployments(work).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if s := d.Status; s.Replicas != replicas || s.AvailableReplicas != replicas || s.ObservedGeneration != d.Generation {
			return fmt.Errorf("deployment %s: %d of %d available; %s", name, s.AvailableReplicas, s.Replicas, waiting(ctx, api, name))
		}
	}
	return nil
}

// waiting tells of the pods of a Deployment, and of the claims.
func waiting(ctx context.Context, api kubernetes.Interface, name string) string {
	text := ""
	pods, err := api.CoreV1().Pods(work).List(ctx, metav1.ListOptions{LabelSelector: "app=" + name})
	if err != nil {
		return err.Error()
	}
	for _, p := range pods.Items {
		text += fmt.Sprintf("pod %s on %q: %+v %+v; ", p.Name, p.Spec.NodeName, p.Status.Conditions, p.Status.ExtendedResourceClaimStatus)
	}
	claims, err := api.ResourceV1().ResourceClaims(work).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	for _, c := range claims.Items {
		text += fmt.Sprintf("claim %s of %+v, finalizers %v: %+v; ", c.Name, c.OwnerReferences, c.Finalizers, c.Status)
	}
	return text
}

// recall taints one device of every node, and wants one pod more. Who has such a
// device has to go.
func recall(t *testing.T, c *cluster) {
	must(t)(c.user.ResourceV1().DeviceTaintRules().Create(t.Context(), &resourcev1.DeviceTaintRule{
		ObjectMeta: metav1.ObjectMeta{Name: "recall"},
		Spec: resourcev1.DeviceTaintRuleSpec{
			DeviceSelector: &resourcev1.DeviceTaintSelector{Driver: ptr.To(driver), Device: ptr.To(recalled)},
			Taint:          resourcev1.DeviceTaint{Key: "example.com/recalled", Effect: resourcev1.DeviceTaintEffectNoExecute},
		},
	}, metav1.CreateOptions{}))
	must(t)(c.user.AppsV1().Deployments(work).Patch(t.Context(), "trained", types.MergePatchType, []byte(`{"spec":{"replicas":3}}`), metav1.PatchOptions{}))
}

// reequipped tells what is not so yet after the recall: pods that keep a recalled
// device, devices that are given twice, claims of pods that are gone.
func reequipped(ctx context.Context, api kubernetes.Interface) error {
	if err := equipped(ctx, api, 3); err != nil {
		return err
	}
	rule, err := api.ResourceV1().DeviceTaintRules().Get(ctx, "recall", metav1.GetOptions{})
	if err != nil {
		return err
	}
	if !meta.IsStatusConditionFalse(rule.Status.Conditions, resourcev1.DeviceTaintConditionEvictionInProgress) {
		return fmt.Errorf("rule recall: %+v", rule.Status)
	}
	claims, err := api.ResourceV1().ResourceClaims(work).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if len(claims.Items) != 3+1+2 {
		return fmt.Errorf("%d claims", len(claims.Items))
	}
	given := map[string]string{}
	for _, claim := range claims.Items {
		a := claim.Status.Allocation
		if a == nil || len(a.Devices.Results) != 1 {
			return fmt.Errorf("claim %s: %+v", claim.Name, claim.Status)
		}
		r := a.Devices.Results[0]
		device := r.Pool + "/" + r.Device
		if given[device] != "" || r.Device == recalled && claim.Name != "shared" {
			return fmt.Errorf("claim %s has %s, as has %q", claim.Name, device, given[device])
		}
		given[device] = claim.Name
	}
	return nil
}
