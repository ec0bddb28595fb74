package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"
	"slices"
	"sort"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/apis"
	"proa/internal/apiserver/fairness"
	"proa/internal/apiserver/negotiate"
	"proa/internal/apiserver/request"
	"proa/internal/verbosity"
)

// serve answers a request that all filters let pass.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	info := request.From(r.Context())
	if s.aggregate(w, r) {
		return
	}
	var err error
	if info.IsResource {
		err = s.serveResource(w, r, info)
	} else {
		err = s.servePath(w, r, info.Path)
	}
	switch {
	case err == nil:
	case errors.Is(err, errNoPath) && s.ofCustom(info):
		s.fail(w, r, apierrors.NewNotFound(schema.GroupResource{Group: info.Group, Resource: info.Resource}, info.Name))
	case errors.Is(err, errNoPath) && s.ofBuiltInGroup(info.Path):
		s.fail(w, r, errNotFound)
	case errors.Is(err, errNoPath):
		http.NotFound(w, r)
	case errors.Is(err, context.Canceled) && r.Context().Err() != nil:
		// The client is gone.
	default:
		s.fail(w, r, err)
	}
}

// ofCustom says whether a path is below that of a custom resource that is served.
func (s *Server) ofCustom(info *request.Info) bool {
	v, ok := s.catalogue.Lookup(schema.GroupVersionResource{Group: info.Group, Version: info.Version, Resource: info.Resource})
	return ok && v.Custom != nil
}

// ofBuiltInGroup says whether a path is below that of a group of the server's own:
// there, what does not exist is a Status.
func (s *Server) ofBuiltInGroup(path string) bool {
	parts := strings.SplitN(strings.TrimPrefix(path, "/"), "/", 3)
	if parts[0] == "api" {
		return true
	}
	return parts[0] == "apis" && len(parts) > 1 && slices.ContainsFunc(s.catalogue.All(), func(r *apis.Resource) bool {
		return r.Group == parts[1] && r.Custom == nil
	})
}

// servePath answers the paths that are no resources.
func (s *Server) servePath(w http.ResponseWriter, r *http.Request, path string) error {
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	if s.fairness != nil && strings.HasPrefix(path, fairness.DumpPath) {
		return foundOr(s.fairness.ServeDump(w, r), nil)
	}
	if path == "/debug/flags/v" {
		verbosity.ServeHTTP(w, r)
		return nil
	}
	if first == "debug" {
		return servePprof(w, r, path)
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return errNoPath
	}
	switch first {
	case "api", "apis":
		return foundOr(s.discovery.ServeHTTP(w, r))
	case "openapi":
		return foundOr(s.openapi.ServeHTTP(w, r))
	case "healthz", "livez", "readyz":
		return s.health.serve(w, r, path)
	}
	switch path {
	case "/", "/index.html":
		return writeJSON(w, map[string][]string{"paths": s.paths()})
	case "/version", "/version/":
		return writeJSON(w, s.config.Version)
	case "/metrics":
		s.metrics.ServeHTTP(w, r)
		return nil
	case "/metrics/slis":
		s.health.slis.ServeHTTP(w, r)
		return nil
	case "/statusz":
		if s.config.Features.Enabled("ComponentStatusz") {
			return s.serveStatusz(w, r)
		}
	case "/flagz":
		if s.config.Features.Enabled("ComponentFlagz") {
			return s.serveFlagz(w, r)
		}
	case "/openid/v1/jwks":
		return writeDocument(w, r, "application/jwk-set+json", s.config.JWKS)
	case "/.well-known/openid-configuration":
		return writeDocument(w, r, "application/json", s.config.OpenIDConfiguration)
	}
	return errNoPath
}

func foundOr(found bool, err error) error {
	if err == nil && !found {
		return errNoPath
	}
	return err
}

// writeJSON writes a document that has no kind, indented as upstream does.
func writeJSON(w http.ResponseWriter, obj any) error {
	w.Header().Set("Content-Type", "application/json")
	return writeIndented(w, obj)
}

func writeIndented(w io.Writer, obj any) error {
	body, err := json.MarshalIndent(obj, "", "  ")
	if err != nil {
		return err
	}
	_, _ = w.Write(body) // a client that is gone needs no answer
	return nil
}

// writeDocument writes a document that others made; clients may cache it.
func writeDocument(w http.ResponseWriter, r *http.Request, contentType negotiate.Media, document func() ([]byte, time.Duration)) error {
	if document == nil {
		return errNoPath
	}
	offered := negotiate.Accepts{Media: []negotiate.Media{contentType}}
	if _, err := negotiate.Response(r, offered); err != nil && r.Header.Get("Accept") != "" {
		return offered.Refusal(r, err)
	}
	body, maxAge := document()
	w.Header().Set("Content-Type", string(contentType))
	w.Header().Set("Cache-Control", fmt.Sprintf("public, max-age=%d", int(maxAge.Seconds())))
	w.Write(body) // a client that is gone needs no answer
	return nil
}

func servePprof(w http.ResponseWriter, r *http.Request, path string) error {
	name, ok := strings.CutPrefix(path, "/debug/pprof")
	if !ok {
		return errNoPath
	}
	switch name {
	case "/cmdline":
		pprof.Cmdline(w, r)
	case "/profile":
		pprof.Profile(w, r)
	case "/symbol":
		pprof.Symbol(w, r)
	case "/trace":
		pprof.Trace(w, r)
	default:
		if name != "" && !strings.HasPrefix(name, "/") {
			return errNoPath
		}
		pprof.Index(w, r)
	}
	return nil
}

// paths lists what there is to ask for.
func (s *Server) paths() []string {
	set := map[string]bool{
		"/api": true, "/apis": true, "/openapi/v2": true, "/openapi/v3": true, "/openapi/v3/": true,
		"/apis/": true, "/version": true, "/metrics": true, "/metrics/slis": true,
		"/statusz": s.config.Features.Enabled("ComponentStatusz"), "/flagz": s.config.Features.Enabled("ComponentFlagz"),
	}
	for _, r := range s.catalogue.All() {
		if !r.Unserved {
			s.addGroupPaths(set, r.Group, r.Version)
		}
		for _, also := range r.Also {
			s.addGroupPaths(set, also.Group, also.Version)
		}
		for _, v := range r.Versions {
			s.addGroupPaths(set, v.Group, v.Version)
		}
	}
	for _, r := range s.aggregated() {
		s.addGroupPaths(set, r.Group, r.Version)
	}
	for _, p := range s.health.paths() {
		set[p] = true
	}
	if s.config.JWKS != nil {
		set["/openid/v1/jwks"] = true
	}
	if s.config.OpenIDConfiguration != nil {
		set["/.well-known/openid-configuration"] = true
	}
	list := make([]string, 0, len(set))
	for p, there := range set {
		if there {
			list = append(list, p)
		}
	}
	sort.Strings(list)
	return list
}

func (s *Server) addGroupPaths(set map[string]bool, group, version string) {
	if group == "" {
		set["/api/"+version] = true
		return
	}
	set["/apis/"+group] = true
	set["/apis/"+group+"/"+version] = true
}
