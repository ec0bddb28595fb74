package configfile

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/apis/apiserver"
	testclock "k8s.io/utils/clock/testing"
)

func TestDecodeIsStrict(t *testing.T) {
	const head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n"
	tests := []struct {
		name, text string
		valid      bool
	}{
		{"a document of the kind", head + "anonymous: {enabled: true}\n", true},
		{"an unknown field", head + "anonymos: {enabled: true}\n", false},
		{"a field that is given twice", head + "anonymous: {enabled: true}\nanonymous: {enabled: false}\n", false},
		{"another kind", "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\n", false},
		{"nothing", " \n", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Decode[*apiserver.AuthenticationConfiguration]([]byte(tt.text))
			if (err == nil) != tt.valid {
				t.Errorf("valid: %v, err: %v", tt.valid, err)
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte("apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers: [{type: Node, name: node}]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		config, err := Decode[*apiserver.AuthorizationConfiguration](data)
		if err == nil && config == nil {
			t.Error("neither a configuration nor an error")
		}
	})
}

// TestFollowerAppliesChanges replaces a file by renaming, as editors and volumes
// do; every look that changes something is seen through applied.
func TestFollowerAppliesChanges(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config")
	replace := func(text string) {
		t.Helper()
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	replace("a")
	applied := make(chan string)
	clk := testclock.NewFakeClock(time.Unix(1e9, 0))
	f := &Follower{Path: file, Loaded: []byte("a"), Clock: clk, Reloads: NewReloads("test"), Apply: func(ctx context.Context, data []byte) error {
		select {
		case applied <- string(data):
		case <-ctx.Done():
		}
		if string(data) == "bad" {
			return errors.New("bad")
		}
		return nil
	}}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- f.Run(ctx) }()
	replace("b")
	if got := <-applied; got != "b" {
		t.Errorf("applied %q, want b", got)
	}
	replace("bad")
	for range 2 { // a bad file is tried again when the interval is over
		if got := <-applied; got != "bad" {
			t.Errorf("applied %q, want bad", got)
		}
		clk.Step(time.Minute)
	}
	replace("b") // what is in force comes back: nothing to do
	replace("c")
	for got := range applied {
		if got == "c" {
			break
		}
		if got != "bad" {
			t.Errorf("applied %q, want bad or c", got)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
