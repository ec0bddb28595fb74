// Command gen writes ../markers.txt from the source of the API modules that
// go.mod names.
package main

import (
	"fmt"
	"os"

	"proa/internal/apis/marker/extract"
)

func main() {
	table, err := extract.Modules()
	if err == nil {
		err = os.WriteFile("markers.txt", []byte(table), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
