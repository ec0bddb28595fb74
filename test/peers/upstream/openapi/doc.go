// Package openapi holds the schemas of the API types that are served. They are
// generated when the comparison is built, and not kept.
package openapi
