// Command proa-build assembles what make puts beside or into the proa executable:
//
//	proa-build payload OUT DIR       compress the payload directory DIR into the archive OUT
//	proa-build image OUT ROOT SPEC   pack the tree ROOT as an OCI archive
//	proa-build debian OUT SPEC       the same, from Debian packages and the files beside SPEC
//
// SPEC is a JSON file; see debian.Spec. The last needs root, apt-get and dpkg-deb.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"

	"proa/internal/images/debian"
	"proa/internal/images/pack"
	"proa/internal/payload"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "proa-build:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 3 && args[0] == "payload":
		return packPayload(args[1], args[2])
	case len(args) == 4 && args[0] == "image":
		spec, err := debian.ReadSpec(args[3])
		if err != nil {
			return err
		}
		return pack.WriteFile(args[1], pack.Image{Names: spec.Names, Root: args[2], Architecture: runtime.GOARCH, Config: spec.Config})
	case len(args) == 3 && args[0] == "debian":
		return debian.Build(ctx, args[1], args[2])
	}
	return errors.New("usage: proa-build payload OUT DIR | image OUT ROOT SPEC | debian OUT SPEC")
}

func packPayload(out, dir string) error {
	f, err := os.CreateTemp(filepath.Dir(out), ".payload-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if err := payload.Pack(f, dir); err != nil {
		f.Close()
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), out)
}
