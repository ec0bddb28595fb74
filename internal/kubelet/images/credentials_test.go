package images

import (
	"encoding/base64"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestKeyringFindsTheLongestMatchFirst(t *testing.T) {
	auth := func(user string) string {
		return `{"auth":"` + base64.StdEncoding.EncodeToString([]byte(user+":secret:with:colons")) + `"}`
	}
	k := &Keyring{}
	k.Add(&corev1.Secret{Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(`{"auths":{
		"https://index.docker.io/v1/":` + auth("hub") + `,
		"registry.example.com":` + auth("host") + `,
		"registry.example.com/team":` + auth("team") + `,
		"*.example.org":` + auth("glob") + `,
		"local:5000":` + auth("port") + `}}`)}})
	k.Add(&corev1.Secret{Type: corev1.SecretTypeOpaque, Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(`{"auths":{"local:5000":{}}}`)}})
	for image, want := range map[string]string{
		"busybox":                          "hub",
		"docker.io/library/busybox:1":      "hub",
		"registry.example.com/other/app":   "host",
		"registry.example.com/team/app:v1": "team,host",
		"registry.example.com/teams/app":   "host",
		"a.example.org/x":                  "glob",
		"a.b.example.org/x":                "",
		"example.org/x":                    "",
		"local:5000/x":                     "port",
		"local:5001/x":                     "",
	} {
		named, err := Normalize(image)
		if err != nil {
			t.Fatal(err)
		}
		var users []string
		for _, a := range k.Lookup(named.Name()) {
			users = append(users, a.Username)
			if a.Password != "secret:with:colons" {
				t.Errorf("%s: password %q", image, a.Password)
			}
		}
		if got := strings.Join(users, ","); got != want {
			t.Errorf("%s: got %q, want %q", image, got, want)
		}
	}
}

func FuzzKeyring(f *testing.F) {
	f.Add([]byte(`{"auths":{"https://a/v1/":{"auth":"YTpi"}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		k := &Keyring{}
		k.Add(&corev1.Secret{Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: data}})
		k.Lookup("docker.io/library/busybox")
	})
}
