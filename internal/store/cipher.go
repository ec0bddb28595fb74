package store

// Cipher seals values before an engine gets them: encryption at rest. It is used
// from many goroutines at once.
type Cipher interface {
	// Seal returns what the engine keeps, and the generation of keys that sealed
	// it, which is never 0.
	Seal(key Key, plain []byte) (sealed []byte, generation int32, err error)

	// Open is the inverse of Seal. Its generation is 0 for what would be sealed
	// in another way now.
	Open(key Key, sealed []byte) (plain []byte, generation int32, err error)

	// Generation is that of a Seal now. It changes when keys do.
	Generation() int32
}

func (s *Store) seal(key Key, plain []byte) ([]byte, int32, error) {
	if s.cipher == nil {
		return plain, 0, nil
	}
	return s.cipher.Seal(key, plain)
}

func (s *Store) open(key Key, sealed []byte) ([]byte, int32, error) {
	if s.cipher == nil {
		return sealed, 0, nil
	}
	return s.cipher.Open(key, sealed)
}

// Outdated reports whether an item would be sealed in another way now: putting it
// as it is writes it again.
func (tx *Tx) Outdated(i *Item) bool { return !tx.store.sealedNow(i) }

func (s *Store) sealedNow(i *Item) bool {
	return s.cipher == nil || i.seal == s.cipher.Generation()
}
