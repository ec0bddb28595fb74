package admission

import (
	"bytes"
	"fmt"
	"io"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	upstream "k8s.io/apiserver/pkg/admission"
	policyconfig "k8s.io/apiserver/pkg/admission/plugin/policy/config"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	"sigs.k8s.io/yaml"
)

// configured are upstream's plugins that take a configuration.
var configured = []string{
	"EventRateLimit", "ImagePolicyWebhook", mutatingPolicies, "MutatingAdmissionWebhook", "PodNodeSelector", "PodSecurity",
	"PodTolerationRestriction", validatingPolicies, "ValidatingAdmissionWebhook",
}

const (
	mutatingPolicies   = "MutatingAdmissionPolicy"
	validatingPolicies = "ValidatingAdmissionPolicy"
)

// ErrStaticManifests is that policies or webhooks shall be read from a directory
// (KEP-5793): they are not, as in upstream's server whose gate is off.
var ErrStaticManifests error = field.Forbidden(field.NewPath("staticManifestsDir"), "staticManifestsDir requires the ManifestBasedAdmissionControlConfig feature gate to be enabled")

// Configurations are the documents of plugins, by their names.
type Configurations map[string][]byte

// ReadConfigurations reads an AdmissionConfiguration and the files that it names,
// below its own directory where they are relative.
func ReadConfigurations(file string) (Configurations, error) {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	provider, err := upstream.ReadAdmissionConfiguration(slices.Clone(configured), file, scheme)
	if err != nil {
		return nil, fmt.Errorf("--admission-control-config-file: %w", err)
	}
	c := Configurations{}
	for _, name := range configured {
		r, err := provider.ConfigFor(name)
		if err != nil {
			return nil, fmt.Errorf("--admission-control-config-file: %s: %w", name, err)
		}
		if r == nil {
			continue
		}
		if c[name], err = io.ReadAll(r); err != nil {
			return nil, fmt.Errorf("--admission-control-config-file: %s: %w", name, err)
		}
	}
	return c, c.checkPolicies()
}

// checkPolicies reads the documents of policies, which say nothing but where they lie.
func (c Configurations) checkPolicies() error {
	for _, p := range []struct {
		name string
		load func(io.Reader) (policyconfig.PolicyConfig, error)
	}{{mutatingPolicies, policyconfig.LoadMutatingConfig}, {validatingPolicies, policyconfig.LoadValidatingConfig}} {
		document, ok := c[p.name]
		if !ok {
			continue
		}
		config, err := p.load(bytes.NewReader(document))
		if err == nil && config.StaticManifestsDir != "" {
			err = ErrStaticManifests
		}
		if err != nil {
			return fmt.Errorf("couldn't init admission plugin %q: %w", p.name, err)
		}
	}
	return nil
}

// pluginDocument reads the strict document of a plugin into what it describes.
func pluginDocument(data []byte, apiVersion string, into any) error {
	var kind struct{ APIVersion, Kind string }
	if err := yaml.Unmarshal(data, &kind); err != nil {
		return err
	}
	if kind.APIVersion != apiVersion || kind.Kind != "Configuration" {
		return fmt.Errorf("no kind %q is registered for version %q", kind.Kind, kind.APIVersion)
	}
	return yaml.UnmarshalStrict(data, into)
}
