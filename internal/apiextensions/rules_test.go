package apiextensions_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestRulesAreHeld(t *testing.T) {
	w := newWorld(t)
	w.establish(definition(t, "Namespaced", `
schema:
  openAPIV3Schema:
    type: object
    x-kubernetes-validations:
    - {rule: "self.metadata.name.size() < 10", message: name is too long}
    properties:
      spec:
        type: object
        x-kubernetes-validations:
        - rule: "self.x <= self.maxLimit"
          messageExpression: "'x exceeded max limit of %d'.format([self.maxLimit])"
          reason: FieldValueForbidden
          fieldPath: .x
        - {rule: "!has(self.bad) || self.nothing == 1", messageExpression: "string(1/0)", message: plain}
        properties:
          x: {type: integer}
          maxLimit: {type: integer}
          bad: {type: string}
          nothing: {type: integer}
          fixed:
            type: string
            x-kubernetes-validations: [{rule: "self == oldSelf", message: is immutable}]
          grows:
            type: integer
            x-kubernetes-validations: [{rule: "!oldSelf.hasValue() || self >= oldSelf.value()", optionalOldSelf: true, message: must grow}]
`))
	create := func(name, manifest string) error {
		_, err := w.in("v1", "default").Create(w.ctx, widget(t, name, manifest), metav1.CreateOptions{})
		return err
	}
	wantError(t, create("a", "spec: {x: 3, maxLimit: 2}"), 422, `spec.x: Forbidden: x exceeded max limit of 2`)
	wantError(t, create("averylongname", "spec: {x: 1, maxLimit: 2}"), 422, `<nil>: Invalid value: name is too long`)
	wantError(t, create("a", "spec: {x: 1, maxLimit: 2, bad: x, nothing: 2}"), 422, `spec: Invalid value: plain`)
	wantError(t, create("a", "spec: {x: text, maxLimit: 2}"), 422, "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation")
	w.create("spec: {x: 1, maxLimit: 2, fixed: a, grows: 5}")
	_, err := w.merge("{spec: {fixed: b}}")
	wantError(t, err, 422, `spec.fixed: Invalid value: "b": is immutable`)
	_, err = w.merge("{spec: {grows: 4}}")
	wantError(t, err, 422, `spec.grows: Invalid value: 4: must grow`)
	if _, err = w.merge("{spec: {grows: 6}}"); err != nil {
		t.Error(err)
	}
}

func TestWhatWasWrongBeforeMayStay(t *testing.T) {
	w := newWorld(t)
	w.establish(definition(t, "Namespaced", spec("name: {type: string}\nother: {type: string}")))
	w.create("spec: {name: toolong}")
	w.update("widgets.example.com", func(d *crd) {
		d.Spec.Versions = definition(t, "Namespaced", spec(`
name: {type: string, maxLength: 3, x-kubernetes-validations: [{rule: "self.size() < 2", message: two at most}]}
other: {type: string}
`)).Spec.Versions
	})
	if _, err := w.merge("{spec: {other: x}}"); err != nil {
		t.Errorf("an unchanged value was refused: %v", err)
	}
	_, err := w.merge("{spec: {name: longer}}")
	wantError(t, err, 422, "spec.name: Too long: may not be more than 3 bytes")
	_, err = w.merge("{spec: {name: abc}}")
	wantError(t, err, 422, "two at most")
}

func TestDefinitionsAreValidated(t *testing.T) {
	w := newWorld(t)
	const list = "list: {type: array, items: {type: array, items: {type: string}}, x-kubernetes-validations: [{rule: "
	cases := []struct{ name, properties, text string }{
		{"a rule that may cost too much", list + `"self.all(a, a.all(b, self.all(c, c.all(d, d == b))))"}]}`, "estimated rule cost exceeds budget by factor of"},
		{"a rule that does not compile", list + `"self.size() + 'x'"}]}`, "compilation failed"},
		{"a default of another type", "a: {type: string, default: 1}", "must be of type string"},
		{"a default with unknown fields", "a: {type: object, default: {x: 1}, properties: {z: {type: integer}}}", "must not have unknown fields"},
		{"a schema without a type", "a: {properties: {b: {type: string}}}", "type: Required value: must not be empty for specified object fields"},
		{"a map list without keys", "a: {type: array, items: {type: object}, x-kubernetes-list-type: map}", "must not be empty if x-kubernetes-list-type is map"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := w.ext.ApiextensionsV1().CustomResourceDefinitions().Create(w.ctx, definition(t, "Namespaced", spec(c.properties)), metav1.CreateOptions{})
			wantError(t, err, 422, c.text)
		})
	}
	bad := definition(t, "Namespaced", spec(size))
	bad.Name = "other.example.com"
	_, err := w.ext.ApiextensionsV1().CustomResourceDefinitions().Create(w.ctx, bad, metav1.CreateOptions{})
	wantError(t, err, 422, `metadata.name: Invalid value: "other.example.com": must be spec.names.plural+"."+spec.group`)
	bad = definition(t, "Namespaced", spec(size))
	bad.Spec.Group = "x.k8s.io"
	bad.Name = "widgets.x.k8s.io"
	_, err = w.ext.ApiextensionsV1().CustomResourceDefinitions().Create(w.ctx, bad, metav1.CreateOptions{})
	wantError(t, err, 422, "metadata.annotations[api-approved.kubernetes.io]: Required value: protected groups must have approval annotation")
}

// The cost of a rule does not tell how long a number takes to read.
func TestRulesReadQuantitiesInNoTime(t *testing.T) {
	w := newWorld(t)
	w.establish(definition(t, "Namespaced", spec("size: {type: string, maxLength: 64, x-kubernetes-validations: [{rule: \"quantity(self).isGreaterThan(quantity('1Gi'))\", message: too small}]}")))
	w.create("spec: {size: 2Gi}")
	for _, size := range []string{"1e-999999999", "1e999999999"} {
		_, err := w.merge("{spec: {size: " + size + "}}")
		wantError(t, err, 422, "spec.size: Invalid value")
	}
}

// Selectable fields of a schema that is not structural.
func TestASchemaThatCannotBeReadIsRefused(t *testing.T) {
	w := newWorld(t)
	d := definition(t, "Namespaced", `
schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: false, properties: {spec: {type: object, properties: {color: {type: string}}}}}}
selectableFields: [{jsonPath: .spec.color}]
`)
	_, err := w.ext.ApiextensionsV1().CustomResourceDefinitions().Create(w.ctx, d, metav1.CreateOptions{})
	wantError(t, err, 422, "x-kubernetes-preserve-unknown-fields: Invalid value: false: must be true or undefined")
}
