package kubelet

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"proa/internal/apis/builtin"
	apiregistry "proa/internal/apiserver/registry"
	"proa/internal/client"
	"proa/internal/kubelet/admit"
	"proa/internal/kubelet/deviceplugins"
	"proa/internal/kubelet/node"
	"proa/internal/store"
	"proa/internal/store/memory"
)

func TestALabelThatJustCameIsSeenBeforeAPodIsRefused(t *testing.T) {
	catalogue := builtin.Catalogue()
	s, err := store.Open(t.Context(), store.Config{Engine: memory.New(), Codec: apiregistry.NewCodec(catalogue)})
	must(t, err)
	defer s.Close()
	r, err := apiregistry.New(apiregistry.Config{Store: s, Catalogue: catalogue})
	must(t, err)
	api := r.As(&user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}})
	nodes := client.Of[*corev1.Node](api)
	n, err := nodes.Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n"},
		Status:     corev1.NodeStatus{Allocatable: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("10")}},
	})
	must(t, err)
	agent := node.New(node.Config{API: api, Name: "n"})
	_, err = agent.Read(t.Context())
	must(t, err)
	plugins, err := deviceplugins.New(deviceplugins.Config{RootDir: t.TempDir()})
	must(t, err)
	admits := admission(agent, admit.Rules{}, devices{plugins: plugins})
	p := &corev1.Pod{Spec: corev1.PodSpec{NodeSelector: map[string]string{"fresh": "yes"}}}
	if end := admits(t.Context(), p, nil); end == nil || end.Reason != "NodeAffinity" {
		t.Errorf("without the label: %+v", end)
	}
	n = n.DeepCopy()
	n.Labels = map[string]string{"fresh": "yes"}
	_, err = nodes.Update(t.Context(), n)
	must(t, err)
	if end := admits(t.Context(), p, nil); end != nil {
		t.Errorf("with the label: %+v", end)
	}
}
