package client_test

import (
	"context"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/apis/builtin"
	"proa/internal/client"
	"proa/pkg/proatest"
)

// The built-in kinds, those that are served in two groups included, do not stand in
// the way of the others.
func TestCustomKindsComeAndGo(t *testing.T) {
	config := proatest.Start(t, proatest.Options{})
	definitions := apiextensions.NewForConfigOrDie(config).ApiextensionsV1().CustomResourceDefinitions()
	catalogue := builtin.Catalogue()
	running, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	d := &client.Discovery{Config: config, Catalogue: catalogue, Interval: 20 * time.Millisecond}
	go func() { ended <- d.Run(running) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()

	things := schema.GroupResource{Group: "example.com", Resource: "things"}
	preserve := true
	_, err := definitions.Create(t.Context(), &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: things.String()},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: things.Group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: things.Resource, Kind: "Thing"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &preserve}}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	await := func(what string, there bool) {
		t.Helper()
		deadline := time.After(time.Minute)
		for {
			changed := catalogue.Changed()
			if _, found := catalogue.Stored(things); found == there {
				return
			}
			select {
			case <-changed:
			case <-deadline:
				t.Fatal(what)
			}
		}
	}
	await("the kind is not found", true)
	if err := definitions.Delete(t.Context(), things.String(), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await("the kind is not forgotten", false)
}
