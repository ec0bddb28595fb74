package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
)

func isPayload(v *corev1.Volume) bool {
	return v.ConfigMap != nil || v.Secret != nil || v.DownwardAPI != nil || v.Projected != nil
}

// kindOf names a volume's directory as upstream's plugins do.
func kindOf(v *corev1.Volume) string {
	switch {
	case v.EmptyDir != nil:
		return "empty-dir"
	case v.ConfigMap != nil:
		return "configmap"
	case v.Secret != nil:
		return "secret"
	case v.DownwardAPI != nil:
		return "downward-api"
	case v.Projected != nil:
		return "projected"
	}
	return ""
}

// sourceKind is the name of the field that is set in a volume.
func sourceKind(v *corev1.Volume) string {
	s := reflect.ValueOf(v.VolumeSource)
	for i := range s.NumField() {
		if !s.Field(i).IsNil() {
			name, _, _ := strings.Cut(s.Type().Field(i).Tag.Get("json"), ",")
			return name
		}
	}
	return "unknown"
}

// setUpPayload writes a volume's files, into memory for all but ConfigMaps:
// what is secret never reaches a disk.
func (m *Manager) setUpPayload(ctx context.Context, pod *corev1.Pod, v *corev1.Volume) error {
	p, err := m.payloadOf(ctx, pod, v)
	if err != nil {
		return err
	}
	dir := m.volumeDir(pod.UID, kindOf(v), v.Name)
	if err := makeVolumeDir(dir); err != nil {
		return err
	}
	if v.ConfigMap == nil {
		if err := mountIn(dir, "tmpfs", memoryOptions()); err != nil {
			return err
		}
	}
	return writePayload(dir, p, m.clock.Now(), func(fresh string) error { return own(fresh, pod, true) })
}

// memoryOptions of a tmpfs, whose directory everyone may write and nobody may
// clear of others' files. Secrets and memory volumes never reach a swap device.
func memoryOptions() string {
	if swapOn() {
		return "noswap,mode=1777"
	}
	return "mode=1777"
}

// makeVolumeDir makes a volume's directory. What is mounted on it keeps its mode.
func makeVolumeDir(dir string) error {
	if err := os.MkdirAll(dir, podDirMode); err != nil {
		return err
	}
	mounted, err := isMountPoint(dir)
	if err != nil || mounted {
		return err
	}
	return unix.Chmod(dir, volumeMode)
}

func (m *Manager) setUpEmptyDir(pod *corev1.Pod, v *corev1.Volume) error {
	dir := m.volumeDir(pod.UID, kindOf(v), v.Name)
	if v.EmptyDir.Medium == corev1.StorageMediumDefault && prepared(dir, pod) {
		return nil // the containers may be running: leave modes and owners alone
	}
	if err := makeVolumeDir(dir); err != nil {
		return err
	}
	if v.EmptyDir.Medium != corev1.StorageMediumDefault {
		mounted, err := isMountPoint(dir)
		if err != nil || mounted {
			return err
		}
		if err := m.mountMedium(pod, v, dir); err != nil {
			return err
		}
	}
	if err := setEmptyDirMode(dir, v.EmptyDir); err != nil {
		return err
	}
	return own(dir, pod, false)
}

// setEmptyDirMode gives the directory the mode that was asked for, in 0 to 01777.
// Without one, memory keeps the mode it was mounted with.
func setEmptyDirMode(dir string, e *corev1.EmptyDirVolumeSource) error {
	if e.Mode != nil {
		return unix.Chmod(dir, uint32(*e.Mode)&0o1777)
	}
	if e.Medium == corev1.StorageMediumMemory {
		return nil
	}
	return unix.Chmod(dir, volumeMode)
}

func (m *Manager) mountMedium(pod *corev1.Pod, v *corev1.Volume, dir string) error {
	medium := string(v.EmptyDir.Medium)
	if medium == string(corev1.StorageMediumMemory) {
		options := memoryOptions()
		if size := m.memorySize(pod, v.EmptyDir.SizeLimit); size > 0 {
			options += fmt.Sprintf(",size=%d", size)
		}
		return mountIn(dir, "tmpfs", options)
	}
	if page, ok := strings.CutPrefix(medium, string(corev1.StorageMediumHugePagesPrefix)); ok {
		size, err := resource.ParseQuantity(page)
		if err != nil {
			return fmt.Errorf("medium %s: %w", medium, err)
		}
		return mountIn(dir, "hugetlbfs", fmt.Sprintf("pagesize=%d", size.Value()))
	}
	if medium == string(corev1.StorageMediumHugePages) {
		size, err := onlyPageSize(pod)
		if err != nil {
			return err
		}
		return mountIn(dir, "hugetlbfs", fmt.Sprintf("pagesize=%d", size))
	}
	return fmt.Errorf("unknown storage medium %q", medium)
}

// memorySize of a tmpfs is the least of the node's allocatable memory, the
// pod's memory limit if all its containers have one, and sizeLimit (KEP-1967).
// 0 means the kernel's own limit.
func (m *Manager) memorySize(pod *corev1.Pod, limit *resource.Quantity) int64 {
	var size int64
	least := func(q resource.Quantity) {
		if n := q.Value(); n > 0 && (size == 0 || n < size) {
			size = n
		}
	}
	allocatable := m.allocatable()
	least(allocatable[corev1.ResourceMemory])
	if allLimitMemory(pod) {
		limits := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})
		least(limits[corev1.ResourceMemory])
	}
	if limit != nil {
		least(*limit)
	}
	return size
}

func allLimitMemory(pod *corev1.Pod) bool {
	if resourcehelper.IsPodLevelLimitsSet(pod) {
		if _, ok := pod.Spec.Resources.Limits[corev1.ResourceMemory]; ok {
			return true
		}
	}
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Resources.Limits.Memory().IsZero() {
			return false
		}
	}
	return true
}

// onlyPageSize is the one huge page size that a pod's containers ask for.
func onlyPageSize(pod *corev1.Pod) (int64, error) {
	var found *resource.Quantity
	for i := range pod.Spec.Containers {
		for name := range pod.Spec.Containers[i].Resources.Requests {
			text, ok := strings.CutPrefix(string(name), corev1.ResourceHugePagesPrefix)
			if !ok {
				continue
			}
			size, err := resource.ParseQuantity(text)
			if err != nil {
				return 0, err
			}
			if found != nil && found.Cmp(size) != 0 {
				return 0, errors.New("medium HugePages can not be used with multiple huge page sizes")
			}
			found = &size
		}
	}
	if found == nil {
		return 0, errors.New("cannot get huge page size: no container requests huge pages")
	}
	return found.Value(), nil
}

// imageOf pulls the image of a volume, once for a pod, and returns its reference.
func (m *Manager) imageOf(ctx context.Context, pv *podVolumes, pod *corev1.Pod, v *corev1.Volume) (string, error) {
	if m.pull == nil {
		return "", errors.New("image volumes are not supported by this node")
	}
	if ref := pv.images[v.Name]; ref != "" {
		return ref, nil
	}
	ref, err := m.pull(ctx, pod, v.Image)
	if err != nil {
		return "", err
	}
	pv.images[v.Name] = ref
	return ref, nil
}
