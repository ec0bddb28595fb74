package e2e

import (
	"strings"
	"testing"
)

const shirts = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: shirts.e2e.example.com}
spec:
  group: e2e.example.com
  scope: Namespaced
  names: {plural: shirts, kind: Shirt, shortNames: [sh], categories: [wardrobe]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}, scale: {specReplicasPath: .spec.copies, statusReplicasPath: .status.copies}}
    selectableFields: [{jsonPath: .spec.colour}]
    additionalPrinterColumns:
    - {name: Colour, type: string, jsonPath: .spec.colour}
    - {name: Copies, type: integer, jsonPath: .spec.copies}
    schema:
      openAPIV3Schema:
        type: object
        description: Shirt is something to wear.
        required: [spec]
        properties:
          spec:
            type: object
            required: [colour]
            x-kubernetes-validations:
            - {rule: "self.copies <= 3 || self.colour != 'red'", messageExpression: "'%s comes in threes'.format([self.colour])"}
            properties:
              colour: {type: string, description: What it looks like., enum: [red, blue]}
              copies: {type: integer, default: 1}
              pockets:
                type: array
                x-kubernetes-list-type: map
                x-kubernetes-list-map-keys: [side]
                items: {type: object, required: [side], properties: {side: {type: string}, holds: {type: string}}}
          status: {type: object, properties: {copies: {type: integer}}}
`

func shirt(name, spec string) string {
	return "apiVersion: e2e.example.com/v1\nkind: Shirt\nmetadata: {name: " + name + "}\nspec: " + spec + "\n"
}

// What kubectl does with a kind that the user made.
func TestCustomResources(t *testing.T) {
	ns := shared.namespace(t)
	shared.apply(t, shirts)
	t.Cleanup(func() {
		_, _, _ = shared.tryKubectl("", "delete", "crd", "shirts.e2e.example.com", "--ignore-not-found")
	})
	shared.kubectl(t, "wait", "--for=condition=Established", "crd/shirts.e2e.example.com", "--timeout=10s")
	in := func(args ...string) string {
		t.Helper()
		return shared.kubectl(t, append([]string{args[0], "-n", ns}, args[1:]...)...)
	}
	contains := func(out string, want ...string) {
		t.Helper()
		for _, w := range want {
			if !strings.Contains(out, w) {
				t.Errorf("no %q in\n%s", w, out)
			}
		}
	}
	refused := func(manifest, want string, args ...string) {
		t.Helper()
		_, out, err := shared.tryKubectl(manifest, append([]string{"apply", "-n", ns, "-f", "-"}, args...)...)
		if err == nil {
			t.Errorf("accepted:\n%s", manifest)
		}
		contains(out, want)
	}

	contains(shared.kubectl(t, "api-resources", "--api-group=e2e.example.com"), "shirts", "sh", "Shirt")
	contains(shared.kubectl(t, "explain", "shirt"), "GROUP:      e2e.example.com", "Shirt is something to wear.", "<ObjectMeta>")
	contains(shared.kubectl(t, "explain", "shirt.spec.colour"), "FIELD: colour <string>", "What it looks like.", "ENUM:\n    red\n    blue")

	shared.apply(t, shirt("a", "{colour: blue, copies: 4}"), "-n", ns)
	shared.apply(t, shirt("b", "{colour: red}"), "-n", ns)
	contains(in("get", "sh"), "NAME   COLOUR   COPIES", "a      blue     4", "b      red      1")
	if out := in("get", "shirts", "--field-selector", "spec.colour=red", "-o", "name"); out != "shirt.e2e.example.com/b\n" {
		t.Errorf("selected %q", out)
	}
	contains(in("get", "wardrobe", "-o", "name"), "shirt.e2e.example.com/a")

	refused(shirt("c", "{colour: red, copies: 4}"), "red comes in threes")
	refused(shirt("c", "{colour: green}"), `Unsupported value: "green"`)
	refused(shirt("c", "{copies: 1}"), "spec.colour: Required value")
	refused(shirt("c", "{colour: red, sleeves: 2}"), `unknown field "spec.sleeves"`)

	in("scale", "shirt", "a", "--replicas=2")
	contains(in("get", "shirt", "a"), "a      blue     2")
	in("patch", "shirt", "a", "--subresource=status", "--type=merge", "-p", `{"status":{"copies":2}}`)
	contains(in("get", "shirt", "a", "-o", "jsonpath={.status.copies} {.spec.copies}"), "2 2")

	pockets := func(manager, spec string) {
		t.Helper()
		_, out, err := shared.tryKubectl(shirt("d", spec), "apply", "-n", ns, "--server-side", "--field-manager="+manager, "-f", "-")
		if err != nil {
			t.Fatal(out)
		}
	}
	pockets("one", "{colour: blue, pockets: [{side: left, holds: keys}]}")
	pockets("two", "{colour: blue, pockets: [{side: right, holds: phone}]}")
	contains(in("get", "shirt", "d", "-o", "jsonpath={.spec.pockets[*].holds}"), "keys phone")
	refused(shirt("d", "{colour: red}"), "conflict", "--server-side", "--field-manager=three")

	shared.kubectl(t, "delete", "crd", "shirts.e2e.example.com", "--timeout=30s")
	if _, out, err := shared.tryKubectl("", "get", "shirts", "-n", ns); err == nil || !strings.Contains(out, "could not find the requested resource") {
		t.Errorf("after the definition is gone: %v %s", err, out)
	}
	shared.apply(t, shirts)
	shared.kubectl(t, "wait", "--for=condition=Established", "crd/shirts.e2e.example.com", "--timeout=10s")
	if out := in("get", "shirts", "-o", "name"); out != "" {
		t.Errorf("objects came back: %s", out)
	}
}

// kubectl's own validation, explain and apply on schemas that say little.
func TestCustomResourcesThatPreserveUnknownFields(t *testing.T) {
	ns := shared.namespace(t)
	cases := []struct{ name, schema, object, path, explained string }{
		{"roots", "{type: object, x-kubernetes-preserve-unknown-fields: true, properties: {spec: {type: object, description: What is wanted.}}}",
			"spec: {}\nunknown: {deep: [1]}", "{.unknown.deep[0]}", "KIND:       Root"},
		{"embeds", "{type: object, properties: {spec: {type: object, x-kubernetes-preserve-unknown-fields: true, x-kubernetes-embedded-resource: true, description: A thing within.}}}",
			"spec: {apiVersion: v1, kind: Pod, metadata: {name: x}, unknown: 1}", "{.spec.unknown}", "A thing within."},
		{"frees", "{type: object, description: Anything goes., x-kubernetes-preserve-unknown-fields: true}",
			"anything: 1", "{.anything}", "DESCRIPTION:"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			kind := strings.ToUpper(c.name[:1]) + strings.TrimSuffix(c.name[1:], "s")
			shared.apply(t, "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: "+c.name+".e2e2.example.com}\nspec:\n"+
				"  {group: e2e2.example.com, scope: Namespaced, names: {plural: "+c.name+", kind: "+kind+"}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: "+c.schema+"}}]}")
			t.Cleanup(func() { _, _, _ = shared.tryKubectl("", "delete", "crd", c.name+".e2e2.example.com") })
			shared.kubectl(t, "wait", "--for=condition=Established", "crd/"+c.name+".e2e2.example.com", "--timeout=10s")
			object := "apiVersion: e2e2.example.com/v1\nkind: " + kind + "\nmetadata: {name: a}\n" + c.object + "\n"
			for _, verb := range []string{"create", "apply"} {
				if _, out, err := shared.tryKubectl(object, verb, "-n", ns, "--validate=true", "-f", "-"); err != nil {
					t.Errorf("%s: %s", verb, out)
				}
			}
			if out := shared.kubectl(t, "get", c.name, "a", "-n", ns, "-o", "jsonpath="+c.path); out != "1" {
				t.Errorf("kept %q", out)
			}
			what := c.name
			if c.name == "embeds" {
				what += ".spec"
			}
			if out := shared.kubectl(t, "explain", what); !strings.Contains(out, c.explained) {
				t.Errorf("explained as\n%s", out)
			}
		})
	}
}
