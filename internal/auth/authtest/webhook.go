package authtest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
)

// Reviewer is a webhook that answers SubjectAccessReviews and keeps what it was
// asked. It ends with the test.
type Reviewer struct {
	Kubeconfig string // file

	mu     sync.Mutex
	asked  []authorizationv1.SubjectAccessReviewSpec
	answer func(authorizationv1.SubjectAccessReviewSpec) authorizationv1.SubjectAccessReviewStatus
}

// NewReviewer starts a webhook that answers with answer.
func NewReviewer(t testing.TB, answer func(authorizationv1.SubjectAccessReviewSpec) authorizationv1.SubjectAccessReviewStatus) *Reviewer {
	t.Helper()
	r := &Reviewer{answer: answer}
	r.Kubeconfig = Webhook(t, func(w http.ResponseWriter, req *http.Request) {
		var review authorizationv1.SubjectAccessReview
		if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		r.mu.Lock()
		r.asked = append(r.asked, review.Spec)
		r.mu.Unlock()
		review.Status = r.answer(review.Spec)
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(review)
	})
	return r
}

// Asked returns the questions so far.
func (r *Reviewer) Asked() []authorizationv1.SubjectAccessReviewSpec {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]authorizationv1.SubjectAccessReviewSpec(nil), r.asked...)
}

// Webhook serves handler on loopback and returns the kubeconfig file that says where.
func Webhook(t testing.TB, handler http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "webhook.kubeconfig")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: hook, cluster: {server: %q}}]
users: [{name: us}]
contexts: [{name: it, context: {cluster: hook, user: us}}]
current-context: it
`, server.URL)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
