package cli

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"proa/internal/client"
	"proa/internal/cluster"
	"proa/internal/cluster/join"
)

func newToken() *cobra.Command {
	var dataDir string
	cmd := &cobra.Command{Use: "token", Short: "Make, list and take back the tokens that nodes join with"}
	cmd.PersistentFlags().StringVar(&dataDir, "data-dir", cluster.DefaultDataDir, "where the cluster keeps everything")
	open := func() (cluster.Layout, client.API, error) {
		layout, err := cluster.NewLayout(dataDir)
		if err != nil {
			return layout, nil, err
		}
		api, err := cluster.Admin(layout)
		return layout, api, err
	}
	cmd.AddCommand(newTokenCreate(open), newTokenList(open), newTokenDelete(open))
	return cmd
}

type openCluster func() (cluster.Layout, client.API, error)

// newGrant is a token for joining nodes, a new one if text is empty.
func newGrant(text string, ttl time.Duration) (join.Grant, error) {
	g := join.Grant{Usages: []string{join.UsageSigning, join.UsageAuthentication}, Groups: []string{join.DefaultGroup}}
	var err error
	if text == "" {
		g.Token, err = join.Generate()
	} else {
		g.Token, err = join.Parse(text)
	}
	if ttl < 0 {
		return g, fmt.Errorf("a token cannot live for %s", ttl)
	}
	if ttl > 0 {
		g.Expires = time.Now().Add(ttl)
	}
	return g, err
}

func newTokenCreate(open openCluster) *cobra.Command {
	var ttl time.Duration
	var usages, groups []string
	var description string
	var printJoin bool
	cmd := &cobra.Command{
		Use:   "create [TOKEN]",
		Short: "Make a token, TOKEN or a new one, and print it",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			grant, err := newGrant(strings.Join(args, ""), ttl)
			if err != nil {
				return err
			}
			grant.Usages, grant.Groups, grant.Description = usages, groups, description
			if err := grant.Validate(); err != nil {
				return err
			}
			layout, api, err := open()
			if err != nil {
				return err
			}
			if err := join.CreateToken(cmd.Context(), api, grant); err != nil {
				return err
			}
			line := grant.Token.String()
			if printJoin {
				if line, err = cluster.JoinCommand(layout, grant.Token); err != nil {
					return err
				}
			}
			fmt.Fprintln(cmd.OutOrStdout(), line)
			return nil
		},
	}
	flags := cmd.Flags()
	flags.DurationVar(&ttl, "ttl", join.DefaultTTL, "how long the token lives; 0: for ever")
	flags.StringSliceVar(&usages, "usages", []string{join.UsageSigning, join.UsageAuthentication}, "what the token is good for")
	flags.StringSliceVar(&groups, "groups", []string{join.DefaultGroup}, "groups of those who use the token, below system:bootstrappers:")
	flags.StringVar(&description, "description", "", "who uses the token")
	flags.BoolVar(&printJoin, "print-join-command", false, "print the whole command that a node joins with")
	return cmd
}

func newTokenList(open openCluster) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the tokens",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, api, err := open()
			if err != nil {
				return err
			}
			grants, err := join.ListTokens(cmd.Context(), api)
			if err != nil {
				return err
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 3, ' ', 0)
			fmt.Fprintln(w, "TOKEN\tTTL\tEXPIRES\tUSAGES\tDESCRIPTION\tEXTRA GROUPS")
			for _, g := range grants {
				ttl, expires := "<forever>", "<never>"
				if !g.Expires.IsZero() {
					ttl, expires = duration.ShortHumanDuration(time.Until(g.Expires)), g.Expires.Format(time.RFC3339)
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", g.Token, ttl, expires,
					orNone(strings.Join(g.Usages, ",")), orNone(g.Description), orNone(strings.Join(g.Groups, ",")))
			}
			return w.Flush()
		},
	}
}

func orNone(text string) string {
	if text == "" {
		return "<none>"
	}
	return text
}

func newTokenDelete(open openCluster) *cobra.Command {
	return &cobra.Command{
		Use:   "delete TOKEN...",
		Short: "Take tokens back, named whole or by the part before the point",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, api, err := open()
			if err != nil {
				return err
			}
			for _, text := range args {
				id, err := join.DeleteToken(cmd.Context(), api, text)
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "bootstrap token %q deleted\n", id)
			}
			return nil
		},
	}
}
