package checkpoint

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestStateSurvives(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state")
	have := map[string][]string{"none": nil}
	if err := Load(file, &have); err != nil || len(have) != 1 {
		t.Fatalf("without a file: %v, %v", have, err)
	}
	for _, want := range []map[string][]string{{"a": {"1", "2"}, "b": {"3"}}, {"c": {"4"}}} {
		if err := Save(file, want); err != nil {
			t.Fatal(err)
		}
		have = nil
		if err := Load(file, &have); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, have); d != "" {
			t.Errorf("(-saved +loaded)\n%s", d)
		}
	}
	if entries, err := os.ReadDir(filepath.Dir(file)); err != nil || len(entries) != 1 {
		t.Errorf("beside the file: %v, %v", entries, err)
	}
}

func TestWhatCannotBeReadIsNamed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state")
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Load(file, &struct{}{}); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a torn file: %v", err)
	}
	if err := Save(filepath.Join(t.TempDir(), "gone", "state"), 1); err == nil {
		t.Error("saved in a folder that is not there")
	}
}
