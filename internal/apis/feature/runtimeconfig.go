package feature

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Runtime says which group versions and resources are served. The zero value
// serves the stable ones.
type Runtime struct {
	all       map[string]bool // api/all, api/ga, api/beta, api/alpha
	versions  map[schema.GroupVersion]bool
	resources map[schema.GroupVersionResource]bool
}

// kinds of versions, in the order in which they are applied.
var kinds = []struct {
	key     string
	version *regexp.Regexp
}{
	{"api/all", regexp.MustCompile(``)},
	{"api/ga", regexp.MustCompile(`^v\d+$`)},
	{"api/beta", regexp.MustCompile(`^v\d+beta\d+$`)},
	{"api/alpha", regexp.MustCompile(`^v\d+alpha\d+$`)},
}

// ParseRuntime reads what --runtime-config takes: api/all, api/ga, api/beta or
// api/alpha, a group/version, or a group/version/resource, each =true (or
// nothing) or =false. The more precise wins. Known are the group versions that
// exist; others are refused.
func ParseRuntime(value string, known []schema.GroupVersion) (Runtime, error) {
	r := Runtime{all: map[string]bool{}, versions: map[schema.GroupVersion]bool{}, resources: map[schema.GroupVersionResource]bool{}}
	settings := pairs(value)
	if settings["api/all"] == "false" && len(settings) == 1 {
		return Runtime{}, fmt.Errorf("invalid runtime-config with only api/all=false")
	}
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		if err := r.set(key, settings[key], known); err != nil {
			return Runtime{}, err
		}
	}
	return r, nil
}

func pairs(value string) map[string]string {
	settings := map[string]string{}
	for _, pair := range strings.Split(value, ",") {
		if pair = strings.TrimSpace(pair); pair == "" {
			continue
		}
		key, v, _ := strings.Cut(pair, "=")
		settings[strings.TrimSpace(key)] = strings.TrimSpace(v)
	}
	return settings
}

func (r *Runtime) set(key, value string, known []schema.GroupVersion) error {
	for _, k := range kinds {
		if k.key == key {
			if value != "true" && value != "false" {
				return fmt.Errorf("invalid value %s=%s", key, value)
			}
			r.all[key] = value == "true"
			return nil
		}
	}
	if key == "v1" || strings.HasPrefix(key, "v1/") { // the core group has no name
		key = "/" + key
	}
	tokens := strings.Split(key, "/")
	if len(tokens) != 2 && len(tokens) != 3 {
		return fmt.Errorf("runtime-config invalid key %s", key)
	}
	gv := schema.GroupVersion{Group: tokens[0], Version: tokens[1]}
	if gv.Group == "api" {
		gv.Group = ""
	}
	if !slices.ContainsFunc(known, func(k schema.GroupVersion) bool { return k.Group == gv.Group }) {
		return fmt.Errorf("unknown api groups %s", gv)
	}
	if !slices.Contains(known, gv) {
		return fmt.Errorf("group version %s that has not been registered", gv)
	}
	on, err := strconv.ParseBool(value)
	if value == "" {
		on, err = true, nil
	}
	if err != nil {
		return fmt.Errorf("invalid value of %s: %s, err: %w", key, value, err)
	}
	if len(tokens) == 2 {
		r.versions[gv] = on
		return nil
	}
	if strings.ToLower(tokens[2]) != tokens[2] {
		return fmt.Errorf("invalid key %s: group/version/resource and resource is always lowercase plural, not %q", key, tokens[2])
	}
	r.resources[gv.WithResource(tokens[2])] = on
	return nil
}

// Serves reports whether a resource of a group version is served.
func (r Runtime) Serves(gvr schema.GroupVersionResource) bool {
	if on, ok := r.resources[gvr]; ok {
		return on
	}
	if on, ok := r.versions[gvr.GroupVersion()]; ok {
		return on
	}
	served := kinds[1].version.MatchString(gvr.Version)
	for _, k := range kinds {
		if on, ok := r.all[k.key]; ok && k.version.MatchString(gvr.Version) {
			served = on
		}
	}
	return served
}
