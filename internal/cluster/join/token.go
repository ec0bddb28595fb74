package join

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math/big"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/auth/bootstraptoken"
	"proa/internal/client"
)

// The patterns of a token and of its public half, as kubeadm's messages show them.
const (
	tokenPattern = `\A([a-z0-9]{6})\.([a-z0-9]{16})\z`
	idPattern    = `\A([a-z0-9]{6})\z`
	groupPattern = `\Asystem:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]\z`
)

var (
	tokenFormat = regexp.MustCompile(tokenPattern)
	idFormat    = regexp.MustCompile(idPattern)
	groupFormat = regexp.MustCompile(groupPattern)
)

// DefaultGroup is the group of those who join with a token that names no other:
// what the cluster lets joining nodes do is bound to it.
const DefaultGroup = "system:bootstrappers:kubeadm:default-node-token"

// DefaultTTL is how long a token lives unless its maker says otherwise.
const DefaultTTL = 24 * time.Hour

// Usages of a token.
const (
	UsageSigning        = "signing"        // it signs cluster-info, so that its holder can trust the cluster
	UsageAuthentication = "authentication" // its holder is a user of the API
)

var usageKeys = map[string]string{
	UsageAuthentication: bootstraptoken.KeyAuthentication,
	UsageSigning:        bootstraptoken.KeySigning,
}

// Token is a bootstrap token. ID is public, Secret is not.
type Token struct{ ID, Secret string }

// String is the form that users pass around. It holds the secret.
func (t Token) String() string { return t.ID + "." + t.Secret }

// Parse reads "<id>.<secret>".
func Parse(text string) (Token, error) {
	parts := tokenFormat.FindStringSubmatch(text)
	if parts == nil {
		return Token{}, fmt.Errorf("the bootstrap token %q was not of the form %q", text, tokenPattern)
	}
	return Token{ID: parts[1], Secret: parts[2]}, nil
}

// Generate makes a token from the system's source of randomness.
func Generate() (Token, error) {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	text := make([]byte, 6+16)
	for i := range text {
		n, err := rand.Int(rand.Reader, big.NewInt(int64(len(letters))))
		if err != nil {
			return Token{}, fmt.Errorf("generate token: %w", err)
		}
		text[i] = letters[n.Int64()]
	}
	return Token{ID: string(text[:6]), Secret: string(text[6:])}, nil
}

// Grant is a token and what it is good for.
type Grant struct {
	Token
	Expires     time.Time // zero: never
	Usages      []string
	Groups      []string // besides system:bootstrappers
	Description string
}

// Validate says what is wrong with usages and groups.
func (g Grant) Validate() error {
	var errs []error
	for _, usage := range g.Usages {
		if usageKeys[usage] == "" {
			errs = append(errs, fmt.Errorf("invalid bootstrap token usage string: %s, valid usage options: %s", usage, strings.Join([]string{UsageSigning, UsageAuthentication}, ",")))
		}
	}
	for _, group := range g.Groups {
		if !groupFormat.MatchString(group) {
			errs = append(errs, fmt.Errorf("bootstrap group %q is invalid (must match %s)", group, groupPattern))
		}
	}
	if len(g.Groups) > 0 && !slices.Contains(g.Usages, UsageAuthentication) {
		errs = append(errs, fmt.Errorf("token groups cannot be specified unless --usages includes %q", UsageAuthentication))
	}
	return errors.Join(errs...)
}

// secret is the grant as the cluster keeps it.
func (g Grant) secret() *corev1.Secret {
	data := map[string][]byte{
		bootstraptoken.KeyID:     []byte(g.ID),
		bootstraptoken.KeySecret: []byte(g.Secret),
	}
	if !g.Expires.IsZero() {
		data[bootstraptoken.KeyExpiration] = []byte(g.Expires.UTC().Format(time.RFC3339))
	}
	for _, usage := range g.Usages {
		data[usageKeys[usage]] = []byte("true")
	}
	if len(g.Groups) > 0 {
		data[bootstraptoken.KeyGroups] = []byte(strings.Join(g.Groups, ","))
	}
	if g.Description != "" {
		data[bootstraptoken.KeyDescription] = []byte(g.Description)
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: bootstraptoken.SecretPrefix + g.ID},
		Type:       corev1.SecretTypeBootstrapToken, Data: data,
	}
}

// grantOf reads a Secret; ok is false when it is no well-formed token.
func grantOf(s *corev1.Secret) (g Grant, ok bool) {
	token, err := Parse(string(s.Data[bootstraptoken.KeyID]) + "." + string(s.Data[bootstraptoken.KeySecret]))
	if err != nil || s.Type != corev1.SecretTypeBootstrapToken || s.Name != bootstraptoken.SecretPrefix+token.ID {
		return Grant{}, false
	}
	g = Grant{Token: token, Description: string(s.Data[bootstraptoken.KeyDescription])}
	if text := string(s.Data[bootstraptoken.KeyExpiration]); text != "" {
		if g.Expires, err = time.Parse(time.RFC3339, text); err != nil {
			return Grant{}, false
		}
	}
	for _, usage := range []string{UsageAuthentication, UsageSigning} {
		if string(s.Data[usageKeys[usage]]) == "true" {
			g.Usages = append(g.Usages, usage)
		}
	}
	if text := string(s.Data[bootstraptoken.KeyGroups]); text != "" {
		g.Groups = strings.Split(text, ",")
	}
	return g, true
}

// CreateToken makes a token known to the cluster.
func CreateToken(ctx context.Context, api client.API, g Grant) error {
	if err := g.Validate(); err != nil {
		return err
	}
	_, err := client.Of[*corev1.Secret](api).Create(ctx, g.secret())
	if apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("a token with id %q already exists", g.ID)
	}
	return err
}

// EnsureToken makes a token known to the cluster unless one of its ID is.
func EnsureToken(ctx context.Context, api client.API, g Grant) error {
	_, err := client.Of[*corev1.Secret](api).Create(ctx, g.secret())
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// ListTokens returns the cluster's well-formed tokens by ID.
func ListTokens(ctx context.Context, api client.API) ([]Grant, error) {
	secrets, err := client.Of[*corev1.Secret](api).List(ctx, metav1.NamespaceSystem, metav1.ListOptions{
		FieldSelector: "type=" + string(corev1.SecretTypeBootstrapToken),
	})
	if err != nil {
		return nil, err
	}
	var out []Grant
	for _, s := range secrets {
		if g, ok := grantOf(s); ok {
			out = append(out, g)
		}
	}
	slices.SortFunc(out, func(a, b Grant) int { return strings.Compare(a.ID, b.ID) })
	return out, nil
}

// DeleteToken takes back a token, named by its ID or whole. It returns the ID.
func DeleteToken(ctx context.Context, api client.API, text string) (id string, err error) {
	id = text
	if !idFormat.MatchString(id) {
		token, err := Parse(text)
		if err != nil {
			return "", fmt.Errorf("given token didn't match pattern %q or %q", idPattern, tokenPattern)
		}
		id = token.ID
	}
	_, err = client.Of[*corev1.Secret](api).Delete(ctx, metav1.NamespaceSystem, bootstraptoken.SecretPrefix+id, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return "", fmt.Errorf("there is no bootstrap token %q", id)
	}
	return id, err
}
