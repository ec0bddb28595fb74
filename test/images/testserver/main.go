// Command testserver is the container that end-to-end tests run: one static program that
// serves, fails, waits, eats memory and asks, as its first argument says.
//
//	serve    HTTP on :8080, TCP echo on :9000, UDP echo on :9001, gRPC health on :9090;
//	         each address has a flag, and an empty one leaves it out
//	exit     end with -code after -after, having printed -message to the termination log
//	sleep    wait for SIGTERM, then for -linger
//	memory   allocate -mib and hold it
//	cpu      use -cores until SIGTERM
//	get      fetch a URL, trying again until -timeout; print the body
//	dial     send -say to a tcp or udp address and print the answer
//	lookup   print the addresses (or -type SRV, TXT, CNAME, PTR) of a name
//	write    write the second argument into the file the first names, making directories
//	read     print a file
//	webhook  admission webhooks over TLS on :8443, with -cert and -key
//	setuid   copy this program to a path, owned by its user and set-uid
//	uid      print the effective user
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// command is a subcommand: it gets the arguments after its name and a context that SIGTERM ends.
type command func(ctx context.Context, args []string) error

var commands = map[string]command{
	"serve":   serve,
	"exit":    exit,
	"sleep":   sleep,
	"memory":  memory,
	"cpu":     cpu,
	"get":     get,
	"dial":    dial,
	"lookup":  lookup,
	"write":   write,
	"webhook": webhook,
	"read":    read,
	"setuid":  setuid,
	"uid":     uid,
}

func main() {
	name, args := "serve", []string(nil)
	if len(os.Args) > 1 {
		name, args = os.Args[1], os.Args[2:]
	}
	run, ok := commands[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "testserver: no command %q\n", name)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, args); err != nil {
		fmt.Fprintln(os.Stderr, "testserver:", err)
		os.Exit(1)
	}
}
