package webhook

import (
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
)

// The library panics over it, and the caller may be a controller of this process.
func TestAPatchThatLacksAValueIsAnError(t *testing.T) {
	operations, err := jsonpatch.DecodePatch([]byte(`[{"op":"replace","path":""}]`))
	if err != nil {
		t.Fatal(err)
	}
	if after, err := run(operations, []byte(`{"a":1}`)); err == nil {
		t.Errorf("made %s", after)
	}
}
