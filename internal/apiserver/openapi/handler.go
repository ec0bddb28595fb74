package openapi

import (
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	openapi_v3 "github.com/google/gnostic-models/openapiv3"
	"github.com/munnerz/goautoneg"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/apis"
)

// Config says what is described. Catalogue is required.
type Config struct {
	Catalogue *apis.Catalogue
	Version   string          // of the server
	Remotes   func() *Remotes // what other servers describe; nil: nothing
	CBOR      bool            // the server speaks it
	Plain     bool            // enumerations are not told (gate OpenAPIEnums off)
	Issuer    Identity

	// Returned says where a delete answers with the object; nil: nowhere.
	Returned func(schema.GroupVersionResource) bool
}

func (c *Config) dialect(v3 bool) dialect {
	return dialect{v3: v3, cbor: c.CBOR, plain: c.Plain, gone: c.Returned}
}

// Handler serves /openapi/v2, /openapi/v3 and what lies below it.
type Handler struct {
	config Config

	mu      sync.Mutex
	all     []*apis.Resource // the state of the catalogue that the rest is of
	remotes *Remotes         // and that of the other servers
	gvs     map[schema.GroupVersion][]served
	v3      map[schema.GroupVersion]versionDocument
	general map[string]generalDocument // by path
	v2      *compressed
	proto   map[string]*compressed // protobuf form by path
}

type versionDocument struct {
	of []*apis.Resource // what it describes; the document lives while these do
	*compressed
}

// generalDocument describes a path below no group version.
type generalDocument struct {
	generalPath
	*compressed // nil: not asked for yet
}

// compressed is a document as it is kept.
type compressed struct {
	gz   []byte
	etag string // of the uncompressed JSON, also for the protobuf form
}

// New returns a handler. Documents are made when they are first asked for.
func New(c Config) *Handler {
	if c.Remotes == nil {
		c.Remotes = func() *Remotes { return nil }
	}
	return &Handler{config: c}
}

// refreshLocked notices that the catalogue changed. Documents of group versions that
// did not change are kept.
func (h *Handler) refreshLocked() {
	all, remotes := h.config.Catalogue.All(), h.config.Remotes()
	if h.gvs != nil && unsafe.SliceData(all) == unsafe.SliceData(h.all) && remotes == h.remotes {
		return
	}
	h.all, h.remotes, h.gvs = all, remotes, without(byGroupVersion(all), remotes)
	h.v2, h.proto = nil, map[string]*compressed{}
	kept := map[schema.GroupVersion]versionDocument{}
	for gv, doc := range h.v3 {
		if slices.Equal(doc.of, resourcesOf(h.gvs[gv])) {
			kept[gv] = doc
		}
	}
	h.v3 = kept
	general := map[string]generalDocument{}
	for _, p := range generalPaths(h.gvs, h.config.Issuer) {
		general[p.path] = generalDocument{p, h.general[p.path].compressed}
	}
	h.general = general
}

// versionsLocked are the group versions that have an OpenAPI 3 document.
func (h *Handler) versionsLocked() []schema.GroupVersion {
	list := sortedVersions(h.gvs)
	for _, r := range h.remotes.list() {
		if r.V3 != nil {
			list = append(list, r.GroupVersion)
		}
	}
	return list
}

func resourcesOf(list []served) []*apis.Resource {
	var out []*apis.Resource
	for _, s := range list {
		out = append(out, s.Resource)
	}
	return out
}

func (h *Handler) versionLocked(gv schema.GroupVersion) (*compressed, error) {
	if r := h.remotes.find(gv); r != nil && r.V3 != nil {
		return &r.V3.compressed, nil
	}
	if doc, ok := h.v3[gv]; ok {
		return doc.compressed, nil
	}
	doc, err := h.compressDocument(build(h.config.dialect(true), h.config.Version, map[schema.GroupVersion][]served{gv: h.gvs[gv]}), nil)
	if err != nil {
		return nil, err
	}
	h.v3[gv] = versionDocument{resourcesOf(h.gvs[gv]), doc}
	return doc, nil
}

func (h *Handler) generalLocked(p generalDocument) (*compressed, error) {
	if p.compressed != nil {
		return p.compressed, nil
	}
	doc, err := h.compressDocument(build(h.config.dialect(true), h.config.Version, nil, p.generalPath), nil)
	if err != nil {
		return nil, err
	}
	h.general[p.path] = generalDocument{p.generalPath, doc}
	return doc, nil
}

// lookupLocked finds the OpenAPI 3 document at a path, nil where there is none.
func (h *Handler) lookupLocked(path string) (*compressed, error) {
	if p, ok := h.general[path]; ok {
		return h.generalLocked(p)
	}
	gv, ok := groupVersion(path)
	if r := h.remotes.find(gv); !ok || len(h.gvs[gv]) == 0 && (r == nil || r.V3 == nil) {
		return nil, nil
	}
	return h.versionLocked(gv)
}

func (h *Handler) compressDocument(content object, remotes *Remotes) (*compressed, error) {
	body, err := marshal(content)
	if err == nil {
		body, err = mergeV2(body, remotes)
	}
	if err != nil {
		return nil, fmt.Errorf("describe the API: %w", err)
	}
	return compress(body, fmt.Sprintf("%X", sha512.Sum512(body))), nil
}

func compress(body []byte, etag string) *compressed {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	w.Write(body) // to memory: cannot fail
	w.Close()
	return &compressed{gz: bytes.Clone(b.Bytes()), etag: etag}
}

func (c *compressed) open() ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(c.gz))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// ServeHTTP reports false, having written nothing, for a path that describes nothing.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) (found bool, err error) {
	switch path := strings.TrimSuffix(r.URL.Path, "/"); {
	case path == "/openapi/v2":
		return true, h.serveV2(w, r)
	case path == "/openapi/v3":
		return true, h.serveIndex(w, r)
	default:
		return h.serveDocument(w, r, strings.TrimPrefix(path, "/openapi/v3/"))
	}
}

// groupVersion reads api/v1 or apis/<group>/<version>.
func groupVersion(path string) (schema.GroupVersion, bool) {
	parts := strings.Split(path, "/")
	switch {
	case len(parts) == 2 && parts[0] == "api":
		return schema.GroupVersion{Version: parts[1]}, true
	case len(parts) == 3 && parts[0] == "apis" && parts[1] != "":
		return schema.GroupVersion{Group: parts[1], Version: parts[2]}, true
	}
	return schema.GroupVersion{}, false
}

func documentURL(path, etag string) string {
	return "/openapi/v3/" + path + "?hash=" + url.QueryEscape(etag)
}

// describedLocked are the paths that have an OpenAPI 3 document.
func (h *Handler) describedLocked() []string {
	list := slices.Sorted(maps.Keys(h.general))
	for _, gv := range h.versionsLocked() {
		list = append(list, strings.TrimPrefix(root(gv), "/"))
	}
	return list
}

// serveIndex lists the documents, each with the hash of what it says now.
func (h *Handler) serveIndex(w http.ResponseWriter, r *http.Request) error {
	type entry struct {
		ServerRelativeURL string `json:"serverRelativeURL"`
	}
	index := struct {
		Paths map[string]entry `json:"paths"`
	}{map[string]entry{}}
	h.mu.Lock()
	h.refreshLocked()
	for _, path := range h.describedLocked() {
		doc, err := h.lookupLocked(path)
		if err != nil {
			h.mu.Unlock()
			return err
		}
		index.Paths[path] = entry{documentURL(path, doc.etag)}
	}
	h.mu.Unlock()
	body, err := json.Marshal(index)
	if err != nil {
		return err
	}
	w.Header().Set("Etag", strconv.Quote(fmt.Sprintf("%X", sha512.Sum512(body))))
	w.Header().Set("Content-Type", "application/json")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
	return nil
}

func (h *Handler) serveDocument(w http.ResponseWriter, r *http.Request, path string) (bool, error) {
	media, ok := accepted(r, "v3")
	if !ok {
		w.WriteHeader(http.StatusNotAcceptable)
		return true, nil
	}
	h.mu.Lock()
	h.refreshLocked()
	doc, err := h.lookupLocked(path)
	h.mu.Unlock()
	if err != nil || doc == nil {
		return err != nil, err
	}
	if hash := r.URL.Query().Get("hash"); hash != "" {
		if hash != doc.etag {
			http.Redirect(w, r, documentURL(path, doc.etag), http.StatusMovedPermanently)
			return true, nil
		}
		w.Header().Set("Cache-Control", "public, immutable")
		w.Header().Set("Expires", time.Now().AddDate(1, 0, 0).UTC().Format(http.TimeFormat))
	}
	return true, h.serve(w, r, doc, media, "v3/"+path, func(body []byte) (proto.Message, error) { return openapi_v3.ParseDocument(body) })
}

func (h *Handler) serveV2(w http.ResponseWriter, r *http.Request) error {
	media, ok := accepted(r, "v2")
	if !ok {
		w.WriteHeader(http.StatusNotAcceptable)
		return nil
	}
	h.mu.Lock()
	h.refreshLocked()
	var err error
	if h.v2 == nil {
		content := build(h.config.dialect(false), h.config.Version, h.gvs, generalPaths(h.gvs, h.config.Issuer)...)
		h.v2, err = h.compressDocument(content, h.remotes)
	}
	doc := h.v2
	h.mu.Unlock()
	if err != nil {
		return err
	}
	return h.serve(w, r, doc, media, "v2", func(body []byte) (proto.Message, error) { return openapi_v2.ParseDocument(body) })
}

// accepted picks JSON or the protobuf form of a dialect. The protobuf type has
// two spellings; the answer names the one that is a valid media type.
func accepted(r *http.Request, dialect string) (media string, ok bool) {
	header := r.Header.Get("Accept")
	if header == "" {
		header = "*/*"
	}
	for _, c := range goautoneg.ParseAccept(header) {
		if c.Type != "application" && c.Type != "*" {
			continue
		}
		switch c.SubType {
		case "json", "*":
			return "application/json", true
		case "com.github.proto-openapi.spec." + dialect + "@v1.0+protobuf", "com.github.proto-openapi.spec." + dialect + ".v1.0+protobuf":
			return "application/com.github.proto-openapi.spec." + dialect + ".v1.0+protobuf", true
		}
	}
	return "", false
}

func (h *Handler) serve(w http.ResponseWriter, r *http.Request, doc *compressed, media, name string, parse func([]byte) (proto.Message, error)) error {
	if media != "application/json" {
		var err error
		if doc, err = h.protobuf(doc, name, parse); err != nil {
			return err
		}
	}
	header := w.Header()
	header.Set("Content-Type", media)
	header.Set("Vary", "Accept, Accept-Encoding")
	header.Set("Etag", strconv.Quote(doc.etag))
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		header.Set("Content-Encoding", "gzip")
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(doc.gz))
		return nil
	}
	body, err := doc.open()
	if err != nil {
		return err
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
	return nil
}

func (h *Handler) protobuf(doc *compressed, name string, parse func([]byte) (proto.Message, error)) (*compressed, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p, ok := h.proto[name]; ok && p.etag == doc.etag {
		return p, nil
	}
	body, err := doc.open()
	if err != nil {
		return nil, err
	}
	message, err := parse(body)
	if err != nil {
		return nil, fmt.Errorf("describe the API: %w", err)
	}
	if body, err = proto.Marshal(message); err != nil {
		return nil, err
	}
	p := compress(body, doc.etag)
	h.proto[name] = p
	return p, nil
}
