package volume

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestRemoveThroughTheNodesAgent(t *testing.T) {
	var asked string
	agent := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.Method + " " + r.URL.Path
		if strings.HasSuffix(r.URL.Path, "busy") {
			http.Error(w, "in use", http.StatusConflict)
		}
	}))
	defer agent.Close()
	remove := RemoveThrough(agent.Client(), func(string) (string, error) { return agent.Listener.Addr().String(), nil })
	if err := remove(t.Context(), "n1", "pvc-1"); err != nil || asked != "DELETE /localVolumes/pvc-1" {
		t.Errorf("asked %s: %v", asked, err)
	}
	if err := remove(t.Context(), "n1", "busy"); err == nil || err.Error() != "409 Conflict: in use" {
		t.Errorf("got %v", err)
	}
}
