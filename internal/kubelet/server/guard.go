package server

import (
	"crypto/x509"
	"net/http"

	"k8s.io/utils/clock"

	"proa/internal/client"
	"proa/internal/kubelet/config"
)

// Guard lets requests through to next that come from someone who may do the same
// on every node: it authenticates and authorizes as a node agent does, for one
// endpoint that answers for many nodes.
func Guard(api client.API, clientCAs *x509.CertPool, c clock.PassiveClock, next http.Handler) http.Handler {
	return newAccess(api, clientCAs, "", config.New(), c).wrap(next)
}
