// Package bootstraptoken tells who a joining node is from a token
// "<id>.<secret>" kept in a Secret of kube-system.
package bootstraptoken

import (
	"context"
	"crypto/subtle"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/clock"

	"proa/internal/store"
)

// The format of tokens and of their Secrets.
const (
	SecretPrefix = "bootstrap-token-"
	UserPrefix   = "system:bootstrap:"
	DefaultGroup = "system:bootstrappers"

	KeyID             = "token-id"
	KeySecret         = "token-secret"
	KeyExpiration     = "expiration" // RFC 3339
	KeyAuthentication = "usage-bootstrap-authentication"
	KeySigning        = "usage-bootstrap-signing"
	KeyGroups         = "auth-extra-groups"
	KeyDescription    = "description"
)

var (
	format      = regexp.MustCompile(`^([a-z0-9]{6})\.([a-z0-9]{16})$`)
	groupFormat = regexp.MustCompile(`^system:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]$`)
	secrets     = schema.GroupResource{Resource: "secrets"}
)

// Authenticator knows the bootstrap tokens in a store.
type Authenticator struct {
	store *store.Store
	clock clock.PassiveClock
}

// New returns an authenticator of the tokens in s.
func New(s *store.Store, c clock.PassiveClock) *Authenticator { return &Authenticator{s, c} }

// AuthenticateToken implements authenticator.Token. A token that is of another
// kind, unknown, expired or not meant for authentication is no opinion: what was
// wrong with it is not told to the bearer.
func (a *Authenticator) AuthenticateToken(_ context.Context, token string) (*authenticator.Response, bool, error) {
	parts := format.FindStringSubmatch(token)
	if parts == nil {
		return nil, false, nil
	}
	id, given := parts[1], parts[2]
	item, err := a.store.Get(store.Key{Resource: secrets, Namespace: metav1.NamespaceSystem, Name: SecretPrefix + id})
	if err != nil {
		return nil, false, nil
	}
	secret, ok := item.Object.(*corev1.Secret)
	if !ok || !a.usable(secret, id, given) {
		return nil, false, nil
	}
	groups, ok := groupsOf(secret)
	if !ok {
		return nil, false, nil
	}
	return &authenticator.Response{User: &user.DefaultInfo{Name: UserPrefix + id, Groups: groups}}, true, nil
}

func (a *Authenticator) usable(secret *corev1.Secret, id, given string) bool {
	stored := secret.Data[KeySecret]
	return secret.DeletionTimestamp == nil &&
		secret.Type == corev1.SecretTypeBootstrapToken &&
		string(secret.Data[KeyID]) == id &&
		len(stored) > 0 && subtle.ConstantTimeCompare(stored, []byte(given)) == 1 &&
		!a.expired(secret) &&
		string(secret.Data[KeyAuthentication]) == "true"
}

// expired treats an unreadable time as passed.
func (a *Authenticator) expired(secret *corev1.Secret) bool {
	text := string(secret.Data[KeyExpiration])
	if text == "" {
		return false
	}
	t, err := time.Parse(time.RFC3339, text)
	return err != nil || !a.clock.Now().Before(t)
}

func groupsOf(secret *corev1.Secret) ([]string, bool) {
	groups := []string{DefaultGroup}
	extra := string(secret.Data[KeyGroups])
	if extra == "" {
		return groups, true
	}
	for _, g := range strings.Split(extra, ",") {
		if !groupFormat.MatchString(g) {
			return nil, false
		}
		groups = append(groups, g)
	}
	return groups, true
}
