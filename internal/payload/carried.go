//go:build dist

package payload

import _ "embed"

// embedded is the archive that `make dist` places here before it compiles.
//
//go:embed payload.tar.zst
var embedded []byte
