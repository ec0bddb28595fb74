package apiserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/component-base/metrics/legacyregistry"
)

// impersonationMode is one way of being allowed to act as another user. The
// constrained modes (KEP-5284) ask twice: may the requestor do what the request
// does while impersonating in this mode (impersonate-on:<mode>:<verb>), and may
// it impersonate each part of the identity (impersonate:<mode>). The old mode asks
// only the second, with the verb impersonate.
type impersonationMode struct {
	name        string
	constrained bool
	applies     func(wanted, requestor user.Info) bool
}

// constrainedImpersonation are the modes in the order in which they are tried.
var constrainedImpersonation = []impersonationMode{
	{"associated-node", true, func(wanted, requestor user.Info) bool {
		node, ok := nodeOf(wanted.GetName())
		_, _, err := serviceaccount.SplitUsername(requestor.GetName())
		names := requestor.GetExtra()[serviceaccount.NodeNameKey]
		return onlyNamed(wanted) && ok && err == nil && len(names) == 1 && names[0] == node
	}},
	{"arbitrary-node", true, func(wanted, _ user.Info) bool {
		_, ok := nodeOf(wanted.GetName())
		return onlyNamed(wanted) && ok
	}},
	{"serviceaccount", true, func(wanted, _ user.Info) bool {
		_, _, err := serviceaccount.SplitUsername(wanted.GetName())
		return onlyNamed(wanted) && err == nil
	}},
	{"user-info", true, func(wanted, _ user.Info) bool {
		_, node := nodeOf(wanted.GetName())
		_, _, err := serviceaccount.SplitUsername(wanted.GetName())
		return !node && err != nil
	}},
}

var legacyImpersonation = impersonationMode{name: "legacy", applies: func(user.Info, user.Info) bool { return true }}

func onlyNamed(u user.Info) bool {
	return u.GetUID() == "" && len(u.GetGroups()) == 0 && len(u.GetExtra()) == 0
}

func nodeOf(username string) (string, bool) {
	node, ok := strings.CutPrefix(username, "system:node:")
	return node, ok && len(validation.NameIsDNSSubdomain(node, false)) == 0
}

// impersonate returns the user whom the first mode allows to be impersonated and
// the verb that allowed it, empty for the old mode. The first refusal is the
// error.
func (s *Server) impersonate(ctx context.Context, modes []impersonationMode, wanted *user.DefaultInfo, a *authorizer.AttributesRecord) (user.Info, string, error) {
	start := s.config.Clock.Now()
	tell := func(mode, decision string) {
		m := impersonations()
		m.attempts.WithLabelValues(mode, decision).Inc()
		m.attemptSeconds.WithLabelValues(mode, decision).Observe(s.config.Clock.Since(start).Seconds())
	}
	var refusal error
	for _, mode := range modes {
		if !mode.applies(wanted, a.User) {
			continue
		}
		as, err := s.impersonateIn(ctx, mode, wanted, a)
		if err == nil {
			tell(mode.name, "allowed")
			if !mode.constrained {
				return as, "", nil
			}
			return as, "impersonate:" + mode.name, nil
		}
		if refusal == nil {
			refusal = err
		}
	}
	tell("", "denied")
	return nil, "", refusal
}

// impersonateIn returns the identity that a mode gives, if every check allows it.
func (s *Server) impersonateIn(ctx context.Context, mode impersonationMode, wanted *user.DefaultInfo, a *authorizer.AttributesRecord) (user.Info, error) {
	c := impersonation{Server: s, mode: mode, requestor: a.User, wanted: wanted}
	if mode.name == "associated-node" {
		c.requestor = associated{a.User}
	}
	if mode.constrained {
		on := *a
		on.User, on.Verb = c.requestor, "impersonate-on:"+mode.name+":"+a.Verb
		if err := c.ask(ctx, &on); err != nil {
			return nil, err
		}
	}
	for _, check := range []func(context.Context) error{c.name, c.uid, c.groups, c.extra} {
		if err := check(ctx); err != nil {
			return nil, err
		}
	}
	as := *wanted
	as.Groups = c.impliedGroups()
	return &as, nil
}

// associated is a service account on a node, without what differs from node to
// node: its right to be its own node is the same on all of them.
type associated struct{ user.Info }

func (a associated) GetExtra() map[string][]string {
	return map[string][]string{"authentication.kubernetes.io/associated-node-keys": slices.Sorted(maps.Keys(a.Info.GetExtra()))}
}

// impersonation is the checks of one request in one mode.
type impersonation struct {
	*Server
	mode      impersonationMode
	requestor user.Info
	wanted    *user.DefaultInfo
}

func (c impersonation) verb() string {
	if c.mode.constrained {
		return "impersonate:" + c.mode.name
	}
	return "impersonate"
}

// of is the question whether a part of an identity may be impersonated. Users
// and groups are of the core group in the old mode only.
func (c impersonation) of(resource, name string) *authorizer.AttributesRecord {
	a := &authorizer.AttributesRecord{
		User: c.requestor, Verb: c.verb(), APIGroup: "authentication.k8s.io", APIVersion: "v1", Resource: resource, Name: name, ResourceRequest: true,
	}
	if !c.mode.constrained && resource != "uids" && resource != "userextras" {
		a.APIGroup = ""
	}
	return a
}

func (c impersonation) ask(ctx context.Context, a *authorizer.AttributesRecord) error {
	start, decision := c.config.Clock.Now(), "allowed"
	err := c.authorize(ctx, a)
	if err != nil {
		decision = "denied"
	}
	m := impersonations()
	m.checks.WithLabelValues(c.mode.name, decision).Inc()
	m.checkSeconds.WithLabelValues(c.mode.name, decision).Observe(c.config.Clock.Since(start).Seconds())
	return err
}

func (c impersonation) name(ctx context.Context) error {
	a := c.of("users", c.wanted.Name)
	if node, ok := nodeOf(c.wanted.Name); ok && c.mode.constrained {
		a.Resource, a.Name = "nodes", node
		if c.mode.name == "associated-node" {
			a.Name = "*" // whichever node it runs on
		}
	}
	if namespace, name, err := serviceaccount.SplitUsername(c.wanted.Name); err == nil {
		a.Resource, a.Namespace, a.Name = "serviceaccounts", namespace, name
	}
	return c.ask(ctx, a)
}

func (c impersonation) uid(ctx context.Context) error {
	if c.wanted.UID == "" {
		return nil
	}
	return c.ask(ctx, c.of("uids", c.wanted.UID))
}

// manyChecks is from how many on a constrained mode asks for all of them at once first.
const manyChecks = 4

func (c impersonation) groups(ctx context.Context) error {
	groups, a := c.wanted.Groups, c.of("groups", "")
	if c.mode.constrained {
		if slices.Contains(groups, "") {
			return forbidden(a, "impersonating the empty string group is not allowed")
		}
		if slices.Contains(groups, user.SystemPrivilegedGroup) {
			a.Name = user.SystemPrivilegedGroup
			return forbidden(a, "impersonating the system:masters group is not allowed")
		}
		if len(groups) >= manyChecks && c.ask(ctx, c.of("groups", "*")) == nil {
			return nil
		}
	}
	for _, group := range groups {
		if err := c.ask(ctx, c.of("groups", group)); err != nil {
			return err
		}
	}
	return nil
}

func (c impersonation) extra(ctx context.Context) error {
	extra := c.wanted.Extra
	count := 0
	for _, values := range extra {
		count += len(values)
	}
	if count == 0 {
		return nil
	}
	if c.mode.constrained {
		if err := validExtra(extra); err != nil {
			return forbidden(c.of("userextras", ""), err.Error())
		}
		if all := c.of("userextras", "*"); count >= manyChecks {
			all.Subresource = "*"
			if c.ask(ctx, all) == nil {
				return nil
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(extra)) {
		for _, value := range extra[key] {
			a := c.of("userextras", value)
			a.Subresource = key
			if err := c.ask(ctx, a); err != nil {
				return err
			}
		}
	}
	return nil
}

func validExtra(extra map[string][]string) error {
	for key, values := range extra {
		switch err := utilvalidation.IsDomainPrefixedPath(field.NewPath("extra", "key"), key).ToAggregate(); {
		case key == "":
			return errors.New("impersonating the empty string key in extra is not allowed")
		case err != nil:
			return fmt.Errorf("impersonating an invalid key in extra is not allowed: %w", err)
		case key != strings.ToLower(key):
			return fmt.Errorf("impersonating a non-lowercase key in extra is not allowed: %q", key)
		case slices.Contains(values, ""):
			return errors.New("impersonating the empty string value in extra is not allowed")
		}
	}
	return nil
}

// impliedGroups are the wanted groups and those that follow from the name.
func (c impersonation) impliedGroups() []string {
	groups := slices.Clone(c.wanted.Groups)
	if len(groups) == 0 {
		if namespace, _, err := serviceaccount.SplitUsername(c.wanted.Name); err == nil {
			groups = serviceaccount.MakeGroupNames(namespace)
		}
		if _, ok := nodeOf(c.wanted.Name); ok && c.mode.constrained {
			groups = []string{user.NodesGroup}
		}
	}
	implied := user.AllAuthenticated
	if c.wanted.Name == user.Anonymous {
		implied = user.AllUnauthenticated
	}
	if slices.Contains(groups, implied) || slices.Contains(groups, user.AllUnauthenticated) {
		return groups
	}
	return append(groups, implied)
}

// impersonationMetrics have upstream's names; servers of one process share them.
type impersonationMetrics struct {
	attempts, checks             *prometheus.CounterVec
	attemptSeconds, checkSeconds *prometheus.HistogramVec
}

var impersonations = sync.OnceValue(func() *impersonationMetrics {
	labels := []string{"mode", "decision"}
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "apiserver_impersonation_" + name, Help: help}, labels)
	}
	seconds := func(name, help string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "apiserver_impersonation_" + name, Help: help, Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
		}, labels)
	}
	m := &impersonationMetrics{
		attempts:       counter("attempts_total", "Requests that impersonate, by mode and decision."),
		checks:         counter("authorization_attempts_total", "Authorization checks of impersonation, by mode and decision."),
		attemptSeconds: seconds("attempts_duration_seconds", "Time to decide on an impersonation, in seconds."),
		checkSeconds:   seconds("authorization_attempts_duration_seconds", "Time of authorization checks of impersonation, in seconds."),
	}
	legacyregistry.RawMustRegister(m.attempts, m.checks, m.attemptSeconds, m.checkSeconds)
	return m
})
