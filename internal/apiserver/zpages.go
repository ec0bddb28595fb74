package apiserver

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/apis"
	"proa/internal/apiserver/negotiate"
)

// The pages /statusz (KEP-4827) and /flagz (KEP-4828) say what is running. They are
// text for people, or an object for those who name its kind.

const component = "apiserver"

// zGroup is the group of the kinds Statusz and Flagz.
const zGroup = "config.k8s.io"

const zWarning = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.\n"

// zObject begins a Statusz or Flagz, after its kind.
type zObject struct {
	metav1.ObjectMeta `json:"metadata,omitempty"`
}

type statusz struct {
	zObject          `json:",inline"`
	StartTime        metav1.Time `json:"startTime"`
	UptimeSeconds    int64       `json:"uptimeSeconds"`
	GoVersion        string      `json:"goVersion"`
	BinaryVersion    string      `json:"binaryVersion"`
	EmulationVersion string      `json:"emulationVersion,omitempty"`
	Paths            []string    `json:"paths"`
}

type flagz struct {
	zObject `json:",inline"`
	Flags   map[string]string `json:"flags,omitempty"`
}

// serveStatusz says since when which version runs.
func (s *Server) serveStatusz(w http.ResponseWriter, r *http.Request) error {
	up := s.config.Clock.Since(s.started)
	version := s.config.Version
	emulated := version.Major + "." + version.Minor
	binary := strings.TrimPrefix(apis.KubernetesVersion, "v")
	paths := s.debugPaths()
	return s.serveZ(w, r, "Statusz", func(head zObject) any {
		return statusz{head, metav1.NewTime(s.started), int64(up.Seconds()), version.GoVersion, binary, emulated, paths}
	}, func() string {
		return fmt.Sprintf("\nStarted: %s\nUp: %s\nGo version: %s\nBinary version: %s\nEmulation version: %s\nPaths: %s\n",
			s.started.UTC().Format(time.UnixDate), uptime(up), version.GoVersion, binary, emulated, strings.Join(paths, " "))
	})
}

func uptime(d time.Duration) string {
	seconds := int64(d.Seconds())
	return fmt.Sprintf("%d hr %02d min %02d sec", seconds/3600, seconds/60%60, seconds%60)
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

// serveFlagz shows the flags in force.
func (s *Server) serveFlagz(w http.ResponseWriter, r *http.Request) error {
	flags := s.config.Flags
	return s.serveZ(w, r, "Flagz", func(head zObject) any { return flagz{head, flags} }, func() string {
		var b strings.Builder
		for _, name := range slices.Sorted(maps.Keys(flags)) {
			fmt.Fprintf(&b, "%s=%s\n", name, flags[name])
		}
		return b.String()
	})
}

// serveZ answers with the object in the version that the client names, or with text.
// JSON or YAML without a kind is not to be had: the page is no API.
func (s *Server) serveZ(w http.ResponseWriter, r *http.Request, kind string, object func(zObject) any, text func() string) error {
	const plain negotiate.Media = "text/plain"
	f, err := negotiate.Response(r, s.offer(negotiate.Accepts{
		Media: []negotiate.Media{plain, negotiate.JSON, negotiate.YAML},
		Kind: func(media negotiate.Media, group, version, as string) bool {
			if media == plain {
				return as == ""
			}
			return group == zGroup && as == kind && (version == "v1alpha1" || version == "v1beta1")
		},
	}))
	if r.Header.Get("Accept") == "" {
		f, err = negotiate.Format{Media: plain}, nil
	}
	if err != nil {
		return err
	}
	if f.Media == plain {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprintf(w, "\n%s %s\n%s%s", component, strings.ToLower(kind), zWarning, text()) // a client that is gone needs no answer
		return nil
	}
	if f.AsVersion == "v1alpha1" {
		w.Header().Set("Warning", fmt.Sprintf(`299 - "This version of the %s endpoint is deprecated. Please use a newer version."`, strings.ToLower(kind)))
	}
	gvk := schema.GroupVersionKind{Group: zGroup, Version: f.AsVersion, Kind: kind}
	f.As, f.AsGroup, f.AsVersion = "", "", ""
	return s.writeObject(w, r, f, http.StatusOK, gvk, object(zObject{metav1.ObjectMeta{Name: component}}))
}
