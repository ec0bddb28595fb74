package apiserver

import (
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/apis"
	"proa/internal/apiserver/discovery"
	"proa/internal/apiserver/openapi"
)

// aggregate passes a request on that another server answers. It reports false,
// having written nothing, for one that this server answers itself.
func (s *Server) aggregate(w http.ResponseWriter, r *http.Request) bool {
	if s.config.Aggregator == nil {
		return false
	}
	gv, ok := pathVersion(r.URL.Path)
	if !ok {
		return false
	}
	backend := s.config.Aggregator.Backend(gv)
	if backend == nil {
		return false
	}
	begun(r.Context()) // a watch begins over there, with that server's seats
	if err := s.config.Aggregator.Serve(w, r, backend, userFrom(r.Context())); err != nil {
		s.fail(w, r, err)
	}
	return true
}

// pathVersion reads the group version that a path begins with.
func pathVersion(path string) (schema.GroupVersion, bool) {
	if rest, ok := strings.CutPrefix(path, "/apis/"); ok {
		group, rest, ok := strings.Cut(rest, "/")
		version, _, _ := strings.Cut(rest, "/")
		return schema.GroupVersion{Group: group, Version: version}, ok && group != "" && version != ""
	}
	if rest, ok := strings.CutPrefix(path, "/api/"); ok {
		version, _, _ := strings.Cut(rest, "/")
		return schema.GroupVersion{Version: version}, version != ""
	}
	return schema.GroupVersion{}, false
}

func (c *Config) remoteDiscovery() func() *discovery.Remotes {
	if c.Aggregator == nil {
		return nil
	}
	return c.Aggregator.Discovery
}

func (c *Config) openAPI(catalogue *apis.Catalogue) openapi.Config {
	return openapi.Config{
		Catalogue: catalogue, Version: c.Version.Major + "." + c.Version.Minor, Remotes: c.remoteOpenAPI(),
		CBOR: c.Features.Enabled(cborServing), Plain: !c.Features.Enabled("OpenAPIEnums"),
		Issuer:   openapi.Identity{Keys: c.JWKS != nil, Configuration: c.OpenIDConfiguration != nil},
		Returned: returnsObject,
	}
}

func (c *Config) remoteOpenAPI() func() *openapi.Remotes {
	if c.Aggregator == nil {
		return nil
	}
	return c.Aggregator.OpenAPI
}

// aggregated lists what other servers serve.
func (s *Server) aggregated() []discovery.Remote {
	if s.config.Aggregator == nil {
		return nil
	}
	if remotes := s.config.Aggregator.Discovery(); remotes != nil {
		return remotes.List
	}
	return nil
}
