// Package architecture holds the tree to ARCHITECTURE.md: imports point down.
package architecture

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// rooms are the packages below internal, lowest first. A room may import those
// on the lines before its own; rooms on one line never import each other, with
// the exceptions named below.
var rooms = [][]string{
	{"apis", "cardinality", "configfile", "latency", "verbosity"},
	{"egress", "tracing"},
	{"store"},
	{"auth"},
	{"admission"},
	{"client"},
	{"apiextensions"},
	{"bench"},
	{"apiserver"},
	{"payload"},
	{"controllers", "scheduler", "kubelet", "network", "volume", "containerd", "images", "metrics"},
	{"simulate", "explain"},
	{"controlplane", "manager"},
	{"cluster"},
	{"cli"},
}

// allowed are imports within one line, each with its reason.
var allowed = map[string]string{
	"volume -> controllers": "the binder runs on the controllers' loop",
	"containerd -> images":  "the pause image is loaded when containerd is up",
	"client -> apis":        "types of the built-in kinds",
}

// forbidden are imports that no file may have, each with what to use instead.
var forbidden = map[string]string{
	"k8s.io/kubernetes":                       "write our own; read upstream's documents for facts",
	"k8s.io/apiserver/pkg/server":             "internal/apiserver",
	"k8s.io/apiserver/pkg/registry":           "internal/apiserver/registry",
	"k8s.io/apiserver/pkg/endpoints":          "internal/apiserver",
	"k8s.io/apiserver/pkg/storage/cacher":     "internal/store",
	"k8s.io/apiserver/pkg/storage/etcd3":      "internal/store/etcd",
	"github.com/containerd/containerd/v2/cmd": "the containerd binary, run as a process",
}

func TestImportsPointDown(t *testing.T) {
	rank := map[string]int{}
	for i, line := range rooms {
		for _, room := range line {
			rank[room] = i
		}
	}
	eachImport(t, "../../internal", func(file, from, path string) {
		rest, ours := strings.CutPrefix(path, "proa/internal/")
		if !ours {
			return
		}
		to, _, _ := strings.Cut(rest, "/")
		if from == to {
			return
		}
		if _, known := rank[from]; !known {
			t.Errorf("%s: room %s is not in the order of rooms: give it a place here and in ARCHITECTURE.md", file, from)
			return
		}
		if rank[to] >= rank[from] && allowed[from+" -> "+to] == "" {
			t.Errorf("%s: %s imports %s, which lies above or beside it: pass what it needs down, or meet in objects", file, from, path)
		}
	})
}

func TestNoForbiddenImports(t *testing.T) {
	for _, dir := range []string{"../../internal", "../../cmd", "../../pkg", "../../test"} {
		eachImport(t, dir, func(file, _, path string) {
			for prefix, instead := range forbidden {
				if path == prefix || strings.HasPrefix(path, prefix+"/") {
					t.Errorf("%s imports %s: use %s", file, path, instead)
				}
			}
		})
	}
}

// eachImport visits the imports of the Go files below dir; from is the first
// folder below it. Test files may reach across rooms, so only forbidden imports
// are looked for there.
func eachImport(t *testing.T, dir string, visit func(file, from, path string)) {
	t.Helper()
	err := filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			if _, err := os.Stat(filepath.Join(file, "go.mod")); err == nil {
				return filepath.SkipDir // a module of its own is no part of the program
			}
		}
		if err != nil || d.IsDir() || !strings.HasSuffix(file, ".go") {
			return ignoreMissing(err)
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, file)
		from, _, _ := strings.Cut(filepath.ToSlash(rel), "/")
		for _, spec := range parsed.Imports {
			path, _ := strconv.Unquote(spec.Path.Value)
			if strings.HasSuffix(file, "_test.go") && strings.HasPrefix(path, "proa/") {
				continue
			}
			visit(file, from, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func ignoreMissing(err error) error {
	if err != nil && strings.Contains(err.Error(), "no such file") {
		return nil
	}
	return err
}
