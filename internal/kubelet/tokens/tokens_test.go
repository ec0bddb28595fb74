package tokens

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"proa/internal/client"
)

// issuer issues tokens that are numbered.
type issuer struct {
	client.API
	clock  *clocktesting.FakePassiveClock
	issued int
	err    error
}

func (i *issuer) Create(_ context.Context, ref client.Ref, obj client.Object, _ metav1.CreateOptions) (client.Object, error) {
	if i.err != nil {
		return nil, i.err
	}
	if ref.Resource.Resource != "serviceaccounts" || ref.Subresource != "token" {
		return nil, fmt.Errorf("unexpected %v", ref)
	}
	i.issued++
	tr := obj.(*authenticationv1.TokenRequest)
	tr.Status.Token = fmt.Sprint("token-", i.issued)
	tr.Status.ExpirationTimestamp = metav1.NewTime(i.clock.Now().Add(time.Duration(*tr.Spec.ExpirationSeconds) * time.Second))
	return tr, nil
}

func request(seconds int64) *authenticationv1.TokenRequest {
	return &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: ptr.To(seconds), BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", UID: "u1"},
	}}
}

func TestRenewal(t *testing.T) {
	tests := []struct {
		name  string
		life  int64 // seconds
		after time.Duration
		want  string
	}{
		{"a fresh token is kept", 3600, time.Minute, "token-1"},
		{"until 80% of its life", 3600, 2880 * time.Second, "token-1"},
		{"and renewed then", 3600, 2881 * time.Second, "token-2"},
		{"a long one is renewed after a day", 1e6, 24*time.Hour + time.Second, "token-2"},
		{"but not before", 1e6, 24*time.Hour - time.Second, "token-1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			clk := clocktesting.NewFakePassiveClock(time.Unix(1e9, 0))
			c := New(Config{API: &issuer{clock: clk}, Clock: clk, Jitter: func() time.Duration { return 0 }})
			if _, err := c.Token(t.Context(), "ns", "sa", request(tt.life)); err != nil {
				t.Fatal(err)
			}
			clk.SetTime(clk.Now().Add(tt.after))
			got, err := c.Token(t.Context(), "ns", "sa", request(tt.life))
			if err != nil || got.Status.Token != tt.want {
				t.Errorf("got %s, %v, want %s", got.Status.Token, err, tt.want)
			}
		})
	}
}

func TestAFailedRenewalLeavesTheValidToken(t *testing.T) {
	clk := clocktesting.NewFakePassiveClock(time.Unix(1e9, 0))
	api := &issuer{clock: clk}
	c := New(Config{API: api, Clock: clk})
	if _, err := c.Token(t.Context(), "ns", "sa", request(3600)); err != nil {
		t.Fatal(err)
	}
	api.err = errors.New("down")
	clk.SetTime(clk.Now().Add(3500 * time.Second))
	if got, err := c.Token(t.Context(), "ns", "sa", request(3600)); err != nil || got.Status.Token != "token-1" {
		t.Errorf("got %v, %v", got, err)
	}
	clk.SetTime(clk.Now().Add(101 * time.Second))
	if _, err := c.Token(t.Context(), "ns", "sa", request(3600)); err == nil || !strings.Contains(err.Error(), "failed to fetch token: down") {
		t.Errorf("got %v", err)
	}
}

func TestTokensOfDifferentRequestsAreApart(t *testing.T) {
	clk := clocktesting.NewFakePassiveClock(time.Unix(1e9, 0))
	api := &issuer{clock: clk}
	c := New(Config{API: api, Clock: clk})
	other := request(3600)
	other.Spec.Audiences = []string{"vault"}
	seen := map[string]bool{}
	for _, ask := range []struct {
		sa string
		tr *authenticationv1.TokenRequest
	}{{"a", request(3600)}, {"b", request(3600)}, {"a", other}, {"a", request(7200)}} {
		got, err := c.Token(t.Context(), "ns", ask.sa, ask.tr)
		if err != nil || seen[got.Status.Token] {
			t.Errorf("got %v, %v", got, err)
		}
		seen[got.Status.Token] = true
	}
	c.Forget("u1")
	if got, err := c.Token(t.Context(), "ns", "a", request(3600)); err != nil || got.Status.Token != "token-5" {
		t.Errorf("a forgotten pod's token came back: %v, %v", got, err)
	}
}
