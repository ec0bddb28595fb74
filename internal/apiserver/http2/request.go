package http2

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
	frame "golang.org/x/net/http2"
)

// request reads the first header of a stream. A malformed one is a StreamError.
func (c *conn) request(ctx context.Context, st *stream, f *frame.MetaHeadersFrame) (*http.Request, error) {
	malformed := frame.StreamError{StreamID: f.StreamID, Code: frame.ErrCodeProtocol}
	header, ok := c.fields(f)
	if !ok {
		return nil, malformed
	}
	r := c.model.WithContext(ctx)
	r.Header, r.Method, r.RequestURI, r.Host = header, f.PseudoValue("method"), f.PseudoValue("path"), f.PseudoValue("authority")
	if r.Host == "" {
		r.Host = header.Get("Host")
	}
	delete(header, "Host")
	if scheme := f.PseudoValue("scheme"); !validTarget(r.Method, scheme, r.RequestURI, r.Host) {
		return nil, malformed
	}
	var err error
	if r.URL, err = target(r); err != nil {
		return nil, malformed
	}
	if cookies := header["Cookie"]; len(cookies) > 1 {
		header["Cookie"] = []string{strings.Join(cookies, "; ")}
	}
	declareTrailer(r)
	if st.received = f.StreamEnded(); st.received {
		r.Body = http.NoBody
	} else if r.ContentLength = -1; true {
		r.Body = body{st}
	}
	if text := header["Content-Length"]; len(text) > 0 {
		n, err := strconv.ParseUint(text[0], 10, 63)
		if err != nil || len(text) > 1 || st.received && n > 0 {
			return nil, malformed
		}
		st.declared, r.ContentLength = int64(n), int64(n)
	}
	if httpguts.HeaderValuesContainsToken(header["Expect"], "100-continue") {
		st.expects = true
		delete(header, "Expect")
	}
	return r, nil
}

func validTarget(method, scheme, path, host string) bool {
	switch {
	case method == "" || !httpguts.ValidHostHeader(host) || strings.Contains(host, "@"):
		return false
	case method == http.MethodConnect:
		return path == "" && scheme == "" && host != ""
	}
	return path != "" && (scheme == "https" || scheme == "http")
}

// target is the URL that a request names.
func target(r *http.Request) (*url.URL, error) {
	if r.Method == http.MethodConnect {
		r.RequestURI = r.Host
		return &url.URL{Host: r.Host}, nil
	}
	if r.RequestURI[0] != '/' && r.RequestURI != "*" {
		return nil, errors.New("the path is not absolute")
	}
	return url.ParseRequestURI(r.RequestURI)
}

// ofConnections are fields that speak of a connection, and which HTTP/2 forbids: a
// proxy behind the server could take them for its own.
var ofConnections = map[string]bool{
	"Connection": true, "Proxy-Connection": true, "Keep-Alive": true, "Transfer-Encoding": true, "Upgrade": true,
}

// fields are the header's own; their values share an array.
func (c *conn) fields(f *frame.MetaHeadersFrame) (http.Header, bool) {
	regular := f.RegularFields()
	header, values := make(http.Header, len(regular)), make([]string, len(regular))
	for i, field := range regular {
		key := c.canonical(field.Name)
		if ofConnections[key] || key == "Te" && field.Value != "trailers" {
			return nil, false
		}
		if earlier := header[key]; earlier != nil {
			header[key] = append(earlier, field.Value)
			continue
		}
		values[i] = field.Value
		header[key] = values[i : i+1 : i+1]
	}
	return header, true
}

// canonical is a field's name as http.Header has it.
func (c *conn) canonical(name string) string {
	if known, ok := c.names[name]; ok {
		return known
	}
	key := http.CanonicalHeaderKey(name)
	const most, longest = 64, 64
	if len(c.names) < most && len(name) <= longest {
		c.names[key], c.names[name] = key, key
	}
	return key
}

// declareTrailer notes which fields may come after the body.
func declareTrailer(r *http.Request) {
	for _, text := range r.Header["Trailer"] {
		for part := range strings.SplitSeq(text, ",") {
			key := http.CanonicalHeaderKey(strings.TrimSpace(part))
			if !httpguts.ValidTrailerHeader(key) {
				continue
			}
			if r.Trailer == nil {
				r.Trailer = http.Header{}
			}
			r.Trailer[key] = nil
		}
	}
	delete(r.Header, "Trailer")
}
