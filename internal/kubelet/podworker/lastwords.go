package podworker

import (
	"bytes"
	"io"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"proa/internal/kubelet/cri"
)

// Bounds of a termination message, in bytes: of one container, of all
// containers of a pod together, and of what is taken from the log.
const (
	maxMessage    = 4096
	maxPodMessage = 12 << 10
	maxLogMessage = 2048
	maxLogLines   = 80
)

// lastWords is a container's termination message: the file it wrote, or the end
// of its log if it failed, wrote none and asked for that.
func lastWords(c *cri.Container, pod *corev1.Pod) string {
	limit := maxMessage
	if n := len(pod.Spec.Containers) + len(pod.Spec.InitContainers); n > 0 {
		limit = min(limit, maxPodMessage/n)
	}
	msg := messageFile(c, limit)
	if msg == "" && c.MessagePolicy == corev1.TerminationMessageFallbackToLogsOnError && c.ExitCode != 0 {
		msg = logEnd(c.LogPath)
		msg = msg[:min(len(msg), limit)]
	}
	return strings.ToValidUTF8(msg, "\uFFFD")
}

func messageFile(c *cri.Container, limit int) string {
	for _, m := range c.Mounts {
		if m.ContainerPath == c.MessagePath && m.HostPath != "" {
			return head(m.HostPath, limit)
		}
	}
	return ""
}

// head reads the start of a regular file. The container can write the file but
// not replace it, because it is a mount of its own.
func head(path string, limit int) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, int64(limit)))
	if err != nil {
		return ""
	}
	return string(b)
}

// logEnd is the end of a CRI log file without its line headers: at most
// maxLogLines lines and maxLogMessage bytes.
func logEnd(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	const window = 4 * maxLogMessage
	if size, err := f.Seek(0, io.SeekEnd); err != nil || size == 0 {
		return ""
	} else if _, err := f.Seek(max(size-window, 0), io.SeekStart); err != nil {
		return ""
	}
	b, err := io.ReadAll(io.LimitReader(f, window))
	if err != nil {
		return ""
	}
	lines := bytes.Split(bytes.TrimSuffix(b, []byte("\n")), []byte("\n"))
	lines = lines[max(0, len(lines)-maxLogLines):]
	var out strings.Builder
	for _, l := range lines {
		// <time> <stream> <tag> <content>; a line cut at the window's start has
		// too few fields or no valid tag and is left out.
		f := bytes.SplitN(l, []byte(" "), 4)
		if len(f) < 4 || (string(f[2]) != "F" && string(f[2]) != "P") {
			continue
		}
		out.Write(f[3])
		if string(f[2]) == "F" {
			out.WriteByte('\n')
		}
	}
	s := out.String()
	return s[max(0, len(s)-maxLogMessage):]
}
