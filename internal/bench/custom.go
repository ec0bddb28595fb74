package bench

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

const (
	customGroup  = "bench.proa"
	customPlural = "gadgets"
	definitions  = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
)

// gadgets is the definition of a custom resource with some of everything: lists
// with keys, defaults, a rule, a part without schema.
const gadgets = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"gadgets.bench.proa"},"spec":{
"group":"bench.proa","scope":"Namespaced","names":{"plural":"gadgets","singular":"gadget","kind":"Gadget","listKind":"GadgetList"},
"versions":[{"name":"v1","served":true,"storage":true,"subresources":{"status":{}},"schema":{"openAPIV3Schema":{"type":"object","properties":{
"spec":{"type":"object","required":["image"],"x-kubernetes-validations":[{"rule":"self.replicas <= self.limit","message":"too many"}],"properties":{
"image":{"type":"string","minLength":1},"replicas":{"type":"integer","default":1,"minimum":0},"limit":{"type":"integer","default":10},
"env":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["name"],"items":{"type":"object","required":["name"],
"properties":{"name":{"type":"string"},"value":{"type":"string"}}}},
"ports":{"type":"array","items":{"type":"object","properties":{"port":{"type":"integer"},"protocol":{"type":"string","default":"TCP"}}}},
"selector":{"type":"object","additionalProperties":{"type":"string"}},
"template":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}},
"status":{"type":"object","properties":{"ready":{"type":"integer"}}}}}}}]}}`

// custom measures each kind of call for custom resources of about 1 KB. A server
// without definitions is left alone.
func (r *apiRun) custom(ctx context.Context) (err error) {
	c, err := r.target.newClient()
	if err != nil {
		return err
	}
	defer c.close()
	_, err = c.do(ctx, request{method: http.MethodPost, path: definitions, body: []byte(gadgets), media: mediaJSON})
	if isCode(err, http.StatusNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("define a custom resource: %w", err)
	}
	defer func() {
		_, gone := c.drain(context.WithoutCancel(ctx), request{method: http.MethodDelete, path: definitions + "/" + customPlural + "." + customGroup})
		err = errors.Join(err, gone)
	}()
	objects := &collection{
		what: "custom resource ", path: "/apis/" + customGroup + "/v1/namespaces/" + r.Namespace + "/" + customPlural, body: gadget,
	}
	if err := c.served(ctx, objects.path); err != nil {
		return err
	}
	return r.callsFor(ctx, objects)
}

// served waits until a new kind is.
func (c *client) served(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		_, err := c.do(ctx, request{method: http.MethodGet, path: path + "?limit=1"})
		if !isCode(err, http.StatusNotFound) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the custom resource is not served: %w", err)
		case <-again.C:
		}
	}
}

// gadget is the JSON of a custom resource.
func gadget(name string) []byte {
	var env strings.Builder
	for i := range 8 {
		fmt.Fprintf(&env, `,{"name":"SETTING_%02d","value":"a value of a usual length"}`, i)
	}
	return fmt.Appendf(nil, `{"apiVersion":"bench.proa/v1","kind":"Gadget","metadata":{"name":%q,"labels":{"app":"bench"},"annotations":{%q:%q}},
"spec":{"image":"registry.example/team/server:v1.2.3","env":[%s],"ports":[{"port":80},{"port":443,"protocol":"TCP"}],
"selector":{"app":"bench","tier":"backend"},"template":{"metadata":{"labels":{"app":"bench"}},"spec":{"x":[1,2,3]}}}}`,
		name, sentAnnotation, stamp(time.Unix(0, 0)), env.String()[1:])
}
