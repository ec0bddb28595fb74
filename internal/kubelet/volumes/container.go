package volumes

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"proa/internal/kubelet/environment"
)

// ContainerMounts returns the mounts and raw block devices of one container,
// after Mount. Vars are the container's variables, for subPathExpr. It prepares
// the subPaths and pulls the images of image volumes, so it is called before each
// start of the container.
func (m *Manager) ContainerMounts(ctx context.Context, pod *corev1.Pod, container *corev1.Container, vars []environment.Variable) ([]*runtimeapi.Mount, []*runtimeapi.Device, error) {
	pv := m.track(pod)
	pv.mu.Lock()
	defer pv.mu.Unlock()
	var mounts []*runtimeapi.Mount
	for i := range container.VolumeMounts {
		mount, err := m.mount(ctx, pv, pod, container, i, vars)
		if err != nil {
			return nil, nil, err
		}
		mounts = append(mounts, mount)
	}
	devices, err := devices(pv, container)
	return mounts, devices, err
}

func (m *Manager) mount(ctx context.Context, pv *podVolumes, pod *corev1.Pod, container *corev1.Container, index int, vars []environment.Variable) (*runtimeapi.Mount, error) {
	vm := &container.VolumeMounts[index]
	v := volumeByName(pod, vm.Name)
	if v == nil {
		return nil, fmt.Errorf("cannot find volume %q to mount into container %q", vm.Name, container.Name)
	}
	subPath, err := subPathOf(vm, vars)
	if err != nil {
		return nil, err
	}
	out := &runtimeapi.Mount{ContainerPath: absolute(vm.MountPath)}
	if err := m.setAccess(out, pv, pod, v, vm); err != nil {
		return nil, err
	}
	if m.idmaps != nil {
		out.UidMappings, out.GidMappings = m.idmaps(pod)
	}
	if v.Image != nil {
		ref, err := m.imageOf(ctx, pv, pod, v)
		if err != nil {
			return nil, err
		}
		out.Image = &runtimeapi.ImageSpec{Image: ref, UserSpecifiedImage: v.Image.Reference}
		out.ImageSubPath = subPath
		return out, nil
	}
	path, err := m.hostPath(pv, pod, v)
	if err != nil {
		return nil, err
	}
	if subPath != "" {
		target := filepath.Join(m.subPathsDir(pod.UID), v.Name, container.Name, strconv.Itoa(index))
		if err := bindSubPath(path, subPath, target, volumeReadOnly(pv, v)); err != nil {
			return nil, fmt.Errorf("failed to prepare subPath for volumeMount %q of container %q: %w", vm.Name, container.Name, err)
		}
		path = target
	}
	out.HostPath = path
	return out, nil
}

func (m *Manager) setAccess(out *runtimeapi.Mount, pv *podVolumes, pod *corev1.Pod, v *corev1.Volume, vm *corev1.VolumeMount) error {
	out.Readonly = vm.ReadOnly || volumeReadOnly(pv, v)
	switch propagation := ptr.Deref(vm.MountPropagation, corev1.MountPropagationNone); propagation {
	case corev1.MountPropagationNone:
		out.Propagation = runtimeapi.MountPropagation_PROPAGATION_PRIVATE
	case corev1.MountPropagationHostToContainer:
		out.Propagation = runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER
	case corev1.MountPropagationBidirectional:
		out.Propagation = runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL
	default:
		return fmt.Errorf("invalid MountPropagation mode: %q", propagation)
	}
	recursive, err := m.recursiveReadOnly(pod, vm)
	if err != nil {
		return err
	}
	out.RecursiveReadOnly = recursive
	if recursive {
		out.Readonly = true
	}
	return nil
}

// recursiveReadOnly applies KEP-3857's rules.
func (m *Manager) recursiveReadOnly(pod *corev1.Pod, vm *corev1.VolumeMount) (bool, error) {
	mode := ptr.Deref(vm.RecursiveReadOnly, corev1.RecursiveReadOnlyDisabled)
	if mode == corev1.RecursiveReadOnlyDisabled || (mode == corev1.RecursiveReadOnlyIfPossible && !vm.ReadOnly) {
		return false, nil
	}
	supported := m.rro(pod)
	switch mode {
	case corev1.RecursiveReadOnlyIfPossible:
		private := ptr.Deref(vm.MountPropagation, corev1.MountPropagationNone) == corev1.MountPropagationNone
		return supported && private, nil
	case corev1.RecursiveReadOnlyEnabled:
		switch {
		case !vm.ReadOnly:
			return false, fmt.Errorf("volume %q requested recursive read-only mode, but it is not read-only", vm.Name)
		case ptr.Deref(vm.MountPropagation, corev1.MountPropagationNone) != corev1.MountPropagationNone:
			return false, fmt.Errorf("volume %q requested recursive read-only mode, but it is not compatible with propagation %q", vm.Name, *vm.MountPropagation)
		case !supported:
			return false, fmt.Errorf("volume %q requested recursive read-only mode, but it is not supported by the runtime", vm.Name)
		}
		return true, nil
	}
	return false, fmt.Errorf("unknown recursive read-only mode %q", mode)
}

func devices(pv *podVolumes, container *corev1.Container) ([]*runtimeapi.Device, error) {
	var out []*runtimeapi.Device
	for _, d := range container.VolumeDevices {
		c := pv.claims[d.Name]
		if c == nil || !c.block {
			return nil, fmt.Errorf("cannot find volume %q to pass into container %q", d.Name, container.Name)
		}
		permissions := "mrw"
		if c.readOnly {
			permissions = "r"
		}
		out = append(out, &runtimeapi.Device{HostPath: c.path, ContainerPath: absolute(d.DevicePath), Permissions: permissions})
	}
	return out, nil
}

// ReadFile reads a file of a pod's volume, for variables with fileKeyRef.
func (m *Manager) ReadFile(pod *corev1.Pod, volume, path string) ([]byte, error) {
	pv := m.track(pod)
	pv.mu.Lock()
	defer pv.mu.Unlock()
	v := volumeByName(pod, volume)
	if v == nil {
		return nil, fmt.Errorf("cannot find volume %q", volume)
	}
	dir, err := m.hostPath(pv, pod, v)
	if err != nil {
		return nil, err
	}
	return readIn(dir, path, envFileLimit)
}

// hostPath is where a volume's contents are on this node.
func (m *Manager) hostPath(pv *podVolumes, pod *corev1.Pod, v *corev1.Volume) (string, error) {
	switch {
	case v.HostPath != nil:
		return v.HostPath.Path, nil
	case kindOf(v) != "":
		return m.volumeDir(pod.UID, kindOf(v), v.Name), nil
	}
	c := pv.claims[v.Name]
	if c == nil {
		return "", fmt.Errorf("volume %q is not mounted", v.Name)
	}
	if c.block {
		return "", fmt.Errorf("volume %q has volumeMode Block, but is specified in volumeMounts", v.Name)
	}
	return c.path, nil
}

func volumeReadOnly(pv *podVolumes, v *corev1.Volume) bool {
	if isPayload(v) || v.Image != nil {
		return true
	}
	c := pv.claims[v.Name]
	return c != nil && c.readOnly
}

func volumeByName(pod *corev1.Pod, name string) *corev1.Volume {
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].Name == name {
			return &pod.Spec.Volumes[i]
		}
	}
	return nil
}

func subPathOf(vm *corev1.VolumeMount, vars []environment.Variable) (string, error) {
	subPath := vm.SubPath
	if vm.SubPathExpr != "" {
		var err error
		if subPath, err = environment.ExpandStrict(vm.SubPathExpr, vars); err != nil {
			return "", err
		}
	}
	if subPath == "" {
		return "", nil
	}
	if filepath.IsAbs(subPath) {
		return "", fmt.Errorf("error SubPath `%s` must not be an absolute path", subPath)
	}
	for name := range strings.SplitSeq(subPath, "/") {
		if name == ".." {
			return "", fmt.Errorf("unable to provision SubPath `%s`: %w", subPath, errBackstep)
		}
	}
	return subPath, nil
}

var errBackstep = errors.New("must not contain '..'")

func absolute(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join("/", path)
}
