package token

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
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
	c, mine, err := s.verify(ctx, token)
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
func (s *Service) verify(ctx context.Context, token string) (_ *claims, mine bool, _ error) {
	if len(token) > maxTokenBytes || !s.issuedHere(token) {
		return nil, false, nil
	}
	digest := sha256.Sum256([]byte(token))
	if seen, ok := s.verified.Get(digest); ok {
		v := seen.(*verified)
		for _, key := range s.signer.Keys(ctx, v.kid) {
			if key.same(v.key) {
				return v.claims, true, nil
			}
		}
	}
	parsed, err := jwt.ParseSigned(token, algorithms)
	if err != nil {
		return nil, true, errors.New("service account token is malformed")
	}
	kid, c := parsed.Headers[0].KeyID, &claims{}
	keys := s.signer.Keys(ctx, kid)
	if len(keys) == 0 {
		return nil, true, errors.New("invalid signature, no keys found")
	}
	for _, key := range keys {
		if err = parsed.Claims(key.Key, c); err == nil {
			s.verified.Add(digest, &verified{claims: c, kid: kid, key: key})
			return c, true, nil
		}
	}
	return nil, true, errors.New("service account token signature could not be verified")
}

// verified is a signature that was good, by a key that may be gone since.
type verified struct {
	claims *claims
	kid    string // in the token; may be empty
	key    Key
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
	return slices.Contains(s.issuers, c.Issuer) || c.Issuer == legacyIssuer
}

// matchAudiences returns the audiences that both the token and the asker name.
// Tokens in Secrets name none and are meant for this server.
func (s *Service) matchAudiences(ctx context.Context, c *claims) (authenticator.Audiences, error) {
	named := authenticator.Audiences(c.Audience)
	if len(named) == 0 {
		audit.AddAuditAnnotation(ctx, "authentication.k8s.io/legacy-token", c.Subject)
		used().legacy.Inc()
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
		used().stale.Inc()
	} else {
		used().valid.Inc()
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
	if secret.Labels[invalidSinceLabel] != "" {
		audit.AddAuditAnnotation(ctx, "authentication.k8s.io/legacy-token-invalidated", secret.Name+"/"+secret.Namespace)
		used().lost.Inc()
		s.stampUse(ctx, secretKey, secret)
		return nil, fmt.Errorf("the token in secret %s/%s for service account %s/%s has been marked invalid. Use tokens from the TokenRequest API or manually created secret-based tokens, or remove the '%s' label from the secret to temporarily allow use of this token",
			c.LegacyNamespace, c.LegacySecret, c.LegacyNamespace, c.LegacyAccount, invalidSinceLabel)
	}
	if generated(sn, c) {
		warning.AddWarning(ctx, "", "Use tokens from the TokenRequest API or manually created secret-based tokens instead of auto-generated secret-based tokens.")
		audit.AddAuditAnnotation(ctx, "authentication.k8s.io/legacy-token-autogenerated-secret", secret.Name)
		used().auto.Inc()
	} else {
		audit.AddAuditAnnotation(ctx, "authentication.k8s.io/legacy-token-manual-secret", secret.Name)
		used().manual.Inc()
	}
	s.stampUse(ctx, secretKey, secret)
	return &serviceaccount.ServiceAccountInfo{Namespace: c.LegacyNamespace, Name: c.LegacyAccount, UID: c.LegacyAccountUID}, nil
}

// generated reports whether a token's Secret is one of those that old servers made
// for every service account: those the account lists.
func generated(sn *store.Snapshot, c *claims) bool {
	sa, err := get[*corev1.ServiceAccount](sn, serviceAccounts, c.LegacyNamespace, c.LegacyAccount)
	return err == nil && slices.ContainsFunc(sa.Secrets, func(listed corev1.ObjectReference) bool { return listed.Name == c.LegacySecret })
}

// stampUse notes the day on a Secret. Another server's day may have begun already.
// The token is good even where that cannot be noted.
func (s *Service) stampUse(ctx context.Context, key store.Key, secret *corev1.Secret) {
	now := s.clock.Now().UTC()
	today := now.Format(time.DateOnly)
	if last := secret.Labels[lastUsedLabel]; last == today || last == now.AddDate(0, 0, 1).Format(time.DateOnly) {
		return
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
		slog.Error("Note the use of a token", "secret", key.String(), "err", err)
	}
}
