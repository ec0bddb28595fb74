// Package zpages is what a component says of itself: /statusz (KEP-4827) and /flagz
// (KEP-4828). They are text for people, or an object for those who name its kind.
package zpages

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"proa/internal/apis"
	"proa/internal/apiserver/codec"
	"proa/internal/apiserver/negotiate"
)

// group is that of the kinds Statusz and Flagz.
const group = "config.k8s.io"

const warning = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.\n"

// Pages are those of one component.
type Pages struct {
	Component string
	Flags     map[string]string // those in force; their values are shown to whoever may read the page
	Paths     []string          // that the component serves about itself
	Started   time.Time
	Clock     clock.PassiveClock
	Emulated  string // version, such as 1.37; empty: this program's
	CBOR      bool   // is offered as well
}

// object begins a Statusz or Flagz, after its kind.
type object struct {
	metav1.ObjectMeta `json:"metadata,omitempty"`
}

type statusz struct {
	object           `json:",inline"`
	StartTime        metav1.Time `json:"startTime"`
	UptimeSeconds    int64       `json:"uptimeSeconds"`
	GoVersion        string      `json:"goVersion"`
	BinaryVersion    string      `json:"binaryVersion"`
	EmulationVersion string      `json:"emulationVersion,omitempty"`
	Paths            []string    `json:"paths"`
}

type flagz struct {
	object `json:",inline"`
	Flags  map[string]string `json:"flags,omitempty"`
}

// Statusz says since when which version runs. The error is a Status of what the client
// asked for and cannot have; nothing is written then.
func (p *Pages) Statusz(w http.ResponseWriter, r *http.Request) error {
	up := p.Clock.Since(p.Started)
	binary := strings.TrimPrefix(apis.KubernetesVersion, "v")
	emulated := p.Emulated
	if emulated == "" {
		emulated = binary[:strings.LastIndexByte(binary, '.')]
	}
	return p.serve(w, r, "Statusz", func(head object) any {
		return statusz{head, metav1.NewTime(p.Started), int64(up.Seconds()), runtime.Version(), binary, emulated, p.Paths}
	}, func() string {
		return fmt.Sprintf("\nStarted: %s\nUp: %s\nGo version: %s\nBinary version: %s\nEmulation version: %s\nPaths: %s\n",
			p.Started.UTC().Format(time.UnixDate), uptime(up), runtime.Version(), binary, emulated, strings.Join(p.Paths, " "))
	})
}

func uptime(d time.Duration) string {
	seconds := int64(d.Seconds())
	return fmt.Sprintf("%d hr %02d min %02d sec", seconds/3600, seconds/60%60, seconds%60)
}

// Flagz shows the flags in force.
func (p *Pages) Flagz(w http.ResponseWriter, r *http.Request) error {
	return p.serve(w, r, "Flagz", func(head object) any { return flagz{head, p.Flags} }, func() string {
		var b strings.Builder
		for _, name := range slices.Sorted(maps.Keys(p.Flags)) {
			fmt.Fprintf(&b, "%s=%s\n", name, p.Flags[name])
		}
		return b.String()
	})
}

// serve answers with the object in the version that the client names, or with text.
// JSON or YAML without a kind is not to be had: the page is no API.
func (p *Pages) serve(w http.ResponseWriter, r *http.Request, kind string, make func(object) any, text func() string) error {
	const plain negotiate.Media = "text/plain"
	offered := negotiate.Accepts{
		Media: []negotiate.Media{plain, negotiate.JSON, negotiate.YAML},
		Kind: func(media negotiate.Media, in, version, as string) bool {
			if media == plain {
				return as == ""
			}
			return in == group && as == kind && (version == "v1alpha1" || version == "v1beta1")
		},
	}
	if p.CBOR {
		offered = offered.Also(negotiate.CBOR)
	}
	f, err := negotiate.Response(r, offered)
	if r.Header.Get("Accept") == "" {
		f, err = negotiate.Format{Media: plain}, nil
	}
	if err != nil {
		return err
	}
	if f.Media == plain {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprintf(w, "\n%s %s\n%s%s", p.Component, strings.ToLower(kind), warning, text()) // a client that is gone needs no answer
		return nil
	}
	gvk := schema.GroupVersionKind{Group: group, Version: f.AsVersion, Kind: kind}
	f.As, f.AsGroup, f.AsVersion = "", "", ""
	var body bytes.Buffer
	if err := codec.WriteObject(&body, f, gvk, make(object{metav1.ObjectMeta{Name: p.Component}})); err != nil {
		return err
	}
	if gvk.Version == "v1alpha1" {
		w.Header().Set("Warning", fmt.Sprintf(`299 - "This version of the %s endpoint is deprecated. Please use a newer version."`, strings.ToLower(kind)))
	}
	w.Header().Set("Content-Type", string(f.Media))
	_, _ = w.Write(body.Bytes()) // as above
	return nil
}
