package apiserver

import (
	"maps"
	"net/http"
	"slices"
	"strings"

	"proa/internal/apiserver/zpages"
)

// pages are those on which the server says what is running.
func (s *Server) pages() *zpages.Pages {
	version := s.config.Version
	return &zpages.Pages{
		Component: "apiserver", Flags: s.config.Flags, Paths: s.debugPaths(), Started: s.started, Clock: s.config.Clock,
		Emulated: version.Major + "." + version.Minor, CBOR: s.cbor,
	}
}

// debugPaths are the first parts of the paths that tell about the server itself.
func (s *Server) debugPaths() []string {
	api := map[string]bool{"api": true, "apis": true, "openid": true, "openapi": true, ".well-known": true}
	set := map[string]bool{}
	for _, p := range s.paths() {
		first, _, _ := strings.Cut(strings.TrimPrefix(p, "/"), "/")
		if !api[first] {
			set["/"+first] = true
		}
	}
	return slices.Sorted(maps.Keys(set))
}

func (s *Server) serveStatusz(w http.ResponseWriter, r *http.Request) error {
	return s.pages().Statusz(w, r)
}

func (s *Server) serveFlagz(w http.ResponseWriter, r *http.Request) error {
	return s.pages().Flagz(w, r)
}
