package images

import (
	"encoding/base64"
	"encoding/json"
	"net"
	"net/url"
	"path"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// dockerIndex is the key under which Docker clients store the credentials of
// images without a registry in their name.
const dockerIndex = "index.docker.io"

// Keyring holds registry credentials by the part of the image name they are for.
type Keyring struct{ entries []entry }

type entry struct {
	host, path string // host may hold globs; path is a prefix
	auth       *runtimeapi.AuthConfig
}

type dockerAuth struct {
	Username      string `json:"username"`
	Password      string `json:"password"`
	Auth          string `json:"auth"`
	IdentityToken string `json:"identitytoken"`
	RegistryToken string `json:"registrytoken"`
}

// Add reads the credentials of a pull secret of type dockerconfigjson or
// dockercfg. A secret of another type, or one that does not parse, adds nothing.
func (k *Keyring) Add(s *corev1.Secret) {
	var auths map[string]dockerAuth
	switch s.Type {
	case corev1.SecretTypeDockerConfigJson:
		var file struct {
			Auths map[string]dockerAuth `json:"auths"`
		}
		if json.Unmarshal(s.Data[corev1.DockerConfigJsonKey], &file) == nil {
			auths = file.Auths
		}
	case corev1.SecretTypeDockercfg:
		if json.Unmarshal(s.Data[corev1.DockerConfigKey], &auths) != nil {
			return
		}
	}
	for key, a := range auths {
		if e, ok := newEntry(key, a); ok {
			k.entries = append(k.entries, e)
		}
	}
	// The longest match comes first: reverse alphabetical order puts a path
	// before its prefix and keeps credentials of one key in the order given.
	sort.SliceStable(k.entries, func(i, j int) bool {
		a, b := k.entries[i], k.entries[j]
		return a.host+a.path > b.host+b.path
	})
}

func newEntry(key string, a dockerAuth) (entry, bool) {
	if !strings.Contains(key, "://") {
		key = "https://" + key
	}
	u, err := url.Parse(key)
	if err != nil {
		return entry{}, false
	}
	p := u.Path
	for _, version := range []string{"/v1", "/v2"} { // "https://index.docker.io/v1/"
		if rest, ok := strings.CutPrefix(p, version); ok && (rest == "" || strings.HasPrefix(rest, "/")) {
			p = rest
		}
	}
	auth := &runtimeapi.AuthConfig{Username: a.Username, Password: a.Password, IdentityToken: a.IdentityToken, RegistryToken: a.RegistryToken}
	if a.Username == "" && a.Password == "" && a.Auth != "" {
		raw, err := base64.StdEncoding.DecodeString(a.Auth)
		if err != nil {
			return entry{}, false
		}
		user, pass, ok := strings.Cut(string(raw), ":")
		if !ok {
			return entry{}, false
		}
		auth.Username, auth.Password = user, pass
	}
	return entry{host: u.Host, path: strings.TrimSuffix(p, "/"), auth: auth}, true
}

// Lookup returns the credentials for an image, the longest match first. The
// name is a normalized repository such as docker.io/library/busybox.
func (k *Keyring) Lookup(repository string) []*runtimeapi.AuthConfig {
	host, rest, _ := strings.Cut(repository, "/")
	if host == "docker.io" {
		host = dockerIndex
	}
	var out []*runtimeapi.AuthConfig
	for _, e := range k.entries {
		h := e.host
		if h == "docker.io" || h == "registry-1.docker.io" {
			h = dockerIndex
		}
		if hostMatches(h, host) && prefixMatches(e.path, "/"+rest) {
			out = append(out, e.auth)
		}
	}
	return out
}

func prefixMatches(prefix, p string) bool {
	return prefix == "" || p == prefix || strings.HasPrefix(p, prefix+"/")
}

// hostMatches compares label by label, so that a glob covers one label only;
// ports must be equal.
func hostMatches(pattern, host string) bool {
	pattern, patternPort := splitPort(pattern)
	host, hostPort := splitPort(host)
	if patternPort != hostPort {
		return false
	}
	want, have := strings.Split(pattern, "."), strings.Split(host, ".")
	if len(want) != len(have) {
		return false
	}
	for i := range want {
		if ok, err := path.Match(want[i], have[i]); err != nil || !ok {
			return false
		}
	}
	return true
}

func splitPort(host string) (string, string) {
	if h, p, err := net.SplitHostPort(host); err == nil {
		return h, p
	}
	return host, ""
}
