package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
)

// envtestBinaries are what controller-runtime's envtest looks for in a directory.
var envtestBinaries = []string{"etcd", "kube-apiserver", "kubectl"}

func newEnvtest() *cobra.Command {
	return &cobra.Command{
		Use:   "envtest DIR",
		Short: "Write kube-apiserver, etcd and kubectl for controller-runtime's envtest",
		Long: `Write kube-apiserver, etcd and kubectl for controller-runtime's envtest.

They are this program under other names: hard links where DIR is on the same
file system, copies elsewhere. Point a test suite at them with
KUBEBUILDER_ASSETS=DIR.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := filepath.Abs(args[0])
			if err != nil {
				return err
			}
			if err := writeEnvtest(dir); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "export KUBEBUILDER_ASSETS=%s\n", dir)
			return nil
		},
	}
}

func writeEnvtest(dir string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, name := range envtestBinaries {
		if err := place(self, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// place puts a program at a path, whole or not at all.
func place(program, path string) error {
	fresh := path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if os.Link(program, fresh) != nil {
		if err := copyProgram(program, fresh); err != nil {
			return err
		}
	}
	if err := os.Rename(fresh, path); err != nil {
		return err
	}
	if err := os.Remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err // it stays where both were the same file already
	}
	return nil
}

func copyProgram(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
