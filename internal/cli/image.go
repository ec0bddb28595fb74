package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"proa/internal/cluster"
	"proa/internal/images"
)

func newImage() *cobra.Command {
	var dataDir string
	cmd := &cobra.Command{Use: "image", Short: "Load, list and remove the images of this node"}
	cmd.PersistentFlags().StringVar(&dataDir, "data-dir", cluster.DefaultDataDir, "where the cluster keeps everything")
	open := func(use func(*images.Store) error) error {
		layout, err := cluster.NewLayout(dataDir)
		if err != nil {
			return err
		}
		if _, err := os.Stat(layout.ContainerdSock()); err != nil {
			return fmt.Errorf("no node of %s runs on this machine; start it with: proa up", layout.Data)
		}
		store, err := images.Dial("unix://" + layout.ContainerdSock())
		if err != nil {
			return err
		}
		defer store.Close()
		return use(store)
	}
	cmd.AddCommand(newImageLoad(open), newImageList(open), newImageRemove(open))
	return cmd
}

type openStore func(func(*images.Store) error) error

func newImageLoad(open openStore) *cobra.Command {
	return &cobra.Command{
		Use:   "load ARCHIVE...",
		Short: "Load images from OCI or docker-save archives; - reads standard input",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, files []string) error {
			return open(func(store *images.Store) error {
				for _, file := range files {
					names, err := loadFile(cmd.Context(), store, file, cmd.InOrStdin())
					if err != nil {
						return fmt.Errorf("%s: %w", file, err)
					}
					fmt.Fprintf(cmd.OutOrStdout(), "Loaded %s\n", strings.Join(names, ", "))
				}
				return nil
			})
		},
	}
}

func loadFile(ctx context.Context, store *images.Store, file string, stdin io.Reader) ([]string, error) {
	if file == "-" {
		return store.Load(ctx, stdin)
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return store.Load(ctx, f)
}

func newImageList(open openStore) *cobra.Command {
	return &cobra.Command{
		Use:   "ls",
		Short: "List the images of this node",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return open(func(store *images.Store) error {
				list, err := store.List(cmd.Context())
				if err != nil {
					return err
				}
				w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 3, ' ', 0)
				fmt.Fprintln(w, "NAME\tID\tSIZE")
				for _, image := range list {
					for _, name := range image.Names {
						fmt.Fprintf(w, "%s\t%s\t%s\n", name, shortID(image.ID), units.HumanSize(float64(image.Size)))
					}
				}
				return w.Flush()
			})
		},
	}
}

func shortID(id string) string {
	id = strings.TrimPrefix(id, "sha256:")
	return id[:min(len(id), 12)]
}

func newImageRemove(open openStore) *cobra.Command {
	return &cobra.Command{
		Use:   "rm NAME...",
		Short: "Remove images from this node",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, names []string) error {
			return open(func(store *images.Store) error {
				for _, name := range names {
					if err := store.Remove(cmd.Context(), name); err != nil {
						return err
					}
					fmt.Fprintf(cmd.OutOrStdout(), "Removed %s\n", name)
				}
				return nil
			})
		},
	}
}
