package kubelet

import (
	"cmp"
	"errors"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
)

// pulse tells whether the loop that keeps house still turns.
type pulse struct {
	clock clock.PassiveClock
	last  atomic.Int64 // Unix nanoseconds
}

func newPulse(c clock.PassiveClock) *pulse {
	p := &pulse{clock: c}
	p.beat()
	return p
}

func (p *pulse) beat() { p.last.Store(p.clock.Now().UnixNano()) }

// check is an error when the loop missed two of its turns.
func (p *pulse) check() error {
	if p.clock.Since(time.Unix(0, p.last.Load())) > 2*houseInterval {
		return errors.New("sync Loop took longer than expected")
	}
	return nil
}

// configuration is what this agent is configured to do, as upstream's kind says
// it. What that kind has and this agent does not is left out, intervals too,
// which the kind itself would show as 0s.
func (k *Kubelet) configuration(systemd bool) (map[string]any, error) {
	c := &k.c
	driver := "cgroupfs"
	if systemd {
		driver = "systemd"
	}
	out := &kubeletv1beta1.KubeletConfiguration{
		TypeMeta:      metav1.TypeMeta{APIVersion: kubeletv1beta1.SchemeGroupVersion.String(), Kind: "KubeletConfiguration"},
		StaticPodPath: c.ManifestDir, Address: c.Address, Port: c.Port,
		Authentication: kubeletv1beta1.KubeletAuthentication{
			Anonymous: kubeletv1beta1.KubeletAnonymousAuthentication{Enabled: ptr.To(false)},
			Webhook:   kubeletv1beta1.KubeletWebhookAuthentication{Enabled: ptr.To(true)},
		},
		Authorization: kubeletv1beta1.KubeletAuthorization{Mode: kubeletv1beta1.KubeletAuthorizationModeWebhook},
		ClusterDomain: c.ClusterDomain, ClusterDNS: c.ClusterDNS, ContainerRuntimeEndpoint: c.Runtime,
		CgroupRoot: c.CgroupRoot, CgroupDriver: driver, CgroupsPerQOS: ptr.To(!c.NoCgroups),
		MaxPods: int32(c.MaxPods), PodPidsLimit: ptr.To(c.PodPidsLimit), ResolverConfig: ptr.To(c.ResolvConf),
		SerializeImagePulls: ptr.To(false), MaxParallelImagePulls: ptr.To(int32(cmp.Or(c.ParallelPulls, 5))),
		AllowedUnsafeSysctls: c.UnsafeSysctls, SeccompDefault: ptr.To(c.SeccompDefault), ProviderID: c.ProviderID,
		PodLogsDir: c.LogDir, FailCgroupV1: ptr.To(false), RegisterNode: ptr.To(true), RegisterWithTaints: c.NodeTaints,
	}
	if c.PodPidsLimit == 0 {
		out.PodPidsLimit = ptr.To[int64](-1)
	}
	out.NodeStatusReportFrequency = metav1.Duration{Duration: 5 * time.Minute}
	out.NodeLeaseDurationSeconds = 40
	out.SyncFrequency = metav1.Duration{Duration: houseInterval}
	shown, err := runtime.DefaultUnstructuredConverter.ToUnstructured(out)
	if err != nil {
		return nil, err
	}
	withoutZero(shown)
	return shown, nil
}

func withoutZero(object map[string]any) {
	for key, value := range object {
		switch value := value.(type) {
		case map[string]any:
			if withoutZero(value); len(value) == 0 {
				delete(object, key)
			}
		case string:
			if value == "0s" {
				delete(object, key)
			}
		}
	}
}
