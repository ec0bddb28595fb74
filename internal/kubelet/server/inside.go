package server

import (
	"io/fs"
	"net/http"
	"net/http/pprof"
	"os"
)

// systemLogDir is what /logs/ shows.
const systemLogDir = "/var/log"

// systemLogs are the host's log files. A link that leads out of their directory is
// not followed: whoever may write logs may not choose what is read here.
type systemLogs struct{}

// Open implements fs.FS.
func (systemLogs) Open(name string) (fs.File, error) {
	root, err := os.OpenRoot(systemLogDir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return root.Open(name)
}

// profiles serves what the agent spends its time and memory on.
func profiles(mux *http.ServeMux) {
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
}
