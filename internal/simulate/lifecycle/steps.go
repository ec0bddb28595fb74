package lifecycle

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/Masterminds/sprig/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"proa/internal/simulate/kwok"
)

// Action is one thing that a stage does.
type Action struct {
	Delete bool
	Event  *kwok.Event
	// Patch of the object, if it is set; its As may name another user.
	Patch *Patch
	// Apply is a whole object to be made or changed.
	Apply *Patch
}

// Patch is a change as the API takes it.
type Patch struct {
	Type        types.PatchType
	Data        []byte
	Subresource string
	As          string
}

type step struct {
	action   func(*Subject) (*Action, error)
	describe string
}

// Actions are what the stage does, in order. They are made one by one: a
// template sees the object as it was before the stage.
func (s *Stage) Actions(subject *Subject) ([]*Action, error) {
	var all []*Action
	for _, st := range s.steps {
		a, err := st.action(subject)
		if err != nil {
			return nil, fmt.Errorf("stage %s: %s: %w", s.Name, st.describe, err)
		}
		if a != nil {
			all = append(all, a)
		}
	}
	return all, nil
}

func compileSteps(spec *kwok.StageSpec, c *Config) ([]step, error) {
	list := spec.Steps
	if len(list) == 0 && spec.Next != nil {
		list = stepsOf(spec.Next)
	}
	var out []step
	for i, s := range list {
		compiled, err := compileStep(s, c)
		if err != nil {
			return nil, fmt.Errorf("step %d: %w", i+1, err)
		}
		out = append(out, compiled...)
	}
	return out, nil
}

// stepsOf is Next in the order in which it happens.
func stepsOf(n *kwok.Next) []kwok.Step {
	var list []kwok.Step
	if n.Event != nil {
		list = append(list, kwok.Step{Event: n.Event})
	}
	if n.Finalizers != nil {
		list = append(list, kwok.Step{Finalizers: n.Finalizers})
	}
	for i := range n.Patches {
		list = append(list, kwok.Step{Patch: &n.Patches[i]})
	}
	if len(n.Patches) == 0 && n.StatusTemplate != "" {
		subresource := "status"
		if n.StatusSubresource != nil {
			subresource = *n.StatusSubresource
		}
		list = append(list, kwok.Step{Patch: &kwok.Patch{
			Subresource: subresource, Root: "status", Template: n.StatusTemplate, Impersonation: n.StatusPatchAs,
		}})
	}
	if n.Delete {
		list = append(list, kwok.Step{Delete: true})
	}
	return list
}

func compileStep(s kwok.Step, c *Config) ([]step, error) {
	var out []step
	if s.Event != nil {
		out = append(out, fixed("event", &Action{Event: s.Event}))
	}
	if s.Finalizers != nil {
		out = append(out, step{describe: "finalizers", action: func(subject *Subject) (*Action, error) {
			return changeFinalizers(subject, s.Finalizers)
		}})
	}
	if s.Patch != nil {
		compiled, err := compilePatch(s.Patch, c)
		if err != nil {
			return nil, err
		}
		out = append(out, compiled)
	}
	if s.Apply != nil {
		compiled, err := compileApply(s.Apply, c)
		if err != nil {
			return nil, err
		}
		out = append(out, compiled)
	}
	if s.Delete {
		out = append(out, fixed("delete", &Action{Delete: true}))
	}
	return out, nil
}

func fixed(describe string, a *Action) step {
	return step{describe: describe, action: func(*Subject) (*Action, error) { return a, nil }}
}

// changeFinalizers is a merge patch of the whole list, or nothing.
func changeFinalizers(subject *Subject, f *kwok.Finalizers) (*Action, error) {
	have := subject.Object.GetFinalizers()
	want := slices.Clone(have)
	if f.Empty {
		want = nil
	}
	for _, r := range f.Remove {
		want = slices.DeleteFunc(want, func(name string) bool { return name == r.Value })
	}
	for _, a := range f.Add {
		if !slices.Contains(want, a.Value) {
			want = append(want, a.Value)
		}
	}
	if slices.Equal(have, want) {
		return nil, nil
	}
	data, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"finalizers": want, "resourceVersion": subject.Object.GetResourceVersion(),
	}})
	return &Action{Patch: &Patch{Type: types.MergePatchType, Data: data}}, err
}

var patchTypes = map[string]types.PatchType{
	"json": types.JSONPatchType, "merge": types.MergePatchType, "strategic": types.StrategicMergePatchType, "apply": types.ApplyPatchType,
}

func compilePatch(p *kwok.Patch, c *Config) (step, error) {
	render, err := compileTemplate(p.Template, c)
	if err != nil {
		return step{}, err
	}
	named := types.PatchType("")
	if p.Type != nil && *p.Type != "" {
		if named = patchTypes[*p.Type]; named == "" || named == types.ApplyPatchType {
			return step{}, fmt.Errorf("unknown patch type %s", *p.Type)
		}
	}
	return step{describe: "patch", action: func(s *Subject) (*Action, error) {
		data, err := render(s)
		if err != nil {
			return nil, err
		}
		patch := &Patch{Type: named, Subresource: p.Subresource, As: userOf(p.Impersonation)}
		if named == "" {
			patch.Type = types.MergePatchType
			switch s.Object.(type) {
			case *corev1.Node, *corev1.Pod:
				patch.Type = types.StrategicMergePatchType
			}
		}
		patch.Data, err = below(p.Root, patch.Type, data)
		return &Action{Patch: patch}, err
	}}, nil
}

func compileApply(p *kwok.Apply, c *Config) (step, error) {
	render, err := compileTemplate(p.Template, c)
	if err != nil {
		return step{}, err
	}
	kind := types.ApplyPatchType
	if p.Type != nil && *p.Type != "" {
		if kind = patchTypes[*p.Type]; kind == "" || kind == types.JSONPatchType {
			return step{}, fmt.Errorf("unknown apply type %s", *p.Type)
		}
	}
	return step{describe: "apply", action: func(s *Subject) (*Action, error) {
		data, err := render(s)
		return &Action{Apply: &Patch{Type: kind, Data: data, Subresource: p.Subresource, As: userOf(p.Impersonation)}}, err
	}}, nil
}

func userOf(i *kwok.Impersonation) string {
	if i == nil {
		return ""
	}
	return i.Username
}

// below puts a patch below a field of the object.
func below(root string, kind types.PatchType, data []byte) ([]byte, error) {
	if root == "" {
		return data, nil
	}
	if kind != types.JSONPatchType {
		return json.Marshal(map[string]json.RawMessage{root: data})
	}
	var operations []map[string]any
	if err := json.Unmarshal(data, &operations); err != nil {
		return nil, err
	}
	for _, op := range operations {
		path, _ := op["path"].(string)
		op["path"] = "/" + root + path
	}
	return json.Marshal(operations)
}

// compileTemplate gives the JSON of what a template of YAML renders to.
func compileTemplate(text string, c *Config) (func(*Subject) ([]byte, error), error) {
	t, err := template.New("").Funcs(functions(c)).Parse(strings.TrimSpace(text))
	if err != nil {
		return nil, err
	}
	return func(s *Subject) ([]byte, error) {
		var out bytes.Buffer
		if err := t.Execute(&out, s.JSON()); err != nil {
			return nil, err
		}
		return yaml.YAMLToJSON(out.Bytes())
	}, nil
}

// functions are those of sprig that do not look at this machine, KWOK's own, and
// the simulator's.
func functions(c *Config) template.FuncMap {
	all := template.FuncMap(sprig.TxtFuncMap())
	for _, name := range []string{"env", "expandenv", "getHostByName"} {
		delete(all, name)
	}
	started := c.Now().Format(time.RFC3339Nano)
	all["Quote"] = quote
	all["Now"] = func() string { return c.Now().Format(time.RFC3339Nano) }
	all["StartTime"] = func() string { return started }
	all["YAML"] = toYAML
	all["Version"] = func() string { return Version }
	all["NodeConditions"] = func() any { return nodeConditions }
	maps.Copy(all, c.Functions)
	return all
}

// Version is what simulated nodes say they run.
const Version = "v1.37.0"

func quote(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		return strconv.Quote(fmt.Sprint(v))
	}
	if data[0] == '"' {
		return string(data)
	}
	return strconv.Quote(string(data))
}

func toYAML(v any, indent ...int) (string, error) {
	data, err := yaml.Marshal(v)
	if err != nil || len(indent) == 0 || indent[0] <= 0 {
		return string(data), err
	}
	pad := strings.Repeat(" ", 2*indent[0])
	return strings.ReplaceAll("\n"+string(data), "\n", "\n"+pad), nil
}

// NodeConditions are those of a node on which all is well, without times.
func NodeConditions() []corev1.NodeCondition {
	return []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "kubelet is posting ready status"},
		{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasSufficientMemory", Message: "kubelet has sufficient memory available"},
		{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasNoDiskPressure", Message: "kubelet has no disk pressure"},
		{Type: corev1.NodePIDPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasSufficientPID", Message: "kubelet has sufficient PID available"},
		{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: "RouteCreated", Message: "RouteController created a route"},
	}
}

var nodeConditions = func() []any {
	var list []any
	for _, c := range NodeConditions() {
		list = append(list, map[string]any{
			"type": string(c.Type), "status": string(c.Status), "reason": c.Reason, "message": c.Message,
		})
	}
	return list
}()
