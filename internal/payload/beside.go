//go:build !dist

package payload

// embedded is empty: this build finds its payload beside it.
var embedded []byte
