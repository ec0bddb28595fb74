package registry

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"

	"proa/internal/apis"
	"proa/internal/store"
)

const continueExpired = "The provided continue parameter is too old " +
	"to display a consistent list result. You can start a new list without " +
	"the continue parameter, or use the continue token in this response to " +
	"retrieve the remainder of the results. Continuing with the provided " +
	"token results in an inconsistent list - objects that were created, " +
	"modified, or deleted between the time the first chunk was returned " +
	"and now may show up in the list."

// continueToken says where a list goes on and in which revision; -1 is the
// newest one. The wire form is upstream's: the start is the path below the
// resource (or its namespace) of the last item, with a zero byte after it.
// Served is ours: how many items came before, which makes the remaining count exact
// without a scan.
type continueToken struct {
	Version  string `json:"v"`
	Revision int64  `json:"rv"`
	Start    string `json:"start"`
	Served   int64  `json:"n,omitempty"`
}

func continueAfter(last store.Key, q *Request, revision, served int64) continueToken {
	start := last.Name
	if q.View.Scope == apis.Namespaced && q.Namespace == "" {
		start = last.Namespace + "/" + last.Name
	}
	return continueToken{Version: "meta.k8s.io/v1", Revision: revision, Start: start + "\x00", Served: served}
}

func (t continueToken) encode() string {
	data, err := json.Marshal(t)
	if err != nil {
		panic(err) // two strings and a number
	}
	return base64.RawURLEncoding.EncodeToString(data)
}

func decodeContinue(s string) (continueToken, error) {
	var t continueToken
	data, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil {
		return t, fmt.Errorf("continue key is not valid: %v", err)
	}
	if err := json.Unmarshal(data, &t); err != nil {
		return t, fmt.Errorf("continue key is not valid: %v", err)
	}
	switch {
	case t.Version != "meta.k8s.io/v1":
		return t, fmt.Errorf("continue key is not valid: server does not recognize this encoded version %v", t.Version)
	case t.Revision == 0 || t.Revision < -1:
		return t, errors.New("continue key is not valid: incorrect encoded start resourceVersion (version meta.k8s.io/v1)")
	case t.Start == "":
		return t, errors.New("continue key is not valid: encoded start key empty (version meta.k8s.io/v1)")
	}
	if key := "/" + strings.TrimPrefix(t.Start, "/"); path.Clean(key) != key {
		return t, fmt.Errorf("continue key is not valid: %v", t.Start)
	}
	return t, nil
}

// after is the position of the last item that was returned.
func (t continueToken) after(q *Request) store.Key {
	key := store.Key{Resource: q.resource(), Namespace: q.namespace()}
	start := strings.TrimSuffix(strings.TrimPrefix(t.Start, "/"), "\x00")
	if q.View.Scope == apis.Namespaced && q.Namespace == "" {
		key.Namespace, key.Name, _ = strings.Cut(start, "/")
		return key
	}
	key.Name = start
	return key
}
