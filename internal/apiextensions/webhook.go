package apiextensions

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"

	"github.com/google/uuid"

	"proa/internal/apis"
	"proa/internal/store/backend"
)

const (
	webhookTimeout = 30 * time.Second
	// maxReview bounds what a webhook may answer, in bytes.
	maxReview = 64 << 20
	// keptConversions is how many converted objects of one definition are kept.
	keptConversions = 4096
	// perReview bounds the objects of one review.
	perReview = 500
)

// webhookConverter asks a webhook for conversions and keeps the answers for
// objects that are stored: they do not change without a new resourceVersion.
type webhookConverter struct {
	definition *definition
	reviews    string // apiVersion of the reviews it sends
	url        string
	client     *http.Client
	kept       *lru.Cache // conversionKey -> *unstructured.Unstructured
}

type conversionKey struct {
	uid             types.UID
	resourceVersion string
	from, to        string
}

func keyOf(u *unstructured.Unstructured, to *version) (conversionKey, bool) {
	k := conversionKey{u.GetUID(), u.GetResourceVersion(), u.GetAPIVersion(), to.spec.Name}
	return k, k.uid != "" && k.resourceVersion != ""
}

var errNoReview = errors.New("no supported conversion review versions")

func newWebhookConverter(d *definition, services backend.Resolver) (*webhookConverter, error) {
	c := d.object.Spec.Conversion.Webhook
	w := &webhookConverter{definition: d, kept: lru.New(keptConversions)}
	for _, v := range c.ConversionReviewVersions {
		if v == "v1" || v == "v1beta1" {
			w.reviews = apiextensionsv1.GroupName + "/" + v
			break
		}
	}
	if w.reviews == "" {
		return nil, errNoReview
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if bundle := bytes.TrimSpace(c.ClientConfig.CABundle); len(bundle) > 0 {
		config.RootCAs = x509.NewCertPool()
		config.RootCAs.AppendCertsFromPEM(bundle) // an invalid bundle trusts nobody
	}
	transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute}
	switch s := c.ClientConfig.Service; {
	case c.ClientConfig.URL != nil:
		w.url, transport.DialContext = *c.ClientConfig.URL, services.Egress.ControlPlane
	case s != nil:
		port := int32(443)
		if s.Port != nil {
			port = *s.Port
		}
		host := s.Name + "." + s.Namespace + ".svc"
		config.ServerName = host
		to := url.URL{Scheme: "https", Host: net.JoinHostPort(host, strconv.Itoa(int(port)))}
		if s.Path != nil {
			to.Path = *s.Path
		}
		w.url = to.String()
		dial := services.Egress.Cluster
		if dial == nil {
			dial = new(net.Dialer).DialContext
		}
		transport.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
			address, err := services.Pick(s.Namespace, s.Name, port)
			if err != nil {
				return nil, err
			}
			return dial(ctx, network, address)
		}
	default:
		return nil, fmt.Errorf("conversion webhook of %s has neither url nor service", d.object.Name)
	}
	w.client = &http.Client{Transport: transport, Timeout: webhookTimeout, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	context.AfterFunc(d.lifetime, transport.CloseIdleConnections)
	return w, nil
}

func (w *webhookConverter) convert(u *unstructured.Unstructured, to *version) (*unstructured.Unstructured, error) {
	if u.GetAPIVersion() == to.kind.GroupVersion().String() {
		return u, nil
	}
	if len(u.Object) == 2 { // nothing but kind and apiVersion: nothing to convert
		return renaming{}.convert(u, to)
	}
	converted, err := w.review([]*unstructured.Unstructured{u}, to)
	if err != nil {
		return nil, err
	}
	return converted[0], nil
}

func (w *webhookConverter) load(u *unstructured.Unstructured, to *version) (*unstructured.Unstructured, error) {
	key, keep := keyOf(u, to)
	if found, ok := w.kept.Get(key); keep && ok {
		return found.(*unstructured.Unstructured), nil
	}
	converted, err := w.convert(u, to)
	if err == nil && keep {
		w.kept.Add(key, converted)
	}
	return converted, err
}

// prepare converts what is not kept yet, perReview objects at a time. What fails
// is left to load, which reports it.
func (w *webhookConverter) prepare(objs []apis.Object, to *version) {
	var batch []*unstructured.Unstructured
	flush := func() bool {
		converted, err := w.review(batch, to)
		if err != nil {
			return false
		}
		for i, u := range batch {
			key, _ := keyOf(u, to)
			w.kept.Add(key, converted[i])
		}
		batch = batch[:0]
		return true
	}
	want := to.kind.GroupVersion().String()
	for _, obj := range objs[:min(len(objs), keptConversions)] {
		u := obj.(*unstructured.Unstructured)
		if u.GetAPIVersion() == want {
			continue
		}
		from, err := w.definition.versionOf(u)
		if err != nil {
			return
		}
		u = from.completed(u)
		key, keep := keyOf(u, to)
		if _, ok := w.kept.Get(key); ok || !keep {
			continue
		}
		if batch = append(batch, u); len(batch) == perReview && !flush() {
			return
		}
	}
	if len(batch) > 0 {
		flush()
	}
}

// review has the webhook convert objects of one version or several into another.
func (w *webhookConverter) review(objs []*unstructured.Unstructured, to *version) ([]*unstructured.Unstructured, error) {
	of := objs[0].GroupVersionKind()
	answer, err := w.post(objs, to.kind.GroupVersion())
	if err != nil {
		return nil, fmt.Errorf("conversion webhook for %v failed: %v", of, err) // its status is none of this object's
	}
	if len(answer) != len(objs) {
		return nil, fmt.Errorf("conversion webhook for %v returned %d objects, expected %d", of, len(answer), len(objs))
	}
	converted := make([]*unstructured.Unstructured, len(objs))
	for i, raw := range answer {
		out := &unstructured.Unstructured{}
		if err := out.UnmarshalJSON(raw.Raw); err != nil {
			return nil, fmt.Errorf("conversion webhook for %v returned invalid converted object at index %v: %w", of, i, err)
		}
		if err := accept(objs[i], out, to.kind.GroupVersion()); err != nil {
			return nil, fmt.Errorf("conversion webhook for %v returned invalid converted object at index %v: %w", of, i, err)
		}
		if err := restoreMeta(objs[i], out); err != nil {
			return nil, fmt.Errorf("conversion webhook for %v returned invalid metadata in object at index %v: %w", of, i, err)
		}
		converted[i] = out
	}
	return converted, nil
}

// post sends one ConversionReview; v1 and v1beta1 differ in their name only.
func (w *webhookConverter) post(objs []*unstructured.Unstructured, to schema.GroupVersion) ([]runtime.RawExtension, error) {
	review := &apiextensionsv1.ConversionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: w.reviews, Kind: "ConversionReview"},
		Request:  &apiextensionsv1.ConversionRequest{UID: types.UID(uuid.NewString()), DesiredAPIVersion: to.String()},
	}
	for _, u := range objs {
		review.Request.Objects = append(review.Request.Objects, runtime.RawExtension{Object: u})
	}
	body, err := json.Marshal(review)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(w.definition.lifetime, http.MethodPost, w.url+"?timeout="+webhookTimeout.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json")
	response, err := w.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, maxReview))
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK && response.StatusCode != http.StatusCreated {
		return nil, fmt.Errorf("an error on the server (%q) has prevented the request from succeeding", shorten(data))
	}
	got := &apiextensionsv1.ConversionReview{}
	if err := json.Unmarshal(data, got); err != nil {
		return nil, err
	}
	return answerOf(got, review)
}

func shorten(data []byte) string {
	const most = 2048
	return string(data[:min(len(data), most)])
}

// answerOf checks that a review answers the one sent.
func answerOf(got, sent *apiextensionsv1.ConversionReview) ([]runtime.RawExtension, error) {
	want := apiextensionsv1.SchemeGroupVersion.WithKind("ConversionReview")
	strict := sent.APIVersion == want.GroupVersion().String()
	if strict && got.GroupVersionKind() != want {
		return nil, fmt.Errorf("expected webhook response of %v, got %v", want, got.GroupVersionKind())
	}
	r := got.Response
	switch {
	case r == nil:
		return nil, errors.New("no response provided")
	case strict && r.UID != sent.Request.UID:
		return nil, fmt.Errorf("expected response.uid=%q, got %q", sent.Request.UID, r.UID)
	case r.Result.Status == metav1.StatusSuccess:
		return r.ConvertedObjects, nil
	case r.Result.Message != "":
		return nil, errors.New(r.Result.Message)
	}
	return nil, fmt.Errorf("response.result.status was '%s', not 'Success'", r.Result.Status)
}
