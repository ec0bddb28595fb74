package flags

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/apiserver"

	"proa/internal/auth"
	"proa/internal/auth/abac"
	"proa/internal/auth/chain"
	"proa/internal/configfile"
)

const webhookTimeout = 30 * time.Second

var webhookNames = []string{
	"authorization-webhook-config-file", "authorization-webhook-version",
	"authorization-webhook-cache-authorized-ttl", "authorization-webhook-cache-unauthorized-ttl",
}

func (f *Flags) authorize(c *auth.Config) error {
	if f.authorization != "" {
		if f.changed("authorization-mode") || f.changed(webhookNames...) {
			return errors.New("--authorization-config can not be specified when --authorization-mode or --authorization-webhook-* flags are defined")
		}
		return f.authorizationFile(c)
	}
	if err := f.policyFile(c, slices.Contains(f.modes, chain.ABAC)); err != nil {
		return err
	}
	asked := slices.Contains(f.modes, string(apiserver.TypeWebhook))
	switch {
	case len(f.modes) == 0:
		return errors.New("at least one authorization-mode must be passed")
	case asked && f.webhook.kubeconfig == "":
		return errors.New("authorization-mode Webhook's authorization config file not passed")
	case !asked && f.webhook.kubeconfig != "":
		return errors.New("cannot specify --authorization-webhook-config-file without mode Webhook")
	}
	c.Authorization.Authorization = auth.Authorizers(f.modes...)
	for i := range c.Authorization.Authorization.Authorizers {
		if a := &c.Authorization.Authorization.Authorizers[i]; a.Type == apiserver.TypeWebhook {
			a.Name, a.Webhook = "default", f.webhookConfiguration()
		}
	}
	return nil
}

// policyFile reads the policies of mode ABAC.
func (f *Flags) policyFile(c *auth.Config, asked bool) error {
	switch {
	case asked && f.policies == "":
		return errors.New("authorization-mode ABAC's authorization policy file not passed")
	case !asked && f.policies != "":
		return errors.New("cannot specify --authorization-policy-file without mode ABAC")
	case !asked:
		return nil
	}
	policies, err := abac.Open(string(f.policies))
	if err == nil {
		c.Authorization.ABAC = policies
	}
	return err
}

func (f *Flags) authorizationFile(c *auth.Config) error {
	file := string(f.authorization)
	data, err := configfile.Read(file)
	if err != nil {
		return fmt.Errorf("--authorization-config: %w", err)
	}
	config, err := configfile.Decode[*apiserver.AuthorizationConfiguration](data)
	if err != nil {
		return fmt.Errorf("--authorization-config %s: %w", file, err)
	}
	asked := slices.ContainsFunc(config.Authorizers, func(a apiserver.AuthorizerConfiguration) bool { return a.Type == chain.ABAC })
	if err := f.policyFile(c, asked); err != nil {
		return err
	}
	c.Authorization.Authorization, c.Authorization.File, c.Authorization.Data = config, file, data
	return nil
}

// webhookConfiguration is what the flags of a single webhook have always meant: no
// opinion when it does not answer within 30 s.
func (f *Flags) webhookConfiguration() *apiserver.WebhookConfiguration {
	file := string(f.webhook.kubeconfig)
	return &apiserver.WebhookConfiguration{
		AuthorizedTTL:   metav1.Duration{Duration: cmp.Or(f.webhook.authorized, time.Second)},
		UnauthorizedTTL: metav1.Duration{Duration: cmp.Or(f.webhook.unauthorizedTTL, time.Second)},
		// a time of zero has always meant that answers are not remembered
		CacheAuthorizedRequests:    f.webhook.authorized > 0,
		CacheUnauthorizedRequests:  f.webhook.unauthorizedTTL > 0,
		Timeout:                    metav1.Duration{Duration: webhookTimeout},
		FailurePolicy:              apiserver.FailurePolicyNoOpinion,
		SubjectAccessReviewVersion: f.webhook.version,
		ConnectionInfo: apiserver.WebhookConnectionInfo{
			Type: apiserver.AuthorizationWebhookConnectionInfoTypeKubeConfigFile, KubeConfigFile: &file,
		},
	}
}
