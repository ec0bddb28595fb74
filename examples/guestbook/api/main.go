// Command api serves the guest book: entries are kept in PostgreSQL, the list that everyone
// reads is cached in Redis, and each replica says its name.
//
//	GET  /api/entries    the latest entries, newest first
//	POST /api/entries    {"author": "...", "text": "..."} adds one
//	GET  /api/info       which pod answers, and how many visits there were
//	GET  /healthz        the process works
//	GET  /readyz         PostgreSQL and Redis answer
package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		slog.Error("guest book ended", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	book, err := open(ctx, settings{
		Postgres: os.Getenv("DATABASE_URL"),
		Redis:    os.Getenv("REDIS_ADDRESS"),
	})
	if err != nil {
		return err
	}
	defer book.Close()
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	address := os.Getenv("LISTEN_ADDRESS")
	if address == "" {
		address = ":8080"
	}
	server := &http.Server{
		Addr:              address,
		Handler:           handler(book, host),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      15 * time.Second,
	}
	failed := make(chan error, 1)
	go func() { failed <- server.ListenAndServe() }()
	slog.Info("guest book listens", "address", address, "host", host)
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	// Requests under way may finish; the readiness probe has sent new ones elsewhere.
	ending, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := server.Shutdown(ending); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
