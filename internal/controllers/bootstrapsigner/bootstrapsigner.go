// Package bootstrapsigner signs the ConfigMap cluster-info with every bootstrap
// token meant for it, so that a joining node which knows a token can trust the
// cluster's CA that it reads there.
package bootstrapsigner

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/clock"

	"proa/internal/auth/bootstraptoken"
	"proa/internal/client"
	"proa/internal/controllers"
)

const (
	configMapName   = "cluster-info"
	kubeconfigKey   = "kubeconfig"
	signaturePrefix = "jws-kubeconfig-"
)

var signed = controllers.Key{Namespace: metav1.NamespacePublic, Name: configMapName}

// Controller keeps the signatures.
type Controller struct {
	loop       *controllers.Loop
	configMaps *client.Informer[*corev1.ConfigMap]
	secrets    *client.Informer[*corev1.Secret]
	clock      clock.PassiveClock
}

// New returns a controller that reads through c.Cache.
func New(c controllers.Config) *Controller {
	b := &Controller{
		configMaps: client.Shared[*corev1.ConfigMap](c.Cache),
		secrets:    client.Shared[*corev1.Secret](c.Cache),
		clock:      c.Clock,
	}
	b.loop = controllers.NewLoop("bootstrap_signer_queue", c, b.reconcile)
	b.configMaps.OnChange(func(_, cm *corev1.ConfigMap) {
		if cm != nil && cm.Namespace == signed.Namespace && cm.Name == signed.Name {
			b.loop.Enqueue(signed)
		}
	})
	b.secrets.OnChange(func(old, s *corev1.Secret) {
		if s == nil {
			s = old
		}
		if s.Namespace == metav1.NamespaceSystem && s.Type == corev1.SecretTypeBootstrapToken {
			b.loop.Enqueue(signed)
		}
	})
	return b
}

// Run works until ctx ends.
func (b *Controller) Run(ctx context.Context) error { return b.loop.Run(ctx) }

func (b *Controller) reconcile(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	cm, ok := b.configMaps.Cached(key.Namespace, key.Name)
	if !ok || cm.DeletionTimestamp != nil {
		return controllers.Result{}, nil
	}
	data := maps.Clone(cm.Data)
	maps.DeleteFunc(data, func(k, _ string) bool { return strings.HasPrefix(k, signaturePrefix) })
	content, ok := data[kubeconfigKey]
	if !ok {
		return controllers.Result{}, nil
	}
	for id, secret := range b.tokens() {
		data[signaturePrefix+id] = signature(content, id, secret)
	}
	if maps.Equal(data, cm.Data) {
		return controllers.Result{}, nil
	}
	updated := cm.DeepCopy()
	updated.Data = data
	_, err := b.configMaps.Update(ctx, updated)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		err = nil // its change brings it back here
	}
	return controllers.Result{}, err
}

// tokens are the secrets, by token ID, of the tokens that sign.
func (b *Controller) tokens() map[string]string {
	out := map[string]string{}
	for _, s := range b.secrets.Select(metav1.NamespaceSystem, labels.Everything()) {
		id, secret := string(s.Data[bootstraptoken.KeyID]), string(s.Data[bootstraptoken.KeySecret])
		if s.Type != corev1.SecretTypeBootstrapToken || s.DeletionTimestamp != nil || id == "" || secret == "" ||
			s.Name != bootstraptoken.SecretPrefix+id || string(s.Data[bootstraptoken.KeySigning]) != "true" || b.expired(s) {
			continue
		}
		out[id] = secret
	}
	return out
}

func (b *Controller) expired(s *corev1.Secret) bool {
	text := string(s.Data[bootstraptoken.KeyExpiration])
	if text == "" {
		return false
	}
	t, err := time.Parse(time.RFC3339, text)
	return err != nil || !b.clock.Now().Before(t)
}

// signature is a JWS of content (RFC 7515, HS256, key ID the token's) in compact
// form without the content: appendix F.
func signature(content, id, secret string) string {
	header, err := json.Marshal(struct {
		Algorithm string `json:"alg"`
		KeyID     string `json:"kid"`
	}{"HS256", id})
	if err != nil {
		panic(err) // two strings
	}
	encode := base64.RawURLEncoding.EncodeToString
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(encode(header) + "." + encode([]byte(content))))
	return encode(header) + ".." + encode(mac.Sum(nil))
}
