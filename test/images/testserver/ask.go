package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"
)

func get(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("get", flag.ContinueOnError)
	timeout := flags.Duration("timeout", 10*time.Second, "time to go on trying")
	each := flags.Duration("each", 2*time.Second, "time one attempt may take")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		return errors.New("usage: get [flags] URL")
	}
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	client := http.Client{Timeout: *each}
	for {
		err := getOnce(ctx, &client, flags.Arg(0))
		if err == nil {
			return nil
		}
		if wait(ctx, 100*time.Millisecond) != nil {
			return err
		}
	}
}

func getOnce(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	reply, err := client.Do(request)
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	if reply.StatusCode >= 400 {
		return errors.New(reply.Status)
	}
	_, err = io.Copy(os.Stdout, reply.Body)
	return err
}

func dial(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("dial", flag.ContinueOnError)
	network := flags.String("network", "tcp", "tcp or udp")
	text := flags.String("say", "hello", "what to send")
	timeout := flags.Duration("timeout", 3*time.Second, "time for all of it")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		return errors.New("usage: dial [flags] HOST:PORT")
	}
	answer, err := say(ctx, *network, flags.Arg(0), *text, *timeout)
	fmt.Print(answer)
	return err
}

// say sends text and returns as many bytes of the answer.
func say(ctx context.Context, network, address, text string, timeout time.Duration) (string, error) {
	if network == "" {
		network = "tcp"
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, text); err != nil {
		return "", err
	}
	buffer := make([]byte, 64<<10)
	if strings.HasPrefix(network, "udp") {
		n, err := conn.Read(buffer)
		return string(buffer[:n]), err
	}
	n, err := io.ReadFull(conn, buffer[:min(len(text), len(buffer))])
	return string(buffer[:n]), err
}

func lookup(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("lookup", flag.ContinueOnError)
	kind := flags.String("type", "", "SRV, TXT, CNAME or PTR; addresses by default")
	timeout := flags.Duration("timeout", 5*time.Second, "time for the answer")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		return errors.New("usage: lookup [flags] NAME")
	}
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	lines, err := resolve(ctx, *kind, flags.Arg(0))
	for _, line := range lines {
		fmt.Println(line)
	}
	return err
}

// resolve asks DNS as /etc/resolv.conf says and returns the answers sorted.
func resolve(ctx context.Context, kind, name string) (lines []string, err error) {
	resolver := &net.Resolver{PreferGo: true}
	switch strings.ToUpper(kind) {
	case "", "A", "AAAA":
		lines, err = resolver.LookupHost(ctx, name)
	case "TXT":
		lines, err = resolver.LookupTXT(ctx, name)
	case "PTR":
		lines, err = resolver.LookupAddr(ctx, name)
	case "CNAME":
		var target string
		target, err = resolver.LookupCNAME(ctx, name)
		lines = []string{target}
	case "SRV":
		var records []*net.SRV
		_, records, err = resolver.LookupSRV(ctx, "", "", name)
		for _, r := range records {
			lines = append(lines, fmt.Sprintf("%d %d %d %s", r.Priority, r.Weight, r.Port, r.Target))
		}
	default:
		return nil, fmt.Errorf("no record type %q", kind)
	}
	slices.Sort(lines)
	return lines, err
}
