package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

func exit(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("exit", flag.ContinueOnError)
	code := flags.Int("code", 0, "exit code")
	after := flags.Duration("after", 0, "time to wait before")
	message := flags.String("message", "", "text for the termination log")
	logPath := flags.String("log", "/dev/termination-log", "path of the termination log")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *message != "" {
		if err := os.WriteFile(*logPath, []byte(*message), 0o644); err != nil {
			return err
		}
		fmt.Println(*message)
	}
	if wait(ctx, *after) != nil {
		return nil
	}
	os.Exit(*code)
	return nil
}

func sleep(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("sleep", flag.ContinueOnError)
	linger := flags.Duration("linger", 0, "time to wait after SIGTERM")
	if err := flags.Parse(args); err != nil {
		return err
	}
	<-ctx.Done()
	return wait(context.Background(), *linger)
}

const mebibyte = 1 << 20

// block returns a mebibyte whose pages are all in memory.
func block() []byte {
	b := make([]byte, mebibyte)
	for i := 0; i < len(b); i += os.Getpagesize() {
		b[i] = 1
	}
	return b
}

func memory(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("memory", flag.ContinueOnError)
	mib := flags.Int("mib", 64, "mebibytes to hold")
	if err := flags.Parse(args); err != nil {
		return err
	}
	held := make([][]byte, 0, *mib)
	for range *mib {
		held = append(held, block())
	}
	fmt.Printf("holding %d MiB\n", len(held))
	<-ctx.Done()
	fmt.Printf("held %d MiB\n", len(held)) // and so they stayed reachable
	return nil
}

func cpu(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("cpu", flag.ContinueOnError)
	cores := flags.Int("cores", 1, "cores to use")
	if err := flags.Parse(args); err != nil {
		return err
	}
	for range *cores {
		go func() {
			for ctx.Err() == nil { //nolint:revive // using the core is the purpose
			}
		}()
	}
	<-ctx.Done()
	return nil
}

func write(_ context.Context, args []string) error {
	if len(args) != 2 {
		return errors.New("usage: write PATH TEXT")
	}
	return writeFile(args[0], []byte(args[1]))
}

func writeFile(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, content, 0o644)
}

func read(_ context.Context, args []string) error {
	if len(args) != 1 {
		return errors.New("usage: read PATH")
	}
	content, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(content)
	return err
}

func setuid(_ context.Context, args []string) error {
	if len(args) != 1 {
		return errors.New("usage: setuid PATH")
	}
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	if err := os.WriteFile(args[0], program, 0o755); err != nil {
		return err
	}
	return os.Chmod(args[0], 0o755|os.ModeSetuid)
}

func uid(context.Context, []string) error {
	_, err := fmt.Println(os.Geteuid())
	return err
}

func wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
