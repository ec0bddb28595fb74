package endpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"

	corev1 "k8s.io/api/core/v1"

	"proa/internal/kubelet/logs"
	"proa/internal/simulate/kwok"
)

// podStreams are the streams of one pod.
type podStreams struct {
	*Endpoint
	pod *corev1.Pod
}

func (e *Endpoint) exec(w http.ResponseWriter, r *http.Request) {
	pod, opts, ok := e.terminal(w, r)
	if !ok {
		return
	}
	remotecommand.ServeExec(w, r, podStreams{e, pod}, pod.Name, string(pod.UID), r.PathValue("container"), r.URL.Query()["command"],
		opts, streamIdle, streamStart, remotecommand.SupportedStreamingProtocols)
}

func (e *Endpoint) attach(w http.ResponseWriter, r *http.Request) {
	pod, opts, ok := e.terminal(w, r)
	if !ok {
		return
	}
	remotecommand.ServeAttach(w, r, podStreams{e, pod}, pod.Name, string(pod.UID), r.PathValue("container"),
		opts, streamIdle, streamStart, remotecommand.SupportedStreamingProtocols)
}

// terminal finds the pod of a request and the streams that it asks for, or answers
// what is wrong with it.
func (e *Endpoint) terminal(w http.ResponseWriter, r *http.Request) (*corev1.Pod, *remotecommand.Options, bool) {
	pod, ok := e.find(w, r)
	if !ok {
		return nil, nil, false
	}
	opts, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return nil, nil, false
	}
	return pod, opts, true
}

func (e *Endpoint) portForward(w http.ResponseWriter, r *http.Request) {
	pod, ok := e.find(w, r)
	if !ok {
		return
	}
	opts, err := portforward.NewV4Options(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	portforward.ServePortForward(w, r, podStreams{e, pod}, pod.Name, string(pod.UID), opts, streamIdle, streamStart, portforward.SupportedProtocols)
}

// ExecInContainer runs a command on this machine, if a document of the operator's
// says so for the container.
func (p podStreams) ExecInContainer(ctx context.Context, _, _, container string, command []string, in io.Reader, out, errs io.WriteCloser, tty bool, _ <-chan remotecommand.TerminalSize, _ time.Duration) error {
	target := told(p.pod, p.c.Documents.Execs, p.c.Documents.ClusterExecs,
		func(s *kwok.ExecSpec) (*kwok.ObjectSelector, []kwok.ExecTarget) { return s.Selector, s.Execs },
		func(t *kwok.ExecTarget) bool { return t.Containers.Take(container) })
	if target == nil || target.Local == nil {
		return fmt.Errorf("container %s of pod %s/%s is simulated, and no Exec document says how commands are answered", container, p.pod.Namespace, p.pod.Name)
	}
	if len(command) == 0 {
		return errors.New("you must specify at least 1 command to execute in container")
	}
	c := exec.CommandContext(ctx, command[0], command[1:]...)
	c.WaitDelay = time.Second
	c.Dir, c.Stdout, c.Stderr = target.Local.WorkDir, out, errs
	if tty {
		c.Stderr = out
	}
	if in != nil {
		stdin, err := c.StdinPipe() // not c.Stdin: the command's end is the end, whether or not more input comes
		if err != nil {
			return err
		}
		go func() {
			defer stdin.Close()
			_, _ = io.Copy(stdin, in) // ends with the client's stream, which is closed with this call
		}()
	}
	c.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	for _, env := range target.Local.Envs {
		c.Env = append(c.Env, env.Name+"="+env.Value)
	}
	if as := target.Local.SecurityContext; as != nil {
		c.SysProcAttr = &syscall.SysProcAttr{Credential: credential(as)}
	}
	err := c.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return utilexec.CodeExitError{Err: err, Code: exit.ExitCode()}
	}
	return err
}

func credential(as *kwok.SecurityContext) *syscall.Credential {
	c := &syscall.Credential{Uid: uint32(syscall.Getuid()), Gid: uint32(syscall.Getgid())}
	if as.RunAsUser != nil {
		c.Uid = uint32(*as.RunAsUser)
	}
	if as.RunAsGroup != nil {
		c.Gid = uint32(*as.RunAsGroup)
	}
	return c
}

// AttachContainer shows a log as it grows.
func (p podStreams) AttachContainer(ctx context.Context, _, _, container string, _ io.Reader, out, _ io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize) error {
	a := told(p.pod, p.c.Documents.Attaches, p.c.Documents.ClusterAttach,
		func(s *kwok.AttachSpec) (*kwok.ObjectSelector, []kwok.Attach) { return s.Selector, s.Attaches },
		func(a *kwok.Attach) bool { return a.Containers.Take(container) })
	if a == nil || a.LogsFile == nil {
		return fmt.Errorf("container %s of pod %s/%s is simulated, and no Attach document says what it shows", container, p.pod.Namespace, p.pod.Name)
	}
	return p.logs.Read(ctx, logs.Request{
		Path: *a.LogsFile, Options: logs.Options{Follow: true}, Running: func(context.Context) (bool, error) { return true, nil },
	}, out)
}

// PortForward connects a port with what a document says is behind it.
func (p podStreams) PortForward(ctx context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	f := told(p.pod, p.c.Documents.PortForwards, p.c.Documents.ClusterPorts,
		func(s *kwok.PortForwardSpec) (*kwok.ObjectSelector, []kwok.Forward) { return s.Selector, s.Forwards },
		func(f *kwok.Forward) bool { return len(f.Ports) == 0 || slices.Contains(f.Ports, port) })
	switch {
	case f != nil && len(f.Command) > 0:
		c := exec.CommandContext(ctx, f.Command[0], f.Command[1:]...)
		c.Stdin, c.Stdout, c.WaitDelay = stream, stream, time.Second
		return c.Run()
	case f != nil && f.Target != nil:
		return connect(ctx, net.JoinHostPort(f.Target.Address, strconv.Itoa(int(f.Target.Port))), stream)
	}
	return fmt.Errorf("pod %s/%s is simulated, and no PortForward document says what is behind port %d", p.pod.Namespace, p.pod.Name, port)
}

func connect(ctx context.Context, address string, stream io.ReadWriteCloser) error {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	done := make(chan error, 2)
	go func() {
		_, err := io.Copy(conn, stream)
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.CloseWrite() // the other direction goes on
		}
		done <- err
	}()
	go func() {
		_, err := io.Copy(stream, conn)
		stream.Close() // ends the copy the other way
		done <- err
	}()
	return errors.Join(<-done, <-done)
}
