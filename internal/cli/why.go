package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"proa/internal/apis/explain"
)

func newWhy() *cobra.Command {
	var kubeconfig, context, namespace, output string
	cmd := &cobra.Command{
		Use:   "why pod/NAME",
		Short: "Why a pod is pending, crashing, not ready or not gone",
		Long: `Why a pod is pending, crashing, not ready or not gone.

The server explains (podexplanations.explain.proa.dev): of a pod without a node it
says what every scheduler plugin has against every node, what would have to be
free, and which pods would be preempted.`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := podName(args)
			if err != nil {
				return err
			}
			rules := clientcmd.NewDefaultClientConfigLoadingRules()
			rules.ExplicitPath = kubeconfig
			overrides := &clientcmd.ConfigOverrides{CurrentContext: context}
			overrides.Context.Namespace = namespace
			loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
			config, err := loader.ClientConfig()
			if err != nil {
				return err
			}
			if namespace, _, err = loader.Namespace(); err != nil {
				return err
			}
			c, err := rest.UnversionedRESTClientFor(jsonConfig(config))
			if err != nil {
				return err
			}
			body, err := c.Get().AbsPath("/apis", explain.Group, explain.Version, "namespaces", namespace, "podexplanations", name).
				SetHeader("Accept", "application/json").DoRaw(cmd.Context())
			if err != nil {
				return err
			}
			return printExplanation(cmd.OutOrStdout(), body, output)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&kubeconfig, "kubeconfig", "", "how the API server is reached (default: as kubectl)")
	flags.StringVar(&context, "context", "", "context of the kubeconfig")
	flags.StringVarP(&namespace, "namespace", "n", "", "namespace of the pod (default: that of the context)")
	flags.StringVarP(&output, "output", "o", "", "json: the whole account")
	return cmd
}

func jsonConfig(config *rest.Config) *rest.Config {
	c := rest.CopyConfig(config)
	c.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	c.Timeout = 30 * time.Second
	return c
}

// podName takes pod/NAME, pod NAME or pods/NAME.
func podName(args []string) (string, error) {
	kind, name, ok := strings.Cut(args[0], "/")
	if len(args) == 2 {
		if ok {
			return "", fmt.Errorf("want pod/NAME or pod NAME, not %s %s", args[0], args[1])
		}
		name, ok = args[1], true
	}
	switch strings.ToLower(kind) {
	case "pod", "pods", "po":
		if ok && name != "" && !strings.Contains(name, "/") {
			return name, nil
		}
	}
	return "", fmt.Errorf("want pod/NAME, not %s: pods are what can be explained", strings.Join(args, " "))
}

func printExplanation(out io.Writer, body []byte, output string) error {
	var e explain.PodExplanation
	if err := json.Unmarshal(body, &e); err != nil {
		return err
	}
	switch output {
	case "json":
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(&e)
	case "":
		fmt.Fprintf(out, "Pod %s/%s:\n", e.Namespace, e.Name)
		for _, sentence := range e.Sentences {
			fmt.Fprintf(out, "  %s\n", sentence)
		}
		return nil
	}
	return fmt.Errorf("output is json or nothing, not %q", output)
}
