package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apiserver/pkg/authorization/authorizer"
	admissionapi "k8s.io/pod-security-admission/admission/api"
	"k8s.io/utils/clock"

	"proa/internal/apis"
	"proa/internal/auth/rbac"
	"proa/internal/store"
)

var errNotAllowed = errors.New("Not allowed by PodSecurity")

// Config describes the chain of one server. Store and Authorizer are required.
type Config struct {
	Store      *store.Store
	Catalogue  *apis.Catalogue // required when OwnerReferencesPermissionEnforcement is enabled
	Authorizer authorizer.Authorizer
	// RBAC checks that nobody grants more than they hold; nil: not checked.
	RBAC *rbac.Authorizer

	// Enable and Disable name plugins, as the flags of upstream's API server.
	Enable, Disable []string

	// Configurations are those of plugins, as files have them.
	Configurations Configurations
	// PodSecurity is what holds without a file; nil: privileged.
	PodSecurity *admissionapi.PodSecurityConfiguration

	// MakeNamespace creates a namespace; required when NamespaceAutoProvision is
	// enabled.
	MakeNamespace func(ctx context.Context, name string) error

	Clock clock.PassiveClock // nil: the real one

	// Policies and Webhooks run at their places: what mutates after the built-in
	// mutators, what validates before the quota is charged. Each is a Mutator or a
	// Validator; it can be disabled by its name.
	Policies, Webhooks []any

	// NoPrivileged refuses privileged containers.
	NoPrivileged bool
}

// plugin is one of the chain, or how it is made where it is on.
type plugin struct {
	plugin any
	off    bool // unless enabled
	fixed  bool // cannot be disabled

	called string
	new    func() (any, error)
}

type named interface{ Name() string }

// New returns the chain of the plugins that are on, in upstream's order.
func New(c Config) (*Chain, error) {
	if c.Store == nil || c.Authorizer == nil {
		return nil, errors.New("admission: no store or no authorizer")
	}
	known := ordered(c)
	if err := checkNames(known, c.Enable, nil); err != nil {
		return nil, fmt.Errorf("enable-admission-plugins plugin %w", err)
	}
	if err := checkNames(known, c.Disable, elsewhere); err != nil {
		return nil, fmt.Errorf("disable-admission-plugins plugin %w", err)
	}
	for _, name := range c.Enable {
		if slices.Contains(c.Disable, name) {
			return nil, fmt.Errorf("%v in enable-admission-plugins and disable-admission-plugins overlapped", []string{name})
		}
	}
	var on []any
	for _, p := range known {
		name, isNamed := p.name()
		if isNamed && !p.fixed && (slices.Contains(c.Disable, name) || p.off && !slices.Contains(c.Enable, name)) {
			continue
		}
		made, err := p.make()
		if err != nil {
			return nil, fmt.Errorf("couldn't init admission plugin %q: %w", name, err)
		}
		on = append(on, made)
	}
	return NewChain(on...), nil
}

// name is a plugin's own, or for one that is still to be made, the given one.
func (p plugin) name() (string, bool) {
	if p.new != nil {
		return p.called, true
	}
	n, ok := p.plugin.(named)
	if !ok {
		return "", false
	}
	return n.Name(), true
}

func (p plugin) make() (any, error) {
	if p.new != nil {
		return p.new()
	}
	return p.plugin, nil
}

// reads makes a plugin out of its configuration.
func reads[T any](c Config, name string, off bool, from func(document []byte) (T, error)) plugin {
	return plugin{called: name, off: off, new: func() (any, error) { return from(c.Configurations[name]) }}
}

func ordered(c Config) []plugin {
	s := c.Store
	list := []plugin{
		{plugin: AlwaysAdmit{}, off: true},
		{plugin: NamespaceAutoProvision{s, c.MakeNamespace}, off: true},
		{plugin: NamespaceLifecycle{s}},
		{plugin: NamespaceExists{s}, off: true},
		{plugin: LimitPodHardAntiAffinityTopology{}, off: true},
		{plugin: LimitRanger{s}},
		{plugin: ServiceAccount{s}},
		{plugin: NodeRestriction{s, c.Authorizer}},
		{plugin: TaintNodesByCondition{}},
		{plugin: AlwaysPullImages{}, off: true},
		reads(c, "ImagePolicyWebhook", true, NewImagePolicyWebhook),
		reads(c, "PodSecurity", false, func(document []byte) (*PodSecurity, error) { return NewPodSecurity(s, c.PodSecurity, document) }),
		reads(c, "PodNodeSelector", true, func(document []byte) (PodNodeSelector, error) { return NewPodNodeSelector(s, document) }),
		{plugin: Priority{s}},
		{plugin: DefaultTolerationSeconds{}},
		reads(c, "PodTolerationRestriction", true, func(document []byte) (PodTolerationRestriction, error) {
			return NewPodTolerationRestriction(s, document)
		}),
		reads(c, "EventRateLimit", true, func(document []byte) (EventRateLimit, error) { return NewEventRateLimit(document, c.Clock) }),
		{plugin: ExtendedResourceToleration{}, off: true},
		{plugin: DefaultStorageClass{s}},
		{plugin: StorageObjectInUseProtection{}},
		{plugin: OwnerReferencesPermissionEnforcement{c.Authorizer, c.Catalogue}, off: true},
		{plugin: PersistentVolumeClaimResize{s}},
		{plugin: RuntimeClass{s}},
		{plugin: CertificateApproval{c.Authorizer}},
		{plugin: CertificateSigning{c.Authorizer}},
		{plugin: ClusterTrustBundleAttest{c.Authorizer}},
		{plugin: CertificateSubjectRestriction{}},
		{plugin: DefaultIngressClass{s}},
		{plugin: DenyServiceExternalIPs{}, off: true},
		{plugin: PodTopologyLabels{s}},
		{plugin: NodeDeclaredFeatureValidator{s}},
		{plugin: PodResizeValidator{s}},
		{plugin: deviceClaims{s, c.Authorizer}, fixed: true},
	}
	if c.NoPrivileged {
		list = append(list, plugin{plugin: noPrivileged{}, fixed: true})
	}
	if c.RBAC != nil {
		list = append(list, plugin{plugin: RBACEscalation{c.RBAC, c.Authorizer}, fixed: true})
	}
	for _, p := range slices.Concat(c.Policies, c.Webhooks) {
		list = append(list, plugin{plugin: p})
	}
	quotas := reads(c, "ResourceQuota", false, func(document []byte) (ResourceQuota, error) { return NewResourceQuota(document, c.Clock) })
	return append(list, quotas, plugin{plugin: AlwaysDeny{}, off: true})
}

// elsewhere are the plugins that come with the configuration; disabling them is no
// mistake where there are none.
var elsewhere = []string{"MutatingAdmissionPolicy", "MutatingAdmissionWebhook", "ValidatingAdmissionPolicy", "ValidatingAdmissionWebhook"}

func checkNames(known []plugin, names, others []string) error {
	for _, name := range names {
		if !slices.Contains(others, name) && !slices.ContainsFunc(known, func(p plugin) bool {
			n, ok := p.name()
			return ok && n == name
		}) {
			return fmt.Errorf("%q is unknown", name)
		}
	}
	return nil
}
