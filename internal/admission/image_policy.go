package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/api/imagepolicy/v1alpha1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/cache"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

// ImagePolicyWebhook asks a server, by ImageReviews, whether the images of a pod
// may be used, and remembers its answers for a while. Off unless enabled.
type ImagePolicyWebhook struct {
	webhook           *webhookutil.GenericWebhook
	answers           *cache.LRUExpireCache
	allowTTL, denyTTL time.Duration
	defaultAllow      bool
}

// NewImagePolicyWebhook reads the configuration, which it needs.
func NewImagePolicyWebhook(config []byte) (*ImagePolicyWebhook, error) {
	if config == nil {
		return nil, errors.New("no config specified")
	}
	var document struct {
		ImagePolicy struct {
			KubeConfigFile string `json:"kubeConfigFile"`
			AllowTTL       int64  `json:"allowTTL"`     // seconds
			DenyTTL        int64  `json:"denyTTL"`      // seconds
			RetryBackoff   int64  `json:"retryBackoff"` // milliseconds
			DefaultAllow   bool   `json:"defaultAllow"`
		} `json:"imagePolicy"`
	}
	if err := yaml.Unmarshal(config, &document); err != nil {
		return nil, err
	}
	c := document.ImagePolicy
	p := &ImagePolicyWebhook{answers: cache.NewLRUExpireCache(1024), defaultAllow: c.DefaultAllow}
	backoff, err := configuredTime(c.RetryBackoff, time.Millisecond, 1, 5*time.Minute, 500*time.Millisecond)
	if err != nil {
		return nil, err
	}
	if p.allowTTL, err = configuredTime(c.AllowTTL, time.Second, time.Second, 30*time.Minute, 5*time.Minute); err != nil {
		return nil, err
	}
	if p.denyTTL, err = configuredTime(c.DenyTTL, time.Second, time.Second, 30*time.Minute, 30*time.Second); err != nil {
		return nil, err
	}
	access, err := webhookutil.LoadKubeconfig(c.KubeConfigFile, nil)
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	p.webhook, err = webhookutil.NewGenericWebhook(scheme, serializer.NewCodecFactory(scheme), access,
		[]schema.GroupVersion{v1alpha1.SchemeGroupVersion}, webhookutil.DefaultRetryBackoffWithInitialDelay(backoff))
	return p, err
}

// configuredTime is a configured time: 0 is the default, -1 none at all.
func configuredTime(n int64, unit, least, most, otherwise time.Duration) (time.Duration, error) {
	switch d := time.Duration(n) * unit; {
	case n == -1:
		return 0, nil
	case n == 0:
		return otherwise, nil
	case d < least || d > most:
		return 0, fmt.Errorf("valid value is between %v and %v, got %v", least, most, d)
	default:
		return d, nil
	}
}

func (*ImagePolicyWebhook) Name() string { return "ImagePolicyWebhook" }

func (p *ImagePolicyWebhook) Validate(ctx context.Context, a *Attributes) error {
	pod, ok := a.Object.(*corev1.Pod)
	if !ok || !pulls(a) || a.Operation != admissionv1.Create && a.Operation != admissionv1.Update {
		return nil
	}
	review := &v1alpha1.ImageReview{Spec: v1alpha1.ImageReviewSpec{
		Containers: reviewed(pod, a.Subresource), Annotations: map[string]string{}, Namespace: a.Namespace,
	}}
	for key, value := range pod.Annotations {
		if strings.Contains(key, ".image-policy.k8s.io/") {
			review.Spec.Annotations[key] = value
		}
	}
	if err := p.ask(ctx, review); err != nil {
		if p.defaultAllow {
			a.AddAuditAnnotation("imagepolicywebhook.image-policy.k8s.io/failed-open", "true")
			return nil
		}
		return a.forbidden(err)
	}
	for key, value := range review.Status.AuditAnnotations {
		a.AddAuditAnnotation("imagepolicywebhook.image-policy.k8s.io/"+key, value)
	}
	switch {
	case review.Status.Allowed:
		return nil
	case review.Status.Reason != "":
		return a.forbidden(fmt.Errorf("image policy webhook backend denied one or more images: %s", review.Status.Reason))
	}
	return a.forbidden(errors.New("one or more images rejected by webhook backend"))
}

func reviewed(pod *corev1.Pod, subresource string) (list []v1alpha1.ImageReviewContainerSpec) {
	if subresource != "" {
		for i := range pod.Spec.EphemeralContainers {
			list = append(list, v1alpha1.ImageReviewContainerSpec{Image: pod.Spec.EphemeralContainers[i].Image})
		}
		return list
	}
	for _, c := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
		list = append(list, v1alpha1.ImageReviewContainerSpec{Image: c.Image})
	}
	return list
}

// ask fills in the status of a review.
func (p *ImagePolicyWebhook) ask(ctx context.Context, review *v1alpha1.ImageReview) error {
	spec, err := json.Marshal(review.Spec)
	if err != nil {
		return err
	}
	if status, ok := p.answers.Get(string(spec)); ok {
		review.Status = status.(v1alpha1.ImageReviewStatus)
		return nil
	}
	result := p.webhook.WithExponentialBackoff(ctx, func() rest.Result {
		return p.webhook.RestClient.Post().Body(review).Do(ctx)
	})
	if err := result.Error(); err != nil {
		return err
	}
	if err := result.Into(review); err != nil {
		return err
	}
	ttl := p.denyTTL
	if review.Status.Allowed {
		ttl = p.allowTTL
	}
	p.answers.Add(string(spec), review.Status, ttl)
	return nil
}
