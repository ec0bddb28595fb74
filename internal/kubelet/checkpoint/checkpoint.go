// Package checkpoint keeps in a file what a new life of the node agent has to know
// of the one before it. A file is there whole or not at all, also when the host loses
// power while it is written.
package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/google/renameio/v2"
)

// Load reads the file into state, which stays as it is where there is no file.
func Load(file string, state any) error {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, state); err != nil {
		return fmt.Errorf("read checkpoint %s: %w", file, err)
	}
	return nil
}

// Save replaces the file; only its owner may read it.
func Save(file string, state any) error {
	data, err := json.Marshal(state)
	if err == nil {
		err = renameio.WriteFile(file, data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write checkpoint %s: %w", file, err)
	}
	return nil
}
