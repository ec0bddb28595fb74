// Package negotiate chooses the form of a response from the Accept header and
// names the form of a body from its Content-Type, with upstream's rules and errors.
package negotiate

import (
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/munnerz/goautoneg"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Media is a serialization.
type Media string

const (
	JSON     Media = "application/json"
	YAML     Media = "application/yaml"
	Protobuf Media = "application/vnd.kubernetes.protobuf"
	CBOR     Media = "application/cbor"
)

// Format is a negotiated response form.
type Format struct {
	Media  Media
	Pretty bool // indented JSON
	// As is the kind the client wants instead of the resource's own: Table,
	// PartialObjectMetadata, PartialObjectMetadataList, APIGroupDiscoveryList.
	// Empty: the resource's own. AsGroup and AsVersion belong to it.
	As, AsGroup, AsVersion string
}

// Accepts says what an endpoint can produce.
type Accepts struct {
	Media []Media // in order of preference
	// Kind reports whether the endpoint can produce another kind in a media
	// type. Nil: none.
	Kind func(media Media, group, version, kind string) bool
}

// Object is what an endpoint of built-in objects accepts; custom resources
// leave out protobuf except for metadata, what is not tabular leaves out tables.
func Object(custom, tabular bool) Accepts {
	a := Accepts{Media: []Media{JSON, YAML, Protobuf}}
	a.Kind = func(media Media, group, version, kind string) bool {
		if kind == "" {
			return !custom || media != Protobuf
		}
		if group != metav1.GroupName || version != "v1" && version != "v1beta1" {
			return false
		}
		switch kind {
		case "Table":
			return tabular && media != Protobuf && media != CBOR
		case "PartialObjectMetadata", "PartialObjectMetadataList":
			return true
		}
		return false
	}
	return a
}

// Also accepts one more media type.
func (a Accepts) Also(m Media) Accepts {
	a.Media = append(slices.Clip(a.Media), m)
	return a
}

// Plain accepts no other kinds.
var Plain = Accepts{Media: []Media{JSON, YAML, Protobuf}}

// Response negotiates the form of the response to r. The error is a 406 Status.
func Response(r *http.Request, a Accepts) (Format, error) {
	f, ok := accept(r.Header.Get("Accept"), a)
	if !ok {
		return Format{}, NotAcceptable(a.Media)
	}
	f.Pretty = f.Media == JSON && (f.Pretty || wantsPretty(r))
	return f, nil
}

// Refusal is the 406 of an endpoint of built-in kinds: it says more to who asks for a
// known media type, which err is about, than to others.
func (a Accepts) Refusal(r *http.Request, err error) error {
	for _, clause := range goautoneg.ParseAccept(r.Header.Get("Accept")) {
		if clause.Type == "*" || slices.Contains(a.Media, Media(clause.Type+"/"+clause.SubType)) {
			return err
		}
	}
	return Unfit("406: Not Acceptable\n\nAvailable representations: " + join(a.Media))
}

func accept(header string, a Accepts) (Format, bool) {
	switch header { // what nearly every client sends, without a parse
	case "", "application/json", "*/*", "application/json, */*":
		if f := (Format{Media: JSON}); a.allows(f) {
			return f, true
		}
	case string(Protobuf):
		if f := (Format{Media: Protobuf}); a.allows(f) {
			return f, true
		}
	}
	for _, clause := range goautoneg.ParseAccept(header) {
		for _, m := range a.Media {
			if f, ok := a.match(clause, m); ok {
				return f, true
			}
		}
	}
	return Format{}, false
}

func (a Accepts) allows(f Format) bool {
	known := false
	for _, m := range a.Media {
		known = known || m == f.Media
	}
	if !known {
		return false
	}
	if a.Kind == nil {
		return f.As == ""
	}
	return a.Kind(f.Media, f.AsGroup, f.AsVersion, f.As)
}

func (a Accepts) match(clause goautoneg.Accept, m Media) (Format, bool) {
	typ, sub, _ := strings.Cut(string(m), "/")
	if clause.Type != typ && clause.Type != "*" || clause.SubType != sub && clause.SubType != "*" {
		return Format{}, false
	}
	if clause.Type == "*" && clause.SubType != "*" {
		return Format{}, false
	}
	f := Format{
		Media: m, Pretty: clause.Params["pretty"] == "1",
		As: clause.Params["as"], AsGroup: clause.Params["g"], AsVersion: clause.Params["v"],
	}
	if stream := clause.Params["stream"]; stream != "" && stream != "watch" {
		return Format{}, false
	}
	return f, a.allows(f)
}

// wantsPretty follows the pretty query parameter, then the habit of browsers
// and command line tools.
func wantsPretty(r *http.Request) bool {
	if strings.Contains(r.URL.RawQuery, "pretty") {
		if p := r.URL.Query().Get("pretty"); p != "" {
			pretty, _ := strconv.ParseBool(p)
			return pretty
		}
	}
	agent := r.UserAgent()
	return strings.HasPrefix(agent, "curl") || strings.HasPrefix(agent, "Wget") || strings.HasPrefix(agent, "Mozilla/5.0")
}

// Body names the form of a request body. The error is a 415 Status.
func Body(contentType string, accepted ...Media) (Media, error) {
	if contentType == "" || contentType == string(JSON) {
		return JSON, nil
	}
	if typ, _, err := mime.ParseMediaType(contentType); err == nil {
		for _, m := range accepted {
			if typ == string(m) {
				return m, nil
			}
		}
	}
	return "", UnsupportedMedia(accepted)
}

// statusError is an API status that apierrors has no constructor for.
type statusError struct{ status metav1.Status }

func (e *statusError) Error() string         { return e.status.Message }
func (e *statusError) Status() metav1.Status { return e.status }

// NotAcceptable is the 406 of an endpoint that produces only the given types.
func NotAcceptable(accepted []Media) error {
	return &statusError{metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: metav1.StatusReasonNotAcceptable,
		Message: fmt.Sprintf("only the following media types are accepted: %s", join(accepted)),
	}}
}

// Unfit is the 406 of an answer that has no form that was asked for.
func Unfit(message string) error {
	return &statusError{metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: metav1.StatusReasonNotAcceptable, Message: message,
	}}
}

// UnsupportedMedia is the 415 of an endpoint that reads only the given types.
func UnsupportedMedia[T ~string](accepted []T) error {
	return &statusError{metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusUnsupportedMediaType, Reason: metav1.StatusReasonUnsupportedMediaType,
		Message: fmt.Sprintf("the body of the request was in an unknown format - accepted media types include: %s", join(accepted)),
	}}
}

func join[T ~string](list []T) string {
	s := make([]string, len(list))
	for i, m := range list {
		s[i] = string(m)
	}
	return strings.Join(s, ", ")
}
