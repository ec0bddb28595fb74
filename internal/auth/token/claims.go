package token

import (
	"time"

	"github.com/go-jose/go-jose/v4/jwt"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
)

// ref names an object a token is tied to, and which incarnation of it.
type ref struct {
	Name string `json:"name,omitempty"`
	UID  string `json:"uid,omitempty"`
}

// private is the claim set below "kubernetes.io".
type private struct {
	Namespace      string           `json:"namespace,omitempty"`
	Node           *ref             `json:"node,omitempty"`
	Pod            *ref             `json:"pod,omitempty"`
	Secret         *ref             `json:"secret,omitempty"`
	ServiceAccount ref              `json:"serviceaccount,omitempty"`
	WarnAfter      *jwt.NumericDate `json:"warnafter,omitempty"`
}

// claims is everything this server reads from a token: bound tokens fill
// Kubernetes, tokens in Secrets the flat Legacy names.
type claims struct {
	jwt.Claims
	Kubernetes private `json:"kubernetes.io"`

	LegacyNamespace  string `json:"kubernetes.io/serviceaccount/namespace,omitempty"`
	LegacySecret     string `json:"kubernetes.io/serviceaccount/secret.name,omitempty"`
	LegacyAccount    string `json:"kubernetes.io/serviceaccount/service-account.name,omitempty"`
	LegacyAccountUID string `json:"kubernetes.io/serviceaccount/service-account.uid,omitempty"`
}

// legacy is the claim set of a token kept in a Secret.
type legacy struct {
	Issuer    string `json:"iss"`
	Subject   string `json:"sub"`
	Namespace string `json:"kubernetes.io/serviceaccount/namespace"`
	Secret    string `json:"kubernetes.io/serviceaccount/secret.name"`
	Account   string `json:"kubernetes.io/serviceaccount/service-account.name"`
	UID       string `json:"kubernetes.io/serviceaccount/service-account.uid"`
}

// bound is the claim set of a requested token.
type bound struct {
	jwt.Claims
	// Audience is a list even when there is only one, as readers expect it.
	Audience   []string `json:"aud"`
	Kubernetes private  `json:"kubernetes.io"`
}

func refOf(obj metav1.Object) *ref {
	return &ref{Name: obj.GetName(), UID: string(obj.GetUID())}
}

// boundClaims are the claims of a token for sa that lives for life from now.
// WarnAfter, when not zero, is the life the client asked for, after which use of
// the token is reported as stale.
func (s *Service) boundClaims(sa *corev1.ServiceAccount, to binding, audiences []string, jti string, now time.Time, life, warnAfter time.Duration) bound {
	c := bound{
		Claims: jwt.Claims{
			Issuer:    s.issuers[0],
			Subject:   serviceaccount.MakeUsername(sa.Namespace, sa.Name),
			IssuedAt:  jwt.NewNumericDate(now),
			NotBefore: jwt.NewNumericDate(now),
			Expiry:    jwt.NewNumericDate(now.Add(life)),
			ID:        jti,
		},
		Audience: audiences,
		Kubernetes: private{
			Namespace: sa.Namespace, ServiceAccount: *refOf(sa),
			Pod: to.pod, Secret: to.secret, Node: to.node,
		},
	}
	if warnAfter > 0 {
		c.Kubernetes.WarnAfter = jwt.NewNumericDate(now.Add(warnAfter))
	}
	return c
}

// credentialID names a token in audit events and in the extra of its user.
func credentialID(jti string) string { return "JTI=" + jti }
