package token

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/metrics/legacyregistry"
)

// uses counts tokens that were good, or would have been, under upstream's names.
type uses struct {
	valid, stale               prometheus.Counter // of the TokenRequest API
	legacy, manual, auto, lost prometheus.Counter // kept in Secrets; lost: marked invalid
}

var used = sync.OnceValue(func() *uses {
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: "serviceaccount_" + name, Help: help})
		legacyregistry.RawMustRegister(c)
		return c
	}
	return &uses{
		valid:  counter("valid_tokens_total", "Uses of projected service account tokens."),
		stale:  counter("stale_tokens_total", "Uses of projected service account tokens that should have been renewed."),
		legacy: counter("legacy_tokens_total", "Uses of service account tokens that name no audience."),
		manual: counter("legacy_manual_token_uses_total", "Uses of tokens in Secrets that somebody made."),
		auto:   counter("legacy_auto_token_uses_total", "Uses of tokens in Secrets that were made for every service account."),
		lost:   counter("invalid_legacy_auto_token_uses_total", "Uses of such tokens after they were marked as invalid."),
	}
})
