package controlplane

import (
	"context"
	"errors"
	"fmt"

	"proa/internal/apiserver"
	"proa/internal/apiserver/registry"
	"proa/internal/configfile"
	"proa/internal/store"
	"proa/internal/store/encryption"
	"proa/internal/store/etcd"
)

// openStore opens the store on an engine, encrypted if the configuration says so.
func (cp *ControlPlane) openStore(ctx context.Context, engine store.Engine) (err error) {
	codec := registry.NewCodec(cp.catalogue)
	codec.CBOR = cp.config.Gates.Enabled("CBORServingAndStorage")
	c := store.Config{Engine: engine, Codec: codec, Indexes: registry.Indexes(cp.catalogue)}
	if cp.config.Encryption.File != "" {
		if err := cp.openEncryption(ctx, engine); err != nil {
			return err
		}
		c.Cipher = cp.encryption
	}
	c.Place = placeOf(engine)
	if cp.Store, err = store.Open(ctx, c); err != nil {
		if cp.encryption != nil {
			cp.encryption.Close()
		}
		return fmt.Errorf("open store: %w", err)
	}
	return nil
}

func (cp *ControlPlane) openEncryption(ctx context.Context, engine store.Engine) (err error) {
	c := cp.config.Encryption
	c.Clock = cp.config.Clock
	c.Path = placeOf(engine)
	if cp.encryption, err = encryption.Open(ctx, c); err != nil {
		return err
	}
	cp.upkeep = append(cp.upkeep, cp.step(cp.encryption, encryptionFollowed))
	for _, check := range cp.encryption.Checks() {
		cp.config.Server.Checks = append(cp.config.Server.Checks, apiserver.Check{Name: check.Name, Check: check.Check})
	}
	return nil
}

// placeOf returns where upstream keeps the objects of an engine.
func placeOf(engine store.Engine) func(store.Key) string {
	if shared, ok := engine.(*etcd.Engine); ok {
		return shared.Path
	}
	return etcd.Paths("", builtinResources())
}

func (cp *ControlPlane) closeStore() error {
	err := cp.Store.Close()
	if cp.encryption != nil {
		cp.encryption.Close()
	}
	return err
}

// encryptionFlags are upstream's.
type encryptionFlags struct {
	file   configfile.Path
	reload bool
}

func (f *encryptionFlags) apply(c *Config) error {
	if f.file == "" {
		if f.reload {
			return errors.New("--encryption-provider-config-automatic-reload must be set with --encryption-provider-config")
		}
		return nil
	}
	c.Encryption.File, c.Encryption.Reload = string(f.file), f.reload
	return c.Encryption.Validate()
}
