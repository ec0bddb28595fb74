package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"time"
)

// review is as much of an AdmissionReview as the webhooks look at.
type review struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Request    *reviewRequest  `json:"request,omitempty"`
	Response   *reviewResponse `json:"response,omitempty"`
}

type reviewRequest struct {
	UID    string `json:"uid"`
	Object struct {
		Metadata struct {
			Labels map[string]string `json:"labels"`
		} `json:"metadata"`
		Data map[string]string `json:"data"`
	} `json:"object"`
}

type reviewResponse struct {
	UID       string         `json:"uid"`
	Allowed   bool           `json:"allowed"`
	Status    map[string]any `json:"status,omitempty"`
	Patch     []byte         `json:"patch,omitempty"`
	PatchType string         `json:"patchType,omitempty"`
	Warnings  []string       `json:"warnings,omitempty"`
}

// webhook serves admission webhooks over TLS until SIGTERM.
//
//	/deny    refuses everything
//	/judge   refuses an object whose data has the key "bad", warns about the rest
//	/mark    adds the label marked=yes
//	/slow    lets pass after five seconds
func webhook(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("webhook", flag.ContinueOnError)
	address := flags.String("address", ":8443", "address of the HTTPS server")
	cert := flags.String("cert", "", "file of the certificate")
	key := flags.String("key", "", "file of its key")
	if err := flags.Parse(args); err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/deny", respond(func(*reviewRequest) *reviewResponse { return refusal("the webhook says no") }))
	mux.HandleFunc("/judge", respond(judge))
	mux.HandleFunc("/mark", respond(mark))
	mux.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) {
		if wait(r.Context(), 5*time.Second) == nil {
			respond(func(*reviewRequest) *reviewResponse { return &reviewResponse{Allowed: true} })(w, r)
		}
	})
	server := &http.Server{Addr: *address, Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.ListenAndServeTLS(*cert, *key); err != http.ErrServerClosed {
		return err
	}
	return nil
}

func respond(decide func(*reviewRequest) *reviewResponse) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var asked review
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil || asked.Request == nil {
			http.Error(w, fmt.Sprintf("no AdmissionReview: %v", err), http.StatusBadRequest)
			return
		}
		response := decide(asked.Request)
		response.UID = asked.Request.UID
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(review{APIVersion: asked.APIVersion, Kind: asked.Kind, Response: response}) //nolint:errcheck // the client has gone
	}
}

func refusal(message string) *reviewResponse {
	return &reviewResponse{Status: map[string]any{"code": http.StatusForbidden, "reason": "Forbidden", "message": message}}
}

func judge(r *reviewRequest) *reviewResponse {
	if why, bad := r.Object.Data["bad"]; bad {
		return refusal("the data is bad: " + why)
	}
	return &reviewResponse{Allowed: true, Warnings: []string{"the webhook has looked at it"}}
}

func mark(r *reviewRequest) *reviewResponse {
	patch := `[{"op":"add","path":"/metadata/labels/marked","value":"yes"}]`
	if len(r.Object.Metadata.Labels) == 0 {
		patch = `[{"op":"add","path":"/metadata/labels","value":{"marked":"yes"}}]`
	}
	return &reviewResponse{Allowed: true, Patch: []byte(patch), PatchType: "JSONPatch"}
}
