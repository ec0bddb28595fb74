package admission

import (
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	admissionapi "k8s.io/pod-security-admission/admission/api"

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

	PodSecurity *admissionapi.PodSecurityConfiguration // nil: privileged by default

	// Policies and Webhooks run at their places: what mutates after the built-in
	// mutators, what validates before the quota is charged. Each is a Mutator or a
	// Validator; it can be disabled by its name.
	Policies, Webhooks []any

	// NoPrivileged refuses privileged containers.
	NoPrivileged bool

	// Suffix makes the five characters at the end of a generated volume name.
	Suffix func() string
}

type plugin struct {
	plugin any
	off    bool // unless enabled
	fixed  bool // cannot be disabled
}

type named interface{ Name() string }

// New returns the chain of the plugins that are on, in upstream's order.
func New(c Config) (*Chain, error) {
	if c.Store == nil || c.Authorizer == nil {
		return nil, errors.New("admission: no store or no authorizer")
	}
	if c.Suffix == nil {
		c.Suffix = func() string { return rand.String(5) }
	}
	podSecurity, err := NewPodSecurity(c.Store, c.PodSecurity)
	if err != nil {
		return nil, fmt.Errorf("admission plugin PodSecurity: %w", err)
	}
	known := ordered(c, podSecurity)
	if err := checkNames(known, c.Enable, nil); err != nil {
		return nil, fmt.Errorf("enable-admission-plugins plugin %w", err)
	}
	if err := checkNames(known, c.Disable, absent); err != nil {
		return nil, fmt.Errorf("disable-admission-plugins plugin %w", err)
	}
	for _, name := range c.Enable {
		if slices.Contains(c.Disable, name) {
			return nil, fmt.Errorf("%v in enable-admission-plugins and disable-admission-plugins overlapped", []string{name})
		}
	}
	var on []any
	for _, p := range known {
		n, isNamed := p.plugin.(named)
		switch {
		case !isNamed || p.fixed:
			on = append(on, p.plugin)
		case slices.Contains(c.Disable, n.Name()):
		case !p.off || slices.Contains(c.Enable, n.Name()):
			on = append(on, p.plugin)
		}
	}
	return NewChain(on...), nil
}

func ordered(c Config, podSecurity *PodSecurity) []plugin {
	s := c.Store
	list := []plugin{
		{plugin: NamespaceLifecycle{s}},
		{plugin: LimitRanger{s}},
		{plugin: ServiceAccount{s, c.Suffix}},
		{plugin: NodeRestriction{s, c.Authorizer}},
		{plugin: TaintNodesByCondition{}},
		{plugin: AlwaysPullImages{}, off: true},
		{plugin: podSecurity},
		{plugin: Priority{s}},
		{plugin: DefaultTolerationSeconds{}},
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
	}
	if c.NoPrivileged {
		list = append(list, plugin{plugin: noPrivileged{}})
	}
	if c.RBAC != nil {
		list = append(list, plugin{plugin: RBACEscalation{c.RBAC, c.Authorizer}, fixed: true})
	}
	for _, p := range slices.Concat(c.Policies, c.Webhooks) {
		list = append(list, plugin{plugin: p})
	}
	return append(list, plugin{plugin: ResourceQuota{}})
}

// absent are upstream's plugins that never run here, so that disabling them is
// no mistake: those with a part of their own, and those no cluster turns on by default.
var absent = []string{
	"AlwaysAdmit", "AlwaysDeny", "EventRateLimit", "ExtendedResourceToleration", "ImagePolicyWebhook",
	"LimitPodHardAntiAffinityTopology", "MutatingAdmissionPolicy", "MutatingAdmissionWebhook", "NamespaceAutoProvision",
	"NamespaceExists", "PodNodeSelector", "PodTolerationRestriction", "ValidatingAdmissionPolicy", "ValidatingAdmissionWebhook",
}

func checkNames(known []plugin, names, others []string) error {
	for _, name := range names {
		if !slices.Contains(others, name) && !slices.ContainsFunc(known, func(p plugin) bool {
			n, ok := p.plugin.(named)
			return ok && n.Name() == name
		}) {
			return fmt.Errorf("%q is unknown", name)
		}
	}
	return nil
}
