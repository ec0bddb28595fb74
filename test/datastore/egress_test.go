package datastore

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/egress/egresstest"
)

// The name of this etcd means something only to the proxy that leads to it.
func TestEtcdIsReachedThroughAProxy(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	proxy := &egresstest.Proxy{Leads: map[string]string{"etcd.invalid:2379": strings.TrimPrefix(e.url, "http://")}}
	config := filepath.Join(t.TempDir(), "egress.yaml")
	text := fmt.Sprintf("apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\negressSelections:\n"+
		"- name: etcd\n  connection: {proxyProtocol: HTTPConnect, transport: {uds: {udsName: %q}}}\n", proxy.Socket(t))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startServer(t, "", "--etcd-servers", "http://etcd.invalid:2379", "--egress-selector-config-file", config)
	if _, err := s.configMaps().Create(t.Context(), configMap("a", "1"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{e.url}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if got, err := client.Get(t.Context(), "/registry/configmaps/default/a"); err != nil || len(got.Kvs) != 1 {
		t.Errorf("etcd holds %v, %v", got, err)
	}
	if !slices.Contains(proxy.Asked(), "etcd.invalid:2379") {
		t.Errorf("the proxy was asked for %q", proxy.Asked())
	}
}
