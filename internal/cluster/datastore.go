package cluster

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	utilnet "k8s.io/apimachinery/pkg/util/net"

	"proa/internal/apis"
	"proa/internal/controlplane"
	"proa/internal/store"
	"proa/internal/store/etcd"
	"proa/internal/store/pebble"
)

// Datastore says where a cluster's objects are: in its data directory, or in an
// etcd that several servers share. Those have the same certificates, too: the
// pki directory of the first is copied to the others before they start.
type Datastore struct {
	Endpoints []string `json:"endpoints,omitempty"` // URLs of etcd; none: the data directory
	Prefix    string   `json:"prefix,omitempty"`    // of all keys; empty: /registry
	CAFile    string   `json:"caFile,omitempty"`
	CertFile  string   `json:"certFile,omitempty"`
	KeyFile   string   `json:"keyFile,omitempty"`
}

// shared says that other servers may have the same objects.
func (d Datastore) shared() bool { return len(d.Endpoints) > 0 }

// engine opens it.
func (d Datastore) engine(l Layout, dial utilnet.DialFunc) func(*apis.Catalogue) (store.Engine, error) {
	if !d.shared() {
		return func(*apis.Catalogue) (store.Engine, error) { return pebble.Open(pebble.Config{Dir: l.Store()}) }
	}
	return controlplane.Etcd(etcd.Config{
		Endpoints: d.Endpoints, Prefix: d.Prefix, CAFile: d.CAFile, CertFile: d.CertFile, KeyFile: d.KeyFile, Dial: dial,
	})
}

// settle completes what the user chose with what an earlier start stored. Other
// members of the same etcd may be named, another place may not.
func (d *Datastore) settle(stored Datastore) error {
	switch {
	case len(d.Endpoints) == 0:
		d.Endpoints = stored.Endpoints
	case len(stored.Endpoints) == 0:
		return errors.New("--datastore-endpoint: the objects of this cluster are in its data directory")
	}
	if d.Prefix != "" && d.Prefix != stored.Prefix {
		return fmt.Errorf("--etcd-prefix is %s and cannot become %s", stored.Prefix, d.Prefix)
	}
	d.Prefix = stored.Prefix
	for _, f := range []struct{ want, have *string }{
		{&d.CAFile, &stored.CAFile}, {&d.CertFile, &stored.CertFile}, {&d.KeyFile, &stored.KeyFile},
	} {
		if *f.want == "" {
			*f.want = *f.have
		}
	}
	return nil
}

func (d Datastore) validate() error {
	if len(d.Endpoints) == 0 {
		if d.Prefix+d.CAFile+d.CertFile+d.KeyFile != "" {
			return errors.New("--etcd-prefix, --etcd-cafile, --etcd-certfile and --etcd-keyfile need --datastore-endpoint")
		}
		return nil
	}
	for _, endpoint := range d.Endpoints {
		u, err := url.Parse(endpoint)
		if err != nil || u.Host == "" || !slices.Contains([]string{"http", "https"}, u.Scheme) {
			return fmt.Errorf("--datastore-endpoint %q: want URLs of etcd, such as https://10.0.0.1:2379", endpoint)
		}
	}
	if (d.CertFile == "") != (d.KeyFile == "") {
		return errors.New("--etcd-certfile and --etcd-keyfile come together")
	}
	if strings.Trim(d.Prefix, "/") == "" && d.Prefix != "" {
		return fmt.Errorf("--etcd-prefix %q: want a path", d.Prefix)
	}
	return nil
}
