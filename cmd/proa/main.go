// Command proa is Kubernetes as one program.
package main

import (
	"os"

	"proa/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args)) }
