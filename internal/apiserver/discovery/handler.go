package discovery

import (
	"bytes"
	"crypto/sha512"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"unsafe"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/apis"
	"proa/internal/apiserver/codec"
	"proa/internal/apiserver/negotiate"
)

// Config says what is described. Catalogue is required.
type Config struct {
	Catalogue *apis.Catalogue
	Address   string          // host:port that /api tells clients to use
	Remotes   func() *Remotes // what other servers serve; nil: nothing
	CBOR      bool            // documents are offered as CBOR, too (KEP-4222)
}

// Handler answers /api, /apis and everything below them that is not a resource.
type Handler struct {
	config Config

	mu    sync.Mutex
	state *state // of the newest catalogue asked about
}

// state is what one state of the catalogue and the other servers answers. Holding
// both keeps their addresses from being used again, so these tell states apart.
type state struct {
	all     []*apis.Resource
	remotes *Remotes
	contents

	mu        sync.Mutex
	documents map[string]document
}

type document struct {
	body []byte
	etag string
}

// New returns a handler.
func New(c Config) *Handler {
	if c.Remotes == nil {
		c.Remotes = func() *Remotes { return nil }
	}
	return &Handler{config: c}
}

// offer adds CBOR to what is offered, where it is on.
func (h *Handler) offer(a negotiate.Accepts) negotiate.Accepts {
	if h.config.CBOR {
		return a.Also(negotiate.CBOR)
	}
	return a
}

func (h *Handler) current() *state {
	all, remotes := h.config.Catalogue.All(), h.config.Remotes()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state == nil || unsafe.SliceData(h.state.all) != unsafe.SliceData(all) || h.state.remotes != remotes {
		h.state = &state{all: all, remotes: remotes, contents: contentsOf(all, remotes), documents: map[string]document{}}
	}
	return h.state
}

// ServeHTTP answers a discovery path; it reports false, having written nothing,
// when the path names no group or version that exists.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) (found bool, err error) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	s := h.current()
	if len(parts) == 1 {
		return true, h.serveRoot(w, r, s, parts[0] == "api")
	}
	offered := h.offer(negotiate.Plain)
	f, err := negotiate.Response(r, offered)
	if err != nil && (parts[0] == "api" || len(parts) == 3) {
		return true, offered.Refusal(r, err)
	}
	if err != nil {
		return true, err
	}
	switch {
	case parts[0] == "api" && len(parts) == 2:
		return h.serveVersion(w, f, s, schema.GroupVersion{Version: parts[1]})
	case parts[0] == "apis" && len(parts) == 2:
		for _, g := range s.groups() {
			if g.name == parts[1] && g.name != "" {
				group := apiGroup(g)
				return true, write(w, f, "APIGroup", &group)
			}
		}
	case parts[0] == "apis" && len(parts) == 3 && parts[1] != "":
		return h.serveVersion(w, f, s, schema.GroupVersion{Group: parts[1], Version: parts[2]})
	}
	return false, nil
}

func (h *Handler) serveVersion(w http.ResponseWriter, f negotiate.Format, s *state, gv schema.GroupVersion) (bool, error) {
	list, ok := s.local[gv]
	if !ok {
		return false, nil
	}
	kind := schema.GroupVersionKind{Version: "v1", Kind: "APIResourceList"}
	if gv.Group == "" {
		kind.Version = "" // as the core group always has it
	}
	return true, writeAs(w, f, kind, Resources(gv, list))
}

func write(w http.ResponseWriter, f negotiate.Format, kind string, obj any) error {
	return writeAs(w, f, schema.GroupVersionKind{Version: "v1", Kind: kind}, obj)
}

func writeAs(w http.ResponseWriter, f negotiate.Format, kind schema.GroupVersionKind, obj any) error {
	var body bytes.Buffer
	if err := codec.WriteObject(&body, f, kind, obj); err != nil {
		return err
	}
	w.Header().Set("Content-Type", string(f.Media))
	_, err := w.Write(body.Bytes())
	return err
}

const discoveryGroup = "apidiscovery.k8s.io"

// serveRoot answers /api and /apis: one aggregated document for a client that
// asks for it, the list of versions or groups otherwise.
func (h *Handler) serveRoot(w http.ResponseWriter, r *http.Request, s *state, core bool) error {
	offered := h.offer(negotiate.Accepts{
		Media: negotiate.Plain.Media,
		Kind: func(_ negotiate.Media, group, version, kind string) bool {
			return kind == "" || group == discoveryGroup && kind == "APIGroupDiscoveryList" && version == "v2"
		},
	})
	f, err := negotiate.Response(r, offered)
	if err != nil && core {
		return offered.Refusal(r, err)
	}
	if err != nil {
		return err
	}
	switch {
	case f.As != "":
		return s.serveAggregated(w, r, f, core)
	case core:
		return writeAs(w, f, schema.GroupVersionKind{Kind: "APIVersions"}, &metav1.APIVersions{
			Versions:                   []string{"v1"},
			ServerAddressByClientCIDRs: []metav1.ServerAddressByClientCIDR{{ClientCIDR: "0.0.0.0/0", ServerAddress: h.config.Address}},
		})
	}
	return write(w, f, "APIGroupList", s.apiGroups())
}

func (s *state) serveAggregated(w http.ResponseWriter, r *http.Request, f negotiate.Format, core bool) error {
	doc, err := s.document(f, core)
	if err != nil {
		return err
	}
	header := w.Header()
	header.Set("Vary", "Accept")
	header.Set("ETag", doc.etag)
	header.Set("Cache-Control", "public")
	if r.Header.Get("If-None-Match") == doc.etag {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	header.Set("Content-Type", string(f.Media)+";g="+discoveryGroup+";v="+f.AsVersion+";as=APIGroupDiscoveryList")
	_, err = w.Write(doc.body)
	return err
}

// document is an aggregated document. Its etag tells states apart, not media types.
func (s *state) document(f negotiate.Format, core bool) (document, error) {
	key := fmt.Sprintf("%s %s %t", f.Media, f.AsVersion, core)
	s.mu.Lock()
	defer s.mu.Unlock()
	if doc, ok := s.documents[key]; ok {
		return doc, nil
	}
	kind := schema.GroupVersionKind{Group: discoveryGroup, Version: f.AsVersion, Kind: "APIGroupDiscoveryList"}
	list, text := s.aggregated(core), new(bytes.Buffer)
	if err := codec.WriteObject(text, negotiate.Format{Media: negotiate.JSON}, kind, list); err != nil {
		return document{}, err
	}
	body := text
	if f.Media != negotiate.JSON {
		body = new(bytes.Buffer)
		if err := codec.WriteObject(body, negotiate.Format{Media: f.Media}, kind, list); err != nil {
			return document{}, err
		}
	}
	doc := document{body.Bytes(), fmt.Sprintf("%q", fmt.Sprintf("%X", sha512.Sum512(text.Bytes())))}
	s.documents[key] = doc
	return doc, nil
}
