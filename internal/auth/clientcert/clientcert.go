// Package clientcert tells who a TLS client is from its certificate: the common
// name is the user, the organizations are the groups.
//
// Verifying a chain costs a signature check per certificate and a client sends
// the same one with every request, so the outcome of a verified chain is
// remembered until one of its certificates ends.
package clientcert

import (
	"crypto/sha256"
	"crypto/x509"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	requestx509 "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
)

const (
	rememberedChains = 4096
	maxChain         = 8 // certificates a client may present
)

// Authenticator verifies client certificates against one set of authorities at a time.
type Authenticator struct {
	clock clock.PassiveClock
	trust atomic.Pointer[trust]
}

// trust is a set of authorities, and what was found out with it.
type trust struct {
	roots    *x509.CertPool
	verified *lru.Cache // digest of the presented chain -> identity
}

type identity struct {
	response        *authenticator.Response
	notBefore, last time.Time
}

// New returns an authenticator that trusts roots.
func New(roots *x509.CertPool, c clock.PassiveClock) *Authenticator {
	a := &Authenticator{clock: c}
	a.Trust(roots)
	return a
}

// Trust believes other authorities from now on, and those before no more.
func (a *Authenticator) Trust(roots *x509.CertPool) {
	a.trust.Store(&trust{roots, lru.New(rememberedChains)})
}

// Roots are the authorities that are believed now.
func (a *Authenticator) Roots() *x509.CertPool { return a.trust.Load().roots }

// AuthenticateRequest implements authenticator.Request. A certificate that does
// not verify is an error; none at all is no opinion.
func (a *Authenticator) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	if req.TLS == nil || len(req.TLS.PeerCertificates) == 0 {
		return nil, false, nil
	}
	return a.Authenticate(req.TLS.PeerCertificates)
}

// Authenticate tells who presents a chain, leaf first.
func (a *Authenticator) Authenticate(chain []*x509.Certificate) (*authenticator.Response, bool, error) {
	if len(chain) > maxChain {
		return nil, false, fmt.Errorf("client presents %d certificates, at most %d are read", len(chain), maxChain)
	}
	now, key, trust := a.clock.Now(), digest(chain), a.trust.Load()
	if hit, ok := trust.verified.Get(key); ok {
		id := hit.(identity)
		if !now.Before(id.notBefore) && !now.After(id.last) {
			return id.response, true, nil
		}
	}
	opts := x509.VerifyOptions{
		Roots:         trust.roots,
		Intermediates: x509.NewCertPool(),
		CurrentTime:   now,
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, c := range chain[1:] {
		opts.Intermediates.AddCert(c)
	}
	verified, err := chain[0].Verify(opts)
	if err != nil {
		return nil, false, fmt.Errorf("verifying certificate SN=%d failed: %w", chain[0].SerialNumber, err)
	}
	response, ok, err := requestx509.CommonNameUserConversion(verified[0])
	if err != nil || !ok {
		return nil, ok, err
	}
	id := identity{response: response}
	for _, c := range verified[0] {
		if c.NotBefore.After(id.notBefore) {
			id.notBefore = c.NotBefore
		}
		if id.last.IsZero() || c.NotAfter.Before(id.last) {
			id.last = c.NotAfter
		}
	}
	trust.verified.Add(key, id)
	return response, true, nil
}

func digest(chain []*x509.Certificate) [sha256.Size]byte {
	if len(chain) == 1 {
		return sha256.Sum256(chain[0].Raw)
	}
	h := sha256.New()
	for _, c := range chain { // DER carries its own length
		h.Write(c.Raw)
	}
	return [sha256.Size]byte(h.Sum(nil))
}
