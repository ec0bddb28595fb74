package chain

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/component-base/metrics/legacyregistry"
)

// decisions counts what one authorizer decided, as
// apiserver_authorization_decisions_total.
type decisions struct{ allowed, denied prometheus.Counter }

var decided = sync.OnceValue(func() *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "apiserver_authorization_decisions_total",
		Help: "Terminal decisions of an authorizer by its type and name.",
	}, []string{"type", "name", "decision"})
	legacyregistry.RawMustRegister(v)
	return v
})

func newDecisions(kind, name string) decisions {
	return decisions{decided().WithLabelValues(kind, name, "allowed"), decided().WithLabelValues(kind, name, "denied")}
}

// count does not count the privileged group, which is no authorizer of the
// configuration.
func (d decisions) count(decision authorizer.Decision) {
	switch {
	case d.allowed == nil:
	case decision == authorizer.DecisionAllow:
		d.allowed.Inc()
	case decision == authorizer.DecisionDeny:
		d.denied.Inc()
	}
}
