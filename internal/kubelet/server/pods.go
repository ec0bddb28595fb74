package server

import (
	"context"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Labels that the node agent puts on sandboxes and containers, as upstream's does.
const (
	podNameLabel       = "io.kubernetes.pod.name"
	podNamespaceLabel  = "io.kubernetes.pod.namespace"
	podUIDLabel        = "io.kubernetes.pod.uid"
	containerNameLabel = "io.kubernetes.container.name"
)

// pods lists the pods bound to this node.
func (s *Server) pods(w http.ResponseWriter, _ *http.Request) {
	list := &corev1.PodList{
		TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: []corev1.Pod{},
	}
	for _, pod := range s.c.Pods() {
		list.Items = append(list.Items, *pod)
	}
	writeJSON(w, list)
}

// runningPods lists the pods that have running containers, as the runtime says.
func (s *Server) runningPods(w http.ResponseWriter, r *http.Request) {
	resp, err := s.c.Runtime.ListContainers(r.Context(), &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	}})
	if err != nil {
		writeError(w, err)
		return
	}
	list := &corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: []corev1.Pod{}}
	index := map[string]int{}
	for _, c := range resp.GetContainers() {
		uid := c.Labels[podUIDLabel]
		i, ok := index[uid]
		if !ok {
			i = len(list.Items)
			index[uid] = i
			list.Items = append(list.Items, corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				Name: c.Labels[podNameLabel], Namespace: c.Labels[podNamespaceLabel], UID: types.UID(uid),
			}})
		}
		spec := &list.Items[i].Spec
		spec.Containers = append(spec.Containers, corev1.Container{Name: c.Labels[containerNameLabel], Image: c.GetImage().GetImage()})
	}
	writeJSON(w, list)
}

// pod finds the pod that a path names.
func (s *Server) pod(r *http.Request) (*corev1.Pod, error) {
	namespace, name, uid := r.PathValue("namespace"), r.PathValue("pod"), r.PathValue("uid")
	for _, pod := range s.c.Pods() {
		if pod.Namespace == namespace && pod.Name == name && (uid == "" || string(pod.UID) == uid) {
			return pod, nil
		}
	}
	return nil, fail(http.StatusNotFound, "pod does not exist")
}

// runningContainer returns the runtime's id of the container that a path names.
func (s *Server) runningContainer(r *http.Request) (string, error) {
	pod, err := s.pod(r)
	if err != nil {
		return "", err
	}
	name := r.PathValue("container")
	status := containerStatus(pod, name)
	if status == nil || status.State.Running == nil || status.ContainerID == "" {
		return "", fail(http.StatusInternalServerError, "container not found (%q)", name)
	}
	return runtimeID(status.ContainerID), nil
}

// hasTerminal says whether the container was started with a terminal.
func (s *Server) hasTerminal(r *http.Request) bool {
	pod, err := s.pod(r)
	if err != nil {
		return false
	}
	name := r.PathValue("container")
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return list[i].TTY
			}
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if c := &pod.Spec.EphemeralContainers[i]; c.Name == name {
			return c.TTY
		}
	}
	return false
}

// sandbox returns the id of a pod's running sandbox.
func (s *Server) sandbox(ctx context.Context, pod *corev1.Pod) (string, error) {
	resp, err := s.c.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{
		LabelSelector: map[string]string{podUIDLabel: string(pod.UID)},
		State:         &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY},
	}})
	if err != nil {
		return "", err
	}
	var newest *runtimeapi.PodSandbox
	for _, sb := range resp.GetItems() {
		if newest == nil || sb.CreatedAt > newest.CreatedAt {
			newest = sb
		}
	}
	if newest == nil {
		return "", fail(http.StatusNotFound, "sandbox of pod %s_%s is not running", pod.Name, pod.Namespace)
	}
	return newest.Id, nil
}

func containerStatus(pod *corev1.Pod, name string) *corev1.ContainerStatus {
	for _, list := range [][]corev1.ContainerStatus{
		pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses, pod.Status.EphemeralContainerStatuses,
	} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

// hasContainer says whether a pod's spec names a container of any kind.
func hasContainer(pod *corev1.Pod, name string) bool {
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == name {
			return true
		}
	}
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Name == name {
			return true
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if pod.Spec.EphemeralContainers[i].Name == name {
			return true
		}
	}
	return false
}

// runtimeID strips the runtime's name from a container id of a pod's status.
func runtimeID(id string) string {
	if _, rest, ok := strings.Cut(id, "://"); ok {
		return rest
	}
	return id
}
