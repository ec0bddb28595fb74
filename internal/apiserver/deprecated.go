package apiserver

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/warning"

	"proa/internal/apiserver/audit"
)

// deprecation is what clients of a version that will go are told.
type deprecation struct {
	warning string
	removed string // the release without it, empty when none is named
}

// deprecations are read from the types of kinds, which say when their versions end.
type deprecations struct {
	major, minor int
	requested    *prometheus.GaugeVec

	mu    sync.RWMutex // guards known
	known map[schema.GroupVersionKind]*deprecation
}

func newDeprecations(v version.Info) *deprecations {
	d := &deprecations{known: map[schema.GroupVersionKind]*deprecation{}, requested: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "apiserver_requested_deprecated_apis",
		Help: "[STABLE] Deprecated versions that were asked for, by the release that will not have them.",
	}, []string{"group", "version", "resource", "subresource", "removed_release"})}
	d.major, _ = strconv.Atoi(v.Major)
	d.minor, _ = strconv.Atoi(strings.TrimRight(v.Minor, "+"))
	return d
}

// of is the deprecation of the kind that a call asks for, nil for none.
func (d *deprecations) of(c *call) *deprecation {
	if custom := c.view.Custom; custom != nil {
		if custom.Warning == "" {
			return nil
		}
		return &deprecation{warning: custom.Warning}
	}
	body := c.body()
	d.mu.RLock()
	found, ok := d.known[body.GroupVersionKind]
	d.mu.RUnlock()
	if ok {
		return found
	}
	found = d.read(body.New(), body.GroupVersionKind)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.known[body.GroupVersionKind] = found
	return found
}

func (d *deprecations) read(obj runtime.Object, gvk schema.GroupVersionKind) *deprecation {
	deprecated, ok := obj.(interface{ APILifecycleDeprecated() (major, minor int) })
	if !ok {
		return nil
	}
	major, minor := deprecated.APILifecycleDeprecated()
	if major == 0 && minor == 0 || d.major != 0 && (major > d.major || major == d.major && minor > d.minor) {
		return nil
	}
	out := &deprecation{warning: fmt.Sprintf("%s %s is deprecated in v%d.%d+", gvk.GroupVersion(), gvk.Kind, major, minor)}
	if removed, ok := obj.(interface{ APILifecycleRemoved() (major, minor int) }); ok {
		if major, minor := removed.APILifecycleRemoved(); major != 0 || minor != 0 {
			out.removed = fmt.Sprintf("%d.%d", major, minor)
			out.warning += fmt.Sprintf(", unavailable in v%s+", out.removed)
		}
	}
	if replaced, ok := obj.(interface {
		APILifecycleReplacement() schema.GroupVersionKind
	}); ok {
		if by := replaced.APILifecycleReplacement(); !by.Empty() {
			out.warning += fmt.Sprintf("; use %s %s", by.GroupVersion(), by.Kind)
		}
	}
	return out
}

// tellDeprecation warns the client of a version that will go, and notes that it was
// asked for.
func (c *call) tellDeprecation(ctx context.Context) {
	d := c.s.deprecations.of(c)
	if d == nil {
		return
	}
	warning.AddWarning(ctx, "", d.warning)
	c.s.deprecations.requested.WithLabelValues(c.info.Group, c.info.Version, c.info.Resource, c.info.Subresource, d.removed).Set(1)
	if c.s.audit == nil {
		return
	}
	notes := []string{"k8s.io/deprecated", "true"}
	if d.removed != "" {
		notes = append(notes, "k8s.io/removed-release", d.removed)
	}
	audit.From(ctx).Annotate(ctx, notes...)
}
