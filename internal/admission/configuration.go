package admission

import (
	"fmt"
	"io"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	upstream "k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	"sigs.k8s.io/yaml"
)

// configured are upstream's plugins that take a configuration.
var configured = []string{
	"EventRateLimit", "ImagePolicyWebhook", "MutatingAdmissionPolicy", "MutatingAdmissionWebhook", "PodNodeSelector", "PodSecurity",
	"PodTolerationRestriction", "ResourceQuota", "ValidatingAdmissionPolicy", "ValidatingAdmissionWebhook",
}

// ErrStaticManifests is that policies or webhooks shall be read from a directory
// (KEP-5793) while the gate of that is off.
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
	return c, nil
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
