package datastore

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// startMembers starts an etcd of several members.
func startMembers(t *testing.T, n int) []*etcd {
	t.Helper()
	members := make([]*etcd, n)
	names := make([]string, n)
	for i := range members {
		members[i] = newEtcd(t, "http", http.DefaultClient)
		names[i] = fmt.Sprintf("m%d=%s", i, members[i].peer)
	}
	for i, e := range members {
		e.flags = []string{"--name", fmt.Sprint("m", i), "--initial-cluster", strings.Join(names, ",")}
		e.launch()
	}
	for _, e := range members {
		e.ready()
	}
	return members
}

func TestAServerOutlivesEachMemberOfItsEtcd(t *testing.T) {
	t.Parallel()
	members := startMembers(t, 3)
	urls := make([]string, len(members))
	for i, e := range members {
		urls[i] = e.url
	}
	s := startServer(t, "", "--etcd-servers", strings.Join(urls, ","))
	first, err := s.configMaps().Create(t.Context(), configMap("first", "1"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := s.configMaps().Watch(t.Context(), metav1.ListOptions{ResourceVersion: first.GetResourceVersion()})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for i, e := range members {
		e.kill()
		name := fmt.Sprint("without-", i)
		eventually(t, "a write without one member", func(ctx context.Context) error {
			_, err := s.configMaps().Create(ctx, configMap(name, "1"), metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				return nil // an attempt whose answer was lost
			}
			return err
		})
		if event := nextEvent(t, w, name); event.Type != watch.Added {
			t.Errorf("the watch shows %v, want %s added", event, name)
		}
		eventually(t, "a list without one member", func(ctx context.Context) error {
			list, err := s.configMaps().List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
			if err == nil && len(list.Items) != 1 {
				err = fmt.Errorf("the list shows %d objects", len(list.Items))
			}
			return err
		})
		e.start()
	}
}

func TestTheKubernetesServiceLeadsToAllServersOnAnEtcd(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	at := func(address string) []string {
		return []string{"--etcd-servers", e.url, "--advertise-address", address}
	}
	a := startServer(t, "", at("192.0.2.1")...)
	b := startServer(t, a.dir, at("192.0.2.2")...)
	c := startServer(t, a.dir, at("192.0.2.3")...)
	leadsTo := func(addresses ...string) {
		t.Helper()
		eventually(t, "the Service leads to "+strings.Join(addresses, ", "), func(ctx context.Context) error {
			for _, of := range []struct {
				resource schema.GroupVersionResource
				read     func(*unstructured.Unstructured) []string
			}{
				{schema.GroupVersionResource{Version: "v1", Resource: "endpoints"}, addressesOfEndpoints},
				{schema.GroupVersionResource{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"}, addressesOfSlice},
			} {
				u, err := a.client.Resource(of.resource).Namespace("default").Get(ctx, "kubernetes", metav1.GetOptions{})
				if err != nil {
					return err
				}
				if got := of.read(u); !slices.Equal(got, addresses) {
					return fmt.Errorf("%s has %v", of.resource.Resource, got)
				}
			}
			return nil
		})
	}
	leadsTo("192.0.2.1", "192.0.2.2", "192.0.2.3")
	c.stop() // takes itself away
	leadsTo("192.0.2.1", "192.0.2.2")
	b.kill() // expires
	leadsTo("192.0.2.1")
	services := a.client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "services"}).Namespace("default")
	if err := services.Delete(t.Context(), "kubernetes", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the Service is back", func(ctx context.Context) error {
		_, err := services.Get(ctx, "kubernetes", metav1.GetOptions{})
		return err
	})
}

func addressesOfEndpoints(u *unstructured.Unstructured) (all []string) {
	subsets, _, _ := unstructured.NestedSlice(u.Object, "subsets")
	for _, s := range subsets {
		addresses, _, _ := unstructured.NestedSlice(s.(map[string]any), "addresses")
		for _, a := range addresses {
			ip, _, _ := unstructured.NestedString(a.(map[string]any), "ip")
			all = append(all, ip)
		}
	}
	return all
}

func addressesOfSlice(u *unstructured.Unstructured) (all []string) {
	endpoints, _, _ := unstructured.NestedSlice(u.Object, "endpoints")
	for _, e := range endpoints {
		addresses, _, _ := unstructured.NestedStringSlice(e.(map[string]any), "addresses")
		all = append(all, addresses...)
	}
	return all
}
