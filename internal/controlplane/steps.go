package controlplane

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"

	"proa/internal/apiserver"
)

// The steps of a start, by the names that upstream's health endpoints have for
// what does the same. Upstream's other names stand for what is not here: caches,
// their maintenance, and documents that are made when they are asked for.
const (
	storageReady       = hookPrefix + "storage-readiness"
	informersStarted   = hookPrefix + "generic-apiserver-start-informers"
	definitionsFollow  = hookPrefix + "start-apiextensions-informers"
	definitionsServed  = hookPrefix + "start-apiextensions-controllers"
	definitionsRead    = hookPrefix + "crd-informer-synced"
	namespacesMade     = hookPrefix + "start-system-namespaces-controller"
	authoritiesTold    = hookPrefix + "start-cluster-authentication-info-controller"
	identityTold       = hookPrefix + "start-kube-apiserver-identity-lease-controller"
	identitiesRemoved  = hookPrefix + "start-kube-apiserver-identity-lease-garbage-collector"
	legacyTokens       = hookPrefix + "start-legacy-token-tracking-controller"
	allocationsMended  = hookPrefix + "start-service-ip-repair-controllers"
	addressesMade      = hookPrefix + "start-kubernetes-service-cidr-controller"
	rolesMade          = hookPrefix + "rbac/bootstrap-roles"
	prioritiesMade     = hookPrefix + "scheduling/bootstrap-system-priority-classes"
	whereaboutsTold    = hookPrefix + "bootstrap-controller"
	encryptionFollowed = hookPrefix + "start-encryption-provider-config-automatic-reload"
	aggregatorFollows  = hookPrefix + "start-kube-aggregator-informers"
	localAvailable     = hookPrefix + "apiservice-status-local-available-controller"
	remoteAvailable    = hookPrefix + "apiservice-status-remote-available-controller"
	servicesProxied    = hookPrefix + "apiservice-registration-controller"
	servicesDescribed  = hookPrefix + "apiservice-discovery-controller"
	servicesRegistered = hookPrefix + "kube-apiserver-autoregistration"

	informersSynced = "informer-sync"

	hookPrefix = "poststarthook/"
)

// steps are those of one start, in upstream's order.
type steps []*step

type step struct {
	name string
	done atomic.Bool
}

// stepsOf returns the steps of a configuration, none of them done.
func stepsOf(c *Config) steps {
	names := []string{storageReady, informersSynced, informersStarted, definitionsFollow, definitionsServed, definitionsRead, namespacesMade, authoritiesTold}
	if c.Gates.Enabled("APIServerIdentity") {
		names = append(names, identityTold, identitiesRemoved)
	}
	names = append(names, legacyTokens, allocationsMended, rolesMade, prioritiesMade)
	if c.Registry.AdvertiseAddress.IsValid() {
		names = append(names, whereaboutsTold)
	}
	names = append(names, addressesMade)
	if c.Encryption.File != "" && c.Encryption.Reload {
		names = append(names, encryptionFollowed)
	}
	names = append(names, aggregatorFollows, localAvailable, remoteAvailable, servicesProxied, servicesDescribed, servicesRegistered)
	s := make(steps, len(names))
	for i, name := range names {
		s[i] = &step{name: name}
	}
	return s
}

// finish says that steps are done; those that the configuration lacks are none.
func (s steps) finish(names ...string) {
	for _, one := range s {
		if slices.Contains(names, one.name) {
			one.done.Store(true)
		}
	}
}

var errNotFinished = errors.New("not finished")

// checks are what the health endpoints tell of the steps.
func (s steps) checks() []apiserver.Check {
	list := make([]apiserver.Check, len(s))
	for i, one := range s {
		list[i] = apiserver.Check{Name: one.name, Ready: one.name == informersSynced, Check: func(context.Context) error {
			if !one.done.Load() {
				return errNotFinished
			}
			return nil
		}}
	}
	return list
}

// stepped is a component whose beginning is a step.
type stepped struct {
	component
	steps steps
	names []string
}

// Run says that it has begun.
func (c stepped) Run(ctx context.Context) error {
	c.steps.finish(c.names...)
	return c.component.Run(ctx)
}

// step makes the beginning of a component a step of the start.
func (cp *ControlPlane) step(c component, names ...string) component {
	return stepped{c, cp.steps, names}
}
