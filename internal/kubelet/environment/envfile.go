package environment

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

func (b *builder) fileKey(ref *corev1.FileKeySelector) (string, bool, error) {
	optional := ptr.Deref(ref.Optional, false)
	if b.in.ReadVolumeFile == nil {
		return "", false, fmt.Errorf("couldn't read file %q of volume %q: volumes are not mounted", ref.Path, ref.VolumeName)
	}
	content, err := b.in.ReadVolumeFile(ref.VolumeName, ref.Path)
	if errors.Is(err, fs.ErrNotExist) && optional {
		return "", false, nil
	}
	if err != nil {
		return "", false, fmt.Errorf("couldn't parse env file: %w", err)
	}
	values, err := parseEnvFile(string(content))
	if err != nil {
		return "", false, fmt.Errorf("couldn't parse env file: %w", err)
	}
	value, ok := values[ref.Key]
	if !ok && !optional {
		return "", false, fmt.Errorf("environment variable key %q not found in file", ref.Key)
	}
	return value, ok, nil
}

// parseEnvFile reads NAME='value' assignments, one per line. A value is in
// single quotes, is taken literally and may span lines; blank lines and lines
// that start with # are skipped. Anything else is an error, so that the file
// means the same to a POSIX shell.
func parseEnvFile(s string) (map[string]string, error) {
	values := map[string]string{}
	for line := 1; s != ""; {
		trimmed := strings.TrimLeft(s, " \t\r")
		if trimmed == "" {
			break
		}
		if trimmed[0] == '\n' || trimmed[0] == '#' {
			_, s, _ = strings.Cut(trimmed, "\n")
			line++
			continue
		}
		name, rest, ok := strings.Cut(trimmed, "=")
		if !ok || name == "" || strings.ContainsAny(name, " \t\r\n'") {
			return nil, fmt.Errorf("invalid environment variable format at line %d", line)
		}
		if rest == "" || rest[0] != '\'' {
			return nil, fmt.Errorf("invalid environment variable format at line %d: value must be enclosed in single quotes", line)
		}
		value, rest, ok := strings.Cut(rest[1:], "'")
		if !ok {
			return nil, fmt.Errorf("unterminated single-quoted value starting at line %d", line)
		}
		line += strings.Count(value, "\n")
		tail, next, _ := strings.Cut(rest, "\n")
		if tail = strings.TrimSpace(tail); tail != "" && tail[0] != '#' {
			return nil, fmt.Errorf("unexpected content after closing quote at line %d", line)
		}
		values[name] = value
		s = next
		line++
	}
	return values, nil
}
