package main

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"
)

// maxBody and maxText bound what a visitor may send, in bytes.
const (
	maxBody = 16 << 10
	maxText = 4 << 10
)

func handler(b *book, host string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		reply(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if err := b.Ready(r.Context()); err != nil {
			reply(w, http.StatusServiceUnavailable, map[string]string{"error": err.Error()})
			return
		}
		reply(w, http.StatusOK, map[string]string{"status": "ready"})
	})
	mux.HandleFunc("GET /api/info", func(w http.ResponseWriter, r *http.Request) {
		visits, err := b.Visit(r.Context())
		if err != nil {
			fail(w, "count visit", err)
			return
		}
		reply(w, http.StatusOK, map[string]any{"host": host, "visits": visits})
	})
	mux.HandleFunc("GET /api/entries", func(w http.ResponseWriter, r *http.Request) {
		entries, cached, err := b.Latest(r.Context())
		if err != nil {
			fail(w, "list entries", err)
			return
		}
		reply(w, http.StatusOK, map[string]any{"entries": entries, "cached": cached, "host": host})
	})
	mux.HandleFunc("POST /api/entries", func(w http.ResponseWriter, r *http.Request) {
		var e entry
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&e); err != nil {
			reply(w, http.StatusBadRequest, map[string]string{"error": "the body is not an entry: " + err.Error()})
			return
		}
		e.Author, e.Text = strings.TrimSpace(e.Author), strings.TrimSpace(e.Text)
		if e.Author == "" || e.Text == "" || len(e.Author)+len(e.Text) > maxText {
			reply(w, http.StatusUnprocessableEntity, map[string]string{"error": "an entry has an author and a text, together at most 4096 bytes"})
			return
		}
		added, err := b.Add(r.Context(), e)
		if err != nil {
			fail(w, "add entry", err)
			return
		}
		reply(w, http.StatusCreated, added)
	})
	return mux
}

func fail(w http.ResponseWriter, what string, err error) {
	slog.Error("request failed", "operation", what, "error", err)
	reply(w, http.StatusServiceUnavailable, map[string]string{"error": what + " failed; try again"})
}

func reply(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(body); err != nil {
		slog.Info("visitor left early", "error", err)
	}
}
