package encryption

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/storage/value"
	aestransformer "k8s.io/apiserver/pkg/storage/value/encrypt/aes"
	"k8s.io/apiserver/pkg/storage/value/encrypt/envelope/kmsv2"
	"k8s.io/apiserver/pkg/storage/value/encrypt/secretbox"
	"k8s.io/utils/clock"

	"proa/internal/configfile"
)

// What values start with.
const (
	prefixGCM       = "k8s:enc:aesgcm:v1:"
	prefixCBC       = "k8s:enc:aescbc:v1:"
	prefixSecretbox = "k8s:enc:secretbox:v1:"
	prefixKMS       = "k8s:enc:kms:v2:"
)

// builder makes the providers of one configuration. Connections live as long as ctx.
type builder struct {
	ctx     context.Context
	clock   clock.WithTicker
	rotated func() // a key service uses another key
}

// build fills in the transformers of every rule. The first provider of a rule
// seals, all of them open.
func (b *builder) build(config *apiserver.EncryptionConfiguration, p *providers) error {
	rules := map[schema.GroupResource][]value.PrefixTransformer{}
	for _, entry := range config.Resources {
		var list []value.PrefixTransformer
		for _, provider := range entry.Providers {
			t, err := b.provider(provider, p)
			if err != nil {
				return err
			}
			list = append(list, t)
		}
		for _, resource := range entry.Resources {
			gr := schema.ParseGroupResource(resource)
			for _, wider := range []schema.GroupResource{{Group: gr.Group, Resource: "*"}, {Group: "*", Resource: "*"}} {
				if _, masked := rules[wider]; masked {
					return fmt.Errorf("resource %q is masked by earlier rule %q", yamlName(gr), yamlName(wider))
				}
			}
			rules[gr] = append(rules[gr], list...)
		}
	}
	for gr, list := range rules {
		p.transformers[gr] = value.NewPrefixTransformers(errors.New("no matching prefix found"), list...)
	}
	return nil
}

// yamlName is how a configuration writes a resource.
func yamlName(gr schema.GroupResource) string {
	if gr.Group == "" && gr.Resource == "*" {
		return "*."
	}
	return gr.String()
}

func (b *builder) provider(c apiserver.ProviderConfiguration, p *providers) (value.PrefixTransformer, error) {
	switch {
	case c.AESGCM != nil:
		return keyed(prefixGCM, c.AESGCM.Keys, block(aestransformer.NewGCMTransformer))
	case c.AESCBC != nil:
		return keyed(prefixCBC, c.AESCBC.Keys, block(func(b cipher.Block) (value.Transformer, error) {
			return aestransformer.NewCBCTransformer(b), nil
		}))
	case c.Secretbox != nil:
		return keyed(prefixSecretbox, c.Secretbox.Keys, box)
	case c.KMS != nil:
		return b.kms(c.KMS, p)
	case c.Identity != nil:
		return value.PrefixTransformer{Transformer: plain}, nil
	}
	return value.PrefixTransformer{}, errors.New("provider does not contain any of the expected providers: KMS, AESGCM, AESCBC, Secretbox, Identity")
}

// keyed is a provider whose keys are in the configuration. The first key seals.
func keyed(prefix string, keys []apiserver.Key, make func(secret []byte) (value.Transformer, error)) (value.PrefixTransformer, error) {
	var list []value.PrefixTransformer
	for _, key := range keys {
		secret, err := base64.StdEncoding.DecodeString(key.Secret)
		if err != nil {
			return value.PrefixTransformer{}, fmt.Errorf("could not obtain secret for named key %s: %w", key.Name, err)
		}
		t, err := make(secret)
		if err != nil {
			return value.PrefixTransformer{}, fmt.Errorf("key %s: %w", key.Name, err)
		}
		list = append(list, value.PrefixTransformer{Transformer: t, Prefix: []byte(key.Name + ":")})
	}
	if len(list) == 0 {
		return value.PrefixTransformer{}, fmt.Errorf("%s provider has no valid keys", prefix)
	}
	return value.PrefixTransformer{
		Prefix:      []byte(prefix),
		Transformer: value.NewPrefixTransformers(fmt.Errorf("no matching key was found for the provided %s transformer", prefix), list...),
	}, nil
}

func block(make func(cipher.Block) (value.Transformer, error)) func([]byte) (value.Transformer, error) {
	return func(secret []byte) (value.Transformer, error) {
		b, err := aes.NewCipher(secret)
		if err != nil {
			return nil, err
		}
		return make(b)
	}
}

func box(secret []byte) (value.Transformer, error) {
	const size = 32
	if len(secret) != size {
		return nil, fmt.Errorf("expected key size %d for secretbox provider, got %d", size, len(secret))
	}
	return secretbox.NewSecretboxTransformer([size]byte(secret)), nil
}

func (b *builder) kms(c *apiserver.KMSConfiguration, p *providers) (value.PrefixTransformer, error) {
	if c.APIVersion != kmsv2.KMSAPIVersionv2 {
		return value.PrefixTransformer{}, fmt.Errorf("KMS provider %s: version %s is not served, use v2", c.Name, c.APIVersion)
	}
	service, err := kmsv2.NewGRPCService(b.ctx, c.Endpoint, c.Name, c.Timeout.Duration)
	if err != nil {
		return value.PrefixTransformer{}, fmt.Errorf("could not configure KMSv2-Plugin's probe %q, error: %w", c.Name, err)
	}
	s := &keyService{name: c.Name, timeout: c.Timeout.Duration, service: service, clock: b.clock, rotated: b.rotated}
	p.services = append(p.services, s)
	return value.PrefixTransformer{
		Prefix:      []byte(prefixKMS + c.Name + ":"),
		Transformer: kmsv2.NewEnvelopeTransformer(service, c.Name, s.state, configfile.ServerID()),
	}, nil
}
