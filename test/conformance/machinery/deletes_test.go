package machinery

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"proa/pkg/proatest"
)

// victims are kinds that differ in how they are deleted: at once, gracefully, and
// with dependents that a delete without options keeps or not.
var victims = []struct {
	name, collection string
	object           string // without metadata, as JSON
}{
	{"ConfigMap", "/api/v1/namespaces/%s/configmaps", `{}`},
	{"bound Pod", "/api/v1/namespaces/%s/pods", `{"spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}}`},
	{"Job", "/apis/batch/v1/namespaces/%s/jobs", `{"spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}}`},
	{"ReplicationController", "/api/v1/namespaces/%s/replicationcontrollers", `{"spec": {"selector": {"a": "b"}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}}`},
}

// TestDeletesAsUpstream compares what a delete answers, and what it leaves, for
// every combination of options and finalizers.
func TestDeletesAsUpstream(t *testing.T) {
	t.Parallel()
	s := start(t, proatest.Options{})
	ns := meta(s.create(t, namespaces, map[string]any{"metadata": map[string]any{"generateName": "d-"}}))["name"].(string)
	finalizers := option{"finalizers", []string{"-", "example.com/a", "orphan", "foregroundDeletion"}}
	all := queries(finalizers,
		option{"propagationPolicy", []string{"-", "Background", "Foreground", "Orphan", "Sideways"}},
		option{"orphanDependents", []string{"-", "true", "false"}},
		option{"gracePeriodSeconds", []string{"-", "0", "5", "-1"}},
	)
	all = append(all, queries(finalizers, option{"dryRun", []string{"All", "Some", "All,All"}}, option{"gracePeriodSeconds", []string{"-", "0"}})...)
	all = append(all, queries(option{"uid", []string{"-", "{uid}", "other"}}, option{"resourceVersion", []string{"-", "{version}", "1", "x", ""}}, finalizers)...)
	all = append(all, "gracePeriodSeconds=x", "orphanDependents=x", "unknown=1", "ignoreStoreReadErrorWithClusterBreakingPotential=false", "gracePeriodSeconds=99999999999999999999", "pretty=true")
	var got table
	var made atomic.Int64
	for _, v := range victims {
		collection := fmt.Sprintf(v.collection, ns)
		object := strings.ReplaceAll(v.object, "%s", ns)
		each(all, 16, func(q string) {
			if graceful := v.name == "bound Pod"; !graceful && (strings.HasSuffix(q, "Seconds=5") || strings.HasSuffix(q, "Seconds=-1")) {
				return
			}
			d := deletion{server: s, url: fmt.Sprintf("%s/x%d", collection, made.Add(1))}
			got.add(v.name+"?"+q, d.run(t, collection, object, q))
		})
	}
	got.compare(t, "deletes.txt")
}

// deletion is the end of one object.
type deletion struct {
	*server
	url string
}

// run creates an object, deletes it as a query says, and tells what was answered
// and what is left.
func (d deletion) run(t *testing.T, collection, object, query string) string {
	obj := parse(object)
	m := map[string]any{"name": d.url[strings.LastIndex(d.url, "/")+1:]}
	obj["metadata"] = m
	var options []string
	for pair := range strings.SplitSeq(query, "&") {
		if f, ok := strings.CutPrefix(pair, "finalizers="); ok {
			m["finalizers"] = strings.Split(f, ",")
			continue
		}
		options = append(options, pair)
	}
	made := d.create(t, collection, obj)
	defer d.remove(t)
	q := strings.NewReplacer("{uid}", meta(made)["uid"].(string), "{version}", versionOf(made), "All,All", "All&dryRun=All").Replace(strings.Join(options, "&"))
	a := d.do(t, request{method: http.MethodDelete, path: d.url + "?" + q})
	return d.tell(a, made) + "; left: " + d.left(t, made)
}

func (d deletion) left(t *testing.T, made map[string]any) string {
	a := d.do(t, request{method: http.MethodGet, path: d.url})
	if a.code == http.StatusNotFound {
		return "nothing"
	}
	return d.tell(a, made)
}

// tell is an answer that is the object, a Status of success, or an error.
func (d deletion) tell(a answer, made map[string]any) string {
	kind, _ := a.object["kind"].(string)
	name := meta(made)["name"].(string)
	if kind != "Status" {
		return fmt.Sprintf("%d %s", a.code, remains(a.object, made))
	}
	if a.object["status"] != "Success" {
		return strings.ReplaceAll(d.versionless(a, made), name, "{name}")
	}
	details, _ := a.object["details"].(map[string]any)
	return fmt.Sprintf("%d Success of %v %v", a.code, details["group"], details["kind"])
}

func (d deletion) versionless(a answer, made map[string]any) string {
	return strings.ReplaceAll(d.status(a), "("+versionOf(made)+")", "({version})")
}

// remains tells what deletion has changed of an object.
func remains(obj, made map[string]any) string {
	out := "the object"
	m := meta(obj)
	if m["deletionTimestamp"] != nil {
		out = fmt.Sprintf("the object, being deleted in %v", m["deletionGracePeriodSeconds"])
	}
	if f := m["finalizers"]; f != nil {
		out += fmt.Sprintf(" with %v", f)
	}
	before, _ := meta(made)["generation"].(float64)
	if after, _ := m["generation"].(float64); after != before {
		out += fmt.Sprintf(", generation +%v", after-before)
	}
	if m["resourceVersion"] == versionOf(made) {
		out += ", unchanged"
	}
	return out
}

// remove ends what a delete has left.
func (d deletion) remove(t *testing.T) {
	d.do(t, request{method: http.MethodPatch, path: d.url, body: `{"metadata": {"finalizers": null}}`})
	d.do(t, request{method: http.MethodDelete, path: d.url + "?gracePeriodSeconds=0"})
	d.do(t, request{method: http.MethodPatch, path: d.url, body: `{"metadata": {"finalizers": null}}`})
}
