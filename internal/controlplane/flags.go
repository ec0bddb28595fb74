package controlplane

import (
	"context"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/pflag"

	"proa/internal/admission"
	authflags "proa/internal/auth/flags"
	"proa/internal/cardinality"
	"proa/internal/configfile"
	"proa/internal/egress"
	"proa/internal/tracing"
)

// Flags are upstream's flags of an API server that mean the same whatever starts
// it. Those that name files make them absolute.
type Flags struct {
	auth       authflags.Flags
	encryption encryptionFlags
	requests   requestFlags
	audit      auditFlags
	admission  struct {
		enable, disable []string
		file            configfile.Path
	}
	endpointRouting bool
	egress          configfile.Path
	tracing         configfile.Path
	metricLabels    cardinality.Flags
	set             *pflag.FlagSet
}

// Add registers the flags.
func (f *Flags) Add(fs *pflag.FlagSet) {
	f.set = pflag.NewFlagSet("API server", pflag.ContinueOnError)
	f.auth.Add(f.set)
	f.requests.add(f.set)
	f.audit.add(f.set)
	f.set.Var(&f.encryption.file, "encryption-provider-config", "file with an EncryptionConfiguration: what is encrypted at rest, and how")
	f.set.BoolVar(&f.encryption.reload, "encryption-provider-config-automatic-reload", false, "read that file again when it changes")
	f.set.StringSliceVar(&f.admission.enable, "enable-admission-plugins", nil, "admission plugins that run besides those that do by default")
	f.set.StringSliceVar(&f.admission.disable, "disable-admission-plugins", nil, "admission plugins that do not run although they do by default")
	f.set.Var(&f.admission.file, "admission-control-config-file", "file with an AdmissionConfiguration: configurations of admission plugins")
	f.set.BoolVar(&f.endpointRouting, "enable-aggregator-routing", true, "call webhooks and extension servers at the endpoints of their Services; false: at the addresses of the Services, which this host has to be able to reach")
	f.set.Var(&f.egress, "egress-selector-config-file", "file with an EgressSelectorConfiguration: through which proxies the server reaches the cluster, webhooks and etcd")
	f.set.Var(&f.tracing, "tracing-config-file", "file with a TracingConfiguration: where spans of requests are sent, and of how many")
	f.metricLabels.Add(f.set)
	fs.AddFlagSet(f.set)
}

// Apply changes c to what the flags ask for. It reads the files that they name.
func (f *Flags) Apply(c *Config) error {
	c.Admission.Enable, c.Admission.Disable = f.admission.enable, f.admission.disable
	if f.admission.file != "" {
		var err error
		if c.Admission.Configurations, err = admission.ReadConfigurations(string(f.admission.file)); err != nil {
			return err
		}
	}
	if err := f.encryption.apply(c); err != nil {
		return err
	}
	if err := f.requests.apply(&c.Server); err != nil {
		return err
	}
	var err error
	if c.Server.Audit, err = f.audit.config(); err != nil {
		return err
	}
	c.ServiceAddresses = !f.endpointRouting
	if f.egress != "" {
		if c.Egress, err = egress.Read(string(f.egress)); err != nil {
			return err
		}
	}
	if c.Server.MetricLabels, err = f.metricLabels.Limits(); err != nil {
		return err
	}
	if f.tracing != "" {
		if c.Server.Tracer, err = tracing.Open(context.Background(), string(f.tracing), uuid.NewString()); err != nil {
			return err
		}
	}
	c.Server.Flags = f.inForce()
	if err := f.auth.Apply(&c.Auth); err != nil {
		return err
	}
	tellFrontProxy(c)
	return nil
}

// RequireAccounts says which flags of service account tokens are missing, for a
// server that has no keys of its own.
func (f *Flags) RequireAccounts() []error { return f.auth.RequireAccounts() }

// tellFrontProxy lets extension servers know the front proxy that the flags name.
func tellFrontProxy(c *Config) {
	if c.Auth.FrontProxyCAFile == "" {
		return
	}
	h := c.Auth.FrontProxyHeaders
	c.Trust.FrontProxyCA, c.Trust.FrontProxyNames = c.Auth.FrontProxyCAData, c.Auth.FrontProxyNames
	c.Trust.UserHeaders, c.Trust.UIDHeaders, c.Trust.GroupHeaders, c.Trust.ExtraPrefixes = h.User, h.UID, h.Group, h.ExtraPrefix
}

// Given returns the flags that were given, as ParseFlags reads them.
func (f *Flags) Given() map[string]string {
	given := map[string]string{}
	f.set.VisitAll(func(flag *pflag.Flag) {
		if !flag.Changed {
			return
		}
		text := flag.Value.String()
		switch flag.Value.Type() {
		case "stringSlice", "stringToString", "files":
			text = strings.TrimSuffix(strings.TrimPrefix(text, "["), "]")
		}
		given[flag.Name] = text
	})
	return given
}

// ParseFlags returns flags as they were given, by name.
func ParseFlags(given map[string]string) (*Flags, error) {
	f := &Flags{}
	f.Add(pflag.NewFlagSet("API server", pflag.ContinueOnError))
	for name, value := range given {
		if err := f.set.Set(name, value); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// inForce are the values of all flags.
func (f *Flags) inForce() map[string]string {
	values := map[string]string{}
	f.set.VisitAll(func(flag *pflag.Flag) { values[flag.Name] = flag.Value.String() })
	return values
}
