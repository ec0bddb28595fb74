package policy

import (
	"bytes"
	"fmt"
	"io"

	policyconfig "k8s.io/apiserver/pkg/admission/plugin/policy/config"

	"proa/internal/admission"
	"proa/internal/admission/manifest"
	"proa/internal/apis"
)

// openFiles reads the directory that the document of a plugin names, if it does.
func (h *hooks[P]) openFiles(c Config, plugin string, load func(io.Reader) (policyconfig.PolicyConfig, error), read func(dir string) ([]bound[P], string, error)) error {
	var settings policyconfig.PolicyConfig
	var err error
	if document, ok := c.Configurations[plugin]; ok {
		settings, err = load(bytes.NewReader(document))
	}
	if err == nil && settings.StaticManifestsDir != "" && !c.Manifests {
		err = admission.ErrStaticManifests
	}
	if err == nil {
		h.static, err = manifest.Open(plugin, settings.StaticManifestsDir, read)
	}
	if err != nil {
		return fmt.Errorf("couldn't init admission plugin %q: %w", plugin, err)
	}
	return nil
}

func readMutating(dir string) ([]bound[*mutatingPolicy], string, error) {
	policies, bindings, hash, err := manifest.ReadMutatingPolicies(dir)
	if err != nil {
		return nil, "", err
	}
	made, err := compile(policies, compileMutating)
	return bind(made, each(bindings, mutatingBinding)), hash, err
}

func readValidating(dir string) ([]bound[*validatingPolicy], string, error) {
	policies, bindings, hash, err := manifest.ReadValidatingPolicies(dir)
	if err != nil {
		return nil, "", err
	}
	made, err := compile(policies, compileValidating)
	return bind(made, each(bindings, validatingBinding)), hash, err
}

// compile makes policies that are to be refused when they cannot work.
func compile[T apis.Object, P interface{ base() *policy }](objs []T, one func(apis.Object) P) ([]P, error) {
	made := each(objs, one)
	for _, p := range made {
		if err := p.base().broken; err != nil {
			return nil, fmt.Errorf("failed to compile policy %q: %w", p.base().name, err)
		}
	}
	return made, nil
}

func each[T apis.Object, M any](objs []T, one func(apis.Object) M) []M {
	made := make([]M, len(objs))
	for i, obj := range objs {
		made[i] = one(obj)
	}
	return made
}
