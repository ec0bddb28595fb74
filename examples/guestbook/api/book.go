package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
)

// settings says where the book is kept.
type settings struct {
	Postgres string // connection URL
	Redis    string // host:port
}

// entry is one line of the guest book.
type entry struct {
	ID      int64     `json:"id"`
	Author  string    `json:"author"`
	Text    string    `json:"text"`
	Created time.Time `json:"created"`
}

const (
	shown         = 50                     // entries in the list
	generationKey = "guestbook:generation" // counts changes; the list is cached under its value
	visitKey      = "guestbook:visits"
	cacheTTL      = time.Minute
)

// book keeps entries in PostgreSQL with the latest ones cached in Redis. The cache may be lost
// at any time: without it, reads go to PostgreSQL. A list is cached under the generation that
// was read before the database was, so a slow reader never hides a newer entry.
type book struct {
	db    *pgxpool.Pool
	cache *redis.Client

	mu      sync.Mutex
	created bool // the table is known to exist
}

// open prepares connections; neither server has to be there yet.
func open(ctx context.Context, s settings) (*book, error) {
	if s.Postgres == "" || s.Redis == "" {
		return nil, errors.New("DATABASE_URL and REDIS_ADDRESS must be set")
	}
	db, err := pgxpool.New(ctx, s.Postgres)
	if err != nil {
		return nil, fmt.Errorf("DATABASE_URL: %w", err)
	}
	cache := redis.NewClient(&redis.Options{Addr: s.Redis, DialTimeout: 2 * time.Second, ReadTimeout: 2 * time.Second})
	return &book{db: db, cache: cache}, nil
}

func (b *book) Close() {
	b.db.Close()
	b.cache.Close()
}

// Ready checks both servers and makes the table if this is the first time.
func (b *book) Ready(ctx context.Context) error {
	if err := b.create(ctx); err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	if err := b.db.Ping(ctx); err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	if err := b.cache.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("redis: %w", err)
	}
	return nil
}

// create makes the table. Replicas start together, and PostgreSQL lets only one of several
// CREATE TABLE IF NOT EXISTS statements run at a time under the lock taken here.
func (b *book) create(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.created {
		return nil
	}
	const schema = `
		BEGIN;
		SELECT pg_advisory_xact_lock(7001);
		CREATE TABLE IF NOT EXISTS entries (
			id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
			author  text NOT NULL,
			text    text NOT NULL,
			created timestamptz NOT NULL DEFAULT now()
		);
		COMMIT;`
	if _, err := b.db.Exec(ctx, schema); err != nil {
		return err
	}
	b.created = true
	return nil
}

// Add stores an entry and begins a new generation of the cached list.
func (b *book) Add(ctx context.Context, e entry) (entry, error) {
	if err := b.create(ctx); err != nil {
		return entry{}, err
	}
	row := b.db.QueryRow(ctx, `INSERT INTO entries (author, text) VALUES ($1, $2) RETURNING id, created`, e.Author, e.Text)
	if err := row.Scan(&e.ID, &e.Created); err != nil {
		return entry{}, err
	}
	if err := b.cache.Incr(ctx, generationKey).Err(); err != nil {
		slog.Warn("cache not renewed", "error", err)
	}
	return e, nil
}

// Latest returns the newest entries and whether they came from the cache.
func (b *book) Latest(ctx context.Context) (entries []entry, cached bool, err error) {
	generation, err := b.cache.Get(ctx, generationKey).Int64()
	reachable := err == nil || errors.Is(err, redis.Nil)
	key := fmt.Sprintf("guestbook:entries:%d", generation)
	if reachable {
		if raw, err := b.cache.Get(ctx, key).Bytes(); err == nil && json.Unmarshal(raw, &entries) == nil {
			return entries, true, nil
		}
	}
	if err := b.create(ctx); err != nil {
		return nil, false, err
	}
	rows, err := b.db.Query(ctx, `SELECT id, author, text, created FROM entries ORDER BY id DESC LIMIT $1`, shown)
	if err != nil {
		return nil, false, err
	}
	defer rows.Close()
	entries = []entry{}
	for rows.Next() {
		var e entry
		if err := rows.Scan(&e.ID, &e.Author, &e.Text, &e.Created); err != nil {
			return nil, false, err
		}
		entries = append(entries, e)
	}
	if err := rows.Err(); err != nil {
		return nil, false, err
	}
	if reachable {
		b.remember(ctx, key, entries)
	}
	return entries, false, nil
}

func (b *book) remember(ctx context.Context, key string, entries []entry) {
	raw, err := json.Marshal(entries)
	if err == nil {
		err = b.cache.Set(ctx, key, raw, cacheTTL).Err()
	}
	if err != nil {
		slog.Warn("list not cached", "error", err)
	}
}

// Visit counts a visit and returns their number.
func (b *book) Visit(ctx context.Context) (int64, error) {
	return b.cache.Incr(ctx, visitKey).Result()
}
