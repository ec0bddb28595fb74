// Package serviceaccounttoken fills the Secrets that ask for a token of a
// ServiceAccount, and removes them with the account.
package serviceaccounttoken

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/client"
	"proa/internal/controllers"
)

// Issue returns the token that belongs into a Secret.
type Issue func(account *corev1.ServiceAccount, secret *corev1.Secret) (string, error)

const accountIndex = "token of"

// Controller keeps Secrets of type kubernetes.io/service-account-token.
type Controller struct {
	secretLoop, accountLoop *controllers.Loop
	secrets                 *client.Informer[*corev1.Secret]
	accounts                *client.Informer[*corev1.ServiceAccount]
	issue                   Issue
	ca                      []byte
}

// New returns a controller that writes tokens of issue, and ca as PEM.
func New(c controllers.Config, issue Issue, ca []byte) *Controller {
	t := &Controller{
		secrets:  client.Shared[*corev1.Secret](c.Cache),
		accounts: client.Shared[*corev1.ServiceAccount](c.Cache),
		issue:    issue, ca: ca,
	}
	t.secretLoop = controllers.NewLoop("serviceaccount_tokens_secret", c, t.fill)
	t.accountLoop = controllers.NewLoop("serviceaccount_tokens_service", c, t.forget)
	t.secrets.AddIndex(accountIndex, func(s *corev1.Secret) []string {
		if s.Type != corev1.SecretTypeServiceAccountToken {
			return nil
		}
		return []string{accountOf(s).String()}
	})
	t.secrets.OnChange(func(old, secret *corev1.Secret) {
		switch {
		case secret == nil && old.Type == corev1.SecretTypeServiceAccountToken:
			t.accountLoop.Enqueue(accountOf(old))
		case secret != nil && secret.Type == corev1.SecretTypeServiceAccountToken:
			t.secretLoop.EnqueueObject(secret)
		}
	})
	t.accounts.OnChange(func(old, account *corev1.ServiceAccount) {
		if account == nil {
			account = old
		}
		for _, secret := range t.secrets.ByIndex(accountIndex, account.Namespace+"/"+account.Name) {
			t.secretLoop.EnqueueObject(secret)
		}
	})
	return t
}

func accountOf(s *corev1.Secret) controllers.Key {
	return controllers.Key{Namespace: s.Namespace, Name: s.Annotations[corev1.ServiceAccountNameKey]}
}

// Run works until ctx ends.
func (t *Controller) Run(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = t.accountLoop.Run(ctx)
	}()
	err := t.secretLoop.Run(ctx)
	<-done
	return err
}

// fill completes a Secret, or deletes it when its account is gone.
func (t *Controller) fill(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	secret, ok := t.secrets.Cached(key.Namespace, key.Name)
	if !ok || secret.DeletionTimestamp != nil || accountOf(secret).Name == "" {
		return controllers.Result{}, nil
	}
	account, err := t.account(ctx, secret)
	if err != nil {
		return controllers.Result{}, err
	}
	if account == nil {
		_, err := t.secrets.Delete(ctx, key.Namespace, key.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(secret.UID))})
		return controllers.Result{}, ignoreStale(err)
	}
	updated, err := t.complete(account, secret)
	if err != nil || updated == nil {
		return controllers.Result{}, err
	}
	_, err = t.secrets.Update(ctx, updated)
	return controllers.Result{}, ignoreStale(err)
}

// ignoreStale: the change that came first brings the object back here.
func ignoreStale(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// account is the ServiceAccount that a Secret is for, nil when there is none. That
// is asked anew: the Secret may be seen before its account.
func (t *Controller) account(ctx context.Context, secret *corev1.Secret) (*corev1.ServiceAccount, error) {
	key, uid := accountOf(secret), secret.Annotations[corev1.ServiceAccountUIDKey]
	fits := func(a *corev1.ServiceAccount) bool { return uid == "" || uid == string(a.UID) }
	if account, ok := t.accounts.Cached(key.Namespace, key.Name); ok && fits(account) {
		return account, nil
	}
	account, err := t.accounts.Get(ctx, key.Namespace, key.Name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil || !fits(account) {
		return nil, err
	}
	return account, nil
}

// complete returns the Secret with what it lacks, nil when it lacks nothing.
func (t *Controller) complete(account *corev1.ServiceAccount, secret *corev1.Secret) (*corev1.Secret, error) {
	hasToken := len(secret.Data[corev1.ServiceAccountTokenKey]) > 0
	if hasToken && bytes.Equal(secret.Data[corev1.ServiceAccountRootCAKey], t.ca) &&
		len(secret.Data[corev1.ServiceAccountNamespaceKey]) > 0 && secret.Annotations[corev1.ServiceAccountUIDKey] == string(account.UID) {
		return nil, nil
	}
	updated := secret.DeepCopy()
	if updated.Data == nil {
		updated.Data = map[string][]byte{}
	}
	if !hasToken {
		token, err := t.issue(account, secret)
		if err != nil {
			return nil, fmt.Errorf("token for service account %s/%s: %w", account.Namespace, account.Name, err)
		}
		updated.Data[corev1.ServiceAccountTokenKey] = []byte(token)
	}
	updated.Data[corev1.ServiceAccountRootCAKey] = bytes.Clone(t.ca)
	if len(updated.Data[corev1.ServiceAccountNamespaceKey]) == 0 {
		updated.Data[corev1.ServiceAccountNamespaceKey] = []byte(secret.Namespace)
	}
	metav1.SetMetaDataAnnotation(&updated.ObjectMeta, corev1.ServiceAccountNameKey, account.Name)
	metav1.SetMetaDataAnnotation(&updated.ObjectMeta, corev1.ServiceAccountUIDKey, string(account.UID))
	return updated, nil
}

// forget takes references to token Secrets that are gone from an account. Other
// Secrets in its list are its owner's business.
func (t *Controller) forget(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	account, ok := t.accounts.Cached(key.Namespace, key.Name)
	if !ok || len(account.Secrets) == 0 {
		return controllers.Result{}, nil
	}
	updated := account.DeepCopy()
	updated.Secrets = slices.DeleteFunc(updated.Secrets, func(ref corev1.ObjectReference) bool {
		_, exists := t.secrets.Cached(key.Namespace, ref.Name)
		return !exists
	})
	if len(updated.Secrets) == len(account.Secrets) {
		return controllers.Result{}, nil
	}
	_, err := t.accounts.Update(ctx, updated)
	if apierrors.IsConflict(err) {
		return controllers.Result{}, err
	}
	return controllers.Result{}, ignoreStale(err)
}
