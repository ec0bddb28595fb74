package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"proa/internal/apis/explain"
	"proa/internal/explain/walk"
)

func newWhy() *cobra.Command {
	var kubeconfig, kubecontext, namespace, output string
	cmd := &cobra.Command{
		Use:   "why KIND/NAME",
		Short: "Why a pod, or what makes pods, is pending, crashing, not ready or not gone",
		Long: `Why something is pending, crashing, not ready or not gone.

Of a pod the server explains (podexplanations.explain.proa.dev): without a node it
says what every scheduler plugin has against every node, what would have to be
free, and which pods would be preempted. From a deployment, replicaset,
statefulset, daemonset, job, service or persistentvolumeclaim it goes on to the
object that holds it up.`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			kind, name, err := target(args)
			if err != nil {
				return err
			}
			rules := clientcmd.NewDefaultClientConfigLoadingRules()
			rules.ExplicitPath = kubeconfig
			overrides := &clientcmd.ConfigOverrides{CurrentContext: kubecontext}
			overrides.Context.Namespace = namespace
			loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
			config, err := loader.ClientConfig()
			if err != nil {
				return err
			}
			if namespace, _, err = loader.Namespace(); err != nil {
				return err
			}
			return why(cmd.Context(), cmd.OutOrStdout(), config, question{kind, namespace, name, output})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&kubeconfig, "kubeconfig", "", "how the API server is reached (default: as kubectl)")
	flags.StringVar(&kubecontext, "context", "", "context of the kubeconfig")
	flags.StringVarP(&namespace, "namespace", "n", "", "namespace of the object (default: that of the context)")
	flags.StringVarP(&output, "output", "o", "", "json: the whole account")
	return cmd
}

func jsonConfig(config *rest.Config) *rest.Config {
	c := rest.CopyConfig(config)
	c.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	c.Timeout = 30 * time.Second
	return c
}

// question is what somebody wants to know.
type question struct{ kind, namespace, name, output string }

func why(ctx context.Context, out io.Writer, config *rest.Config, q question) error {
	if q.output != "" && q.output != "json" {
		return fmt.Errorf("output is json or nothing, not %q", q.output)
	}
	explanations, err := rest.UnversionedRESTClientFor(jsonConfig(config))
	if err != nil {
		return err
	}
	explained := func(ctx context.Context, namespace, name string) (*explain.PodExplanation, error) {
		result := explanations.Get().AbsPath("/apis", explain.Group, explain.Version, "namespaces", namespace, "podexplanations", name).
			SetHeader("Accept", "application/json").Do(ctx)
		if err := result.Error(); err != nil { // says more than the error of Raw
			return nil, err
		}
		body, err := result.Raw()
		if err != nil {
			return nil, err
		}
		e := &explain.PodExplanation{}
		return e, json.Unmarshal(body, e)
	}
	if isPod(q.kind) && q.output == "json" {
		e, err := explained(ctx, q.namespace, q.name)
		if err != nil {
			return err
		}
		return printJSON(out, e)
	}
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	w := &walk.Walker{API: api, Pod: func(ctx context.Context, namespace, name string) ([]string, error) {
		e, err := explained(ctx, namespace, name)
		if err != nil {
			return nil, err
		}
		return e.Sentences, nil
	}}
	steps, err := w.Walk(ctx, q.kind, q.namespace, q.name)
	if err != nil {
		return err
	}
	if q.output == "json" {
		return printJSON(out, steps)
	}
	for _, s := range steps {
		fmt.Fprintf(out, "%s %s/%s:\n", s.Kind, s.Namespace, s.Name)
		for _, sentence := range s.Sentences {
			fmt.Fprintf(out, "  %s\n", sentence)
		}
	}
	return nil
}

func isPod(kind string) bool { return kind == "pod" || kind == "pods" || kind == "po" }

// target takes KIND/NAME or KIND NAME.
func target(args []string) (kind, name string, err error) {
	kind, name, ok := strings.Cut(args[0], "/")
	if len(args) == 2 {
		if ok {
			return "", "", fmt.Errorf("want KIND/NAME or KIND NAME, not %s %s", args[0], args[1])
		}
		name, ok = args[1], true
	}
	kind = strings.ToLower(kind)
	if ok && name != "" && !strings.Contains(name, "/") && walk.Known(kind) {
		return kind, name, nil
	}
	return "", "", fmt.Errorf("want KIND/NAME, not %s: what can be explained is %s", strings.Join(args, " "), strings.Join(walk.Kinds(), ", "))
}

func printJSON(out io.Writer, v any) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}
