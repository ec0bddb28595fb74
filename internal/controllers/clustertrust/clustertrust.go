// Package clustertrust publishes in the ConfigMap
// extension-apiserver-authentication how servers that extend the API know its
// clients: by the client authority, and by the front proxy's headers.
package clustertrust

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"proa/internal/client"
	"proa/internal/controllers"
)

// Trust is what a server tells about itself. The authorities are certificates in
// PEM; empty ones are not told.
type Trust struct {
	ClientCA     []byte
	FrontProxyCA []byte
	// FrontProxyNames are the common names that a front proxy's certificate may
	// have; empty: any.
	FrontProxyNames []string
	// The headers that tell who asks, by default upstream's.
	UserHeaders, UIDHeaders, GroupHeaders, ExtraPrefixes []string
}

const configMapName = "extension-apiserver-authentication"

// Controller keeps the ConfigMap.
type Controller struct {
	loop       *controllers.Loop
	clock      clock.PassiveClock
	configMaps *client.Informer[*corev1.ConfigMap]

	mu    sync.Mutex // guards trust
	trust Trust
}

// New returns a controller that publishes trust beside what other servers have
// published.
func New(c controllers.Config, trust Trust) *Controller {
	t := &Controller{clock: c.Clock, trust: trust, configMaps: client.Filtered[*corev1.ConfigMap](c.Cache, metav1.ListOptions{
		FieldSelector: "metadata.name=" + configMapName + ",metadata.namespace=" + metav1.NamespaceSystem,
	})}
	c.Workers = 1
	t.loop = controllers.NewLoop("cluster-authentication-trust", c, t.reconcile)
	t.configMaps.OnChange(func(_, _ *corev1.ConfigMap) { t.enqueue() })
	return t
}

// Renew publishes other authorities beside those before, which go when they end: nil
// for those that have not changed.
func (t *Controller) Renew(clientCA, frontProxyCA []byte) {
	t.mu.Lock()
	if clientCA != nil {
		t.trust.ClientCA = clientCA
	}
	if frontProxyCA != nil {
		t.trust.FrontProxyCA = frontProxyCA
	}
	t.mu.Unlock()
	t.enqueue()
}

func (t *Controller) enqueue() {
	t.loop.Enqueue(controllers.Key{Namespace: metav1.NamespaceSystem, Name: configMapName})
}

// Run works until ctx ends.
func (t *Controller) Run(ctx context.Context) error {
	t.enqueue()
	return t.loop.Run(ctx)
}

func (t *Controller) reconcile(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	current, ok := t.configMaps.Cached(key.Namespace, key.Name)
	if !ok {
		current = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	}
	data, err := t.data(current.Data)
	if err != nil {
		return controllers.Result{}, err
	}
	if maps.Equal(current.Data, data) {
		return controllers.Result{}, nil
	}
	next := current.DeepCopy()
	next.Data = data
	if ok {
		_, err = t.configMaps.Update(ctx, next)
	} else {
		_, err = t.configMaps.Create(ctx, next)
	}
	if apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) {
		err = nil // the change that came between enqueues
	}
	return controllers.Result{}, err
}

// data is what the ConfigMap should hold: what is there of other servers, with
// this one's part.
func (t *Controller) data(have map[string]string) (map[string]string, error) {
	t.mu.Lock()
	trust := t.trust
	t.mu.Unlock()
	data := maps.Clone(have)
	if data == nil {
		data = map[string]string{}
	}
	if err := t.addCA(data, "client-ca-file", trust.ClientCA); err != nil {
		return nil, err
	}
	if len(trust.FrontProxyCA) == 0 {
		return data, nil
	}
	if err := t.addCA(data, "requestheader-client-ca-file", trust.FrontProxyCA); err != nil {
		return nil, err
	}
	for key, values := range map[string][]string{
		"requestheader-username-headers":     orDefault(trust.UserHeaders, "X-Remote-User"),
		"requestheader-uid-headers":          orDefault(trust.UIDHeaders, "X-Remote-Uid"),
		"requestheader-group-headers":        orDefault(trust.GroupHeaders, "X-Remote-Group"),
		"requestheader-extra-headers-prefix": orDefault(trust.ExtraPrefixes, "X-Remote-Extra-"),
		"requestheader-allowed-names":        trust.FrontProxyNames,
	} {
		if err := addNames(data, key, values); err != nil {
			return nil, err
		}
	}
	return data, nil
}

func orDefault(values []string, otherwise string) []string {
	if len(values) == 0 {
		return []string{otherwise}
	}
	return values
}

// addNames adds to a list in JSON what it lacks. A list that cannot be read is
// written anew.
func addNames(data map[string]string, key string, values []string) error {
	var list []string
	if json.Unmarshal([]byte(data[key]), &list) != nil {
		list = nil
	}
	for _, v := range values {
		if !slices.Contains(list, v) {
			list = append(list, v)
		}
	}
	if list == nil {
		list = []string{}
	}
	text, err := json.Marshal(list)
	data[key] = string(text)
	return err
}

// addCA adds certificates to those that are there and still hold.
func (t *Controller) addCA(data map[string]string, key string, ca []byte) error {
	if len(ca) == 0 {
		return nil
	}
	own, err := certificates(ca)
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	all, err := certificates([]byte(data[key]))
	if err != nil {
		all = nil // not certificates: ours replace it
	}
	all = slices.DeleteFunc(all, func(c *x509.Certificate) bool { return t.clock.Now().After(c.NotAfter) })
	for _, c := range own {
		if !slices.ContainsFunc(all, func(o *x509.Certificate) bool { return bytes.Equal(o.Raw, c.Raw) }) {
			all = append(all, c)
		}
	}
	var text bytes.Buffer
	for _, c := range all {
		if err := pem.Encode(&text, &pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}); err != nil {
			return err
		}
	}
	data[key] = text.String()
	return nil
}

func certificates(text []byte) ([]*x509.Certificate, error) {
	var list []*x509.Certificate
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		list = append(list, c)
	}
	return list, nil
}
