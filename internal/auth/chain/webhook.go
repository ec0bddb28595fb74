package chain

import (
	"fmt"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	authorizationcel "k8s.io/apiserver/pkg/authorization/cel"
	"k8s.io/apiserver/plugin/pkg/authorizer/webhook"
	"k8s.io/apiserver/plugin/pkg/authorizer/webhook/metrics"

	"proa/internal/auth/remote"
)

// newWebhook returns an authorizer that posts SubjectAccessReviews.
func newWebhook(name string, c *apiserver.WebhookConfiguration, dial utilnet.DialFunc, compiler authorizationcel.Compiler) (*webhook.WebhookAuthorizer, error) {
	config, err := remote.Config(*c.ConnectionInfo.KubeConfigFile, c.Timeout.Duration, dial)
	if err != nil {
		return nil, fmt.Errorf("authorizer %s: %w", name, err)
	}
	onError := authorizer.DecisionNoOpinion
	if c.FailurePolicy == apiserver.FailurePolicyDeny {
		onError = authorizer.DecisionDeny
	}
	w, err := webhook.New(config, c.SubjectAccessReviewVersion,
		life(c.CacheAuthorizedRequests, c.AuthorizedTTL.Duration), life(c.CacheUnauthorizedRequests, c.UnauthorizedTTL.Duration),
		*webhook.DefaultRetryBackoff(), onError, c.MatchConditions, name, webhookMetrics(), compiler)
	if err != nil {
		return nil, fmt.Errorf("authorizer %s: %w", name, err)
	}
	return w, nil
}

func webhookMetrics() metrics.AuthorizerMetrics {
	return struct {
		metrics.NoopRequestMetrics
		metrics.WebhookMetrics
		authorizationcel.MatcherMetrics
	}{WebhookMetrics: metrics.NewWebhookMetrics(), MatcherMetrics: authorizationcel.NewMatcherMetrics()}
}

// life is how long an answer is remembered.
func life(kept bool, ttl time.Duration) time.Duration {
	if !kept {
		return 0
	}
	return ttl
}
