package token

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4/jwt"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/warning"

	"proa/internal/store"
)

const (
	// deletionGrace keeps the tokens of an object alive a little after its
	// deletion time, for the shutdown of the pod that uses them.
	deletionGrace = 60 * time.Second

	lastUsedLabel     = "kubernetes.io/legacy-token-last-used"
	invalidSinceLabel = "kubernetes.io/legacy-token-invalid-since"
)

var (
	serviceAccounts = schema.GroupResource{Resource: "serviceaccounts"}
	secrets         = schema.GroupResource{Resource: "secrets"}
	pods            = schema.GroupResource{Resource: "pods"}
	nodes           = schema.GroupResource{Resource: "nodes"}
)

var errInvalidated = errors.New("service account token has been invalidated")

// AuthenticateToken tells who a bearer token is. A token that some other issuer
// made is no one's here and no error.
func (s *Service) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	c, mine, err := s.verify(token)
	if err != nil || !mine {
		return nil, false, err
	}
	audiences, err := s.matchAudiences(ctx, c)
	if err != nil {
		return nil, false, err
	}
	var info *serviceaccount.ServiceAccountInfo
	if c.Issuer == legacyIssuer {
		info, err = s.checkLegacy(ctx, c, token)
	} else {
		info, err = s.checkBound(ctx, c)
	}
	if err != nil {
		return nil, false, err
	}
	return &authenticator.Response{User: info.UserInfo(), Audiences: audiences}, true, nil
}

// verify checks the signature and returns the claims; mine is false for tokens
// of other issuers.
func (s *Service) verify(token string) (_ *claims, mine bool, _ error) {
	if len(token) > maxTokenBytes || !s.issuedHere(token) {
		return nil, false, nil
	}
	key := sha256.Sum256([]byte(token))
	if c, ok := s.verified.Get(key); ok {
		return c.(*claims), true, nil
	}
	parsed, err := jwt.ParseSigned(token, s.algs)
	if err != nil {
		return nil, true, errors.New("service account token is malformed")
	}
	c := &claims{}
	for _, candidate := range s.candidates(parsed.Headers[0].KeyID) {
		if err = parsed.Claims(candidate, c); err == nil {
			s.verified.Add(key, c)
			return c, true, nil
		}
	}
	return nil, true, errors.New("service account token signature could not be verified")
}

// candidates are the keys that may have made a token: the one it names, or all
// when it names none.
func (s *Service) candidates(kid string) []any {
	if kid != "" {
		if key, ok := s.keys[kid]; ok {
			return []any{key.Key}
		}
		return nil
	}
	var all []any
	for _, key := range sortedKeys(s.keys) {
		all = append(all, key.Key)
	}
	return all
}

// issuedHere reads the unverified issuer, so that other token authenticators
// get their turn without a failed verification.
func (s *Service) issuedHere(token string) bool {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return false
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return false
	}
	var c struct {
		Issuer string `json:"iss"`
	}
	if json.Unmarshal(payload, &c) != nil {
		return false
	}
	return c.Issuer == s.issuer || c.Issuer == legacyIssuer
}

// matchAudiences returns the audiences that both the token and the asker name.
// Tokens in Secrets name none and are meant for this server.
func (s *Service) matchAudiences(ctx context.Context, c *claims) (authenticator.Audiences, error) {
	named := authenticator.Audiences(c.Audience)
	if len(named) == 0 {
		named = s.audiences
	}
	asked, ok := authenticator.AudiencesFrom(ctx)
	if !ok {
		asked = s.audiences
	}
	both := named.Intersect(asked)
	if len(both) == 0 {
		return nil, fmt.Errorf("token audiences %q is invalid for the target audiences %q", named, asked)
	}
	return both, nil
}

func (s *Service) checkBound(ctx context.Context, c *claims) (*serviceaccount.ServiceAccountInfo, error) {
	now := s.clock.Now()
	switch err := c.Claims.Validate(jwt.Expected{Time: now}); {
	case errors.Is(err, jwt.ErrExpired):
		return nil, errors.New("service account token has expired")
	case err != nil:
		return nil, fmt.Errorf("service account token claims could not be validated: %w", err)
	}
	k := &c.Kubernetes
	if serviceaccount.MakeUsername(k.Namespace, k.ServiceAccount.Name) != c.Subject {
		return nil, errors.New("service account token subject does not match its claims")
	}
	sn := s.store.Snapshot()
	if err := checkAccount(sn, k.Namespace, k.ServiceAccount, now); err != nil {
		return nil, err
	}
	if err := checkObjects(sn, k, now); err != nil {
		return nil, err
	}
	if k.WarnAfter != nil && now.After(k.WarnAfter.Time()) {
		audit.AddAuditAnnotation(ctx, "authentication.k8s.io/stale-token",
			fmt.Sprintf("subject: %s, seconds after warning threshold: %.0f", c.Subject, now.Sub(k.WarnAfter.Time()).Seconds()))
	}
	return k.info(c.ID), nil
}

func checkAccount(sn *store.Snapshot, namespace string, sa ref, now time.Time) error {
	item, err := sn.Get(store.Key{Resource: serviceAccounts, Namespace: namespace, Name: sa.Name})
	if err != nil {
		return fmt.Errorf("service account %s/%s: %w", namespace, sa.Name, err)
	}
	if gone(item.Object, now) {
		return fmt.Errorf("service account %s/%s has been deleted", namespace, sa.Name)
	}
	if uid := string(item.Object.GetUID()); uid != sa.UID {
		return fmt.Errorf("service account UID (%s) does not match claim (%s)", uid, sa.UID)
	}
	return nil
}

// checkObjects looks up what a token is bound to. A token of a pod also names
// the pod's node, but lives and dies with the pod.
func checkObjects(sn *store.Snapshot, k *private, now time.Time) error {
	check := func(gr schema.GroupResource, namespace string, r *ref) error {
		item, err := sn.Get(store.Key{Resource: gr, Namespace: namespace, Name: r.Name})
		if err != nil || gone(item.Object, now) {
			return errInvalidated
		}
		if uid := string(item.Object.GetUID()); uid != r.UID {
			return fmt.Errorf("%s UID (%s) does not match service account %s ref claim (%s)",
				strings.TrimSuffix(gr.Resource, "s"), uid, strings.TrimSuffix(gr.Resource, "s"), r.UID)
		}
		return nil
	}
	if k.Secret != nil {
		if err := check(secrets, k.Namespace, k.Secret); err != nil {
			return err
		}
	}
	if k.Pod != nil {
		return check(pods, k.Namespace, k.Pod)
	}
	if k.Node != nil {
		return check(nodes, "", k.Node)
	}
	return nil
}

func gone(obj metav1.Object, now time.Time) bool {
	t := obj.GetDeletionTimestamp()
	return t != nil && t.Time.Add(deletionGrace).Before(now)
}

func (k *private) info(jti string) *serviceaccount.ServiceAccountInfo {
	i := &serviceaccount.ServiceAccountInfo{Namespace: k.Namespace, Name: k.ServiceAccount.Name, UID: k.ServiceAccount.UID}
	if k.Pod != nil {
		i.PodName, i.PodUID = k.Pod.Name, k.Pod.UID
	}
	if k.Node != nil {
		i.NodeName, i.NodeUID = k.Node.Name, k.Node.UID
	}
	if jti != "" {
		i.CredentialID = credentialID(jti)
	}
	return i
}

// checkLegacy verifies a token kept in a Secret against that Secret and notes
// the day of its use on it.
func (s *Service) checkLegacy(ctx context.Context, c *claims, token string) (*serviceaccount.ServiceAccountInfo, error) {
	if c.LegacyNamespace == "" || c.LegacySecret == "" || c.LegacyAccount == "" || c.LegacyAccountUID == "" {
		return nil, errors.New("service account token lacks a claim")
	}
	if serviceaccount.MakeUsername(c.LegacyNamespace, c.LegacyAccount) != c.Subject {
		return nil, errors.New("sub claim is invalid")
	}
	sn := s.store.Snapshot()
	secretKey := store.Key{Resource: secrets, Namespace: c.LegacyNamespace, Name: c.LegacySecret}
	item, err := sn.Get(secretKey)
	if err != nil {
		return nil, errors.New("token has been invalidated")
	}
	secret, ok := item.Object.(*corev1.Secret)
	if !ok || secret.DeletionTimestamp != nil || !bytes.Equal(secret.Data[corev1.ServiceAccountTokenKey], []byte(token)) {
		return nil, errors.New("token has been invalidated")
	}
	account := ref{Name: c.LegacyAccount, UID: c.LegacyAccountUID}
	if err := checkAccount(sn, c.LegacyNamespace, account, s.clock.Now()); err != nil {
		return nil, err
	}
	audit.AddAuditAnnotation(ctx, "authentication.k8s.io/legacy-token", c.Subject)
	if since := secret.Labels[invalidSinceLabel]; since != "" {
		return nil, fmt.Errorf("the token in secret %s/%s for service account %s/%s has been marked invalid since %s. Use tokens from the TokenRequest API or manually created secret-based tokens, or remove the '%s' label from the secret to temporarily allow use of this token",
			c.LegacyNamespace, c.LegacySecret, c.LegacyNamespace, c.LegacyAccount, since, invalidSinceLabel)
	}
	s.warnGenerated(ctx, sn, c)
	return &serviceaccount.ServiceAccountInfo{Namespace: c.LegacyNamespace, Name: c.LegacyAccount, UID: c.LegacyAccountUID},
		s.stampUse(ctx, secretKey, secret)
}

// warnGenerated warns about Secrets that old servers made for every service
// account: those the account lists.
func (s *Service) warnGenerated(ctx context.Context, sn *store.Snapshot, c *claims) {
	item, err := sn.Get(store.Key{Resource: serviceAccounts, Namespace: c.LegacyNamespace, Name: c.LegacyAccount})
	if err != nil {
		return
	}
	sa, ok := item.Object.(*corev1.ServiceAccount)
	if !ok {
		return
	}
	for _, listed := range sa.Secrets {
		if listed.Name == c.LegacySecret {
			warning.AddWarning(ctx, "", "Use tokens from the TokenRequest API or manually created secret-based tokens instead of auto-generated secret-based tokens.")
			return
		}
	}
}

func (s *Service) stampUse(ctx context.Context, key store.Key, secret *corev1.Secret) error {
	today := s.clock.Now().UTC().Format(time.DateOnly)
	if secret.Labels[lastUsedLabel] == today {
		return nil
	}
	_, err := s.store.Update(ctx, func(tx *store.Tx) error {
		item, err := tx.Get(key)
		if err != nil {
			return err
		}
		stored, ok := item.Object.(*corev1.Secret)
		if !ok || stored.Labels[lastUsedLabel] == today {
			return nil
		}
		stamped := stored.DeepCopy()
		metav1.SetMetaDataLabel(&stamped.ObjectMeta, lastUsedLabel, today)
		_, err = tx.Put(key, stamped)
		return err
	})
	if err != nil {
		return fmt.Errorf("note use of token in %s: %w", key, err)
	}
	return nil
}
