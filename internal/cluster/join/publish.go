// Package join is how a node comes to trust a cluster, and the cluster the node:
// what kubeadm's init, token and join do. The cluster shows a ConfigMap, signed
// with every bootstrap token, that holds its certificate authority; who knows a
// token can tell that it is genuine, and then uses the token to ask for a
// certificate as a node. Names and formats are kubeadm's, so that its tools read
// what is published here.
package join

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"proa/internal/client"
)

// Cluster is what a cluster tells those who join.
type Cluster struct {
	Server            string // https://host:port, as nodes reach it
	CA                []byte // PEM
	KubernetesVersion string
	Networking        Networking
}

// Networking is the part of kubeadm's ClusterConfiguration that nodes need.
type Networking struct {
	DNSDomain     string `json:"dnsDomain"`
	PodSubnet     string `json:"podSubnet"`
	ServiceSubnet string `json:"serviceSubnet"`
}

// clusterConfiguration is kubeadm's kind, as far as it is used.
type clusterConfiguration struct {
	metav1.TypeMeta      `json:",inline"`
	ClusterName          string     `json:"clusterName"`
	ControlPlaneEndpoint string     `json:"controlPlaneEndpoint,omitempty"`
	KubernetesVersion    string     `json:"kubernetesVersion"`
	Networking           Networking `json:"networking"`
}

const (
	configName  = "kubeadm-config"
	configKey   = "ClusterConfiguration"
	networkRole = "proa:node-network"
)

// Publish makes the cluster one that nodes can join. The two ConfigMaps follow c;
// roles and bindings stay as they are once they exist.
func Publish(ctx context.Context, api client.API, c Cluster) error {
	info, err := c.info()
	if err != nil {
		return err
	}
	config, err := c.configuration()
	if err != nil {
		return err
	}
	if err := ensureConfigMap(ctx, api, metav1.NamespacePublic, infoName, infoKey, info); err != nil {
		return err
	}
	if err := ensureConfigMap(ctx, api, metav1.NamespaceSystem, configName, configKey, config); err != nil {
		return err
	}
	for _, role := range clusterRoles() {
		if err := ensure(ctx, api, role); err != nil {
			return err
		}
	}
	for _, binding := range clusterRoleBindings() {
		if err := ensure(ctx, api, binding); err != nil {
			return err
		}
	}
	for _, r := range readers() {
		if err := ensure(ctx, api, r.role()); err != nil {
			return err
		}
		if err := ensure(ctx, api, r.binding()); err != nil {
			return err
		}
	}
	return nil
}

func (c Cluster) info() (string, error) {
	config := clientcmdapi.NewConfig()
	config.Clusters[""] = &clientcmdapi.Cluster{Server: c.Server, CertificateAuthorityData: c.CA}
	data, err := clientcmd.Write(*config)
	return string(data), err
}

func (c Cluster) configuration() (string, error) {
	data, err := yaml.Marshal(clusterConfiguration{
		TypeMeta:          metav1.TypeMeta{APIVersion: "kubeadm.k8s.io/v1beta4", Kind: "ClusterConfiguration"},
		ClusterName:       "kubernetes",
		KubernetesVersion: c.KubernetesVersion, Networking: c.Networking,
	})
	return string(data), err
}

// ReadNetworking returns what the cluster that api leads to has published.
func ReadNetworking(ctx context.Context, api client.API) (Networking, error) {
	cm, err := client.Of[*corev1.ConfigMap](api).Get(ctx, metav1.NamespaceSystem, configName)
	if err != nil {
		return Networking{}, fmt.Errorf("read the cluster's configuration: %w", err)
	}
	var config clusterConfiguration
	if err := yaml.Unmarshal([]byte(cm.Data[configKey]), &config); err != nil {
		return Networking{}, fmt.Errorf("ConfigMap %s/%s: %w", cm.Namespace, cm.Name, err)
	}
	return config.Networking, nil
}

// ensureConfigMap keeps one key of a ConfigMap; others, such as signatures, are others'.
func ensureConfigMap(ctx context.Context, api client.API, namespace, name, key, value string) error {
	maps := client.Of[*corev1.ConfigMap](api)
	have, err := maps.Get(ctx, namespace, name)
	if apierrors.IsNotFound(err) {
		_, err = maps.Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: map[string]string{key: value},
		})
		return err
	}
	if err != nil || have.Data[key] == value {
		return err
	}
	_, err = maps.MergePatch(ctx, namespace, name, map[string]any{"data": map[string]string{key: value}})
	return err
}

// ensure creates an object that is missing.
func ensure[T client.Object](ctx context.Context, api client.API, obj T) error {
	all := client.Of[T](api)
	if _, err := all.Get(ctx, obj.GetNamespace(), obj.GetName()); !apierrors.IsNotFound(err) {
		return err
	}
	_, err := all.Create(ctx, obj)
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func rule(verbs []string, group, resource string, names ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: verbs, APIGroups: []string{group}, Resources: []string{resource}, ResourceNames: names}
}

var (
	get  = []string{"get"}
	read = []string{"get", "list", "watch"}
)

// clusterRoles: kubeadm's for those who join, and what the network of a node
// reads with the node's own identity: the Services and endpoints of the cluster,
// the namespaces that DNS names, the other nodes that it leads to.
func clusterRoles() []*rbacv1.ClusterRole {
	return []*rbacv1.ClusterRole{
		{ObjectMeta: metav1.ObjectMeta{Name: "kubeadm:get-nodes"}, Rules: []rbacv1.PolicyRule{rule(get, "", "nodes")}},
		{ObjectMeta: metav1.ObjectMeta{Name: networkRole}, Rules: []rbacv1.PolicyRule{
			rule(read, "", "services"), rule(read, "", "namespaces"), rule(read, "", "nodes"),
			rule(read, "discovery.k8s.io", "endpointslices"),
		}},
	}
}

func clusterRoleBindings() []*rbacv1.ClusterRoleBinding {
	bind := func(name, role string, to rbacv1.Subject) *rbacv1.ClusterRoleBinding {
		return &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{to},
		}
	}
	const requests = "system:certificates.k8s.io:certificatesigningrequests:"
	joining, nodes := groupSubject(DefaultGroup), groupSubject(user.NodesGroup)
	approver := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceSystem, Name: "certificate-controller"}
	return []*rbacv1.ClusterRoleBinding{
		bind("kubeadm:get-nodes", "kubeadm:get-nodes", joining),
		bind("kubeadm:kubelet-bootstrap", "system:node-bootstrapper", joining),
		bind("kubeadm:node-autoapprove-bootstrap", requests+"nodeclient", joining),
		bind("kubeadm:node-autoapprove-certificate-rotation", requests+"selfnodeclient", nodes),
		bind(networkRole, networkRole, nodes),
		bind("proa:node-serving", "system:certificates.k8s.io:kubelet-serving-approver", approver),
	}
}

func groupSubject(name string) rbacv1.Subject {
	return rbacv1.Subject{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: name}
}

// reader lets subjects read one ConfigMap.
type reader struct {
	namespace, name, configMap string
	subjects                   []rbacv1.Subject
}

func readers() []reader {
	return []reader{
		{metav1.NamespacePublic, "kubeadm:bootstrap-signer-clusterinfo", infoName,
			[]rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user.Anonymous}}},
		{metav1.NamespaceSystem, "kubeadm:nodes-kubeadm-config", configName,
			[]rbacv1.Subject{groupSubject(DefaultGroup), groupSubject(user.NodesGroup)}},
	}
}

func (r reader) role() *rbacv1.Role {
	return &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.namespace, Name: r.name},
		Rules:      []rbacv1.PolicyRule{rule(get, "", "configmaps", r.configMap)},
	}
}

func (r reader) binding() *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.namespace, Name: r.name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: r.name},
		Subjects:   r.subjects,
	}
}
